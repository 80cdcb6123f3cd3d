//! `xtask/layers.txt`: which room may import from which, and the imports that are not gone yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use super::graph::Edge;

/// The table, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerTable {
    /// How many rooms the largest cycle has.
    pub(super) cycle: usize,
    /// The largest share of all lines that a room may have, in percent.
    pub(super) share: f64,
    /// From top to bottom.
    pub(super) rows: Vec<Row>,
    pub(super) leaves: Vec<Leaf>,
    /// Edges against the table that are still there, and how many imports each has.
    pub(super) ratchet: BTreeMap<Edge, usize>,
    /// The text before the list of these edges, and its settings' place.
    head: String,
}

/// Rooms that import from the rows below, not from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) rooms: Vec<String>,
    pub(super) about: String,
}

/// A room that imports from some other leaves only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) room: String,
    pub(super) uses: Vec<String>,
    pub(super) about: String,
}

const RATCHET: &str = "[ratchet]";

impl LayerTable {
    /// Reads the file's text.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut table = Self::default();
        let mut section = "";
        for (number, line) in text.lines().enumerate() {
            if section != RATCHET {
                table.head += line;
                table.head += "\n";
            }
            let line = line.trim();
            if line.starts_with('[') {
                section = line;
            } else if !line.is_empty() && !line.starts_with('#') {
                table.line(section, line).with_context(|| format!("line {}: {line}", number + 1))?;
            }
        }
        ensure!(section == RATCHET, "the last section must be {RATCHET}");
        table.check()?;
        Ok(table)
    }

    fn line(&mut self, section: &str, line: &str) -> Result<()> {
        match section {
            "[settings]" => self.setting(line),
            "[rows]" => {
                let [name, rooms, about] = columns(line)?;
                self.rows.push(Row { name: name.to_owned(), rooms: words(rooms), about: about.to_owned() });
                Ok(())
            }
            "[leaves]" => {
                let [room, uses, about] = columns(line)?;
                self.leaves.push(Leaf { room: room.to_owned(), uses: words(uses), about: about.to_owned() });
                Ok(())
            }
            RATCHET => {
                let [from, arrow, to, count] =
                    words(line).try_into().ok().context("it must be `from -> to count`")?;
                ensure!(arrow == "->", "it must be `from -> to count`");
                let count = count.parse().context("the count is no number")?;
                ensure!(self.ratchet.insert((from, to), count).is_none(), "it is listed twice");
                Ok(())
            }
            _ => bail!("it is in no section"),
        }
    }

    fn setting(&mut self, line: &str) -> Result<()> {
        let (name, value) = line.split_once('=').context("it must be `name = value`")?;
        let value = value.trim();
        match name.trim() {
            "cycle" => self.cycle = value.parse().context("it must be a number of rooms")?,
            "share" => self.share = value.parse().context("it must be a number of percent")?,
            other => bail!("there is no setting `{other}`"),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let mut seen = BTreeSet::new();
        let leaves = self.leaves.iter().map(|leaf| &leaf.room);
        for room in self.rows.iter().flat_map(|row| &row.rooms).chain(leaves) {
            ensure!(seen.insert(room), "`{room}` is in the table twice");
        }
        for (at, leaf) in self.leaves.iter().enumerate() {
            for used in &leaf.uses {
                let is_before = self.leaves[..at].iter().any(|other| other.room == *used);
                ensure!(
                    is_before,
                    "the leaf `{}` may use only leaves before it, and `{used}` is none",
                    leaf.room
                );
            }
        }
        Ok(())
    }

    /// Whether the table has the room.
    pub(super) fn knows(&self, room: &str) -> bool {
        self.row(room).is_some() || self.leaf(room).is_some()
    }

    /// Whether `from` may import from `to`.
    pub(super) fn allows(&self, (from, to): &Edge) -> bool {
        match (self.row(from), self.leaf(from)) {
            (Some(own), _) => self.leaf(to).is_some() || self.row(to).is_some_and(|row| row > own),
            (None, Some(leaf)) => leaf.uses.contains(to),
            (None, None) => false,
        }
    }

    fn row(&self, room: &str) -> Option<usize> {
        self.rows.iter().position(|row| row.rooms.iter().any(|other| other == room))
    }

    fn leaf(&self, room: &str) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.room == room)
    }

    /// The file's text with this list of edges and this cycle.
    pub(super) fn render(&self) -> String {
        let is_cycle = |line: &str| line.split('=').next().is_some_and(|name| name.trim() == "cycle");
        let mut text = String::new();
        for line in self.head.lines() {
            if is_cycle(line) {
                _ = writeln!(text, "cycle = {}", self.cycle);
            } else {
                text += line;
                text += "\n";
            }
        }
        for ((from, to), count) in &self.ratchet {
            _ = writeln!(text, "{from} -> {to} {count}");
        }
        text
    }
}

fn columns(line: &str) -> Result<[&str; 3]> {
    let columns: Vec<_> = line.split('|').map(str::trim).collect();
    columns.try_into().ok().context("it must have three columns")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().filter(|word| *word != "-").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Why.\n[settings]\ncycle = 2\nshare = 20\n[rows]\ntop | a b | above\nlow | c | below\n\
        [leaves]\nd | - | leaf\ne | d | leaf\n[ratchet]\nc -> a 3\n";

    fn edge(from: &str, to: &str) -> Edge {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn a_row_imports_from_the_rows_below_and_from_leaves() {
        let table = LayerTable::parse(TEXT).expect("a table");
        let allowed = |from, to| table.allows(&edge(from, to));
        assert!(allowed("a", "c") && allowed("a", "d") && allowed("c", "e") && allowed("e", "d"));
        assert!(!allowed("c", "a") && !allowed("a", "b") && !allowed("d", "e") && !allowed("d", "c"));
        assert!(!allowed("x", "d") && !allowed("a", "x"));
    }

    #[test]
    fn it_is_written_as_it_was_read() {
        let mut table = LayerTable::parse(TEXT).expect("a table");
        assert_eq!(table.render(), TEXT);
        table.cycle = 1;
        table.ratchet = BTreeMap::from([(edge("d", "a"), 1)]);
        assert_eq!(table.render(), TEXT.replace("cycle = 2", "cycle = 1").replace("c -> a 3", "d -> a 1"));
    }

    #[test]
    fn mistakes_in_the_table_are_named() {
        let error =
            |old, new| format!("{:#}", LayerTable::parse(&TEXT.replace(old, new)).expect_err("wrong"));
        assert!(error("low | c |", "low | a |").contains("`a` is in the table twice"));
        assert!(error("d | - |", "d | e |").contains("only leaves before it"));
        assert!(error("c -> a 3", "c -> a").contains("line 12: c -> a: it must be `from -> to count`"));
        assert!(error("share = 20", "shar = 20").contains("no setting `shar`"));
        assert!(error("[ratchet]\nc -> a 3\n", "").contains("the last section must be [ratchet]"));
    }
}
