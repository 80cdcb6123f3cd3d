//! What a trace says at a glance: per group and operation, how long it took, how long ranks waited, and who
//! came last.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use symmem::trace::Trace;

use super::say;
use crate::args::TraceArgs;
use crate::{screen, units};

/// One operation of one group.
#[derive(Default)]
struct Line {
    /// In nanoseconds, of every rank's every call that ended.
    times: Vec<u64>,
    /// Nanoseconds that ranks were there before the last one.
    waited: u64,
    /// How often each rank came last.
    last: BTreeMap<usize, usize>,
}

impl Line {
    fn median(&self) -> u64 {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    }

    /// The rank that came last most often, and in which part of the meetings.
    fn latest(&self) -> Option<(usize, f64)> {
        let all: usize = self.last.values().sum();
        let (rank, times) = self.last.iter().max_by_key(|(_, times)| **times)?;
        Some((*rank, *times as f64 / all as f64))
    }
}

fn lines(trace: &Trace) -> BTreeMap<(String, &'static str), Line> {
    let mut lines: BTreeMap<(String, &'static str), Line> = BTreeMap::new();
    for track in &trace.tracks {
        for one in &track.operations {
            let line = lines.entry((track.group.clone(), one.name)).or_default();
            line.times.extend(one.end_ns.map(|end| end.saturating_sub(one.begin_ns)));
        }
    }
    for meeting in trace.meetings() {
        let Some(last) = meeting.arrivals.last() else { continue };
        let track = &trace.tracks[last.track];
        let line = lines.entry((track.group.clone(), trace.operation(*last).name)).or_default();
        *line.last.entry(track.rank).or_default() += 1;
        line.waited += trace.waiters(&meeting).iter().map(|(_, ns)| ns).sum::<u64>();
    }
    lines
}

/// Nanoseconds, for people.
fn time(ns: u64) -> String {
    units::time(ns as f64 / 1e3)
}

/// Prints it, and says where the trace is.
pub(super) fn print(trace: &Trace, args: &TraceArgs) -> Result<()> {
    let lines = lines(trace);
    let operations: usize = trace.tracks.iter().map(|track| track.operations.len()).sum();
    if args.json {
        let as_json = |((group, name), line): (&(String, &str), &Line)| -> Value {
            let latest = line.latest().map(|(rank, part)| json!({"rank": rank, "part": part}));
            json!({"group": group, "operation": name, "calls": line.times.len(), "p50_ns": line.median(),
                   "waited_ns": line.waited, "last": latest})
        };
        let summary: Vec<Value> = lines.iter().map(as_json).collect();
        return screen::print_json(
            &json!({"file": args.out, "operations": operations, "lost": trace.lost, "summary": summary}),
        );
    }
    if trace.tracks.is_empty() {
        say("no rank recorded anything: the program made no group, or its ranks have another environment");
    }
    let mut table =
        screen::table(&["group", "operation", "calls", "typical", "waited in all", "last most often"]);
    for ((group, name), line) in &lines {
        let latest = line.latest().map(|(rank, part)| format!("rank {rank} ({:.0} %)", part * 100.0));
        table.add_row([
            group.clone(),
            (*name).to_owned(),
            line.times.len().to_string(),
            time(line.median()),
            time(line.waited),
            latest.unwrap_or_default(),
        ]);
    }
    if !lines.is_empty() {
        screen::print(table.to_string())?;
    }
    if trace.lost > 0 {
        say(&format!(
            "{} operations came faster than they could be read, and are not in the trace",
            trace.lost
        ));
    }
    screen::print(format!(
        "{operations} operations in {}: open it at https://ui.perfetto.dev",
        args.out.display()
    ))
}
