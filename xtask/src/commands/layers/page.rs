//! The table as ARCHITECTURE.md shows it: the rooms that are there.

use std::fmt::Write as _;

use super::graph::Graph;
use super::table::LayerTable;

/// The block of the page.
pub(super) fn render(graph: &Graph, table: &LayerTable) -> String {
    let there = |rooms: &[String]| -> String {
        let names = rooms.iter().filter(|room| graph.rooms.contains(*room));
        names.map(|room| format!("`{room}`")).collect::<Vec<_>>().join(" ")
    };
    let mut text = "| layer | rooms | what they are |\n|---|---|---|\n".to_owned();
    for row in &table.rows {
        let rooms = there(&row.rooms);
        if !rooms.is_empty() {
            _ = writeln!(text, "| {} | {rooms} | {} |", row.name, row.about);
        }
    }
    text += "\n| leaf | may use | what it is |\n|---|---|---|\n";
    for leaf in table.leaves.iter().filter(|leaf| graph.rooms.contains(&leaf.room)) {
        _ = writeln!(text, "| `{}` | {} | {} |", leaf.room, there(&leaf.uses), leaf.about);
    }
    let imports: usize = table.ratchet.values().sum();
    _ = match table.ratchet.len() {
        0 => writeln!(text, "\nNothing is imported against this table."),
        edges => writeln!(
            text,
            "\nStill against this table: {imports} imports between {edges} pairs of rooms, and a cycle of {} rooms. \
             `xtask/layers.txt` lists them; the list only shrinks.",
            table.cycle
        ),
    };
    text
}
