//! Compares the graph with the table.

use std::collections::BTreeMap;

use super::graph::{Edge, Graph, Uses};
use super::rooms::ROOT;
use super::table::LayerTable;

const SHRINK: &str = "run `cargo xtask layers --write`";

/// Everything that is wrong, a sentence each.
pub(super) fn judge(graph: &Graph, table: &LayerTable) -> Vec<String> {
    let mut wrong: Vec<String> = graph
        .rooms
        .iter()
        .filter(|room| !table.knows(room))
        .map(|room| format!("the room `{room}` has no row in the table"))
        .collect();
    let found = against(graph, table);
    for (edge, uses) in &found {
        let listed = table.ratchet.get(edge).copied().unwrap_or(0);
        if uses.len() > listed {
            wrong.push(new(edge, uses, listed));
        }
    }
    for ((from, to), &listed) in &table.ratchet {
        match found.get(&(from.clone(), to.clone())).map_or(0, |uses| uses.len()) {
            0 => wrong.push(format!("{from} -> {to} is gone: remove it from the list; {SHRINK}")),
            now if now < listed => {
                wrong.push(format!("{from} -> {to} has {now} imports and not {listed}: lower it; {SHRINK}"));
            }
            _ => {}
        }
    }
    wrong.extend(graph.detours.iter().cloned());
    wrong.extend(cycle(graph, table));
    let (room, share) = graph.largest_share();
    if share > table.share {
        wrong.push(format!("`{room}` has {share:.1} % of all lines, at most {} % are fine", table.share));
    }
    wrong
}

/// The edges that the table does not allow.
pub(super) fn against<'a>(graph: &'a Graph, table: &LayerTable) -> BTreeMap<&'a Edge, &'a Uses> {
    graph.edges.iter().filter(|(edge, _)| !table.allows(edge)).collect()
}

fn new((from, to): &Edge, uses: &Uses, listed: usize) -> String {
    let places: Vec<_> =
        uses.iter().map(|((file, path), line)| format!("\n    {file}:{line} {path}")).collect();
    let why = match (to.as_str(), listed) {
        (ROOT, _) => "nothing may be imported that is in lib.rs itself".to_owned(),
        (_, 0) => "the table does not allow it".to_owned(),
        _ => format!("the table does not allow it, and only {listed} imports are listed"),
    };
    format!("{from} -> {to}: {why}{}", places.concat())
}

fn cycle(graph: &Graph, table: &LayerTable) -> Option<String> {
    let cycle = graph.largest_cycle();
    let rooms = || cycle.iter().copied().collect::<Vec<_>>().join(", ");
    if cycle.len() > table.cycle {
        Some(format!("a cycle of {} rooms, at most {} are fine: {}", cycle.len(), table.cycle, rooms()))
    } else if cycle.len() < table.cycle {
        Some(format!(
            "the largest cycle has {} rooms and not {}: lower it; {SHRINK}",
            cycle.len(),
            table.cycle
        ))
    } else {
        None
    }
}

/// The table with what is gone taken out of its list; new edges are added if `with_new`.
pub(super) fn shrunk(graph: &Graph, table: &LayerTable, with_new: bool) -> LayerTable {
    let keep = |(edge, uses): (&Edge, &Uses)| {
        let listed = table.ratchet.get(edge).copied().unwrap_or(0);
        let count = if with_new { uses.len() } else { uses.len().min(listed) };
        (count > 0).then(|| (edge.clone(), count))
    };
    let ratchet = against(graph, table).into_iter().filter_map(keep).collect();
    let now = graph.largest_cycle().len();
    let cycle = if with_new { now } else { now.min(table.cycle) };
    let mut shrunk = table.clone();
    (shrunk.ratchet, shrunk.cycle) = (ratchet, cycle);
    shrunk
}
