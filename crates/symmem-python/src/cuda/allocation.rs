//! Arrays on devices: new ones, and persistent ones by their id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use symmem::{Allocation, DType, Error, RankContext, Result};

use super::device::device;
use super::engine::prune;
use crate::array::{self, Keep};
use crate::error::{invalid, raise};
use crate::fork;
use crate::operand::Place;
use crate::registry::{self, AllocatedBlock, Memory};

/// What an array keeps alive: the allocation, and the claim on its id if it has one.
struct Owner {
    /// `None` only while it is dropped.
    block: Option<Arc<AllocatedBlock>>,
    _claim: Option<Allocation<u8>>,
    epoch: u32,
}

impl Owner {
    fn new(block: Arc<AllocatedBlock>, claim: Option<Allocation<u8>>) -> Self {
        Self { block: Some(block), _claim: claim, epoch: fork::epoch() }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.block.take());
        if self.epoch != fork::epoch() {
            // Locks may be held by threads that a forked child does not have.
            return;
        }
        // Groups that know the allocation have mapped it too.
        prune();
    }
}

/// A zeroed array on the device `ordinal`, that can become symmetric. With an id: the memory of the last
/// array with that id, as it was left.
pub(crate) fn empty(
    py: Python<'_>,
    context: &RankContext,
    ordinal: i32,
    shape: &[usize],
    dtype: DType,
    alloc_id: Option<&str>,
) -> PyResult<Py<PyAny>> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, size| bytes.checked_mul(*size));
    let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as usize);
    let bytes = bytes.ok_or_else(|| invalid("empty", format!("{shape:?} of {dtype} is too large")))?;
    let owner = py.detach(|| match alloc_id {
        Some(id) => persistent(context, ordinal, id, bytes),
        None => Ok(Owner::new(allocate(context, ordinal, bytes)?, None)),
    });
    let owner = owner.map_err(raise)?;
    let address = owner.block.as_ref().map_or(0, |block| block.address());
    let keep: Keep = Arc::new(owner);
    array::make(py, address, keep, shape, dtype, Place::Cuda(ordinal))
}

/// `bytes` on the device `ordinal`.
pub(crate) fn allocate(context: &RankContext, ordinal: i32, bytes: usize) -> Result<Arc<AllocatedBlock>> {
    prune();
    let allocation = context.alloc_on::<u8>(&device(ordinal)?, bytes)?;
    Ok(registry::register(Memory::Cuda(allocation), context))
}

/// Persistent allocations on devices, by the address of the host allocation that claims the id.
static PERSISTENT: Mutex<Option<HashMap<usize, Arc<AllocatedBlock>>>> = Mutex::new(None);

fn persistent_blocks() -> MutexGuard<'static, Option<HashMap<usize, Arc<AllocatedBlock>>>> {
    PERSISTENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The claim is a persistent allocation of one byte in host memory: so ids belong to the rank's context, and
/// the rule that only one array of an id is alive has one implementation.
fn persistent(context: &RankContext, ordinal: i32, id: &str, bytes: usize) -> Result<Owner> {
    let claim = context.alloc_persistent::<u8>(&format!("cuda:{ordinal}/{id}"), 1)?;
    let key = claim.as_ptr() as usize;
    // Not in the match, which would hold the lock.
    let known = persistent_blocks().as_ref().and_then(|blocks| blocks.get(&key)).cloned();
    let block = match known {
        Some(block) if block.bytes() == bytes => block,
        Some(block) => {
            let problem = format!("asked for {bytes} bytes, but it has {}", block.bytes());
            return Err(Error::Persistent { id: id.to_owned(), problem });
        }
        None => {
            let block = allocate(context, ordinal, bytes)?;
            persistent_blocks().get_or_insert_default().insert(key, Arc::clone(&block));
            block
        }
    };
    Ok(Owner::new(block, Some(claim)))
}
