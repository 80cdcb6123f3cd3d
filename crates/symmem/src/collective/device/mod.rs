//! Operations on memory of devices: the methods of its handle, one file for each kind, and all ranks in the
//! hands of one thread.
//!
//! Public, as methods of [`SymmetricMemory`]. They say what an operation means and check its arguments; the
//! engine does it (`engine/cuda`), which learns addresses and no elements. All return as soon as the work is
//! on its stream. Every one checks, before anything is launched: the memory is open, the process is the rank,
//! the group is whole, the stream is of the engine's device, and the arguments are right. Those that are
//! wrong on one rank alone are told to the others, where that can be.

mod all_reduce;
mod barrier;
mod copy;
mod local;
mod multimem;
mod norm;
mod on_stream;
mod products;
mod pull;
mod signal;
mod words;

use std::ffi::c_void;

pub use self::local::LocalRanks;
pub use self::norm::{Normed, RmsNorm};
pub use self::on_stream::OnStream;
pub use self::products::DeviceMatrix;
use crate::cuda::Stream;
#[cfg(feature = "bench-support")]
use crate::engine::cuda::bench_support::Tune;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// The same memory, whose operations go in the order of lane `lane` of the engine.
    pub fn lane(&self, lane: usize) -> Result<Self> {
        Ok(self.with_engine(self.engine().lane(lane)?))
    }

    /// The same memory with other values than the dispatcher's table, for sweeps.
    #[doc(hidden)]
    #[cfg(feature = "bench-support")]
    pub fn tuned(&self, tune: Tune) -> Self {
        self.with_engine(self.engine().tuned(tune))
    }

    /// Whether kernels reach everybody's memory; else operations go through NCCL, where it has them.
    pub fn is_direct(&self) -> bool {
        self.region().is_direct()
    }

    /// NCCL's window of this memory (`ncclWindow_t`), for kernels of its device interface; `None` where it is
    /// not NCCL's.
    pub fn nccl_window(&self) -> Option<*mut c_void> {
        self.region().nccl_window()
    }

    /// Bytes from the start of the window to the handle's first element of this rank.
    pub fn window_offset(&self) -> usize {
        self.region().offset
    }

    /// Runs `launch`, which launches the collective `op`. Arguments that are wrong here alone are told to the
    /// others, but not on memory that all ranks have closed.
    #[inline]
    fn told(&self, op: Op, stream: &Stream, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        self.check_open(op.name())?;
        self.engine().told(stream, launch())
    }

    /// The bytes of `len` elements from `start` on, as offset and length.
    fn span(&self, op: &'static str, start: usize, len: usize) -> Result<(u64, usize)> {
        let size = size_of::<T>();
        if start.checked_add(len).is_some_and(|end| end <= self.len()) {
            return Ok(((start * size) as u64, len * size));
        }
        Err(Error::OutOfBounds {
            op,
            offset: (start as u64).saturating_mul(size as u64),
            bytes: (len as u64).saturating_mul(size as u64),
            size: self.region().bytes as u64,
        })
    }
}
