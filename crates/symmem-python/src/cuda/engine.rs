//! What a group has on devices: an engine per device, made together when its ranks first meet there, and the
//! allocations that they have in common.
//!
//! A group object holds one [`Engines`]. What it guarantees: whether a rendezvous is collective depends only
//! on what the program did (on every rank the same), never on when Python collects its garbage.

#![allow(unsafe_code, reason = "communicators of others")]

use std::collections::HashMap;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use symmem::cuda::{Allocation, Device, Engine, Settings, Stream, SymmetricMemory};
use symmem::nccl::Communicator;
use symmem::{Error, Group, Result};

use super::parts::ReducedParts;
use super::stream::refuse_capture;
use crate::array::Keep;
use crate::dtype::dispatch;
use crate::memory::Span;
use crate::registry::{AllocatedBlock, Memory};

/// The engines of one group object, and the allocations that were rendezvoused on them.
#[derive(Debug, Default)]
pub(crate) struct Engines(Arc<Mutex<EngineSet>>);

#[derive(Debug, Default)]
struct EngineSet {
    engines: HashMap<usize, Arc<SharedEngine>>,
    /// By the address of the block.
    known: HashMap<usize, KnownAllocation>,
    /// Communicators of others, by device, for engines that are not made yet.
    foreign: HashMap<usize, ExternalCommunicator>,
}

/// A communicator of NCCL that somebody else made: its address, and what keeps it.
#[derive(Clone)]
struct ExternalCommunicator {
    address: usize,
    keep: Keep,
}

impl fmt::Debug for ExternalCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalCommunicator").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An allocation that is alive, with everybody's.
#[derive(Debug)]
struct KnownAllocation {
    block: Weak<AllocatedBlock>,
    whole: Arc<Whole>,
}

/// An engine, and what the handles on it have in common.
#[derive(Debug)]
pub(crate) struct SharedEngine {
    pub(crate) engine: Engine,
    /// The deadline of kernels, where one was asked for.
    deadline: Mutex<Option<Duration>>,
}

/// All of an allocation, on all ranks.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) shared: Arc<SharedEngine>,
    pub(crate) parts: ReducedParts,
    closed: AtomicBool,
}

/// All that there are, for [`prune`].
static ALL: Mutex<Vec<Weak<Mutex<EngineSet>>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of the mappings of allocations that are gone: called where allocations come and go.
pub(crate) fn prune() {
    let all: Vec<_> = {
        let mut all = lock(&ALL);
        all.retain(|engines| engines.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    };
    for engines in all {
        let mut inner = lock(&engines);
        let gone: Vec<usize> = inner
            .known
            .iter()
            .filter(|(_, known)| known.block.strong_count() == 0)
            .map(|(at, _)| *at)
            .collect();
        let gone: Vec<KnownAllocation> = gone.iter().filter_map(|at| inner.known.remove(at)).collect();
        // Dropped without the lock: the last mapping frees memory.
        drop(inner);
        drop(gone);
    }
}

impl Engines {
    /// The bytes of `span` on all ranks, and the allocation around them. Collective for an allocation that
    /// was not rendezvoused on this group before: then the ranks compare element types and sizes, and may
    /// differ in where in the allocation their span is. Local afterwards, where it is in the same place on
    /// all.
    pub(crate) fn attach(
        &self,
        group: &Group,
        block: &Arc<AllocatedBlock>,
        span: &Span,
    ) -> Result<(Arc<Whole>, SymmetricMemory<u8>)> {
        let Memory::Cuda(allocation) = &block.memory else {
            return Err(wrong("rendezvous", "it is host memory"));
        };
        if let Some(whole) = self.find(block) {
            let end = span.offset + span.bytes();
            let part = whole.parts.memory.slice(span.offset..end)?;
            return Ok((whole, part));
        }
        prune();
        let shared = self.engine(group, allocation.device())?;
        let part = part(allocation, &shared.engine, span)?;
        let memory = allocation.rendezvous(&shared.engine)?;
        let parts = ReducedParts::new(memory);
        let whole = Arc::new(Whole { shared, parts, closed: AtomicBool::new(false) });
        let known = KnownAllocation { block: Arc::downgrade(block), whole: Arc::clone(&whole) };
        let old = lock(&self.0).known.insert(Arc::as_ptr(block) as usize, known);
        drop(old);
        Ok((whole, part))
    }

    /// The allocation, if it was rendezvoused on this group.
    #[inline]
    pub(crate) fn find(&self, block: &Arc<AllocatedBlock>) -> Option<Arc<Whole>> {
        let inner = lock(&self.0);
        let known = inner.known.get(&(Arc::as_ptr(block) as usize))?;
        (known.block.as_ptr() == Arc::as_ptr(block)).then(|| Arc::clone(&known.whole))
    }

    /// Collective where this rank has none for `device`: so it must have none on every rank.
    fn engine(&self, group: &Group, device: &Device) -> Result<Arc<SharedEngine>> {
        if let Some(known) = lock(&self.0).engines.get(&device.ordinal()) {
            return Ok(Arc::clone(known));
        }
        // Not under the lock: it waits for the other ranks.
        let foreign = lock(&self.0).foreign.get(&device.ordinal()).cloned();
        let engine = match foreign {
            None => Engine::new(group, device)?,
            Some(foreign) => {
                let adopted = foreign.adopt(device);
                // Tells the others, who make their engines.
                let adopted = adopted.inspect_err(|error| drop(group.refuse(&error.to_string())))?;
                let settings = Settings::from_config(group.context().config());
                Engine::with_communicator(group, settings, &adopted)?
            }
        };
        // Captures of others (torch) must not find anything left to make.
        engine.prepare()?;
        lock(&ALL).push(Arc::downgrade(&self.0));
        let shared = Arc::new(SharedEngine { engine, deadline: Mutex::new(None) });
        Ok(Arc::clone(lock(&self.0).engines.entry(device.ordinal()).or_insert(shared)))
    }

    /// The engine of the device `ordinal` will work on the communicator at `address`, which `keep` keeps. An
    /// error once there is one.
    pub(crate) fn set_foreign(&self, ordinal: usize, address: usize, keep: Keep) -> Result<()> {
        let mut inner = lock(&self.0);
        if inner.engines.contains_key(&ordinal) {
            let problem = format!(
                "this group works on cuda:{ordinal} already. Hint: register it before the first rendezvous there"
            );
            return Err(wrong("communicator", &problem));
        }
        if inner.foreign.contains_key(&ordinal) {
            return Err(wrong("communicator", &format!("this group has one for cuda:{ordinal} already")));
        }
        inner.foreign.insert(ordinal, ExternalCommunicator { address, keep });
        Ok(())
    }

    /// Undoes [`Engines::set_foreign`]. An engine that was made meanwhile keeps the communicator.
    pub(crate) fn forget_foreign(&self, ordinal: usize, address: usize) {
        let mut inner = lock(&self.0);
        let is_it = inner.foreign.get(&ordinal).is_some_and(|foreign| foreign.address == address);
        let gone = if is_it { inner.foreign.remove(&ordinal) } else { None };
        // Dropped without the lock: it may be a Python object.
        drop(inner);
        drop(gone);
    }

    /// Forgets an allocation that was closed on this group. The next rendezvous of it is collective again.
    pub(crate) fn forget(&self, whole: &Arc<Whole>) {
        let mut inner = lock(&self.0);
        let key = inner.known.iter().find(|(_, known)| Arc::ptr_eq(&known.whole, whole)).map(|(key, _)| *key);
        let gone = key.and_then(|key| inner.known.remove(&key));
        drop(inner);
        drop(gone);
    }

    /// Lets go of all, when the group is closed. Handles keep theirs.
    pub(crate) fn clear(&self) {
        let gone = std::mem::take(&mut *lock(&self.0));
        drop(gone);
    }

    /// Whether nothing of the group can be on a device.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).engines.is_empty()
    }

    /// The same engines: for handles, which tell them when they are closed.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl ExternalCommunicator {
    fn adopt(&self, device: &Device) -> Result<Communicator> {
        let raw = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: who registered it promised that it is a communicator of the NCCL that is loaded, which
        // lives as long as what keeps it, and on which nobody else makes calls meanwhile
        // (`symmem.torch.register_external_nccl_comm`).
        let adopted = unsafe { Communicator::adopt(raw, Some(Arc::clone(&self.keep))) }?;
        match adopted.device() == device {
            true => Ok(adopted),
            false => {
                let problem = format!(
                    "it is on cuda:{}, and was registered for cuda:{}",
                    adopted.device().ordinal(),
                    device.ordinal()
                );
                Err(wrong("communicator", &problem))
            }
        }
    }
}

/// Collective. The bytes of `span`, whose element type the ranks compare.
fn part(allocation: &Allocation<u8>, engine: &Engine, span: &Span) -> Result<SymmetricMemory<u8>> {
    dispatch!(span.dtype, T => allocation.rendezvous_as::<T>(engine, span.offset, span.len)?.cast::<u8>())
}

impl Whole {
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl SharedEngine {
    /// Makes kernels give up after `timeout`, from now on. The word is the rank's, not the launch's: it also
    /// holds for what waits already, and for what comes later without a timeout of its own.
    pub(crate) fn within(&self, timeout: Duration, stream: &Stream) -> Result<()> {
        let mut deadline = lock(&self.deadline);
        if *deadline == Some(timeout) {
            return Ok(());
        }
        refuse_capture(stream, "timeout_ms")?;
        self.engine.set_deadline(Some(timeout))?;
        *deadline = Some(timeout);
        Ok(())
    }
}

fn wrong(what: &str, problem: &str) -> Error {
    Error::Invalid { what: what.to_owned(), problem: problem.to_owned() }
}
