//! Handles of symmetric memory: what Python can do once every rank maps every rank's memory.
//!
//! [`SymmetricMemory`] is the Python class; it checks arguments and makes arrays. What depends on where the
//! memory is, is behind [`Handle`]: [`host`] here, `cuda::handle` for devices. Handles hold the membership in
//! their group until [`Handle::leave`]; arrays made from them hold mappings only, and so stay valid whatever
//! becomes of the handle.

mod allocate;
mod checks;
mod class;
mod collectives;
mod fused;
mod host;
mod rendezvous;
mod workspace;

use std::time::Duration;

use pyo3::prelude::*;
use symmem::DType;

use crate::array::Keep;
use crate::collectives::{Maybe, Plan};
use crate::operand::{Operand, Place};
use crate::pending::Pending;

pub(crate) use self::class::SymmetricMemory;
pub(crate) use self::host::Bytes;
pub(crate) use self::rendezvous::{attach, find_known};
pub(crate) use self::workspace::{Purpose, Room, Workspace, has_to_grow, outgrow, room, room_handle};

/// The elements of a handle: where they start in the allocation, and what they are.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// First byte in the allocation.
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    /// Number of elements.
    pub(crate) len: usize,
}

impl Span {
    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }
}

/// On what terms a call runs.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a, 'py> {
    pub(crate) py: Python<'py>,
    /// How long to wait; `None` is the group's default.
    pub(crate) timeout: Option<Duration>,
    /// The `stream=` argument. Host memory has no use for it.
    pub(crate) stream: Maybe<'a, 'py>,
}

/// What a handle knows of everybody's memory.
#[derive(Default)]
pub(crate) struct MemoryFacts {
    /// Bytes of the whole allocation.
    pub(crate) buffer_size: usize,
    /// Bytes of each rank's signal pad.
    pub(crate) signal_pad_size: usize,
    /// Every rank's allocation, at its address in this process; without the span's offset. 0 for ranks that
    /// brought nothing.
    pub(crate) buffers: Vec<usize>,
    /// The address, for this place, of an array of [`MemoryFacts::buffers`].
    pub(crate) buffers_dev: usize,
    /// Every rank's signal pad, at its address in this process.
    pub(crate) pads: Vec<usize>,
    /// The address, for this place, of an array of [`MemoryFacts::pads`].
    pub(crate) pads_dev: usize,
    /// The address that reaches all ranks at once, with the span's offset; 0 where there is none.
    pub(crate) multicast: usize,
}

/// What a handle does, wherever its memory is. Ranks and channels come unchecked; lengths and offsets of
/// elements too.
///
/// Calls that wait for peers do so without the interpreter ([`crate::interrupt::blocking`]). After
/// [`Handle::close`] or [`Handle::leave`] every call gives `Closed`, except those that only tell numbers.
pub(crate) trait Handle: Send + Sync {
    /// Where the memory is.
    fn place(&self) -> Place;

    /// The ranks that brought nothing to the rendezvous, in order.
    fn ranks_without_memory(&self) -> &[usize] {
        &[]
    }

    /// Sizes and addresses.
    fn facts(&self) -> &MemoryFacts;

    /// The byte of rank `rank`'s allocation at which its elements of this handle start: where `put` and `get`
    /// count from. This rank's own where the handle is closed.
    fn start_of(&self, rank: usize) -> usize;

    /// `bytes` of rank `rank` from byte `start` of the allocation on: their address, and what keeps them
    /// mapped.
    fn view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)>;

    /// `bytes` of rank `rank`'s signal pad from byte `start` on.
    fn pad_view(&self, rank: usize, start: usize, bytes: usize) -> symmem::Result<(usize, Keep)>;

    fn barrier(&self, channel: usize, terms: Terms<'_, '_>) -> PyResult<()>;

    fn put_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()>;

    fn wait_signal(&self, rank: usize, channel: usize, terms: Terms<'_, '_>) -> PyResult<()>;

    /// Without waiting: false if the previous signal is still there.
    fn try_put_signal(&self, rank: usize, channel: usize) -> PyResult<bool>;

    /// Without waiting: false if there is no signal.
    fn try_wait_signal(&self, rank: usize, channel: usize) -> PyResult<bool>;

    /// Writes `from` into rank `rank`'s elements, from element `start` of the span on.
    fn put(&self, rank: usize, start: usize, from: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()>;

    /// Reads rank `rank`'s elements, from element `start` of the span on, into `out`.
    fn get(&self, rank: usize, start: usize, out: &Operand<'_>, terms: Terms<'_, '_>) -> PyResult<()>;

    /// Runs a collective (on devices: enqueues it). Its output, where it takes one, is contiguous, on the
    /// handle's device, of its element type, and disjoint from everybody's elements. The number of its
    /// elements is not checked yet.
    fn run(&self, plan: &Plan<'_, '_>, terms: Terms<'_, '_>) -> PyResult<()>;

    /// Tells the others about `error` in place of a collective of this handle, as far as can be; what to
    /// raise.
    fn refuse(&self, error: PyErr, terms: Terms<'_, '_>) -> PyErr;

    /// Collective. The first `splits[0]` rows of `row` elements go to rank 0, the next to rank 1 ...
    fn all_to_all_v(
        &self,
        row: usize,
        splits: &[usize],
        out: &Operand<'_>,
        terms: Terms<'_, '_>,
    ) -> PyResult<symmem::Received>;

    /// Starts a collective, as [`Handle::run`] runs it.
    fn start(&self, plan: Plan<'_, '_>, terms: Terms<'_, '_>) -> PyResult<Pending>;

    /// Whether the memory can still be used on its group: not after a close of this or another handle of it,
    /// nor after [`Handle::leave`].
    fn is_open(&self) -> bool;

    /// Collective. Ends the use of the memory on its group.
    fn close(&self, terms: Terms<'_, '_>) -> PyResult<()>;

    /// Local; never blocks. Gives up the membership in the group, which was closed.
    fn leave(&self);

    /// The handle as the host's, for what is only there for host memory.
    fn as_host(&self) -> Option<&host::Host> {
        None
    }

    /// The handle as a device's, for what is only there for device memory.
    fn as_device(&self) -> Option<&crate::cuda::DeviceHandle> {
        None
    }
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    allocate::register(module)?;
    class::register(module)?;
    rendezvous::register(module)?;
    workspace::register(module)
}
