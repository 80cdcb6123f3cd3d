//! `symmem config`: every setting of the library.

use anyhow::Result;
use serde_json::{Value, json};
use symmem::{Config, ConfigRow};

use crate::args::ConfigArgs;
use crate::screen;

/// Prints the settings that a program started here would have.
pub(crate) fn run(args: &ConfigArgs) -> Result<()> {
    let rows = Config::from_env()?.rows();
    if args.json {
        return screen::print_json(&rows.iter().map(as_json).collect::<Vec<_>>());
    }
    let mut table = screen::table(&["setting", "value", "origin", "meaning"]);
    for row in rows {
        table.add_row([row.variable, &row.value, &row.origin.to_string(), row.meaning]);
    }
    screen::print(table.to_string())
}

fn as_json(row: &ConfigRow) -> Value {
    json!({"setting": row.variable, "value": row.value, "origin": row.origin.to_string(), "meaning": row.meaning})
}
