//! A trace in the JSON of the Trace Event Format, which Perfetto and chrome://tracing read.
//!
//! Every rank's process is a process there, and every group, device and mailbox of it a thread, or several
//! where operations overlap ([`Rows`]). Operations are slices; an arrow leads from the last rank to arrive at
//! a meeting to each of those that were waiting for it, and from a send to the receive that got its message.

use std::io::{self, Write};

use serde_json::{Value, json};
use symmem::trace::{Arrival, Operation, Trace, Track};

use super::rows::Rows;

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
    let rows = Rows::of(trace);
    for (at, track) in trace.tracks.iter().enumerate() {
        for (more, tid) in rows.of_track(at).enumerate() {
            for event in names(tid, track, more) {
                put(out, event)?;
            }
        }
        // Those of a row in the order in which they began.
        let mut in_order: Vec<usize> = (0..track.operations.len()).collect();
        let times = |one: &Operation| (one.begin_ns, one.end_ns.unwrap_or(u64::MAX));
        in_order.sort_by_key(|one| times(&track.operations[*one]));
        for operation in in_order {
            put(out, slice(rows.row_of(at, operation), track, &track.operations[operation], &since))?;
        }
    }
    for (id, arrow) in waits(trace).into_iter().chain(messages(trace)).enumerate() {
        let step = |phase: &str, place: Arrival, ns: u64| json!({"ph": phase, "id": id, "name": arrow.name, "cat": arrow.category, "pid": trace.tracks[place.track].pid, "tid": rows.row(place), "ts": since(ns)});
        put(out, step("s", arrow.from, arrow.begin_ns))?;
        let mut end = step("f", arrow.to, arrow.end_ns);
        // The arrow ends in the slice that is open then, not in the next one.
        end["bp"] = json!("e");
        put(out, end)?;
    }
    writeln!(out, "\n]}}")
}

/// What a row of the track is called, and where it stands; `more` rows of the track are above it.
fn names(tid: usize, track: &Track, more: usize) -> [Value; 3] {
    let place = match (track.device, track.lane, track.mailbox) {
        (Some(device), lane, _) => {
            let named = |name: &str, number: Option<usize>| match number {
                None | Some(0) => String::new(),
                Some(number) => format!(" {name} {number}"),
            };
            format!(", GPU {device}{}{}", named("engine", track.engine), named("lane", lane))
        }
        (None, _, Some(mailbox)) => format!(", mailbox {mailbox}"),
        (None, _, None) => String::new(),
    };
    let row = if more > 0 { format!(", row {}", more + 1) } else { String::new() };
    let name = format!("rank {} of {} ({}){place}{row}", track.rank, track.world, track.group);
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
        "peer": operation.peer,
        "tag": operation.tag,
        "bytes": operation.bytes,
        "channel": operation.channel,
        "dtype": operation.dtype.map(|dtype| dtype.to_string()),
        "reduce": operation.reduce.map(|reduce| reduce.to_string()),
        "algorithm": operation.algorithm,
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

/// An arrow from one slice to another.
struct Arrow {
    name: &'static str,
    category: &'static str,
    from: Arrival,
    to: Arrival,
    begin_ns: u64,
    end_ns: u64,
}

/// From the last to arrive to those who waited for it.
fn waits(trace: &Trace) -> Vec<Arrow> {
    let mut found = Vec::new();
    for meeting in trace.meetings() {
        let Some(last) = meeting.arrivals.last() else { continue };
        let begin_ns = trace.operation(*last).begin_ns;
        for (waiter, _) in trace.waiters(&meeting) {
            if let Some(end_ns) = trace.operation(waiter).end_ns {
                let (name, category) = ("last to arrive", "wait");
                found.push(Arrow { name, category, from: *last, to: waiter, begin_ns, end_ns });
            }
        }
    }
    found
}

/// From sends to the receives that got their messages. Not where somebody waited for a started send only
/// after its message had been received: an arrow does not lead back in time.
fn messages(trace: &Trace) -> Vec<Arrow> {
    let arrow = |message: symmem::trace::Message| {
        let (from, to) = (message.sent, message.received);
        let (begin_ns, end_ns) = (trace.operation(from).begin_ns, trace.operation(to).end_ns?);
        let (name, category) = ("message", "message");
        (begin_ns <= end_ns).then_some(Arrow { name, category, from, to, begin_ns, end_ns })
    };
    trace.messages().into_iter().filter_map(arrow).collect()
}
