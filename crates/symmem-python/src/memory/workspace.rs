//! The workspaces of a group: symmetric memory for operations that need some, kept and grown.
//!
//! A group has one for its users and one for its own collectives on private memory, in each place where it
//! was asked for.

use std::sync::Arc;

use pyo3::prelude::*;
use symmem::DType;

use super::{Handle, Span, SymmetricMemory, attach};
use crate::cuda;
use crate::error::{invalid, raise};
use crate::group::{Group, Membership, RoomTurn};
use crate::operand::Place;
use crate::registry::{self, AllocatedBlock, Memory};

/// Whom a workspace is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Whoever calls `get_symm_mem_workspace`.
    Users,
    /// The group's collectives on private memory of devices, and its fused products of private memory.
    Private,
}

/// A group's workspace, without the group: the group holds it.
pub(crate) struct Workspace {
    place: Place,
    purpose: Purpose,
    handle: Arc<dyn Handle>,
    span: Span,
    block: Arc<AllocatedBlock>,
}

impl Workspace {
    fn memory(&self, membership: &Membership) -> SymmetricMemory {
        let handle = Arc::clone(&self.handle);
        SymmetricMemory::new(handle, self.span.clone(), membership, &self.block, false)
    }

    fn is(&self, place: Place, purpose: Purpose) -> bool {
        (self.place, self.purpose) == (place, purpose)
    }
}

/// Whether the group's workspace has to grow, which is collective, to have `bytes`.
pub(crate) fn has_to_grow(membership: &Membership, place: Place, purpose: Purpose, bytes: usize) -> bool {
    let workspaces = membership.workspaces();
    let known = workspaces.iter().find(|known| known.is(place, purpose));
    known.is_none_or(|known| known.span.len < bytes || !known.handle.is_open())
}

/// Collective where it has to grow. What `answer` makes of the group's workspace of at least `bytes` bytes.
pub(crate) fn workspace<R>(
    py: Python<'_>,
    membership: &Membership,
    (place, purpose): (Place, Purpose),
    (bytes, timeout_ms): (usize, u64),
    answer: impl FnOnce(&Workspace) -> R,
) -> PyResult<R> {
    if has_to_grow(membership, place, purpose, bytes) {
        let block = membership.told(py, timeout_ms, allocate(membership, place, bytes))?;
        let span = Span { offset: 0, shape: vec![bytes], dtype: DType::U8, len: bytes };
        let handle = attach(py, membership, &block, &span, timeout_ms)?;
        membership.remember(&block, &handle);
        let mut workspaces = membership.workspaces();
        let old = workspaces.extract_if(.., |known| known.is(place, purpose)).collect::<Vec<_>>();
        workspaces.push(Workspace { place, purpose, handle, span, block });
        // The last of a handle unmaps memory: not under the lock.
        drop(workspaces);
        drop(old);
    }
    let workspaces = membership.workspaces();
    let known = workspaces.iter().find(|known| known.is(place, purpose));
    known.map(answer).ok_or_else(|| invalid("workspace", "another thread closed the group"))
}

/// The group's workspace for its own collectives, and the turn of the call that has it.
pub(crate) struct Room<'a> {
    pub(crate) handle: Arc<dyn Handle>,
    _turn: RoomTurn<'a>,
}

/// The group's workspace for its own collectives, for the call `op`. What this puts there no other thread may
/// overwrite before it was read, and an operation begins only afterwards: so another one gets `Busy` until
/// the room is dropped.
pub(crate) fn room<'a>(
    py: Python<'_>,
    membership: &'a Membership,
    (op, place): (&'static str, Place),
    (bytes, timeout_ms): (usize, u64),
) -> PyResult<Room<'a>> {
    let turn = membership.take_room(op, place)?;
    Ok(Room { handle: room_handle(py, membership, place, (bytes, timeout_ms))?, _turn: turn })
}

/// The handle of that workspace, for who puts nothing there. It grows as [`workspace`] does, in steps.
pub(crate) fn room_handle(
    py: Python<'_>,
    membership: &Membership,
    place: Place,
    (bytes, timeout_ms): (usize, u64),
) -> PyResult<Arc<dyn Handle>> {
    /// So that programs whose arrays grow do not allocate with each.
    const LEAST: usize = 1 << 20;
    let bytes = bytes.max(LEAST).checked_next_power_of_two().unwrap_or(bytes);
    if has_to_grow(membership, place, Purpose::Private, bytes) {
        outgrow(py, membership, place)?;
    }
    workspace(py, membership, (place, Purpose::Private), (bytes, timeout_ms), |known| {
        Arc::clone(&known.handle)
    })
}

/// Says where the group's own workspace at `place` is used that this rank is about to make a larger one
/// together with the others. So a rank that uses the one there is instead is told at once, and not when
/// somebody has waited for it too long.
pub(crate) fn outgrow(py: Python<'_>, membership: &Membership, place: Place) -> PyResult<()> {
    let workspaces = membership.workspaces();
    let known = workspaces.iter().find(|known| known.is(place, Purpose::Private) && known.handle.is_open());
    let handle = known.map(|known| Arc::clone(&known.handle));
    drop(workspaces);
    match handle.as_ref().and_then(|handle| handle.as_device()) {
        Some(device) => cuda::meet(py, &device.core),
        // On the host it is used where ranks rendezvous, and they compare both.
        None => Ok(()),
    }
}

fn allocate(membership: &Membership, place: Place, bytes: usize) -> PyResult<Arc<AllocatedBlock>> {
    let context = membership.context();
    match place {
        Place::Cpu => {
            let memory = Memory::Host(context.alloc::<u8>(bytes).map_err(raise)?);
            Ok(registry::register(memory, context))
        }
        Place::Cuda(ordinal) => cuda::allocate(context, ordinal, bytes).map_err(raise),
    }
}

/// Collective where it has to grow. The group's workspace of at least `min_size` bytes on `device` ("cpu",
/// "cuda:N"): memory as `uint8` that every caller on the group shares, kept until it or the group is closed.
/// All ranks must ask for the same size.
#[pyfunction]
#[pyo3(signature = (group, min_size, device = None), text_signature = "(group, min_size, device='cpu')")]
fn get_symm_mem_workspace(
    py: Python<'_>,
    group: &Bound<'_, PyAny>,
    min_size: usize,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<SymmetricMemory> {
    let membership = Group::given(group, "get_symm_mem_workspace")?.get().membership();
    let place = device.map_or(Ok(Place::Cpu), Place::parse)?;
    if let Place::Cuda(ordinal) = place
        && has_to_grow(membership, place, Purpose::Users, min_size)
    {
        cuda::refuse_growth(py, ordinal, "get_symm_mem_workspace", min_size)?;
    }
    workspace(py, membership, (place, Purpose::Users), (min_size, 0), |known| known.memory(membership))
}

/// Adds what this module has to the extension module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(get_symm_mem_workspace, module)?)
}
