//! Which room imports from which, and the cycles that makes.

use std::collections::{BTreeMap, BTreeSet};

use super::rooms::{ROOT, Rooms, room_of_module};
use super::ways;
use crate::source::Sources;

/// From one room to another.
pub(super) type Edge = (String, String);

/// What is imported along an edge: distinct paths per file, with the first line of each.
pub(super) type Uses = BTreeMap<(String, String), usize>;

/// The graph of rooms. The root is not in it: it hands on what all rooms have, and nobody may import what it
/// has itself.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) rooms: BTreeSet<String>,
    pub(super) edges: BTreeMap<Edge, Uses>,
    /// Imports that go a way that no import may go, whatever they lead to; a sentence each.
    pub(super) detours: Vec<String>,
    /// Lines of each direct child of `src`, without tests.
    pub(super) lines: BTreeMap<String, usize>,
}

impl Graph {
    pub(super) fn of(sources: &Sources) -> Self {
        let rooms = Rooms::of(sources);
        let mut graph = Self::default();
        for file in sources.files.iter().filter(|file| !file.is_test()) {
            let from = room_of_module(&file.module);
            let folder = file.module.first().map_or(ROOT, String::as_str);
            *graph.lines.entry(folder.to_owned()).or_default() += file.lines;
            if from == ROOT {
                continue;
            }
            graph.rooms.insert(from.clone());
            for import in rooms.imports(file) {
                graph.detours.extend(ways::detour(&rooms, file, &import));
                if !rooms.reaches(file, &import) {
                    continue;
                }
                let Some((to, path)) = rooms.of_path(&import.path) else { continue };
                if to != from {
                    let uses = graph.edges.entry((from.clone(), to)).or_default();
                    uses.entry((file.path.clone(), path.join("::"))).or_insert(import.line);
                }
            }
        }
        graph
    }

    /// The largest set of rooms that all reach each other; empty if there is no cycle.
    pub(super) fn largest_cycle(&self) -> BTreeSet<&str> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.rooms.iter().map(|room| (room.as_str(), self.reached_from(room))).collect();
        let cycle = |room: &&str| -> BTreeSet<&str> {
            reach[room]
                .iter()
                .copied()
                .filter(|other| reach.get(other).is_some_and(|back| back.contains(room)))
                .collect()
        };
        reach.keys().map(cycle).max_by_key(BTreeSet::len).unwrap_or_default()
    }

    fn reached_from<'a>(&'a self, room: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut next = vec![room];
        while let Some(from) = next.pop() {
            let edges = self.edges.keys().filter(|(one, _)| one == from);
            next.extend(edges.map(|(_, to)| to.as_str()).filter(|to| seen.insert(*to)));
        }
        seen
    }

    /// The room with most lines, and its share of all in percent.
    pub(super) fn largest_share(&self) -> (&str, f64) {
        let most = self.lines.iter().max_by_key(|(_, lines)| **lines);
        most.map_or(("", 0.0), |(room, _)| (room, self.share(room)))
    }

    /// A room's share of all lines, in percent.
    pub(super) fn share(&self, room: &str) -> f64 {
        let all: usize = self.lines.values().sum();
        self.lines.get(room).map_or(0.0, |&lines| lines as f64 * 100.0 / all.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in edges {
            graph.rooms.extend([(*from).to_owned(), (*to).to_owned()]);
            graph.edges.insert(((*from).to_owned(), (*to).to_owned()), Uses::new());
        }
        graph
    }

    #[test]
    fn the_largest_cycle_is_what_reaches_itself() {
        let graph = graph(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c"), ("a", "c")]);
        assert_eq!(graph.largest_cycle().into_iter().collect::<Vec<_>>(), ["c", "d", "e"]);
    }

    #[test]
    fn layers_have_no_cycle() {
        assert!(graph(&[("a", "b"), ("b", "c"), ("a", "c")]).largest_cycle().is_empty());
    }

    #[test]
    fn the_share_of_a_room_is_of_all_lines() {
        let lines = BTreeMap::from([("a".to_owned(), 30), ("b".to_owned(), 10)]);
        assert_eq!(Graph { lines, ..Graph::default() }.largest_share(), ("a", 75.0));
    }
}
