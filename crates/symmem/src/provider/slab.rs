//! Device memory from one slab per device, shared when the ranks join. For tests: what an allocation exports
//! is a place in the slab, which differs by rank, and nothing is sent or mapped for it; so what passes on it
//! counts on neither. A library with a symmetric heap of its own (NVSHMEM) works like this.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::cuda::Device;
use crate::cuda::capture::check_no_capture;
use crate::group::Running;
use crate::provider::share::{Bring, share};
use crate::provider::{Export, Joined, LocalMemory, MemoryProvider, own};
use crate::table::{Column, Keep};
use crate::{Error, Result};

/// Bytes of a slab.
const SLAB: usize = 64 << 20;
/// Where allocations begin: a multiple of this.
const ALIGNMENT: usize = 512;

/// The slabs of this process, by device.
static SLABS: Mutex<Option<HashMap<usize, Weak<Slab>>>> = Mutex::new(None);

/// One device's slab, and what of it is taken.
#[derive(Debug)]
struct Slab {
    memory: Arc<dyn LocalMemory>,
    /// Where what is taken begins and ends, in order.
    taken: Mutex<Vec<(usize, usize)>>,
}

impl Slab {
    /// The first hole of `bytes`. Not at the start: devices with other numbers have other places.
    fn take(&self, first: usize, bytes: usize) -> Result<usize> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = first;
        let mut at = 0;
        for (from, to) in taken.iter() {
            if start + bytes <= *from {
                break;
            }
            (start, at) = (start.max(to.next_multiple_of(ALIGNMENT)), at + 1);
        }
        if bytes > SLAB || start + bytes > SLAB {
            return Err(Error::invalid("slab", format!("{bytes} bytes of memory are not left in it")));
        }
        taken.insert(at, (start, start + bytes));
        Ok(start)
    }

    fn give_back(&self, start: usize) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).retain(|(from, _)| *from != start);
    }
}

/// A part of a slab.
#[derive(Debug)]
struct SlabPart {
    slab: Arc<Slab>,
    start: usize,
    bytes: usize,
}

impl Drop for SlabPart {
    fn drop(&mut self) {
        self.slab.give_back(self.start);
    }
}

impl LocalMemory for SlabPart {
    fn address(&self) -> u64 {
        self.slab.memory.address() + self.start as u64
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn mapped_bytes(&self) -> usize {
        self.bytes
    }
}

/// The provider of parts of `device`'s slab, which is memory of `base`.
#[derive(Clone, Debug)]
pub(super) struct Slabs {
    device: Device,
    base: Arc<dyn MemoryProvider>,
}

impl Slabs {
    pub(super) fn new(device: &Device, base: Arc<dyn MemoryProvider>) -> Self {
        Self { device: device.clone(), base }
    }

    /// The device's slab, made if nobody has it.
    fn slab(&self) -> Result<Arc<Slab>> {
        let mut slabs = SLABS.lock().unwrap_or_else(PoisonError::into_inner);
        let slabs = slabs.get_or_insert_default();
        if let Some(slab) = slabs.get(&self.device.ordinal()).and_then(Weak::upgrade) {
            return Ok(slab);
        }
        let slab = Arc::new(Slab { memory: self.base.alloc(SLAB)?, taken: Mutex::default() });
        slabs.insert(self.device.ordinal(), Arc::downgrade(&slab));
        Ok(slab)
    }
}

impl MemoryProvider for Slabs {
    fn name(&self) -> &'static str {
        "slab"
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>> {
        check_no_capture("allocation of device memory")?;
        let slab = self.slab()?;
        let start = slab.take(self.device.ordinal() * ALIGNMENT, bytes)?;
        let part = SlabPart { slab, start, bytes };
        // What was given back has been used.
        crate::provider::write_on(&self.device, &part, 0, &vec![0; bytes])?;
        Ok(Arc::new(part))
    }

    fn join(&self, running: &Running<'_>) -> Result<Arc<dyn Joined>> {
        let base = self.base.join(running)?;
        let slab = self.slab();
        let own = slab.as_ref().ok().cloned();
        let brought =
            slab.map(|slab| vec![Bring { joined: Arc::clone(&base), local: Some(Arc::clone(&slab.memory)) }]);
        let mut columns = share(running, &[], brought, |_| Ok(()))?.columns;
        let peers = Arc::new(columns.swap_remove(0));
        Ok(Arc::new(JoinedSlabs { slabs: self.clone(), base, peers, _own: own }))
    }
}

/// Everybody's slab.
#[derive(Debug)]
struct JoinedSlabs {
    slabs: Slabs,
    base: Arc<dyn Joined>,
    peers: Arc<Column>,
    _own: Option<Arc<Slab>>,
}

impl Joined for JoinedSlabs {
    fn provider(&self) -> &dyn MemoryProvider {
        &self.slabs
    }

    fn pads(&self) -> Option<&Arc<dyn Joined>> {
        Some(&self.base)
    }

    fn reaches_all(&self) -> Option<bool> {
        Some(self.peers.reaches_all)
    }

    fn export(&self, local: &dyn LocalMemory) -> Result<Export> {
        let part = own::<SlabPart>(local)?;
        Ok(Export { bytes: part.bytes, note: (part.start as u64).to_le_bytes().to_vec(), fds: Vec::new() })
    }

    fn import(&self, rank: usize, export: Export, _: Option<&Keep>) -> Result<Option<(u64, Keep)>> {
        let start = <[u8; 8]>::try_from(export.note).map_or(u64::MAX, u64::from_le_bytes);
        if start.checked_add(export.bytes as u64).is_none_or(|end| end > SLAB as u64) {
            return Err(Error::invalid(format!("memory of rank {rank}"), "it is beyond the slab"));
        }
        let base = self.peers.reach[rank].address();
        Ok((base != 0).then(|| (base + start, Arc::clone(&self.peers) as _)))
    }
}
