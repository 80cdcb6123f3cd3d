//! Waiting for a stream without hanging on it.

use std::time::{Duration, Instant};

use super::Engine;
use crate::cuda::Stream;
use crate::operation::Op;
use crate::sys::fork;
use crate::{Error, Result};

/// How long polls follow each other without a sleep: operations of inference take less.
const SPIN: Duration = Duration::from_micros(100);
/// The shortest and the longest sleep between two polls.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How long a failed group's kernels may take to leave before the failure is reported all the same.
const DRAIN: Duration = Duration::from_millis(200);

impl Engine {
    /// Waits until all work on `stream` is done, but not longer than `within`, and not for a group that has
    /// failed. Then says whether the group is whole: work that was done by a failed group is not right.
    ///
    /// [`Error::Timeout`] means that the stream is still at work; nothing has changed, and the call can be
    /// repeated.
    pub fn sync(&self, stream: &Stream, within: Duration) -> Result<()> {
        if fork::is_child() {
            return Err(Error::Forked { op: Op::StreamSync.name() });
        }
        if stream.capture_id()?.is_some() {
            let problem =
                "it is being captured, and nothing runs on it. Hint: end the capture and launch the graph";
            return Err(Error::invalid("stream", problem));
        }
        let start = Instant::now();
        let mut nap = NAPS.0;
        let mut failed_at = None;
        loop {
            let done = stream.query();
            if !matches!(done, Ok(false)) {
                self.look_at_nccl();
            }
            // Looked at after the query: a kernel that failed has said so before it ended.
            let verdict = self.inner.watched.verdict();
            let (elapsed, context) = (start.elapsed(), || {
                let mut context = self.context(Op::StreamSync, None);
                context.elapsed = start.elapsed();
                context
            });
            match (done, verdict) {
                (Ok(true), None) => return Ok(()),
                (Err(error), None) => return Err(error),
                (Ok(true) | Err(_), Some(verdict)) => {
                    return Err(self.inner.watched.failure(context(), verdict));
                }
                (Ok(false), Some(verdict)) => {
                    // Kernels leave within milliseconds; whoever gets the error finds the stream empty.
                    let since = *failed_at.get_or_insert(elapsed);
                    if elapsed - since >= DRAIN || elapsed >= within.max(since) {
                        return Err(self.inner.watched.failure(context(), verdict));
                    }
                }
                (Ok(false), None) if elapsed >= within => {
                    return Err(Error::Timeout { context: context(), missing: Vec::new() });
                }
                (Ok(false), None) => {}
            }
            if elapsed < SPIN {
                std::hint::spin_loop();
                continue;
            }
            self.look_at_nccl();
            self.inner.watched.look_at_carried();
            std::thread::sleep(nap.min(within.saturating_sub(elapsed)).max(NAPS.0));
            nap = (nap * 2).min(NAPS.1);
        }
    }
}
