//! Memory of the process' heap, which ranks that are threads of one process share. For tests: it has nothing
//! to send and nothing to map, so what passes on it counts on no descriptor.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::group::Running;
use crate::provider::{Export, Joined, LocalMemory, MemoryProvider, own};
use crate::table::Keep;
use crate::{Error, Result};

/// Where memory begins: a multiple of this, as pages do.
const ALIGNMENT: usize = 4096;

/// The memory that lives in this process, by address.
static LIVE: Mutex<Option<HashMap<u64, Weak<HeapMemory>>>> = Mutex::new(None);

fn live() -> MutexGuard<'static, Option<HashMap<u64, Weak<HeapMemory>>>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The provider of heap memory.
#[derive(Clone, Debug)]
pub(super) struct Heap;

#[derive(Debug)]
struct HeapMemory {
    /// Atomics, because who writes them may be any thread.
    words: Box<[AtomicU64]>,
    bytes: usize,
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        if let Some(live) = live().as_mut() {
            live.remove(&self.address());
        }
    }
}

impl LocalMemory for HeapMemory {
    fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance().next_multiple_of(ALIGNMENT) as u64
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn mapped_bytes(&self) -> usize {
        self.bytes
    }
}

impl MemoryProvider for Heap {
    fn name(&self) -> &'static str {
        "heap"
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>> {
        let count = (bytes.max(1) + ALIGNMENT).div_ceil(size_of::<u64>());
        let mut words = Vec::new();
        let reserved = words.try_reserve_exact(count);
        reserved.map_err(|error| Error::invalid("memory of the heap", error.to_string()))?;
        words.resize_with(count, || AtomicU64::new(0));
        let memory = Arc::new(HeapMemory { words: words.into_boxed_slice(), bytes });
        live().get_or_insert_default().insert(memory.address(), Arc::downgrade(&memory));
        Ok(memory)
    }

    fn join(&self, _: &Running<'_>) -> Result<Arc<dyn Joined>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Joined for Heap {
    fn provider(&self) -> &dyn MemoryProvider {
        self
    }

    fn export(&self, local: &dyn LocalMemory) -> Result<Export> {
        let memory = own::<HeapMemory>(local)?;
        Ok(Export { bytes: memory.bytes, note: memory.address().to_le_bytes().to_vec(), fds: Vec::new() })
    }

    fn import(&self, rank: usize, export: Export, _: Option<&Keep>) -> Result<Option<(u64, Keep)>> {
        let address = <[u8; 8]>::try_from(export.note).map(u64::from_le_bytes).unwrap_or_default();
        let memory = live().as_ref().and_then(|live| live.get(&address)?.upgrade());
        let memory = memory.filter(|memory| memory.bytes == export.bytes).ok_or_else(|| {
            Error::invalid(
                format!("memory of rank {rank}"),
                "it is not on this process' heap, which threads alone share",
            )
        })?;
        Ok(Some((address, memory)))
    }
}
