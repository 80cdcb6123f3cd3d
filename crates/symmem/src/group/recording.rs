//! Recording of this rank's operations, for `trace`.
//!
//! Called by `running` around operations of a group that is recorded, and by the join. A rank that cannot record (out of memory or
//! descriptors) works as before; whoever traces sees no track of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use symmem_store::Wait;

use super::Inner;
use crate::op::Op;
use crate::sync::protocol;
use crate::sync::record::{Owner, Recorder};
use crate::sys::channel::{Endpoint, Peers};
use crate::sys::ids;

/// Tells ranks of a job that was started by a tracer where it listens: its token in hex, and its address.
pub(crate) const TRACE_TO: &str = "SYMMEM_TRACE_TO";
/// How long a rank tries to reach the tracer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has the group recorded from its first operation on, if whoever started this process wants that.
pub(super) fn start_if_asked(inner: &Inner) {
    if std::env::var_os(TRACE_TO).is_some() {
        inner.map(inner.judge).control().set_recorded(true);
    }
}

impl Inner {
    /// Whose records those of this rank are: of the host's operations, or of a device's.
    pub(crate) fn owner(&self, device: Option<usize>) -> Owner {
        let (group, id) = (self.name.clone(), self.id.clone());
        Owner { group, id, rank: self.rank, world: self.world, pid: self.pid(self.rank), device }
    }

    /// `op` begins. Nothing is recorded if that cannot be done, or nobody reads it any more.
    #[cold]
    pub(super) fn begin_record(&self, op: Op, channel: Option<usize>) {
        let recorder = self.recorder.get_or_init(|| make(&self.owner(None)));
        let Some(recorder) = recorder else { return };
        let begun = recorder.begin(op, channel, self.epoch.load(Ordering::Relaxed));
        self.recording.store(begun, Ordering::Relaxed);
        if !begun {
            self.map(self.judge).control().set_recorded(false);
        }
    }

    /// The operation that began last ends.
    #[cold]
    pub(super) fn end_record(&self) {
        self.recording.store(false, Ordering::Relaxed);
        let Some(Some(recorder)) = self.recorder.get() else { return };
        let epoch = self.epoch.load(Ordering::Relaxed);
        let announced = || if self.is_local() { protocol::announced(self, self.rank, epoch) } else { None };
        recorder.end(self.verdict().is_some(), epoch, announced);
    }
}

/// A recorder, which the tracer that started this process, if one did, has been told of.
pub(crate) fn make(owner: &Owner) -> Option<Recorder> {
    let made = Recorder::new(owner);
    let recorder = made.inspect_err(|error| tracing::warn!(%error, "operations are not recorded")).ok()?;
    if let Ok(listener) = std::env::var(TRACE_TO)
        && let Err(problem) = tell(&recorder, owner, &listener)
    {
        tracing::warn!(problem, "the tracer does not learn of the operations of rank {}", owner.rank);
    }
    Some(recorder)
}

/// Hands the ring to the tracer at `listener`.
fn tell(recorder: &Recorder, owner: &Owner, listener: &str) -> Result<(), String> {
    let (token, address) = listener.split_once(':').ok_or("its address is none")?;
    let token = ids::unhex(token).and_then(|token| token.try_into().ok()).ok_or("its token is none")?;
    let tag = ids::random().map(u64::from_le_bytes).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::bind(token, None, Peers::OfThisUser).map_err(|error| error.to_string())?;
    let (rank, wait) = (owner.rank, Wait::for_at_most(PATIENCE));
    let fds = [recorder.segment().fd()];
    let sent = endpoint.send(rank, address, tag, rank as u32, &[], &fds, &wait);
    sent.map_err(|_| format!("it cannot be reached at {address}"))
}
