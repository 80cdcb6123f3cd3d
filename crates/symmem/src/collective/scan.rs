//! Scans: each rank gets the reduction of the ranks up to its own, or before it.
//!
//! Called by users through the handle, or through the group for private memory. The ranks are in order and
//! each result is rounded once, as in every reduction, so it has the bits of an all_reduce among these ranks.
//! A rank reads what the ranks before it have laid out, and hears from all ranks: disagreement is the same
//! `Mismatch` everywhere before a byte changes.

use std::ops::Range;

use super::peers::Peers;
use super::pipelined::{PieceBuffer, Pieces, StagedPieces};
use super::{CollectiveCall, check_len};
use crate::group::Group;
use crate::memory::SymmetricMemory;
use crate::numeric::{Element, ReduceKernel, ReduceOp, identity};
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` becomes the reduction of the memory of the ranks 0 to this one, itself included; it
    /// is as long as the memory, which stays as it is. There is no average.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let sums = symmem::spawn(3, |group| {
    ///     let mut mem = group.alloc::<u32>(2)?.rendezvous(&group)?;
    ///     mem.fill(group.rank() as u32 + 1)?;
    ///     let mut out = [0; 2];
    ///     mem.scan(ReduceOp::Sum, &mut out)?;
    ///     mem.close()?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(sums, [[1, 1], [3, 3], [6, 6]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn scan(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        self.scan_first(Op::Scan, self.rank() + 1, op, out)
    }

    /// Collective. `out` becomes the reduction of the memory of the ranks before this one; it is as long as
    /// the memory, which stays as it is. There is no average. On rank 0 it becomes the value that changes no
    /// other, see `docs/numerics.md`.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let starts = symmem::spawn(3, |group| {
    ///     let mut mem = group.alloc::<u32>(1)?.rendezvous(&group)?;
    ///     mem.fill(10)?;
    ///     let mut out = [7];
    ///     mem.exclusive_scan(ReduceOp::Sum, &mut out)?;
    ///     mem.close()?;
    ///     Ok(out[0])
    /// })?;
    /// assert_eq!(starts, [0, 10, 20]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn exclusive_scan(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        self.scan_first(Op::ExclusiveScan, self.rank(), op, out)
    }

    /// The scan `name`, which gives this rank the reduction of the first `count`.
    #[inline]
    fn scan_first(&self, name: Op, count: usize, op: ReduceOp, out: &mut [T]) -> Result<()> {
        let fits = check_len(name, "output", out.len(), self.len());
        let kernel = self.parts.told(name, fits.and_then(|()| kernel::<T>(op)))?;
        self.read_all(&self.call(name, 0, Some(op)), |peers| reduce(peers, count, (op, kernel), out))
    }
}

impl Group {
    /// Collective. `out` becomes the reduction of the `input` of the ranks 0 to this one, itself included;
    /// both are as long. There is no average.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let most = symmem::spawn(3, |group| {
    ///     let mut out = [0; 2];
    ///     group.scan(ReduceOp::Max, &[10 - group.rank() as i32, group.rank() as i32], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(most, [[10, 0], [10, 1], [10, 2]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn scan<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        self.scan_first(Op::PrivateScan, self.rank() + 1, op, (input, out))
    }

    /// Collective. `out` becomes the reduction of the `input` of the ranks before this one; both are as long.
    /// There is no average. On rank 0 it becomes the value that changes no other, see `docs/numerics.md`.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let least = symmem::spawn(3, |group| {
    ///     let mut out = [0];
    ///     group.exclusive_scan(ReduceOp::Min, &[10 - group.rank() as i16], &mut out)?;
    ///     Ok(out[0])
    /// })?;
    /// assert_eq!(least, [i16::MAX, 10, 9]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn exclusive_scan<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        self.scan_first(Op::PrivateExclusiveScan, self.rank(), op, (input, out))
    }

    /// The scan `name`, which gives this rank the reduction of the first `count`.
    fn scan_first<T: Element>(
        &self,
        name: Op,
        count: usize,
        op: ReduceOp,
        (input, out): (&[T], &mut [T]),
    ) -> Result<()> {
        let arguments = check_len(name, "output", out.len(), input.len()).and_then(|()| kernel::<T>(op));
        let (dtype, bytes, shape) = (T::DTYPE, size_of_val(input), self.shape);
        let call = CollectiveCall { op: name, root: 0, dtype, reduce: Some(op), bytes, shape };
        let (private, kernel) = self.begin_private(call, arguments)?;
        let piece = private.room(1, size_of::<T>());
        private.carry(&mut Scan { how: (op, kernel), input, out, piece, count })
    }
}

/// The kernel of a scan by `op`.
fn kernel<T: Element>(op: ReduceOp) -> Result<&'static ReduceKernel> {
    if op == ReduceOp::Avg {
        let problem = "avg of a scan has no meaning: every rank gets the reduction of another number of ranks; use sum, and \
                       divide by the ranks up to this one";
        return Err(Error::invalid("reduce operation", problem));
    }
    ReduceKernel::select(T::DTYPE, op)
}

/// How elements become one.
type Combination = (ReduceOp, &'static ReduceKernel);

/// `out` becomes the reduction of the first `count` ranks.
#[inline]
fn reduce<T: Element>(peers: &Peers<'_, T>, count: usize, (op, kernel): Combination, out: &mut [T]) {
    match count {
        0 => out.fill(identity::<T>(op)),
        count => peers.reduce_first(count, kernel, 0, out),
    }
}

/// A scan of private memory under way.
struct Scan<'a, T: Element> {
    how: Combination,
    input: &'a [T],
    out: &'a mut [T],
    /// Elements of a piece.
    piece: usize,
    /// Ranks whose reduction this one gets.
    count: usize,
}

impl<T: Element> Scan<'_, T> {
    fn range(&self, index: usize) -> Range<usize> {
        let len = self.input.len();
        (index * self.piece).min(len)..((index + 1) * self.piece).min(len)
    }
}

impl<T: Element> Pieces for Scan<'_, T> {
    fn count(&self) -> usize {
        // At least one meeting, so that ranks with nothing to reduce still agree on it.
        self.input.len().div_ceil(self.piece).max(1)
    }

    fn bytes(&self) -> usize {
        self.input.len().min(self.piece) * size_of::<T>()
    }

    #[inline]
    fn lay_out(&mut self, index: usize, room: &PieceBuffer, _: Option<&StagedPieces<'_>>) {
        room.put(0, &self.input[self.range(index)]);
    }

    #[inline]
    fn take_up(&mut self, index: usize, laid: &StagedPieces<'_>, _: Option<&StagedPieces<'_>>) {
        let range = self.range(index);
        let peers = laid.peers_with(0, &self.input[range.clone()]);
        reduce(&peers, self.count, self.how, &mut self.out[range]);
    }
}
