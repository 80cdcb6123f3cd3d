//! Device memory in NCCL's windows: ranks of one load and store domain reach each other's memory, all others
//! through NCCL.
//!
//! What it guarantees: either all ranks have a window or all get the same error, and then the group fails and
//! its communicator is aborted, since nobody knows where it stopped, and the windows of other memory go with
//! it; and a window goes before its memory, which goes before its communicator.

mod join;
mod memory;

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::join::check_same;
use self::memory::NcclMemory;
use crate::cuda::Device;
use crate::error::{Cause, Halt};
use crate::group::Running;
use crate::nccl::window::Window;
use crate::nccl::{self, Communicator, Version};
use crate::provider::{Export, Joined, LocalMemory, MemoryProvider, own, own_shared};
use crate::sync::control::Verdict;
use crate::table::{Column, Keep};
use crate::{Error, Result};

/// How long the watchdog may take to have kernels leave the windows, and to abort the communicator.
const ENDING: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const NAP: Duration = Duration::from_millis(2);

/// The first NCCL with windows, and the first that takes several ranks on one device.
const WINDOWS: Version = Version::new(2, 27, 3);
const SHARED_DEVICE: Version = Version::new(2, 30, 3);

/// What stands in the way of `ranks` ranks on this machine, if something does.
pub(crate) fn obstacle(ranks: usize) -> Result<Option<String>> {
    let devices = Device::count()?;
    let Ok(nccl::Loaded { version, .. }) = nccl::library() else {
        return Ok(Some("there is no NCCL".to_owned()));
    };
    let (version, is_shared) = (*version, devices < ranks);
    Ok(if version < WINDOWS {
        Some(format!("NCCL {version} has no windows, which came with {WINDOWS}"))
    } else if is_shared && version < SHARED_DEVICE {
        Some(format!("NCCL {version} takes one rank a GPU, and there is one GPU; {SHARED_DEVICE} takes more"))
    } else if is_shared && !Device::new(0).is_ok_and(|device| device.has_mps()) {
        Some("two ranks on one GPU need MPS with NCCL; start nvidia-cuda-mps-control -d".to_owned())
    } else {
        None
    })
}

/// The provider of memory that NCCL allocates.
#[derive(Clone, Debug)]
pub(crate) struct NcclProvider {
    device: Device,
    /// Where pads and control blocks come from.
    pads: Arc<dyn MemoryProvider>,
    /// To be used instead of one of its own.
    communicator: Option<Communicator>,
}

impl NcclProvider {
    /// With a communicator that is made when the ranks join.
    pub(crate) fn new(device: &Device, pads: Arc<dyn MemoryProvider>) -> Self {
        Self { device: device.clone(), pads, communicator: None }
    }

    /// With one that is there already, of the same ranks.
    pub(crate) fn adopt(communicator: &Communicator, pads: Arc<dyn MemoryProvider>) -> Self {
        Self { device: communicator.device().clone(), pads, communicator: Some(communicator.clone()) }
    }
}

impl MemoryProvider for NcclProvider {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>> {
        Ok(NcclMemory::alloc(&self.device, bytes)?)
    }

    fn join(&self, running: &Running<'_>) -> Result<Arc<dyn Joined>> {
        let communicator = match &self.communicator {
            Some(communicator) => communicator.clone(),
            None => Communicator::join(running, &self.device)?,
        };
        let pads = self.pads.join(running)?;
        Ok(Arc::new(JoinedNccl { nccl: self.clone(), communicator, pads }))
    }
}

/// A communicator, and what gives pads where kernels reach them.
#[derive(Debug)]
struct JoinedNccl {
    nccl: NcclProvider,
    communicator: Communicator,
    pads: Arc<dyn Joined>,
}

/// A rank's memory as a window, and where NCCL says that everybody's is.
struct RegisteredMemory {
    window: Window,
    memory: Arc<NcclMemory>,
    pointers: Vec<u64>,
}

fn registered(keep: &Keep) -> Result<&RegisteredMemory> {
    keep.downcast_ref().ok_or_else(|| Error::invalid("registration", "it is not NCCL's"))
}

impl Joined for JoinedNccl {
    fn provider(&self) -> &dyn MemoryProvider {
        &self.nccl
    }

    /// NCCL says so only of a window.
    fn reaches_all(&self) -> Option<bool> {
        None
    }

    /// The driver's: every kernel reaches them, or NCCL carries the signals.
    fn pads(&self) -> Option<&Arc<dyn Joined>> {
        Some(&self.pads)
    }

    fn export(&self, local: &dyn LocalMemory) -> Result<Export> {
        let memory = own::<NcclMemory>(local)?;
        Ok(Export { bytes: memory.bytes(), note: memory.mark().to_vec(), fds: Vec::new() })
    }

    fn register(&self, running: &Running<'_>, local: &Arc<dyn LocalMemory>) -> Result<Option<Keep>, Halt> {
        let memory: Arc<NcclMemory> = own_shared(local)?;
        let wait = |settled: &dyn Fn() -> Result<bool>| running.wait_in_step(settled);
        let window = Window::register(&self.communicator, memory.whole(), wait)?;
        let pointers = window.pointers()?;
        Ok(Some(Arc::new(RegisteredMemory { window, memory, pointers })))
    }

    /// A pointer is believed only if the mark that the peer left in its memory is there.
    fn import(
        &self,
        rank: usize,
        export: Export,
        registration: Option<&Keep>,
    ) -> Result<Option<(u64, Keep)>> {
        let Some(registration) = registration else { return Ok(None) };
        let RegisteredMemory { memory, pointers, .. } = registered(registration)?;
        let address = pointers.get(rank).copied().unwrap_or_default();
        if address == 0 {
            return Ok(None);
        }
        if !memory.is_marked(address, &export.note) {
            tracing::warn!(
                rank,
                "NCCL's pointer does not lead to that rank's memory; it counts as out of reach"
            );
            return Ok(None);
        }
        Ok(Some((address, Arc::clone(registration))))
    }

    fn multicast(
        &self,
        running: &Running<'_>,
        _: &Arc<dyn LocalMemory>,
        column: &Column,
    ) -> Result<Result<(u64, Keep), String>> {
        let found = column.registration.as_ref().and_then(|registration| {
            let address = registered(registration).ok()?.window.multicast()?;
            Some((address, Arc::clone(registration)))
        });
        let said = running.all_gather(running.op(), 0, 1, &[u8::from(found.is_some())])?;
        let all_have = said.iter().all(|said| *said == [1]);
        Ok(found.filter(|_| all_have).ok_or_else(|| "the window of NCCL has none".to_owned()))
    }

    fn refused(&self, running: &Running<'_>, error: Error) -> Error {
        give_up(running, &self.communicator, error)
    }
}

/// The communicator of `joined`, where it is this provider's.
pub(crate) fn communicator_of(joined: &dyn Joined) -> Option<&Communicator> {
    let any: &dyn Any = joined;
    any.downcast_ref::<JoinedNccl>().map(|joined| &joined.communicator)
}

/// NCCL's handle of the window that memory is in, by what it is registered as, where it is one.
pub(crate) fn window_of(registration: Option<&Keep>) -> Option<*mut c_void> {
    registered(registration?).ok()?.window.raw()
}

/// Fails the group: some ranks may be left in a registration that will never end, so the communicator must be
/// aborted, and every window on it is lost. The verdict comes first, so that nothing is launched on one any
/// more; then the watchdog has kernels leave, and aborts. Returns when that is done, because the memory may
/// be freed then.
#[cold]
fn give_up(running: &Running<'_>, communicator: &Communicator, error: Error) -> Error {
    let inner = running.inner();
    let (culprit, reason) = match &error {
        Error::Rank { rank, message, .. } => {
            // Everybody has heard of it before the verdict cuts anybody short. What comes of this meeting is
            // no matter.
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
    let nap_until = |is_done: &dyn Fn() -> bool| {
        while !is_done() && start.elapsed() < ENDING {
            std::thread::sleep(NAP);
        }
    };
    nap_until(&|| communicator.raw().is_null());
    // Waits for an abort that is under way, and for its end, which may come later.
    communicator.abort();
    nap_until(&|| communicator.has_ended());
    error.of_failed_group()
}
