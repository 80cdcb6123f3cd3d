//! What a comparison found: a table for people, JSON for programs.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::count::Counted;
use super::judge::{Judged, Verdict};

/// Everything that was found.
#[derive(Default)]
pub(super) struct Report {
    /// Names of the builds.
    pub(super) old: String,
    pub(super) new: String,
    pub(super) turns: usize,
    pub(super) rows: Vec<(String, Judged)>,
    pub(super) counts: Vec<Counted>,
    /// What was left out, and why.
    pub(super) notes: Vec<String>,
}

impl Report {
    /// Names of rows and counts that got worse.
    pub(super) fn slower(&self) -> Vec<String> {
        let rows = self.rows.iter().filter(|(_, row)| row.verdict == Verdict::Slower);
        let counts = self.counts.iter().filter(|count| count.verdict() == Verdict::Slower);
        let counts = counts.map(|count| format!("instructions of {}", count.name));
        rows.map(|(name, _)| name.clone()).chain(counts).collect()
    }

    /// At most 79 columns, as long as the names of rows are no longer than those of the probe.
    pub(super) fn table(&self) -> String {
        let mut text = format!("old is {}, new is {}\n", self.old, self.new);
        if !self.rows.is_empty() {
            let width = width(self.rows.iter().map(|(name, _)| name.as_str()));
            let turns = format!("{} turns, us", self.turns);
            let _ = writeln!(
                text,
                "\n{turns:<width$} {:>8} {:>8} {:>8}  {:<13} verdict",
                "old", "new", "new/old", "old/old"
            );
            for (name, row) in &self.rows {
                let spread = format!("{:.3}..{:.3}", row.spread.0, row.spread.1);
                let verdict = self::verdict(row.verdict);
                let _ = writeln!(
                    text,
                    "{name:<width$} {:>8} {:>8} {:>8.3}  {spread:<13} {verdict}",
                    us(row.old),
                    us(row.new),
                    row.ratio
                );
            }
        }
        if !self.counts.is_empty() {
            let width = width(self.counts.iter().map(|count| count.name.as_str()));
            let _ = writeln!(
                text,
                "\n{:<width$} {:>9} {:>9} {:>8}  verdict",
                "instructions", "old", "new", "new/old"
            );
            for count in &self.counts {
                let (old, new, ratio) = (count.old, count.new, count.ratio());
                let verdict = counted(count.verdict());
                let _ =
                    writeln!(text, "{:<width$} {old:>9.1} {new:>9.1} {ratio:>8.4}  {verdict}", count.name);
            }
        }
        self.notes.iter().for_each(|note| {
            let _ = writeln!(text, "\nskipped: {note}");
        });
        text
    }

    /// Prints the table; writes the JSON to a file, or to stdout if that is "-", with the table on stderr.
    pub(super) fn print(&self, json: Option<&Path>) -> Result<()> {
        let Some(path) = json else {
            print!("{}", self.table());
            return Ok(());
        };
        let text = format!("{:#}\n", self.json());
        if path == Path::new("-") {
            eprint!("{}", self.table());
            print!("{text}");
            return Ok(());
        }
        print!("{}", self.table());
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    fn json(&self) -> Value {
        let row = |(name, row): &(String, Judged)| {
            json!({"row": name, "old_us": row.old, "new_us": row.new, "ratio": row.ratio,
                "spread": [row.spread.0, row.spread.1], "verdict": verdict(row.verdict)})
        };
        let count = |count: &Counted| {
            json!({"row": count.name, "old": count.old, "new": count.new, "ratio": count.ratio(),
                "verdict": counted(count.verdict())})
        };
        json!({"old": self.old, "new": self.new, "turns": self.turns,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "instructions": self.counts.iter().map(count).collect::<Vec<_>>(), "skipped": self.notes})
    }
}

fn width<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.map(str::len).max().unwrap_or_default().max(12)
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Close => "within 3 %",
        Verdict::Slower => "SLOWER",
        Verdict::Faster => "faster",
    }
}

fn counted(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same | Verdict::Close => "within 2 %",
        Verdict::Slower => "MORE",
        Verdict::Faster => "fewer",
    }
}

fn us(us: f64) -> String {
    if us >= 1000.0 { format!("{us:.0}") } else { format!("{us:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let judged =
            |ratio, verdict| Judged { old: 0.25, new: 0.25 * ratio, ratio, spread: (0.98, 1.02), verdict };
        Report {
            old: "3c0e021".to_owned(),
            new: "worktree".to_owned(),
            turns: 20,
            rows: vec![
                ("barrier symmetric x2".to_owned(), judged(1.0, Verdict::Same)),
                ("all_reduce symmetric 64K x2".to_owned(), judged(1.25, Verdict::Slower)),
            ],
            counts: vec![Counted { name: "barrier symmetric".to_owned(), old: 100.0, new: 110.0 }],
            notes: vec!["nothing".to_owned()],
        }
    }

    #[test]
    fn the_table_fits_a_terminal_and_says_what_got_slower() {
        let text = report().table();
        assert!(text.lines().all(|line| line.len() <= 79), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("all_reduce symmetric 64K") && line.ends_with("SLOWER")),
            "{text}"
        );
        assert!(text.contains("skipped: nothing"), "{text}");
    }

    #[test]
    fn what_got_slower_is_listed_with_counts() {
        assert_eq!(report().slower(), ["all_reduce symmetric 64K x2", "instructions of barrier symmetric"]);
    }

    #[test]
    fn the_json_has_every_row() {
        let json = report().json();
        assert_eq!(json["rows"][1]["ratio"], 1.25);
        assert_eq!(json["rows"][1]["verdict"], "SLOWER");
        assert_eq!(json["instructions"][0]["verdict"], "MORE");
        assert_eq!(json["old"], "3c0e021");
    }
}
