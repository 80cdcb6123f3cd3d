//! Device memory in NCCL's windows: ranks of one load and store domain reach each other's memory, all others through NCCL.
//!
//! Called by the rendezvous of device memory, after all ranks have said that they will. What it guarantees: either all ranks
//! have a window or all get the same error, and then the group fails and its communicator is aborted, since nobody knows where
//! it stopped, and the windows of other memory go with it; whether everybody is in reach of everybody is the same answer on
//! every rank; and a window goes before its memory, which goes before its communicator.

mod join;
mod memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::join::check_same;
pub(crate) use self::memory::{Mark, NcclMemory};
use crate::error::{Cause, Halt};
use crate::group::Running;
use crate::nccl::Communicator;
use crate::nccl::window::Window;
use crate::sync::control::Verdict;
use crate::{Error, Result};

/// How long the watchdog may take to have kernels leave the windows, and to abort the communicator.
const ENDING: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const NAP: Duration = Duration::from_millis(2);

/// Everybody's memory, as this rank reaches it.
pub(crate) struct Shared {
    pub(crate) window: Window,
    /// Where it is, by rank; 0 for a rank out of reach.
    pub(crate) addresses: Vec<u64>,
    /// Whether everybody is in reach of everybody.
    pub(crate) is_direct: bool,
    /// The address of all at once. All ranks have one or none has.
    pub(crate) multicast: Option<u64>,
}

/// Collective: registers everybody's `memory`. `marks` are the ranks' own; `is_near` says who is not to be kept out of reach.
pub(crate) fn share(
    running: &Running<'_>,
    communicator: &Communicator,
    memory: &Arc<NcclMemory>,
    marks: &[Mark],
    is_near: impl Fn(usize) -> bool,
) -> Result<Shared> {
    let tag = running.next_tag()?;
    let wait = |settled: &dyn Fn() -> Result<bool>| running.wait_in_step(settled);
    let made = Window::register(communicator, memory.whole(), wait).and_then(|window| {
        let addresses = memory.peers(&window, communicator.rank(), marks).map_err(Halt::from)?;
        Ok((window, addresses))
    });
    let (window, mut addresses) =
        running.conclude(tag, made).map_err(|error| give_up(running, communicator, error))?;
    for (peer, address) in addresses.iter_mut().enumerate() {
        if peer != communicator.rank() && !is_near(peer) {
            *address = 0;
        }
    }
    let multicast = window.multicast();
    let (reaches, has_multicast) = (!addresses.contains(&0), multicast.is_some());
    let said = running.all_gather(running.op(), 0, 2, &[u8::from(reaches), u8::from(has_multicast)])?;
    let all = |at: usize| said.iter().all(|said| said.get(at) == Some(&1));
    let is_direct = all(0);
    let multicast = multicast.filter(|_| is_direct && all(1));
    tracing::debug!(is_direct, multicast = multicast.is_some(), "window of NCCL");
    Ok(Shared { window, addresses, is_direct, multicast })
}

/// Fails the group: some ranks may be left in a registration that will never end, so the communicator must be aborted, and
/// every window on it is lost. The verdict comes first, so that nothing is launched on one any more; then the watchdog has
/// kernels leave, and aborts. Returns when that is done, because the memory may be freed then.
#[cold]
fn give_up(running: &Running<'_>, communicator: &Communicator, error: Error) -> Error {
    let inner = running.inner();
    let (culprit, reason) = match &error {
        Error::Rank { rank, message, .. } => {
            // Everybody has heard of it before the verdict cuts anybody short. What comes of this meeting is no matter.
            let _ = running.all_gather(running.op(), 0, 1, &[1]);
            (*rank, message.clone())
        }
        other => (inner.rank, other.to_string()),
    };
    if inner.verdict().is_none() {
        // The same words on every rank, since those of a rank on another host are not seen.
        inner.own().set_reason(&reason);
    }
    inner.convict(Verdict { culprit, cause: Cause::Failed });
    let start = Instant::now();
    while !communicator.raw().is_null() && start.elapsed() < ENDING {
        std::thread::sleep(NAP);
    }
    // Waits for an abort that is under way.
    communicator.abort();
    error.of_failed_group()
}
