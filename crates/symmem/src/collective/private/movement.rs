//! Collectives that move private memory without changing it.

use std::ops::Range;

use super::splits::{self, Splits};
use super::traffic::{Pattern, Traffic};
use super::{LINE, Private};
use crate::Result;
use crate::collective::pipelined::{PieceBuffer, Pieces, StagedPieces};
use crate::collective::pull;
use crate::collective::rooted::check_even;
use crate::collective::{CollectiveCall, check_len};
use crate::group::Group;
use crate::numeric::Element;
use crate::operation::{Algorithm, Collective, Op, Shape};
use crate::sys::copy::{self, Stores};

impl Group {
    /// Collective. `out` becomes everybody's `input`, in rank order; all inputs are as long.
    ///
    /// ```
    /// let all = symmem::spawn(2, |group| {
    ///     let mut out = [0; 4];
    ///     group.all_gather_into(&[group.rank() as u8, 7], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(all, [[0, 7, 1, 7]; 2]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_into<T: Element>(&self, input: &[T], out: &mut [T]) -> Result<()> {
        let (op, len) = (Op::PrivateAllGather, input.len());
        let arguments = check_len(op, "output", out.len(), len.saturating_mul(self.size()));
        let private = self.begin_moving::<T>(op, 0, size_of_val(input), arguments)?;
        private.transfer(Pattern::Same { root: None, len }, input, out)
    }

    /// Collective. Everybody's `data` becomes that of rank `root`; all are as long.
    ///
    /// ```
    /// let all = symmem::spawn(3, |group| {
    ///     let mut data = [group.rank() as f32; 5];
    ///     group.broadcast_into(1, &mut data)?;
    ///     Ok(data)
    /// })?;
    /// assert_eq!(all, [[1.0; 5]; 3]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn broadcast_into<T: Element>(&self, root: usize, data: &mut [T]) -> Result<()> {
        let (op, len) = (Op::PrivateBroadcast, data.len());
        let arguments = self.check_rank(op.name(), root);
        let private = self.begin_moving::<T>(op, root, size_of_val(data), arguments)?;
        let pattern = Pattern::Same { root: Some(root), len };
        match self.rank() == root {
            true => private.transfer(pattern, data, &mut []),
            false => private.transfer(pattern, &[], data),
        }
    }

    /// Collective. `input` is one chunk per rank; `out` becomes, in rank order, everybody's chunk for this
    /// rank. All are as long.
    ///
    /// ```
    /// let all = symmem::spawn(2, |group| {
    ///     let rank = group.rank();
    ///     let mut out = [0; 2];
    ///     group.all_to_all(&[10 * rank, 10 * rank + 1].map(|x| x as u64), &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(all, [[0, 10], [1, 11]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_to_all<T: Element>(&self, input: &[T], out: &mut [T]) -> Result<()> {
        let op = Op::PrivateAllToAll;
        let arguments = check_len(op, "output", out.len(), input.len())
            .and_then(|()| check_even(op, input.len(), self.size()).map(drop));
        let private = self.begin_moving::<T>(op, 0, size_of_val(input), arguments)?;
        let chunk = input.len() / self.size();
        private.transfer(Pattern::Chunks { chunk }, input, out)
    }

    /// Collective. The first `sends[0]` elements of `input` go to rank 0, the next `sends[1]` to rank 1, and
    /// so on; `out` becomes, in rank order, `receives[rank]` elements of each rank, which must be what that
    /// rank sends. The splits make up all of `input` and `out`.
    ///
    /// Ranks whose splits do not fit together all get the same `Mismatch`, and a rank whose splits do not fit
    /// its memory is named in the same [`Error::Rank`](crate::Error::Rank) on all ranks; nothing is written.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let (input, sends, receives) = match group.rank() {
    ///         0 => (vec![1, 2, 3], [1, 2], [1, 2]),
    ///         _ => (vec![4, 5], [2, 0], [2, 0]),
    ///     };
    ///     let mut out = vec![0; receives.iter().sum()];
    ///     group.all_to_all_v(&input, &sends, &mut out, &receives)?;
    ///     assert_eq!(out, if group.rank() == 0 { vec![1, 4, 5] } else { vec![2, 3] });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        sends: &[usize],
        out: &mut [T],
        receives: &[usize],
    ) -> Result<()> {
        let running = self.begin(Op::PrivateAllToAllV, None)?;
        running.check_local()?;
        // Their arrays differ.
        let (op, shape) = (Op::PrivateAllToAllV, Shape::ANY);
        let call = CollectiveCall { op, root: 0, dtype: T::DTYPE, reduce: None, bytes: 0, shape };
        let number = (call.signature(Algorithm::Pipelined, 0).word >> 8) as usize;
        let arguments = splits::check("input", sends, self.size(), input.len())
            .and_then(|()| splits::check("output", receives, self.size(), out.len()));
        let splits = running.guarded(|| {
            running.told(arguments)?;
            Splits::exchange(&running, number, (sends, receives))
        })?;
        let call = CollectiveCall { bytes: splits.longest * size_of::<T>(), ..call };
        let (private, ()) = Private::new(running, call, Ok(()))?;
        private.transfer(Pattern::Splits(splits), input, out)
    }

    /// Collective. `out` of rank `root` becomes everybody's `input`, in rank order; all inputs are as long.
    /// The others' `out` is ignored.
    ///
    /// ```
    /// let all = symmem::spawn(3, |group| {
    ///     let mut out = [0; 3];
    ///     group.gather(1, &[group.rank() as u16 + 5], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(all, [[0; 3], [5, 6, 7], [0; 3]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn gather<T: Element>(&self, root: usize, input: &[T], out: &mut [T]) -> Result<()> {
        let (op, len) = (Op::PrivateGather, input.len());
        let is_root = self.rank() == root;
        let needed = if is_root { len.saturating_mul(self.size()) } else { out.len() };
        let arguments =
            self.check_rank(op.name(), root).and_then(|()| check_len(op, "output", out.len(), needed));
        let private = self.begin_moving::<T>(op, root, size_of_val(input), arguments)?;
        private.transfer(Pattern::Gather { root, len }, input, out)
    }

    /// Collective. `input` of rank `root` is one chunk per rank; `out` becomes this rank's chunk, and is as
    /// long on all ranks. The others' `input` is ignored.
    ///
    /// ```
    /// let mine = symmem::spawn(3, |group| {
    ///     let input = if group.rank() == 2 { vec!['a' as u8, 'b' as u8, 'c' as u8] } else { vec![] };
    ///     let mut out = [0];
    ///     group.scatter(2, &input, &mut out)?;
    ///     Ok(out[0] as char)
    /// })?;
    /// assert_eq!(mine, ['a', 'b', 'c']);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn scatter<T: Element>(&self, root: usize, input: &[T], out: &mut [T]) -> Result<()> {
        let (op, chunk) = (Op::PrivateScatter, out.len());
        let is_root = self.rank() == root;
        let needed = chunk.saturating_mul(self.size());
        let given = if is_root { input.len() } else { needed };
        let arguments = self.check_rank(op.name(), root).and_then(|()| check_len(op, "input", given, needed));
        let bytes = size_of_val(out).saturating_mul(self.size());
        let private = self.begin_moving::<T>(op, root, bytes, arguments)?;
        private.transfer(Pattern::Scatter { root, chunk }, input, out)
    }

    /// Begins `op`, in which no rank lays out more than `bytes` for others.
    fn begin_moving<T: Element>(
        &self,
        op: Op,
        root: usize,
        bytes: usize,
        arguments: Result<()>,
    ) -> Result<Private<'_>> {
        let call = CollectiveCall { op, root, dtype: T::DTYPE, reduce: None, bytes, shape: self.shape };
        self.begin_private(call, arguments).map(|(private, ())| private)
    }
}

impl Private<'_> {
    /// Moves elements from everybody's `input` to everybody's `out`, as `pattern` says.
    pub(in crate::collective) fn transfer<T: Element>(
        &self,
        pattern: Pattern<'_>,
        input: &[T],
        out: &mut [T],
    ) -> Result<()> {
        self.transfer_bytes(
            pattern,
            size_of::<T>(),
            bytemuck::cast_slice(input),
            bytemuck::cast_slice_mut(out),
        )
    }

    /// The same of elements of `size` bytes, whatever they are: compiled once for all types.
    fn transfer_bytes(&self, pattern: Pattern<'_>, size: usize, input: &[u8], out: &mut [u8]) -> Result<()> {
        let (me, world) = self.ranks();
        // What everybody reads and writes, besides staging, which stays in the caches.
        let footprint = (input.len() + out.len()).saturating_mul(world);
        let stores = Stores::for_footprint(footprint);
        let traffic = Traffic { pattern, me, world };
        let window = self.window(&traffic, size);
        let mut transfer = Transfer { traffic, size, input, out, window, stores };
        if self.algorithm == Algorithm::Pull && self.pull(&mut transfer)? {
            return Ok(());
        }
        self.carry(&mut transfer)
    }

    /// Reads everything from where it is. False if a rank cannot.
    fn pull(&self, transfer: &mut Transfer<'_>) -> Result<bool> {
        let address = transfer.input.as_ptr().addr() as u64;
        self.running.guarded(|| {
            pull::run(&self.running, self.signature, address, |sources| {
                // First: the peers take the lines of the input away.
                let (len, from, to) = transfer.traffic.kept();
                transfer.copy_own(from..from + len, to);
                transfer.traffic.others().all(|source| {
                    let (start, out) = transfer.traffic.pulled(source);
                    let out = bytes_of(out, transfer.size);
                    out.is_empty() || sources.read(source, start * transfer.size, &mut transfer.out[out])
                })
            })
        })
    }
}

impl Private<'_> {
    /// Elements of `size` bytes of every stream that are laid out at once.
    fn window(&self, traffic: &Traffic<'_>, size: usize) -> usize {
        /// Pieces of what only one rank lays out: it lays out one while the others take up the one before.
        const TURNS: usize = 4;
        /// Fewer bytes of a piece are not worth a meeting; nor is what is only so many times what one meeting
        /// is preferred for.
        const LEAST: usize = 16 << 10;
        const STAGED: usize = 8;
        let window = self.room(1, size);
        if self.is_pushed() || !traffic.is_one_way() {
            return window;
        }
        let staged = self.running.group().choices().staged_below(Collective::Private);
        let least = LEAST.max(staged.saturating_mul(STAGED)) / size;
        window.min((traffic.longest() / TURNS).max(least).next_multiple_of(LINE))
    }
}

/// Where elements of `size` bytes are among the bytes of all.
fn bytes_of(elements: Range<usize>, size: usize) -> Range<usize> {
    elements.start * size..elements.end * size
}

/// Streams under way.
struct Transfer<'a> {
    traffic: Traffic<'a>,
    /// Bytes of an element.
    size: usize,
    input: &'a [u8],
    out: &'a mut [u8],
    /// Elements of every stream that are laid out at once.
    window: usize,
    stores: Stores,
}

impl Transfer<'_> {
    /// Copies a part of what this rank has for itself, with each piece one.
    fn keep(&mut self, index: usize) {
        let (len, from, to) = self.traffic.kept();
        let part = match self.keeps_what_it_gives() {
            true => self.window,
            false => (len / self.count()).next_multiple_of(LINE),
        };
        let is_last = index + 1 == self.count();
        let part = (index * part).min(len)..if is_last { len } else { ((index + 1) * part).min(len) };
        self.copy_own(from + part.start..from + part.end, to + part.start);
    }

    /// Copies elements of the input to the output, from element `to` on.
    fn copy_own(&mut self, input: Range<usize>, to: usize) {
        let (to, input) = (to * self.size, &self.input[bytes_of(input, self.size)]);
        copy::own(input, &mut self.out[to..to + input.len()], self.stores);
    }

    /// Whether this rank has for itself what it gives to others, as in an all_gather.
    fn keeps_what_it_gives(&self) -> bool {
        matches!(self.traffic.pattern, Pattern::Same { root: None, .. })
    }

    /// [`Pieces::lay_out`] and [`Transfer::keep`] by turns, so that what is kept is read while it is still in
    /// the first-level cache.
    fn lay_out_and_keep(&mut self, index: usize, room: &PieceBuffer) {
        /// Bytes of a turn: a part of any first-level cache.
        const TURN: usize = 8 << 10;
        let (len, _, to) = self.traffic.kept();
        let window = self.window(index);
        let end = window.end.min(len);
        let turn = TURN / self.size;
        for start in (window.start..end).step_by(turn) {
            let part = start..(start + turn).min(end);
            room.give((start - window.start) * self.size, &self.input[bytes_of(part.clone(), self.size)]);
            self.copy_own(part, to + start);
        }
    }

    fn window(&self, index: usize) -> Range<usize> {
        index * self.window..(index + 1) * self.window
    }
}

impl Pieces for Transfer<'_> {
    fn count(&self) -> usize {
        // At least one meeting, so that ranks with nothing to move still agree on it.
        self.traffic.longest().div_ceil(self.window).max(1)
    }

    fn bytes(&self) -> usize {
        self.traffic.longest().min(self.window) * self.size
    }

    fn lay_out(&mut self, index: usize, room: &PieceBuffer, _: Option<&StagedPieces<'_>>) {
        // Before the first meeting ranks may disagree, and nothing of the output may change.
        if index > 0 && self.keeps_what_it_gives() {
            return self.lay_out_and_keep(index, room);
        }
        let window = self.window(index);
        self.traffic.given(|stretch| {
            let (at, range) = stretch.within(&window);
            if !range.is_empty() {
                room.give(at * self.size, &self.input[bytes_of(range, self.size)]);
            }
        });
    }

    fn take_up(&mut self, index: usize, laid: &StagedPieces<'_>, _: Option<&StagedPieces<'_>>) {
        if index == 0 || !self.keeps_what_it_gives() {
            self.keep(index);
        }
        let window = self.window(index);
        let alone = !self.traffic.is_shared();
        for source in self.traffic.others() {
            let (at, range) = self.traffic.taken(source).within(&window);
            let range = bytes_of(range, self.size);
            let (at, out) = (at * self.size, &mut self.out[range]);
            match (out.is_empty(), alone) {
                (true, _) => {}
                (false, true) => laid.take(source, at, out, self.stores),
                (false, false) => laid.read(source, at, out, self.stores),
            }
        }
    }
}
