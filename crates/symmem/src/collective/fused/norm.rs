//! All-reduce, the addition of a residual, and RMSNorm, in one pass: a row is reduced from everybody's
//! memory, added and normalised while it is in the first-level cache.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::check;
use crate::Result;
use crate::collective::CollectiveCall;
use crate::collective::peers::Peers;
use crate::memory::SymmetricMemory;
use crate::numeric::norm::{self, RowNormaliser};
use crate::numeric::{Element, ReduceKernel, ReduceOp};
use crate::operation::{Collective, Op};
use crate::sync::team::RankThreads;

/// What is made of the sums.
struct Outputs<'a, T> {
    residual: &'a mut [T],
    out: &'a mut [T],
}

/// Where they are, for the threads of a rank.
struct Places<T>(*mut T, *mut T);

// SAFETY: only used for rows of their own by several threads; elements are plain data.
unsafe impl<T> Sync for Places<T> {}

impl<T> Places<T> {
    fn get(&self) -> (*mut T, *mut T) {
        (self.0, self.1)
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. The memory is rows as long as `weight`. `residual` becomes itself and the sum of
    /// everybody's memory, which stays as it is, and `out` the RMSNorm of that: each row over the root of
    /// `epsilon` and the mean of its squares, times `weight`. `residual` and `out` are as long as the memory;
    /// ranks that give the same residual, weight and epsilon get the same bits.
    ///
    /// For `f32`, `bf16` and `f16`, each step in `f32`: the sum is rounded as by
    /// [`all_reduce_out`](SymmetricMemory::all_reduce_out), the new residual is rounded, and the norm of what
    /// it is then is rounded. So the bits are those of the same steps one by one.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mut x = group.alloc::<f32>(4)?.rendezvous(&group)?;
    ///     x.local_mut()?.copy_from_slice(&[1.0, 2.0, -1.0, 1.0]);
    ///     let (mut residual, mut out) = ([1.0; 4], [0.0; 4]);
    ///     x.all_reduce_rms_norm(&mut residual, &[1.0, 2.0], 0.0, &mut out)?;
    ///     assert_eq!(residual, [3.0, 5.0, -1.0, 3.0]);
    ///     let root = 17f32.sqrt(); // of the mean of 9 and 25
    ///     assert!((out[0] - 3.0 / root).abs() < 1e-6 && (out[1] - 10.0 / root).abs() < 1e-6);
    ///     x.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_reduce_rms_norm(
        &self,
        residual: &mut [T],
        weight: &[T],
        epsilon: f32,
        out: &mut [T],
    ) -> Result<()> {
        const OP: Op = Op::AllReduceRmsNorm;
        let (len, width) = (self.len(), weight.len());
        let fits = norm::check(OP.name(), T::DTYPE).and_then(|()| {
            check(OP, len.is_multiple_of(width), || {
                format!("{len} elements are no rows of {width}, as the weight is")
            })?;
            check(OP, residual.len() == len && out.len() == len, || {
                let (residual, out) = (residual.len(), out.len());
                format!("{len} elements, but {residual} of the residual and {out} of the output")
            })?;
            Ok((ReduceKernel::select(T::DTYPE, ReduceOp::Sum)?, self.algorithm(Collective::AllReduceOut)?))
        });
        let (kernel, algorithm) = self.parts.told(OP, fits)?;
        let _borrow = self.parts.told(OP, self.local())?;
        let shape = [len.checked_div(width).unwrap_or(0), width];
        let group = self.group().in_rows(shape);
        let call = CollectiveCall { shape: group.shape, ..self.call(OP, 0, Some(ReduceOp::Sum)) };
        tracing::trace!(op = OP.name(), %algorithm, bytes = call.bytes, "collective");
        let outputs = Outputs { residual, out };
        self.parts.operate_as(&group, OP, |running| {
            self.carry(&call, (len, call.bytes), algorithm, running, |peers| {
                work(self.threads(), peers, kernel, shape, &RowNormaliser::new(weight, epsilon), outputs);
            })
        })
    }
}

fn work<T: Element>(
    threads: &RankThreads,
    peers: &Peers<'_, T>,
    kernel: &ReduceKernel,
    [rows, width]: [usize; 2],
    norm: &RowNormaliser,
    outputs: Outputs<'_, T>,
) {
    debug_assert_eq!((outputs.residual.len(), outputs.out.len()), (rows * width, rows * width));
    let places = Places(outputs.residual.as_mut_ptr(), outputs.out.as_mut_ptr());
    threads.share(rows * width * size_of::<T>() * 4, |part, parts| {
        let (mut norm, (residual, out)) = (norm.clone(), places.get());
        let mut sum = vec![T::zeroed(); width];
        for row in rows * part / parts..rows * (part + 1) / parts {
            // SAFETY: a row of the outputs, which are borrowed until all parts are done, and of every rank's
            // memory; rows are one thread's each.
            unsafe {
                peers.reduce_to(kernel, row * width, sum.as_mut_ptr(), width);
                let residual = std::slice::from_raw_parts_mut(residual.add(row * width), width);
                let out = std::slice::from_raw_parts_mut(out.add(row * width), width);
                norm.add_and_normalise(&sum, residual, out);
            }
        }
    });
}
