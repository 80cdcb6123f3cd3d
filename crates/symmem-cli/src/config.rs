//! `symmem config`: every setting of the library.

use std::io::Write;

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::json;
use symmem::{Config, ConfigRow};

use crate::args::ConfigArgs;

/// Prints the settings that a program started here would have.
pub(crate) fn run(args: &ConfigArgs) -> Result<()> {
    let rows = Config::from_env()?.rows();
    let text = if args.json { as_json(&rows)? } else { as_table(&rows) };
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn as_json(rows: &[ConfigRow]) -> Result<String> {
    let setting = |row: &ConfigRow| json!({"setting": row.variable, "value": row.value, "origin": row.origin.to_string(), "meaning": row.meaning});
    Ok(serde_json::to_string_pretty(&rows.iter().map(setting).collect::<Vec<_>>())?)
}

fn as_table(rows: &[ConfigRow]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(["setting", "value", "origin", "meaning"]);
    for row in rows {
        table.add_row([row.variable, &row.value, &row.origin.to_string(), row.meaning]);
    }
    table.to_string()
}
