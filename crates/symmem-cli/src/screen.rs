//! What people see: tables that fit their terminal, colours only on one, and JSON for programs.
//!
//! Every command prints through this, to stdout unless said otherwise. Colours are off where the output is no
//! terminal, and as `NO_COLOR` and `CLICOLOR_FORCE` say.

use std::io::Write;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use console::{Style, Term};
use serde::Serialize;

/// How wide tables are where nobody says how wide the screen is.
const WIDTH: usize = 100;

/// Prints `text` and a new line.
pub(crate) fn print(text: impl AsRef<str>) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", text.as_ref())?)
}

/// Prints `value` as JSON for programs.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(serde_json::to_string_pretty(value)?)
}

/// The columns of the terminal that stdout is, or as many as fit every one.
pub(crate) fn width() -> usize {
    Term::stdout().size_checked().map_or(WIDTH, |(_, columns)| columns.into())
}

/// An empty table with this header, no wider than the screen.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width().min(u16::MAX.into()) as u16).set_header(header);
    table
}

/// What a word is to who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
    /// Of less interest than the rest.
    Quiet,
    Strong,
}

/// `text`, in the colour of `tone` where stdout has colours.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    style(tone).apply_to(text).to_string()
}

/// The style of `tone`, for stdout.
pub(crate) fn style(tone: Tone) -> Style {
    match tone {
        Tone::Good => Style::new().green(),
        Tone::Doubtful => Style::new().yellow(),
        Tone::Bad => Style::new().red().bold(),
        Tone::Quiet => Style::new().dim(),
        Tone::Strong => Style::new().bold(),
    }
}
