//! From an array to a handle: whose allocation it is in, and who takes part.

use std::sync::Arc;

use pyo3::prelude::*;

use super::host::Host;
use super::{Handle, Span, SymmetricMemory};
use crate::cuda::DeviceHandle;
use crate::error::invalid;
use crate::group::{Group, Membership};
use crate::operand::Operand;
use crate::registry::{self, AllocatedBlock, Memory};

/// The span of `operand` in the allocation that holds it.
fn locate(operand: &Operand<'_>) -> Option<(Arc<AllocatedBlock>, Span)> {
    // What a process had before it forked is the parent's to bring, whose borrows the child does not see.
    let (block, offset) = registry::find(operand.address).filter(|(block, _)| block.is_own())?;
    let span = Span { offset, shape: operand.shape.clone(), dtype: operand.dtype, len: operand.len };
    (span.bytes() <= block.bytes() - offset).then_some((block, span))
}

/// Collective: the handle of `x` on the group.
pub(crate) fn open(
    x: &Bound<'_, PyAny>,
    membership: &Membership,
    timeout_ms: u64,
) -> PyResult<SymmetricMemory> {
    if x.is_none() {
        return open_nothing(x.py(), membership, timeout_ms);
    }
    let located = Operand::input(x).and_then(|operand| {
        locate(&operand).ok_or_else(|| {
            let problem = "the array is not in symmetric memory of this rank. Hint: allocate it with symmem.empty; memory of a \
                           peer, of another process (opened, or from before a fork), or a copy of symmetric memory, cannot be \
                           rendezvoused";
            invalid("rendezvous", problem)
        })
    });
    let (block, span) = membership.told(x.py(), timeout_ms, located)?;
    let handle = attach(x.py(), membership, &block, &span, timeout_ms)?;
    membership.remember(&block, &handle);
    Ok(SymmetricMemory::new(handle, span, membership, &block, is_torch(x)))
}

/// Collective: the handle of a rank that brings nothing.
fn open_nothing(py: Python<'_>, membership: &Membership, timeout_ms: u64) -> PyResult<SymmetricMemory> {
    let group = membership.group("rendezvous", timeout_ms)?;
    let lasting = membership.lasting("rendezvous", timeout_ms)?;
    let host = Host::rendezvous_nothing(py, (&group, lasting.as_deref()))?;
    let span = host.span().clone();
    let handle: Arc<dyn Handle> = Arc::new(host);
    membership.remember_handle(&handle);
    Ok(SymmetricMemory::without_block(handle, span, membership))
}

/// Local: the handle of an array that was rendezvoused on the group before, by any view of its allocation.
pub(crate) fn find_known(
    operand: &Operand<'_>,
    membership: &Membership,
    timeout_ms: u64,
) -> PyResult<Option<SymmetricMemory>> {
    let Some((block, span)) = locate(operand).filter(|(block, _)| membership.knows(block)) else {
        return Ok(None);
    };
    let x = &operand.object;
    let handle = attach(x.py(), membership, &block, &span, timeout_ms)?;
    Ok(Some(SymmetricMemory::new(handle, span, membership, &block, is_torch(x))))
}

/// Collective for a new pair of allocation and group, else local: a handle of `span`.
pub(crate) fn attach(
    py: Python<'_>,
    membership: &Membership,
    block: &Arc<AllocatedBlock>,
    span: &Span,
    timeout_ms: u64,
) -> PyResult<Arc<dyn Handle>> {
    let group = membership.group("rendezvous", timeout_ms)?;
    let lasting = membership.lasting("rendezvous", timeout_ms)?;
    match &block.memory {
        Memory::Host(allocation) => {
            let shaped = membership.shaped(&group, &span.shape);
            let group = shaped.as_ref().unwrap_or(&group);
            let known = membership.knows(block);
            let host = Host::rendezvous(py, (group, lasting.as_deref()), (allocation, known), span)?;
            Ok(Arc::new(host))
        }
        Memory::Cuda(_) => {
            // What is made for a device keeps the terms it was made on: not those of a block.
            let group = lasting.filter(|_| timeout_ms == 0).unwrap_or(group);
            Ok(Arc::new(DeviceHandle::rendezvous(py, &group, membership.engines(), block, span)?))
        }
    }
}

/// Whether `x` is a torch tensor, so that outputs should be too.
fn is_torch(x: &Bound<'_, PyAny>) -> bool {
    let module = x.get_type().module();
    module.is_ok_and(|module| module.to_str().is_ok_and(|module| module.split('.').next() == Some("torch")))
}

/// Collective. The handle through which every rank of `group` reaches every rank's `x`.
///
/// `x` is any array or view in memory from `symmem.empty`: a symmem, numpy or torch one. All ranks must bring
/// the same element type and allocations of the same size; where in its allocation a rank's `x` starts may
/// differ. Local when the allocation was rendezvoused on this group before, and every rank brought one:
/// `peer`, `put` and `get` then take `x` to start at the same place on every rank.
///
/// A rank that passes None brings nothing: it sees what the others bring, of which the handle has shape and
/// dtype. Such a handle has views, `put`, `get`, signals and `barrier`; collectives raise `NothingBrought` on
/// all ranks. For memory on the CPU.
#[pyfunction]
#[pyo3(signature = (x, group, *, timeout_ms = 0))]
fn rendezvous(x: &Bound<'_, PyAny>, group: &Bound<'_, PyAny>, timeout_ms: u64) -> PyResult<SymmetricMemory> {
    open(x, Group::given(group, "rendezvous")?.get().membership(), timeout_ms)
}

/// Adds what this module has to the extension module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rendezvous, module)?)
}
