//! Providers: where memory comes from, and how peers map it.
//!
//! A provider makes local memory; ranks that *join* it together can then give each other what they made: each
//! exports, sends, and imports what the others exported (`share.rs`). What comes of it is a column of
//! addresses with what keeps them alive. A provider never works on the memory; that is an engine's part.
//! `registry.rs` alone knows which providers there are.

#![allow(unsafe_code, reason = "memory of devices")]

#[cfg(feature = "faults")]
mod heap;
pub(crate) mod nccl;
pub(crate) mod registry;
pub(crate) mod share;
mod shm;
#[cfg(feature = "faults")]
mod slab;
pub(crate) mod vmm;

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::cuda::capture::Relaxed;
use crate::cuda::{Device, Stream, buffer};
use crate::error::Halt;
use crate::group::Running;
use crate::table::{Column, Keep};
use crate::{Error, Result};

/// Memory of this rank, zeroed, not yet known to anybody else.
pub(crate) trait LocalMemory: Any + Debug + Send + Sync {
    /// First byte, as whoever works on it sees it: host or device.
    fn address(&self) -> u64;
    /// Bytes that were asked for.
    fn bytes(&self) -> usize;
    /// Bytes that there are, at least as many.
    fn mapped_bytes(&self) -> usize;
    /// Touches all pages, so that no operation pays for the first touch.
    fn populate(&self) -> Result<()> {
        Ok(())
    }
    /// The file that is the memory, where it is one.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What a peer needs to reach memory of this rank.
#[derive(Debug, Default)]
pub(crate) struct Export {
    /// Bytes that there are.
    pub(crate) bytes: usize,
    /// Travels in the comparison of the ranks, to all of them.
    pub(crate) note: Vec<u8>,
    /// Travel to ranks on this host only.
    pub(crate) fds: Vec<OwnedFd>,
}

/// A source of symmetric memory, on the host or on one device.
pub(crate) trait MemoryProvider: Debug + Send + Sync {
    /// Its name, which ranks compare.
    fn name(&self) -> &'static str;
    /// Local: makes `bytes` zeroed bytes.
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>>;
    /// Collective, once per group and device: what the ranks must know of each other before they share
    /// memory.
    fn join(&self, running: &Running<'_>) -> Result<Arc<dyn Joined>>;
    /// Whether one address may reach all ranks at once.
    fn has_multicast(&self) -> bool {
        false
    }
}

/// A provider that the ranks of a group have joined.
pub(crate) trait Joined: Any + Debug + Send + Sync {
    /// The provider, for memory that these ranks share later.
    fn provider(&self) -> &dyn MemoryProvider;

    /// Whether all ranks reach each other's memory, if that is known to all of them before anything is
    /// shared.
    fn reaches_all(&self) -> Option<bool> {
        Some(true)
    }

    /// Where pads and control blocks come from, if not from here.
    fn pads(&self) -> Option<&Arc<dyn Joined>> {
        None
    }

    /// Local: what peers need to reach `local`.
    fn export(&self, local: &dyn LocalMemory) -> Result<Export>;

    /// Collective, as part of a step that a vote ends: makes `local`, which every rank has exported, known to
    /// the provider's library.
    fn register(&self, _: &Running<'_>, _: &Arc<dyn LocalMemory>) -> Result<Option<Keep>, Halt> {
        Ok(None)
    }

    /// Local: the address of what `rank` exported, with what keeps it valid; `None` where it is out of reach.
    fn import(&self, rank: usize, export: Export, registration: Option<&Keep>)
    -> Result<Option<(u64, Keep)>>;

    /// Collective: one address that reaches everybody's `local`, or why there is none, which is the same on
    /// every rank.
    fn multicast(
        &self,
        _: &Running<'_>,
        _: &Arc<dyn LocalMemory>,
        _: &Column,
    ) -> Result<Result<(u64, Keep), String>> {
        Ok(Err(format!("{} has none", self.provider().name())))
    }

    /// After a vote that was lost: ends what cannot go on, and says how the failure is told.
    fn refused(&self, _: &Running<'_>, error: Error) -> Error {
        error
    }
}

/// `local` as the memory of a provider that knows its own. Another's is a mistake of who calls.
pub(crate) fn own<T: LocalMemory>(local: &dyn LocalMemory) -> Result<&T> {
    let any: &dyn Any = local;
    any.downcast_ref().ok_or_else(|| foreign(local))
}

/// [`own`], shared.
pub(crate) fn own_shared<T: LocalMemory>(local: &Arc<dyn LocalMemory>) -> Result<Arc<T>> {
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(local) as _;
    any.downcast().map_err(|_| foreign(&**local))
}

/// Copies `bytes` to `offset` of `local`, which is on `device`, and returns when they are there. On no user's
/// stream.
pub(crate) fn write_on(device: &Device, local: &dyn LocalMemory, offset: usize, bytes: &[u8]) -> Result<()> {
    let size = local.mapped_bytes();
    if offset.checked_add(bytes.len()).is_none_or(|end| end > size) {
        let (offset, bytes, size) = (offset as u64, bytes.len() as u64, size as u64);
        return Err(Error::OutOfBounds { op: "write", offset, bytes, size });
    }
    // Another thread may be capturing; that is no concern of this memory.
    let _relaxed = Relaxed::enter();
    let stream = Stream::service(device)?;
    // SAFETY: in range, as just checked.
    unsafe { buffer::write(local.address() + offset as u64, bytes.len(), bytes, &stream) }
}

#[cold]
fn foreign(local: &dyn LocalMemory) -> Error {
    Error::invalid("memory", format!("{local:?} is another provider's"))
}
