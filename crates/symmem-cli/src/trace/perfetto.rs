//! A trace in the JSON of the Trace Event Format, which Perfetto and chrome://tracing read.
//!
//! Every rank's process is a process there, and every group of it a thread. Operations are slices; an arrow leads from the last rank
//! to arrive at a meeting to each of those that were waiting for it.

use std::io::{self, Write};

use serde_json::{Value, json};
use symmem::trace::{Operation, Trace, Track};

/// Microseconds, as the format wants them.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Writes `trace`, an event per line.
pub(super) fn write(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let first = trace.tracks.iter().flat_map(|track| &track.operations).map(|one| one.begin_ns).min();
    // From the first operation on: times since boot have more digits than a double.
    let since = |ns: u64| us(ns.saturating_sub(first.unwrap_or(0)));
    let mut separator = "";
    let mut put = |out: &mut dyn Write, event: Value| {
        write!(out, "{separator}\n{event}")?;
        separator = ",";
        io::Result::Ok(())
    };
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for (tid, track) in trace.tracks.iter().enumerate() {
        for event in names(tid, track) {
            put(out, event)?;
        }
        for operation in &track.operations {
            put(out, slice(tid, track, operation, &since))?;
        }
    }
    for (id, arrow) in arrows(trace).into_iter().enumerate() {
        let (from, to, at, until) = arrow;
        let step = |phase: &str, tid: usize, ns: u64| json!({"ph": phase, "id": id, "name": "last to arrive", "cat": "wait", "pid": trace.tracks[tid].pid, "tid": tid, "ts": since(ns)});
        put(out, step("s", from, at))?;
        let mut end = step("f", to, until);
        // The arrow ends in the slice that is open then, not in the next one.
        end["bp"] = json!("e");
        put(out, end)?;
    }
    writeln!(out, "\n]}}")
}

/// What the track is called, and where it stands.
fn names(tid: usize, track: &Track) -> [Value; 3] {
    let place = track.device.map(|device| format!(", device {device}")).unwrap_or_default();
    let name = format!("rank {} of {} ({}){place}", track.rank, track.world, track.group);
    let meta = |name: &str, args: Value| json!({"ph": "M", "name": name, "pid": track.pid, "tid": tid, "args": args});
    [
        meta("process_name", json!({"name": format!("process {}", track.pid)})),
        meta("thread_name", json!({"name": name})),
        meta("thread_sort_index", json!({"sort_index": tid})),
    ]
}

fn slice(tid: usize, track: &Track, operation: &Operation, since: &impl Fn(u64) -> f64) -> Value {
    let details = json!({
        "meeting": operation.meeting,
        "bytes": operation.bytes,
        "channel": operation.channel,
        "dtype": operation.dtype.map(|dtype| dtype.to_string()),
        "reduce": operation.reduce.map(|reduce| reduce.to_string()),
        "algorithm": operation.algorithm.map(|algorithm| algorithm.to_string()),
        "failed": operation.failed.then_some(true),
    });
    let known = details.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let args: Value = known.map(|(name, value)| (name.clone(), value.clone())).collect();
    let mut event = json!({"name": operation.name, "cat": "symmem", "pid": track.pid, "tid": tid, "ts": since(operation.begin_ns), "args": args});
    match operation.end_ns {
        Some(end) => {
            event["ph"] = json!("X");
            event["dur"] = json!(us(end.saturating_sub(operation.begin_ns)));
        }
        // It began, and has not ended.
        None => event["ph"] = json!("B"),
    }
    event
}

/// From which track to which, and from when to when.
fn arrows(trace: &Trace) -> Vec<(usize, usize, u64, u64)> {
    let mut found = Vec::new();
    for meeting in trace.meetings() {
        let Some(last) = meeting.arrivals.last() else { continue };
        let came = trace.operation(*last).begin_ns;
        for (waiter, _) in trace.waiters(&meeting) {
            if let Some(end) = trace.operation(waiter).end_ns {
                found.push((last.track, waiter.track, came, end));
            }
        }
    }
    found
}
