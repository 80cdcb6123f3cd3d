//! All-reduce, in its three forms.

use crate::cuda::owner::OwnedAddress;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::Form;
use crate::engine::cuda::ops::AllReduce;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. Every rank's memory becomes the reduction of everybody's:
    /// `bf16`, `f16` and `f32`, sum and average, to the bit what `docs/numerics.md` says, on all ranks, by
    /// every algorithm but `Multimem`.
    pub fn all_reduce(&self, op: ReduceOp, stream: &Stream) -> Result<()> {
        let own = self.region().own_place();
        self.told(Form::InPlace.op(), stream, || self.reduce_all(Form::InPlace, op, own, own, stream))
    }

    /// Collective, in the order of `stream`. `out`, as long as this memory, becomes the reduction of
    /// everybody's memory, which stays as it is.
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
            self.reduce_all(Form::Out, op, self.region().own_place(), out.place(), stream)
        })
    }

    /// Collective, in the order of `stream`. `out` becomes the reduction of everybody's `input`; this memory
    /// is a place to work in, and holds nothing of use afterwards. All are of the same length; `input` and
    /// `out` may be the same.
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
            self.reduce_all(Form::Private, op, input.place(), out.place(), stream)
        })
    }

    #[inline]
    fn reduce_all(
        &self,
        form: Form,
        reduce: ReduceOp,
        input: OwnedAddress<'_>,
        output: OwnedAddress<'_>,
        stream: &Stream,
    ) -> Result<()> {
        let work = AllReduce { form, reduce, dtype: T::DTYPE, count: self.len(), input, output };
        self.region().all_reduce(&work, stream)
    }

    /// An error if private input and output are not apart from each other, or the same, and from this memory.
    fn check_private(&self, from: u64, to: u64) -> Result<()> {
        if from != to && overlap(from, to, self.region().bytes) {
            return Err(Error::invalid(
                "out",
                "it overlaps the input. Hint: take the same memory, or another",
            ));
        }
        self.check_apart("input", from)?;
        self.check_apart("out", to)
    }

    /// An error unless private memory fits this one.
    fn check_part(&self, what: &'static str, len: usize, device: &Device) -> Result<()> {
        if len != self.len() {
            let problem = format!(
                "it has {len} elements, the symmetric memory {}. Hint: cut one with slice",
                self.len()
            );
            return Err(Error::invalid(what, problem));
        }
        self.engine().check_memory(what, device)
    }

    /// An error if private memory at `address`, as long as this one, is part of it: peers read it while
    /// others are written.
    fn check_apart(&self, what: &'static str, address: u64) -> Result<()> {
        if !overlap(address, self.region().own_address(), self.region().bytes) {
            return Ok(());
        }
        Err(Error::invalid(what, "it overlaps the symmetric memory. Hint: all_reduce works in place"))
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
}
