//! Collectives on private memory: nothing needs to be allocated or rendezvoused before.
//!
//! They copy through the group's staging, so they suit what is small, or what lies where it lies. Symmetric memory
//! saves the copy.

use super::call::Call;
use super::pipelined::Pipeline;
use super::push::{self, Parcels};
use super::{Peers, Strided, check_len};
use crate::memory::Element;
use crate::numeric::{Kernel, ReduceOp};
use crate::op::Op;
use crate::sys::copy;
use crate::tuning::{Algorithm, Collective};
use crate::{Group, Result};

impl Group {
    /// Collective. `data` becomes the reduction of all ranks' `data`, with the same bits on every rank.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let sums = symmem::spawn(3, |group| {
    ///     let mut data = vec![group.rank() as f32; 1000];
    ///     group.all_reduce(ReduceOp::Sum, &mut data)?;
    ///     Ok(data[999])
    /// })?;
    /// assert_eq!(sums, [3.0; 3]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&self, op: ReduceOp, data: &mut [T]) -> Result<()> {
        self.reduce_private(op, data, |data, start, len, to| {
            let from = &data[start..start + len];
            // SAFETY: `to` has room for them, and is not part of them.
            unsafe { copy::write(from.as_ptr().cast(), to, size_of_val(from)) };
        })
    }

    /// Collective. `out` becomes the reduction of all ranks' `input`; both are as long.
    pub fn all_reduce_out<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        check_len(Op::PrivateAllReduce, "output", out.len(), input.len())?;
        self.reduce_private(op, out, |_, start, len, to| {
            let from = &input[start..start + len];
            // SAFETY: as above.
            unsafe { copy::write(from.as_ptr().cast(), to, size_of_val(from)) };
        })
    }

    /// Collective. [`Group::all_reduce_out`] of elements that do not lie side by side.
    pub fn all_reduce_strided<T: Element>(
        &self,
        op: ReduceOp,
        input: Strided<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        check_len(Op::PrivateAllReduce, "output", out.len(), input.len())?;
        // SAFETY: as above.
        self.reduce_private(op, out, |_, start, len, to| unsafe { input.copy_to(start..start + len, to) })
    }

    /// Reduces what `fill` copies: so many elements of the input from an index on. It is given `out`, which may be the
    /// input.
    fn reduce_private<T: Element>(
        &self,
        op: ReduceOp,
        out: &mut [T],
        fill: impl Fn(&[T], usize, usize, *mut u8),
    ) -> Result<()> {
        let kernel = Kernel::select(T::DTYPE, op)?;
        let bytes = size_of_val(out);
        let call = &Call { op: Op::PrivateAllReduce, root: 0, dtype: T::DTYPE, reduce: Some(op), bytes };
        let algorithm = match self.choice(Collective::Private, None).of(Collective::Private, bytes) {
            Algorithm::Push => Algorithm::Push,
            // One piece of the pipeline is what is called staged elsewhere.
            _ => Algorithm::Pipelined,
        };
        tracing::trace!(op = call.op.name(), %algorithm, bytes, "collective");
        let running = &self.begin(call.op, None)?;
        running.check_local()?;
        let signature = call.signature(algorithm, 0);
        if algorithm == Algorithm::Pipelined {
            return Pipeline { running, call, signature, kernel, out }.run(fill);
        }
        let mut parcels = Parcels::new();
        push::exchange(running, call, signature, &mut parcels, |to| fill(out, 0, out.len(), to))?;
        let parcels = parcels.addresses();
        // SAFETY: the parcels are on the stack and hold the call's bytes.
        let peers = unsafe { Peers::new(&self.inner, out.len(), false, |rank| parcels[rank]) };
        peers.reduce(kernel, 0, out);
        Ok(())
    }
}
