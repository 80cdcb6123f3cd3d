//! Collectives that reduce private memory.
//!
//! What is small goes in one meeting: each rank reduces the whole of what it needs. Else each rank reduces
//! the slice of every piece that it owns, puts the result in the place of what it read in the others'
//! staging, and who needs it finds it in its own staging after the next meeting: twice the bytes of a piece
//! cross between the ranks, whatever their number, and each cache line of staging goes to one rank and back.
//! Either way the ranks are in order, so the bits are the same.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::ops::Range;

use crate::Result;
use crate::collective::pipelined::{PieceBuffer, Pieces, StagedPieces};
use crate::collective::rooted::check_even;
use crate::collective::two_shot::slice_of;
use crate::collective::{CollectiveCall, Strided, check_len};
use crate::group::Group;
use crate::numeric::{Element, ReduceKernel, ReduceOp};
use crate::operation::{Algorithm, Op};
use crate::sys::copy::Stores;

/// Most ranks that own a slice of every piece: more would make the pieces too small.
const MOST_OWNERS: usize = 32;

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
        Reduction { op, root: None, len: data.len(), input: Input::Output, out: data }.run(self, Ok(()))
    }

    /// Collective. `out` becomes the reduction of all ranks' `input`; both are as long.
    pub fn all_reduce_out<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        let arguments = check_len(Op::PrivateAllReduce, "output", out.len(), input.len());
        Reduction { op, root: None, len: input.len(), input: Input::Apart(input), out }.run(self, arguments)
    }

    /// Collective. [`Group::all_reduce_out`] of elements that do not lie side by side.
    pub fn all_reduce_strided<T: Element>(
        &self,
        op: ReduceOp,
        input: Strided<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let arguments = check_len(Op::PrivateAllReduce, "output", out.len(), input.len());
        Reduction { op, root: None, len: input.len(), input: Input::Strided(input), out }.run(self, arguments)
    }

    /// Collective. `data` of rank `root` becomes the reduction of all ranks' `data`; the others' stays as it
    /// is.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let most = symmem::spawn(3, |group| {
    ///     let mut data = [group.rank() as i32, 7];
    ///     group.reduce(ReduceOp::Max, 1, &mut data)?;
    ///     Ok(data)
    /// })?;
    /// assert_eq!(most, [[0, 7], [2, 7], [2, 7]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn reduce<T: Element>(&self, op: ReduceOp, root: usize, data: &mut [T]) -> Result<()> {
        let arguments = self.check_rank(Op::PrivateReduce.name(), root);
        Reduction { op, root: Some(root), len: data.len(), input: Input::Output, out: data }
            .run(self, arguments)
    }

    /// Collective. `out` of rank `root`, as long as `input`, becomes the reduction of all ranks' `input`; the
    /// others' `out` is ignored.
    pub fn reduce_out<T: Element>(
        &self,
        op: ReduceOp,
        root: usize,
        input: &[T],
        out: &mut [T],
    ) -> Result<()> {
        let needed = if self.rank() == root { input.len() } else { out.len() };
        let arguments = self.check_rank(Op::PrivateReduce.name(), root).and(check_len(
            Op::PrivateReduce,
            "output",
            out.len(),
            needed,
        ));
        Reduction { op, root: Some(root), len: input.len(), input: Input::Apart(input), out }
            .run(self, arguments)
    }

    /// Collective. `input` is one chunk per rank; `out` becomes the reduction of everybody's chunk for this
    /// rank.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// let sums = symmem::spawn(2, |group| {
    ///     let input = [1.0, 2.0, 30.0, 40.0].map(|x: f64| x + group.rank() as f64);
    ///     let mut out = [0.0; 2];
    ///     group.reduce_scatter(ReduceOp::Sum, &input, &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(sums, [[3.0, 5.0], [61.0, 81.0]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn reduce_scatter<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        let name = Op::PrivateReduceScatter;
        let arguments = check_even(name, input.len(), self.size())
            .and_then(|chunk| check_len(name, "output", out.len(), chunk))
            .and_then(|()| ReduceKernel::select(T::DTYPE, op));
        let (dtype, bytes, shape) = (T::DTYPE, size_of_val(input), self.shape);
        let call = CollectiveCall { op: name, root: 0, dtype, reduce: Some(op), bytes, shape };
        let (private, kernel) = self.begin_private(call, arguments)?;
        let ranks = private.ranks();
        let quota = private.room(ranks.1, size_of::<T>());
        private.carry(&mut Scatter { kernel, input, out, quota, ranks })
    }
}

/// What a rank gives to a reduction.
enum Input<'a, T> {
    /// What is in its output.
    Output,
    /// Memory apart from the output.
    Apart(&'a [T]),
    /// The same, not side by side.
    Strided(Strided<'a, T>),
}

/// A reduction of everybody's `len` elements into `out`, on all ranks or on `root` alone.
struct Reduction<'a, T: Element> {
    op: ReduceOp,
    root: Option<usize>,
    len: usize,
    input: Input<'a, T>,
    out: &'a mut [T],
}

impl<T: Element> Reduction<'_, T> {
    #[inline]
    fn run(self, group: &Group, arguments: Result<()>) -> Result<()> {
        let op = if self.root.is_none() { Op::PrivateAllReduce } else { Op::PrivateReduce };
        // A strided view can have more elements than there are bytes, which no output has.
        let bytes = self.len.saturating_mul(size_of::<T>());
        let (root, reduce) = (self.root.unwrap_or(0), Some(self.op));
        let call = CollectiveCall { op, root, dtype: T::DTYPE, reduce, bytes, shape: group.shape };
        let arguments = arguments.and_then(|()| ReduceKernel::select(T::DTYPE, self.op));
        let (private, kernel) = group.begin_private(call, arguments)?;
        let (rank, world) = private.ranks();
        let piece = private.room(1, size_of::<T>());
        match private.algorithm {
            Algorithm::Pipelined if (2..=MOST_OWNERS).contains(&world) => {
                private.carry(&mut Slices { of: self, kernel, piece, ranks: (rank, world) })
            }
            _ => private.carry(&mut Whole { of: self, kernel, piece, rank }),
        }
    }

    /// The elements of piece `index`, if pieces have `piece` of them.
    fn range(&self, index: usize, piece: usize) -> Range<usize> {
        (index * piece).min(self.len)..((index + 1) * piece).min(self.len)
    }

    /// Whether `rank` wants the result.
    fn is_for(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }

    /// Lays out the elements of `range` from byte `at` of the room on.
    #[inline]
    fn lay_out(&self, range: Range<usize>, room: &PieceBuffer, at: usize) {
        match &self.input {
            Input::Output => room.put(at, &self.out[range]),
            Input::Apart(input) => room.put(at, &input[range]),
            Input::Strided(input) => {
                let to = room.at(at, range.len() * size_of::<T>());
                // SAFETY: there is room for them.
                unsafe { input.copy_to(range, to) }
            }
        }
    }

    /// Where `rank`, which is this one, has its own elements of `range`, unless only staging has them side by
    /// side; and where it wants their reduction, if it does. These may be the same elements.
    #[inline]
    fn places(&mut self, rank: usize, range: Range<usize>) -> (Option<*const T>, Option<*mut T>) {
        let wanted = self.is_for(rank);
        // The output of who does not want the result may be of any length, unless it is the input.
        let out = match wanted || matches!(self.input, Input::Output) {
            true => Some(self.out[range.clone()].as_mut_ptr()),
            false => None,
        };
        let own = match &self.input {
            Input::Output => out.map(<*mut T>::cast_const),
            Input::Apart(input) => Some(input[range].as_ptr()),
            Input::Strided(_) => None,
        };
        (own, out.filter(|_| wanted))
    }
}

/// Who wants the result reduces whole pieces.
struct Whole<'a, T: Element> {
    of: Reduction<'a, T>,
    kernel: &'static ReduceKernel,
    /// Elements of a piece.
    piece: usize,
    rank: usize,
}

impl<T: Element> Pieces for Whole<'_, T> {
    fn count(&self) -> usize {
        // At least one meeting, so that ranks with nothing to reduce still agree on it.
        self.of.len.div_ceil(self.piece).max(1)
    }

    fn bytes(&self) -> usize {
        self.of.len.min(self.piece) * size_of::<T>()
    }

    #[inline]
    fn lay_out(&mut self, index: usize, room: &PieceBuffer, _: Option<&StagedPieces<'_>>) {
        self.of.lay_out(self.of.range(index, self.piece), room, 0);
    }

    #[inline]
    fn take_up(&mut self, index: usize, laid: &StagedPieces<'_>, _: Option<&StagedPieces<'_>>) {
        let range = self.of.range(index, self.piece);
        let len = range.len();
        if let (own, Some(out)) = self.of.places(self.rank, range) {
            // SAFETY: both are the elements of the range, which are this rank's.
            unsafe { laid.peers(0, len, own).reduce_all(self.kernel, out) };
        }
    }
}

/// Each rank reduces a slice of every piece.
struct Slices<'a, T: Element> {
    of: Reduction<'a, T>,
    kernel: &'static ReduceKernel,
    /// Elements of a piece.
    piece: usize,
    ranks: (usize, usize),
}

impl<T: Element> Slices<'_, T> {
    /// Reduces this rank's slice of piece `index`, which everybody laid out, for all who want it.
    fn reduce(&mut self, index: usize, laid: &StagedPieces<'_>) {
        let (me, world) = self.ranks;
        let (range, root) = (self.of.range(index, self.piece), self.of.root);
        let len = range.len();
        let slice = slice_of(len, world, me);
        let (own, out) = self.of.places(me, range);
        // SAFETY: both are the elements of the piece, which are this rank's; of what the others laid out
        // nobody but this rank uses its slice.
        unsafe {
            let out = out.map(|out| out.add(slice.start));
            let peers = laid.peers(0, len, own);
            peers.reduce_back(self.kernel, slice, out, |rank| root.is_none_or(|root| root == rank));
        }
    }
}

impl<T: Element> Pieces for Slices<'_, T> {
    /// Each line goes to the peer and back, and both modify it. Two ranks take 3 to 6 % longer for 8 KB that
    /// rest (Sapphire Rapids); 64 KB gain by resting.
    const LEAST_THAT_RESTS: usize = 16 << 10;

    fn count(&self) -> usize {
        // One more, for the results of the last.
        self.of.len.div_ceil(self.piece) + 1
    }

    fn bytes(&self) -> usize {
        self.of.len.min(self.piece) * size_of::<T>()
    }

    fn lay_out(&mut self, index: usize, room: &PieceBuffer, before: Option<&StagedPieces<'_>>) {
        let (me, world) = self.ranks;
        let range = self.of.range(index, self.piece);
        let slice = slice_of(range.len(), world, me);
        // Of its own slice a rank lays out only what it cannot read where it is.
        let kept = if matches!(self.of.input, Input::Strided(_)) { 0..0 } else { slice };
        for part in [0..kept.start, kept.end..range.len()] {
            let at = part.start * size_of::<T>();
            self.of.lay_out(range.start + part.start..range.start + part.end, room, at);
        }
        if let Some(before) = before {
            self.reduce(index - 1, before);
        }
    }

    fn take_up(&mut self, index: usize, _: &StagedPieces<'_>, before: Option<&StagedPieces<'_>>) {
        let (me, world) = self.ranks;
        let Some(before) = before.filter(|_| self.of.is_for(me)) else { return };
        let range = self.of.range(index - 1, self.piece);
        let out = &mut self.of.out[range];
        for rank in (0..world).filter(|rank| *rank != me) {
            let slice = slice_of(out.len(), world, rank);
            before.read(me, slice.start * size_of::<T>(), &mut out[slice], Stores::Cached);
        }
    }
}

/// Each rank reduces the chunks that are for it. A piece is so many elements of each chunk.
struct Scatter<'a, T: Element> {
    kernel: &'static ReduceKernel,
    input: &'a [T],
    out: &'a mut [T],
    /// Elements of each chunk in a piece.
    quota: usize,
    ranks: (usize, usize),
}

impl<T: Element> Scatter<'_, T> {
    /// The elements of a chunk that are in piece `index`.
    fn range(&self, index: usize) -> Range<usize> {
        let len = self.out.len();
        (index * self.quota).min(len)..((index + 1) * self.quota).min(len)
    }

    /// The elements of piece `index` for `rank`.
    fn chunk(&self, rank: usize, index: usize) -> &[T] {
        &self.input[rank * self.out.len()..][self.range(index)]
    }

    /// The byte at which those for `rank` lie.
    fn place(&self, rank: usize) -> usize {
        rank * self.quota.min(self.out.len()) * size_of::<T>()
    }
}

impl<T: Element> Pieces for Scatter<'_, T> {
    fn count(&self) -> usize {
        self.out.len().div_ceil(self.quota).max(1)
    }

    fn bytes(&self) -> usize {
        self.place(self.ranks.1)
    }

    fn lay_out(&mut self, index: usize, room: &PieceBuffer, _: Option<&StagedPieces<'_>>) {
        let (me, world) = self.ranks;
        for rank in (0..world).filter(|rank| *rank != me) {
            room.put(self.place(rank), self.chunk(rank, index));
        }
    }

    fn take_up(&mut self, index: usize, laid: &StagedPieces<'_>, _: Option<&StagedPieces<'_>>) {
        let (me, range) = (self.ranks.0, self.range(index));
        let own = &self.input[me * self.out.len()..][range.clone()];
        let peers = laid.peers_with(self.place(me), own);
        let out = self.out[range.clone()].as_mut_ptr();
        // SAFETY: what is at `out` are elements of the range, apart and this rank's; nobody else uses what is
        // for it. That the result takes the place of what the others laid out has no use but to leave the
        // lines modified.
        unsafe {
            peers.reduce_back(self.kernel, 0..range.len(), Some(out), |_| true);
        }
    }
}
