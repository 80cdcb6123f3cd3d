//! What operations need that use multicast, and those that nothing else does.

use super::DeviceRead;
use super::all_reduce::mode_of;
use crate::cuda::Stream;
use crate::cuda::owner::OwnedAddress;
use crate::device::control::IDLE;
use crate::engine::cuda::Region;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::{Algorithm, Routine, dtype_index_of};
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// Multicast carries units of so many bytes, aligned to them.
const UNIT: u64 = 16;

/// What a kernel is told.
struct MultimemLaunch<'a> {
    op: Op,
    routine: Routine,
    dtype_index: usize,
    reduction: Option<(ReduceOp, DType)>,
    root: Option<usize>,
    /// Elements, or bytes where the kernel knows no elements.
    count: usize,
    input: OwnedAddress<'a>,
    output: OwnedAddress<'a>,
    mode: u32,
}

impl Region {
    /// Collective: these bytes become everybody's `bytes` bytes at `input`, in rank order, on every rank.
    pub(crate) fn gather_by_multimem(
        &self,
        input: OwnedAddress<'_>,
        bytes: usize,
        stream: &Stream,
    ) -> Result<()> {
        let work = MultimemLaunch {
            op: Op::AllGatherMemory,
            routine: Routine::MultimemGather,
            // Bytes have no type; the first one's kernel is everybody's.
            dtype_index: 0,
            reduction: None,
            root: None,
            count: bytes,
            input,
            output: OwnedAddress::bare(0),
            mode: 0,
        };
        self.engine.check(work.op, None, stream)?;
        self.launch_multimem(&work, bytes, stream)
    }

    /// The reduction of everybody's elements, at the root.
    pub(in super::super) fn reduce_by_multimem(
        &self,
        reading: &DeviceRead<'_>,
        stream: &Stream,
    ) -> Result<()> {
        let DeviceRead { op, dtype, reduction, root, count, output, reads, .. } = *reading;
        let reduce = reduction.unwrap_or(ReduceOp::Sum);
        let work = MultimemLaunch {
            op,
            routine: Routine::MultimemOneShot,
            dtype_index: dtype_index_of(dtype)?,
            reduction: Some((reduce, dtype)),
            root,
            count,
            input: self.own_place(),
            output,
            mode: mode_of(reduce, dtype)? | if reads { 0 } else { IDLE },
        };
        self.launch_multimem(&work, self.bytes, stream)
    }

    /// The address that reaches everybody's memory, if operations are to use it, else 0. An error where they
    /// are to and cannot.
    #[inline]
    pub(in super::super) fn multicast_if_chosen(&self) -> Result<u64> {
        if self.engine.uses_multimem() { self.need_multicast() } else { Ok(0) }
    }

    #[cold]
    fn need_multicast(&self) -> Result<u64> {
        self.engine.check_multimem()?;
        let address = self.multicast()?;
        if address % UNIT == self.own_address() % UNIT {
            return Ok(address);
        }
        Err(Error::NoMulticast { problem: "its address is not aligned as the memory is".to_owned() })
    }

    fn launch_multimem(&self, work: &MultimemLaunch<'_>, bytes: usize, stream: &Stream) -> Result<()> {
        let engine = &self.engine;
        let multicast = self.need_multicast()?;
        let function = engine.routine(work.routine, work.dtype_index)?;
        if bytes == 0 {
            return self.meet_for_nothing(work.op, stream);
        }
        let (grid, threads) = engine.inner.agreed.shape(work.routine, work.dtype_index, bytes, &engine.tune);
        tracing::trace!(op = work.op.name(), bytes, grid, threads, "collective by multicast");
        let statement = LaunchTerms {
            reduction: work.reduction,
            algorithm: Some(Algorithm::Multimem),
            bytes: bytes as u64,
            root: work.root,
            grid,
            ..LaunchTerms::plain(work.op, None, self.statement(), threads)
        };
        let call = LaunchArguments {
            count: work.count as u64,
            input: work.input,
            output: work.output,
            mode: work.mode,
            data: &self.data,
            multicast,
            memory: self.owner(),
            ..LaunchArguments::plain(statement)
        };
        engine.launch(stream, function, &call)
    }
}
