//! What operations need that use multicast, and those that nothing else does.

use super::all_reduce::mode_of;
use crate::cuda::owner::Place;
use crate::cuda::{DeviceSlice, Stream};
use crate::engine::cuda::control::IDLE;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::{Algorithm, Routine, number_of};
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{DType, Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// Multicast carries units of so many bytes, aligned to them.
const UNIT: u64 = 16;

/// What a kernel is told.
struct Work<'a> {
    op: Op,
    routine: Routine,
    number: usize,
    reduction: Option<(ReduceOp, DType)>,
    root: Option<usize>,
    /// Elements, or bytes where the kernel knows no elements.
    count: usize,
    input: Place<'a>,
    output: Place<'a>,
    mode: u32,
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. This memory becomes everybody's `input`, in rank order, on every rank. With
    /// [`Algorithm::Multimem`] only ([`SymmetricMemory::using`]); [`SymmetricMemory::all_gather`] is for all machines.
    ///
    /// `input` may be this rank's own part of the memory.
    pub fn all_gather_from<'a>(&self, input: impl Into<DeviceSlice<'a, T>>, stream: &Stream) -> Result<()> {
        const OP: Op = Op::AllGatherMemory;
        let launch = || {
            let input = input.into();
            if input.len() * self.world_size() != self.len {
                let problem =
                    format!("{} elements of each rank do not make the memory's {}", input.len(), self.len);
                return Err(Error::invalid(OP.name(), problem));
            }
            self.engine.check_memory("input", input.device())?;
            let (from, bytes) = (input.device_ptr(), input.len() * size_of::<T>());
            self.check_source(from, bytes)?;
            if !self.engine.uses_multimem() {
                let problem = "into symmetric memory it is done by multicast only. Hint: choose it with using(Algorithm::Multimem), or take all_gather, whose output is this rank's own";
                return Err(Error::invalid(OP.name(), problem));
            }
            let work = Work {
                op: OP,
                routine: Routine::MultimemGather,
                // Bytes have no type; the first one's kernel is everybody's.
                number: 0,
                reduction: None,
                root: None,
                count: bytes,
                input: input.place(),
                output: Place::bare(0),
                mode: 0,
            };
            self.launch_multimem(&work, bytes, stream)
        };
        self.told(OP, stream, launch)
    }

    /// `reduce`, of checked arguments.
    pub(super) fn reduce_by_multimem(
        &self,
        reduce: ReduceOp,
        root: usize,
        output: Place<'_>,
        stream: &Stream,
    ) -> Result<()> {
        self.group().check_rank(Op::Reduce.name(), root)?;
        let work = Work {
            op: Op::Reduce,
            routine: Routine::MultimemOneShot,
            number: number_of(T::DTYPE)?,
            reduction: Some((reduce, T::DTYPE)),
            root: Some(root),
            count: self.len,
            input: self.own_place(),
            output,
            mode: mode_of(reduce, T::DTYPE)? | if self.rank() == root { 0 } else { IDLE },
        };
        self.launch_multimem(&work, self.bytes(), stream)
    }

    /// The address that reaches everybody's memory, if operations are to use it, else 0. An error where they are to and cannot.
    #[inline]
    pub(super) fn multicast_if_chosen(&self) -> Result<u64> {
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

    /// An error if `bytes` bytes at `from` are part of this memory, unless they are the part that this rank brings.
    fn check_source(&self, from: u64, bytes: usize) -> Result<()> {
        let (own, bytes) = (self.own_address(), bytes as u64);
        let place = own + bytes * self.rank() as u64;
        if from == place || from + bytes <= own || own + self.bytes() as u64 <= from {
            return Ok(());
        }
        Err(Error::invalid("input", "it overlaps the symmetric memory, which peers write meanwhile"))
    }

    fn launch_multimem(&self, work: &Work<'_>, bytes: usize, stream: &Stream) -> Result<()> {
        let engine = &self.engine;
        engine.check(work.op, None, stream)?;
        let multicast = self.need_multicast()?;
        let function = engine.routine(work.routine, work.number)?;
        if bytes == 0 {
            return self.meet_for_nothing(work.op, stream);
        }
        let (grid, threads) = engine.inner.agreed.shape(work.routine, work.number, bytes, &engine.tune);
        tracing::trace!(op = work.op.name(), bytes, grid, threads, "collective by multicast");
        let statement = Statement {
            reduction: work.reduction,
            algorithm: Some(Algorithm::Multimem),
            bytes: bytes as u64,
            root: work.root,
            grid,
            ..Statement::plain(work.op, None, self.statement(), threads)
        };
        let call = Call {
            count: work.count as u64,
            input: work.input,
            output: work.output,
            mode: work.mode,
            data: &self.data,
            multicast,
            memory: self.owner(),
            ..Call::plain(statement)
        };
        engine.launch(stream, function, &call)
    }
}
