//! The workspace of a group: symmetric memory for operations that need some, kept and grown.

use std::sync::Arc;

use pyo3::prelude::*;
use symmem::DType;

use super::{Handle, Span, SymmetricMemory, attach};
use crate::error::raise;
use crate::group::{Group, Membership};
use crate::registry::{self, Block, Memory};

/// A group's workspace, without the group: the group holds it.
pub(crate) struct Workspace {
    handle: Arc<dyn Handle>,
    span: Span,
    block: Arc<Block>,
}

impl Workspace {
    fn memory(&self, membership: &Membership) -> SymmetricMemory {
        let handle = Arc::clone(&self.handle);
        SymmetricMemory::new(handle, self.span.clone(), membership, &self.block, false)
    }
}

/// Collective where it has to grow. The group's workspace of at least `min_size` bytes: memory as `uint8` that every caller on
/// the group shares, kept until it or the group is closed. All ranks must ask for the same size.
#[pyfunction]
fn get_symm_mem_workspace(
    py: Python<'_>,
    group: &Bound<'_, PyAny>,
    min_size: usize,
) -> PyResult<SymmetricMemory> {
    let membership = Group::given(group, "get_symm_mem_workspace")?.get().membership();
    if let Some(old) = &*membership.workspace()
        && old.span.len >= min_size
        && old.handle.is_open()
    {
        return Ok(old.memory(membership));
    }
    let context = membership.context();
    let memory = membership.told(py, 0, context.alloc::<u8>(min_size).map_err(raise))?;
    let memory = Memory::Host(memory);
    let block = registry::register(memory, context);
    let span = Span { offset: 0, shape: vec![min_size], dtype: DType::U8, len: min_size };
    let handle = attach(py, membership, &block, &span, 0)?;
    membership.remember(&block, &handle);
    let workspace = Workspace { handle, span, block };
    let memory = workspace.memory(membership);
    // Dropped after the lock is.
    let old = membership.workspace().replace(workspace);
    drop(old);
    Ok(memory)
}

/// Adds what this module has to the extension module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(get_symm_mem_workspace, module)?)
}
