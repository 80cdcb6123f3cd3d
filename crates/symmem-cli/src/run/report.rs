//! How a job ended: in words for people, as JSON for programs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rank::{How, Rank};
use super::signals;

/// The failure that ended a job. Nodes tell it each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failure {
    /// The node that saw it.
    pub(super) node: u32,
    /// The rank that failed; none where a node did.
    pub(super) rank: Option<usize>,
    /// What happened, after "rank 3" or "node 1".
    pub(super) what: String,
    /// The exit status of the launchers.
    pub(super) status: u8,
    pub(super) last_operation: Option<String>,
}

/// The whole story, of this node.
pub(super) struct Report<'a> {
    pub(super) world: usize,
    pub(super) nodes: u32,
    pub(super) node: u32,
    pub(super) ranks: &'a [Rank],
    pub(super) failure: Option<&'a Failure>,
    /// A signal that ends programs, which this one got and passed on.
    pub(super) interrupt: Option<i32>,
}

impl Report<'_> {
    /// For people; nothing where all is well.
    pub(super) fn text(&self) -> Option<String> {
        let failure = self.failure?;
        let who = match failure.rank {
            Some(rank) if self.nodes > 1 => format!("rank {rank} (node {}) failed first: it", failure.node),
            Some(rank) => format!("rank {rank} failed first: it"),
            None => format!("node {}", failure.node),
        };
        let mut text = format!("error: {who} {}", failure.what);
        if let Some(signal) = self.interrupt {
            text += &format!("; {} had been sent to this program, which passed it on", signals::name(signal));
        }
        if let Some(operation) = &failure.last_operation {
            text += &format!("\n  its last operation: {operation}");
        }
        for (how, ranks) in self.others(failure) {
            text += &format!("\n  {} {how}", list(&ranks));
        }
        Some(text)
    }

    /// The other ranks of this node by how they ended, in the order of the first rank of each kind.
    fn others(&self, failure: &Failure) -> Vec<(String, Vec<usize>)> {
        let mut kinds: Vec<((How, bool), Vec<usize>)> = Vec::new();
        for rank in self.ranks.iter().filter(|rank| failure.rank != Some(rank.rank)) {
            let Some(end) = rank.end else { continue };
            let kind = (end.how, end.asked && matches!(end.how, How::Killed(_)));
            match kinds.iter_mut().find(|(other, _)| *other == kind) {
                Some((_, ranks)) => ranks.push(rank.rank),
                None => kinds.push((kind, vec![rank.rank])),
            }
        }
        let words = |((how, asked), ranks): ((How, bool), Vec<usize>)| {
            let why = if asked { ", to end the job" } else { "" };
            (format!("{}{why}", how.words(ranks.len() > 1)), ranks)
        };
        kinds.into_iter().map(words).collect()
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let ranks: Vec<Value> = self.ranks.iter().map(as_json).collect();
        json!({
            "world": self.world, "nodes": self.nodes, "node": self.node,
            "status": self.failure.map_or(0, |failure| failure.status),
            "first_failure": self.failure,
            "signal": self.interrupt.map(signals::name),
            "ranks": ranks,
        })
    }

    /// Writes the JSON to `path`, or to stderr where that is "-".
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.json())? + "\n";
        if path == Path::new("-") {
            eprint!("{text}");
            return Ok(());
        }
        fs::write(path, text).with_context(|| format!("writing the report to {}", path.display()))
    }
}

fn as_json(rank: &Rank) -> Value {
    let end = rank.end.as_ref();
    let how = end.map(|end| end.how);
    let code = how.and_then(|how| if let How::Exited(code) = how { Some(code) } else { None });
    let signal =
        how.and_then(|how| if let How::Killed(signal) = how { Some(signals::name(signal)) } else { None });
    json!({
        "rank": rank.rank, "pid": rank.pid.as_raw_nonzero().get(), "exit_code": code, "signal": signal,
        "seconds": end.map(|end| end.after.as_secs_f64()), "ended_by_launcher": end.is_some_and(|end| end.asked),
    })
}

/// "rank 1", "ranks 1 and 3", "ranks 0 to 4, 7 and 9".
fn list(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for (first, last) in runs {
        match last - first {
            0 => parts.push(first.to_string()),
            1 => parts.extend([first.to_string(), last.to_string()]),
            _ => parts.push(format!("{first} to {last}")),
        }
    }
    let last = parts.pop().unwrap_or_default();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    if parts.is_empty() {
        format!("{word} {last}")
    } else {
        format!("{word} {} and {last}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_shortly() {
        assert_eq!(list(&[3]), "rank 3");
        assert_eq!(list(&[0, 1]), "ranks 0 and 1");
        assert_eq!(list(&[0, 1, 2, 3]), "ranks 0 to 3");
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "ranks 0 to 2, 5, 7 and 8");
    }
}
