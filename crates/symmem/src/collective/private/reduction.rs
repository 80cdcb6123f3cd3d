//! Collectives that reduce private memory.
//!
//! With two ranks each reduces the whole piece that it needs. With more, each reduces the slice of the piece that it owns,
//! lays the result out beside the *next* piece, and who needs them collects everybody's results after the next meeting:
//! twice the bytes of a piece cross between the ranks, whatever their number. Either way the ranks are in order, so
//! the bits are the same.

use std::ops::Range;

use super::LINE;
use crate::collective::pipelined::{Laid, Pieces, Room};
use crate::collective::rooted::check_even;
use crate::collective::two_shot::slice_of;
use crate::collective::{Call, Strided, check_len};
use crate::memory::Element;
use crate::numeric::{Kernel, ReduceOp};
use crate::op::Op;
use crate::sys::copy::Stores;
use crate::{Group, Result};

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
        let (len, fill) = (data.len(), |data: &[T], range, room: &Room| room.put(0, part(data, range)));
        Reduction { op, root: None, len, out: data, fill }.run(self, Ok(()))
    }

    /// Collective. `out` becomes the reduction of all ranks' `input`; both are as long.
    pub fn all_reduce_out<T: Element>(&self, op: ReduceOp, input: &[T], out: &mut [T]) -> Result<()> {
        let arguments = check_len(Op::PrivateAllReduce, "output", out.len(), input.len());
        let (len, fill) = (input.len(), |_: &[T], range, room: &Room| room.put(0, part(input, range)));
        Reduction { op, root: None, len, out, fill }.run(self, arguments)
    }

    /// Collective. [`Group::all_reduce_out`] of elements that do not lie side by side.
    pub fn all_reduce_strided<T: Element>(
        &self,
        op: ReduceOp,
        input: Strided<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let arguments = check_len(Op::PrivateAllReduce, "output", out.len(), input.len());
        let fill = |_: &[T], range: Range<usize>, room: &Room| {
            let to = room.at(0, range.len() * size_of::<T>());
            // SAFETY: there is room for them.
            unsafe { input.copy_to(range, to) }
        };
        Reduction { op, root: None, len: input.len(), out, fill }.run(self, arguments)
    }

    /// Collective. `data` of rank `root` becomes the reduction of all ranks' `data`; the others' stays as it is.
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
        let (len, fill) = (data.len(), |data: &[T], range, room: &Room| room.put(0, part(data, range)));
        Reduction { op, root: Some(root), len, out: data, fill }.run(self, arguments)
    }

    /// Collective. `out` of rank `root`, as long as `input`, becomes the reduction of all ranks' `input`; the others' `out` is
    /// ignored.
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
        let (len, fill) = (input.len(), |_: &[T], range, room: &Room| room.put(0, part(input, range)));
        Reduction { op, root: Some(root), len, out, fill }.run(self, arguments)
    }

    /// Collective. `input` is one chunk per rank; `out` becomes the reduction of everybody's chunk for this rank.
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
            .and_then(|()| Kernel::select(T::DTYPE, op));
        let call = Call { op: name, root: 0, dtype: T::DTYPE, reduce: Some(op), bytes: size_of_val(input) };
        let (private, kernel) = self.begin_private(call, arguments)?;
        let ranks = private.ranks();
        let quota = private.room::<T>(ranks.1);
        private.carry(&mut Scatter { kernel, input, out, quota, ranks })
    }
}

fn part<T>(data: &[T], range: Range<usize>) -> &[T] {
    &data[range]
}

/// A reduction of everybody's `len` elements into `out`, on all ranks or on `root` alone.
struct Reduction<'a, T: Element, F> {
    op: ReduceOp,
    root: Option<usize>,
    len: usize,
    out: &'a mut [T],
    /// Lays out a range of this rank's elements. It is given `out`, which may be what they are in.
    fill: F,
}

impl<T: Element, F: Fn(&[T], Range<usize>, &Room)> Reduction<'_, T, F> {
    #[inline]
    fn run(self, group: &Group, arguments: Result<()>) -> Result<()> {
        let op = if self.root.is_none() { Op::PrivateAllReduce } else { Op::PrivateReduce };
        // A strided view can have more elements than there are bytes, which no output has.
        let bytes = self.len.saturating_mul(size_of::<T>());
        let call = Call { op, root: self.root.unwrap_or(0), dtype: T::DTYPE, reduce: Some(self.op), bytes };
        let arguments = arguments.and_then(|()| Kernel::select(T::DTYPE, self.op));
        let (private, kernel) = group.begin_private(call, arguments)?;
        let (rank, world) = private.ranks();
        let wanted = self.root.is_none_or(|root| root == rank);
        let room = private.room::<T>(1);
        match world {
            3..=MOST_OWNERS if !private.is_pushed() => {
                // A slice has a line more than its share at most.
                let piece = (room / LINE - 1) / (world + 1) * world * LINE;
                private.carry(&mut Slices { of: self, kernel, wanted, piece, ranks: (rank, world) })
            }
            _ => private.carry(&mut Whole { of: self, kernel, wanted, piece: room }),
        }
    }

    /// The elements of piece `index`, if pieces have `piece` of them.
    fn range(&self, index: usize, piece: usize) -> Range<usize> {
        (index * piece).min(self.len)..((index + 1) * piece).min(self.len)
    }
}

/// Who wants the result reduces whole pieces.
struct Whole<'a, T: Element, F> {
    of: Reduction<'a, T, F>,
    kernel: &'static Kernel,
    wanted: bool,
    /// Elements of a piece.
    piece: usize,
}

impl<T: Element, F: Fn(&[T], Range<usize>, &Room)> Pieces for Whole<'_, T, F> {
    fn count(&self) -> usize {
        // At least one meeting, so that ranks with nothing to reduce still agree on it.
        self.of.len.div_ceil(self.piece).max(1)
    }

    #[inline]
    fn lay_out(&mut self, index: usize, room: &Room, _: Option<&Laid<'_>>) {
        (self.of.fill)(self.of.out, self.of.range(index, self.piece), room);
    }

    #[inline]
    fn take_up(&mut self, index: usize, laid: &Laid<'_>) {
        if self.wanted {
            let range = self.of.range(index, self.piece);
            laid.peers(0, range.len(), None).reduce(self.kernel, 0, &mut self.of.out[range]);
        }
    }
}

/// Each rank reduces a slice of every piece.
struct Slices<'a, T: Element, F> {
    of: Reduction<'a, T, F>,
    kernel: &'static Kernel,
    wanted: bool,
    /// Elements of a piece. The results of the piece before follow it.
    piece: usize,
    ranks: (usize, usize),
}

impl<T: Element, F: Fn(&[T], Range<usize>, &Room)> Slices<'_, T, F> {
    /// Bytes before the results.
    fn results(&self) -> usize {
        self.piece * size_of::<T>()
    }
}

impl<T: Element, F: Fn(&[T], Range<usize>, &Room)> Pieces for Slices<'_, T, F> {
    fn count(&self) -> usize {
        // One more, for the results of the last.
        self.of.len.div_ceil(self.piece) + 1
    }

    fn lay_out(&mut self, index: usize, room: &Room, before: Option<&Laid<'_>>) {
        (self.of.fill)(self.of.out, self.of.range(index, self.piece), room);
        let Some(before) = before else { return };
        let (rank, world) = self.ranks;
        let len = self.of.range(index - 1, self.piece).len();
        let slice = slice_of(len, world, rank);
        let to = room.at(self.results(), slice.len() * size_of::<T>());
        let peers = before.peers::<T>(0, len, None);
        // SAFETY: there is room for the slice, and nobody else uses it while the piece is laid out.
        unsafe { peers.reduce_to(self.kernel, slice.start, to.cast(), slice.len()) };
    }

    fn take_up(&mut self, index: usize, laid: &Laid<'_>) {
        if index == 0 || !self.wanted {
            return;
        }
        let (results, world) = (self.results(), self.ranks.1);
        let range = self.of.range(index - 1, self.piece);
        let out = &mut self.of.out[range];
        for rank in 0..world {
            let slice = slice_of(out.len(), world, rank);
            laid.read(rank, results, &mut out[slice], Stores::Cached);
        }
    }
}

/// Each rank reduces the chunks that are for it. A piece is so many elements of each chunk.
struct Scatter<'a, T: Element> {
    kernel: &'static Kernel,
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

    fn lay_out(&mut self, index: usize, room: &Room, _: Option<&Laid<'_>>) {
        let (me, world) = self.ranks;
        for rank in (0..world).filter(|rank| *rank != me) {
            room.put(self.place(rank), self.chunk(rank, index));
        }
    }

    fn take_up(&mut self, index: usize, laid: &Laid<'_>) {
        let (me, range) = (self.ranks.0, self.range(index));
        let own = &self.input[me * self.out.len()..][range.clone()];
        let peers = laid.peers(self.place(me), range.len(), Some(own));
        peers.reduce(self.kernel, 0, &mut self.out[range]);
    }
}
