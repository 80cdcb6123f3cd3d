//! Recording of this rank's operations, for `trace`.
//!
//! Called by `running` around operations of a group that is recorded, by the join, and by engines and
//! mailboxes for rings of their own. A rank that cannot record (out of memory or descriptors) works as
//! before; whoever traces sees no track of it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use symmem_store::Wait;

use super::Membership;
use crate::Result;
use crate::operation::Op;
use crate::sync::protocol;
use crate::sync::record::device::DeviceRing;
use crate::sync::record::message::MailRecorder;
use crate::sync::record::{OnDevice, RecordedPart, RecordedRank, Recorder};
use crate::sys::channel::{ChannelPeers, Endpoint};
use crate::sys::ids;
use crate::sys::memfd::Segment;

/// Tells ranks of a job that was started by a tracer where it listens: its token in hex, and its address.
pub(crate) const TRACE_TO: &str = "SYMMEM_TRACE_TO";
/// How long a rank tries to reach the tracer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has the group recorded from its first operation on, if whoever started this process wants that.
pub(super) fn start_if_asked(inner: &Membership) {
    if std::env::var_os(TRACE_TO).is_some() {
        inner.judge.control().set_recorded(true);
    }
}

impl Membership {
    /// Whose records those of this rank are.
    fn owner(&self, part: RecordedPart) -> RecordedRank {
        let (group, id) = (self.name.clone(), self.id.clone());
        RecordedRank { group, id, rank: self.rank, world: self.world, pid: self.pid(self.rank), part }
    }

    /// A ring that `new` makes, which the tracer that started this process, if one did, has been told of.
    fn make<R>(
        &self,
        part: RecordedPart,
        new: impl FnOnce(&RecordedRank) -> Result<R>,
        segment: impl FnOnce(&R) -> &Segment,
    ) -> MadeRing<R> {
        let owner = self.owner(part);
        let ring = match new(&owner) {
            Ok(ring) => ring,
            Err(error) => {
                return MadeRing {
                    ring: None,
                    problem: Some(format!("operations are not recorded: {error}")),
                };
            }
        };
        let told = std::env::var(TRACE_TO).ok().map(|listener| tell(segment(&ring), &owner, &listener));
        let problem = told.and_then(|told| told.err()).map(|problem| {
            format!("the tracer does not learn of the operations of rank {}: {problem}", owner.rank)
        });
        MadeRing { ring: Some(ring), problem }
    }

    /// Whether somebody wants this group's operations recorded. One load.
    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        self.judge.control().is_recorded()
    }

    /// Stops the recording of the group, because nobody reads what was recorded.
    pub(crate) fn stop_recording(&self) {
        self.judge.control().set_recorded(false);
    }

    /// A ring for what this rank does on a device; none if that cannot be had.
    pub(crate) fn device_ring(&self, on: OnDevice) -> Option<DeviceRing> {
        self.make(RecordedPart::Device(on), DeviceRing::new, DeviceRing::segment).told()
    }

    /// A ring for the messages of mailbox `number`, which `recorder` keeps; none if that cannot be had.
    pub(crate) fn mail_recorder<'a>(
        &self,
        number: u64,
        recorder: &'a OnceLock<Option<MailRecorder>>,
    ) -> Option<&'a MailRecorder> {
        let part = RecordedPart::Mailbox(number);
        once(recorder, || self.make(part, MailRecorder::new, MailRecorder::segment))
    }

    /// `op` begins. Nothing is recorded if that cannot be done, or nobody reads it any more.
    #[cold]
    pub(super) fn begin_record(&self, op: Op, channel: Option<usize>) {
        let recorder =
            once(&self.recorder, || self.make(RecordedPart::Host, Recorder::new, Recorder::segment));
        let Some(recorder) = recorder else { return };
        let begun = recorder.begin(op, channel, self.epoch.load(Ordering::Relaxed));
        self.recording.store(begun, Ordering::Relaxed);
        if !begun {
            self.stop_recording();
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

/// A ring, or none, and what a warning has to say of that.
struct MadeRing<R> {
    ring: Option<R>,
    problem: Option<String>,
}

impl<R> MadeRing<R> {
    /// The ring, after the warning.
    fn told(self) -> Option<R> {
        if let Some(problem) = self.problem {
            warn(&problem);
        }
        self.ring
    }
}

/// What `kept` has, which `make` makes first. The warning comes when it is kept: whoever is told of it may
/// use the same mailbox, on this thread or another one, and would wait for this call.
fn once<R>(kept: &OnceLock<Option<R>>, make: impl FnOnce() -> MadeRing<R>) -> Option<&R> {
    let mut problem = None;
    let ring = kept.get_or_init(|| {
        let made = make();
        problem = made.problem;
        made.ring
    });
    if let Some(problem) = problem {
        warn(&problem);
    }
    ring.as_ref()
}

#[cold]
fn warn(problem: &str) {
    tracing::warn!("{problem}");
}

/// Hands the ring to the tracer at `listener`.
fn tell(segment: &Segment, owner: &RecordedRank, listener: &str) -> std::result::Result<(), String> {
    let (token, address) = listener.split_once(':').ok_or("its address is none")?;
    let token = ids::unhex(token).and_then(|token| token.try_into().ok()).ok_or("its token is none")?;
    let tag = ids::random().map(u64::from_le_bytes).map_err(|error| error.to_string())?;
    let endpoint =
        Endpoint::bind(token, None, ChannelPeers::OfThisUser).map_err(|error| error.to_string())?;
    let (rank, wait) = (owner.rank, Wait::for_at_most(PATIENCE));
    let fds = [segment.fd()];
    let sent = endpoint.send(rank, address, tag, rank as u32, &[], &fds, &wait);
    sent.map_err(|_| format!("it cannot be reached at {address}"))
}
