//! All-reduce, in its three forms.

use crate::cuda::owner::Place;
use crate::cuda::{DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::control::AVERAGE;
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::{Form, number_of};
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{DType, Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

impl Form {
    fn op(self) -> Op {
        match self {
            Self::InPlace => Op::AllReduce,
            Self::Out => Op::AllReduceOut,
            Self::Private => Op::PrivateAllReduce,
        }
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. Every rank's memory becomes the reduction of everybody's: `bf16`, `f16` and
    /// `f32`, sum and average, to the bit what `docs/numerics.md` says, on all ranks, by every algorithm but `Multimem`.
    pub fn all_reduce(&self, op: ReduceOp, stream: &Stream) -> Result<()> {
        let own = self.own_place();
        let form = Form::InPlace;
        self.told(form.op(), stream, || self.launch_all_reduce(form, op, own, own, stream))
    }

    /// Collective, in the order of `stream`. `out`, as long as this memory, becomes the reduction of everybody's memory,
    /// which stays as it is.
    pub fn all_reduce_out<'a>(
        &self,
        op: ReduceOp,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let out = out.into();
        self.told(Form::Out.op(), stream, || {
            self.check_part("out", out.len(), out.device())?;
            self.check_apart("out", out.device_ptr())?;
            self.launch_all_reduce(Form::Out, op, self.own_place(), out.place(), stream)
        })
    }

    /// Collective, in the order of `stream`. `out` becomes the reduction of everybody's `input`; this memory is a place to
    /// work in, and holds nothing of use afterwards. All are of the same length; `input` and `out` may be the same.
    pub fn all_reduce_from<'a, 'b>(
        &self,
        op: ReduceOp,
        input: impl Into<DeviceSlice<'a, T>>,
        out: impl Into<DeviceSliceMut<'b, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, out) = (input.into(), out.into());
        let (from, to) = (input.device_ptr(), out.device_ptr());
        self.told(Form::Private.op(), stream, || {
            self.check_part("input", input.len(), input.device())?;
            self.check_part("out", out.len(), out.device())?;
            self.check_private(from, to)?;
            self.launch_all_reduce(Form::Private, op, input.place(), out.place(), stream)
        })
    }

    /// An error if private input and output are not apart from each other, or the same, and from this memory.
    fn check_private(&self, from: u64, to: u64) -> Result<()> {
        if from != to && overlap(from, to, self.bytes()) {
            return Err(Error::invalid(
                "out",
                "it overlaps the input. Hint: take the same memory, or another",
            ));
        }
        self.check_apart("input", from)?;
        self.check_apart("out", to)
    }

    pub(super) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(super) fn own_address(&self) -> u64 {
        self.data[self.rank()]
    }

    /// An error unless private memory fits this one.
    fn check_part(&self, what: &'static str, len: usize, device: &crate::cuda::Device) -> Result<()> {
        if len != self.len {
            let problem =
                format!("it has {len} elements, the symmetric memory {}. Hint: cut one with slice", self.len);
            return Err(Error::invalid(what, problem));
        }
        self.engine.check_memory(what, device)
    }

    /// An error if private memory at `address`, as long as this one, is part of it: peers read it while others are written.
    fn check_apart(&self, what: &'static str, address: u64) -> Result<()> {
        if !overlap(address, self.own_address(), self.bytes()) {
            return Ok(());
        }
        Err(Error::invalid(what, "it overlaps the symmetric memory. Hint: all_reduce works in place"))
    }

    fn launch_all_reduce(
        &self,
        form: Form,
        op: ReduceOp,
        input: Place<'_>,
        output: Place<'_>,
        stream: &Stream,
    ) -> Result<()> {
        let engine = &self.engine;
        engine.check(form.op(), None, stream)?;
        let multicast = self.multicast_if_chosen()?;
        if !self.is_direct() {
            return self.reduce_carried(form.op(), op, input, output, stream);
        }
        let number = number_of(T::DTYPE)?;
        let mode = mode_of(op, T::DTYPE)?;
        let bytes = self.bytes();
        if bytes == 0 {
            return self.meet_for_nothing(form.op(), stream);
        }
        let agreed = &engine.inner.agreed;
        let (algorithm, kernel) = agreed.choose(form, bytes, engine.forced, &engine.tune)?;
        let (grid, threads) = agreed.shape(kernel, number, bytes, &engine.tune);
        let kernel = agreed.kernel_for(kernel, bytes, (grid, threads), [input.address, output.address]);
        let function = engine.routine(kernel, number)?;
        tracing::trace!(op = form.op().name(), %algorithm, bytes, grid, threads, "all_reduce on the device");
        let statement = Statement {
            op: form.op(),
            reduction: Some((op, T::DTYPE)),
            algorithm: Some(algorithm),
            bytes: bytes as u64,
            memory: self.statement(),
            channel: None,
            root: None,
            rows: 0,
            grid,
            threads,
        };
        let call = Call {
            count: self.len as u64,
            input,
            output,
            mode,
            data: &self.data,
            multicast,
            memory: self.owner(),
            is_small: agreed.is_small(kernel, number, (grid, threads)),
            ..Call::plain(statement)
        };
        engine.launch(stream, function, &call)
    }
}

pub(super) fn mode_of(op: ReduceOp, dtype: DType) -> Result<u32> {
    match op {
        ReduceOp::Sum => Ok(0),
        ReduceOp::Avg => Ok(AVERAGE),
        _ => {
            let problem = format!(
                "{op} of {dtype} is not done on devices. Hint: sum and avg are; reduce in host memory for the others"
            );
            Err(Error::invalid("reduce operation", problem))
        }
    }
}

/// Whether `bytes` bytes at `a` and at `b` have any in common.
fn overlap(a: u64, b: u64, bytes: usize) -> bool {
    a.abs_diff(b) < bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        assert!(overlap(100, 100, 1) && overlap(100, 109, 10) && overlap(109, 100, 10));
        assert!(!overlap(100, 110, 10) && !overlap(110, 100, 10) && !overlap(100, 100, 0));
    }

    #[test]
    fn sums_and_averages_are_done() {
        assert_eq!(mode_of(ReduceOp::Sum, DType::F32).unwrap(), 0);
        assert_eq!(mode_of(ReduceOp::Avg, DType::F32).unwrap(), AVERAGE);
        assert!(mode_of(ReduceOp::Max, DType::F32).unwrap_err().to_string().contains("Hint"));
    }
}
