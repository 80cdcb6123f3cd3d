//! The pipelined algorithm: private memory of any size through staging, piece by piece.
//!
//! A piece fits half of a rank's staging and the second-level cache, so that it is still there when it is reduced. One
//! meeting per piece: the two halves of staging let a rank lay out a piece while others still work on the one before.
//!
//! With two ranks each reduces the whole piece. With more, each reduces the slice of the piece that it owns, lays the
//! result out beside the *next* piece, and collects everybody's results after the next meeting: twice the bytes of a
//! piece cross between the ranks, whatever their number.

use super::call::Call;
use super::peers::Peers;
use super::staged;
use super::two_shot::slice_of;
use crate::Result;
use crate::group::Running;
use crate::memory::Element;
use crate::numeric::Kernel;
use crate::sync::control::staging_bytes;
use crate::sync::protocol::Signature;
use crate::sys::copy;
use crate::sys::fault::{self, Point};

/// Elements that slices are made of, see [`slice_of`].
const LINE: usize = 64;
/// Most ranks that own a slice of every piece: more would make the pieces too small.
const MOST_OWNERS: usize = 32;

/// A reduction of private memory under way.
pub(super) struct Pipeline<'a, T: Element> {
    pub(super) running: &'a Running<'a>,
    pub(super) call: &'a Call,
    pub(super) signature: Signature,
    pub(super) kernel: &'a Kernel,
    pub(super) out: &'a mut [T],
}

impl<'a, T: Element> Pipeline<'a, T> {
    /// Reduces everybody's elements into `out`. `fill` copies as many elements of this rank's input as asked for, from an
    /// index on; the input may be `out` itself.
    pub(super) fn run(mut self, fill: impl Fn(&[T], usize, usize, *mut u8)) -> Result<()> {
        match self.running.inner().world {
            3..=MOST_OWNERS => self.owned_slices(fill),
            _ => self.whole_pieces(fill),
        }
    }

    fn ranks(&self) -> (usize, usize) {
        let inner = self.running.inner();
        (inner.rank, inner.world)
    }

    fn whole_pieces(&mut self, fill: impl Fn(&[T], usize, usize, *mut u8)) -> Result<()> {
        let piece = self.staging_lines() * LINE;
        // At least one meeting, so that ranks with nothing to reduce still agree on it.
        for start in (0..self.out.len().max(1)).step_by(piece) {
            let len = piece.min(self.out.len() - start);
            let out = &*self.out;
            let epoch =
                staged::exchange(self.running, self.call, self.signature, |to| fill(out, start, len, to))?;
            // SAFETY: this rank announces nothing before the piece is reduced.
            let peers = unsafe { self.staged(epoch, len) };
            peers.reduce(self.kernel, 0, &mut self.out[start..start + len]);
            fault::point(Point::PieceDone);
        }
        Ok(())
    }

    fn owned_slices(&mut self, fill: impl Fn(&[T], usize, usize, *mut u8)) -> Result<()> {
        let (me, world) = self.ranks();
        // A slice has a line more than its share at most.
        let piece = (self.staging_lines() - 1) / (world + 1) * world * LINE;
        let results = piece * size_of::<T>();
        let (mut before, mut start) = (None, 0);
        loop {
            let len = piece.min(self.out.len() - start);
            let out = &*self.out;
            let epoch = staged::exchange(self.running, self.call, self.signature, |to| {
                fill(out, start, len, to);
                if let Some((epoch, len)) = before {
                    let slice = slice_of(len, world, me);
                    // SAFETY: the piece before is in the other half of everybody's staging, and nobody writes there before
                    // this rank announces; the results of a slice fit behind a piece.
                    unsafe {
                        self.staged(epoch, len).reduce_to(
                            self.kernel,
                            slice.start,
                            to.add(results).cast(),
                            slice.len(),
                        );
                    }
                }
            })?;
            if let Some((_, len)) = before {
                self.collect(epoch, start - len, len, results);
                fault::point(Point::PieceDone);
            }
            if len == 0 {
                return Ok(());
            }
            before = Some((epoch, len));
            start += len;
        }
    }

    /// Copies everybody's results for the `len` elements from `start` on, which lie `offset` bytes into their staging.
    fn collect(&mut self, epoch: u64, start: usize, len: usize, offset: usize) {
        let inner = self.running.inner();
        for rank in 0..inner.world {
            let slice = slice_of(len, inner.world, rank);
            let out = &mut self.out[start + slice.start..start + slice.end];
            // SAFETY: the results are there since the meeting of `epoch`, until this rank announces the next one.
            unsafe {
                let from = inner.map(rank).staging(epoch).add(offset);
                copy::read(from, out.as_mut_ptr().cast(), size_of_val(out));
            }
        }
    }

    /// Whole lines that fit a rank's staging.
    fn staging_lines(&self) -> usize {
        staging_bytes(self.running.inner().world) / size_of::<T>() / LINE
    }

    /// Everybody's piece in staging.
    ///
    /// # Safety
    /// They must have been laid out in `epoch`, and this rank must not have announced the next but one.
    unsafe fn staged(&self, epoch: u64, len: usize) -> Peers<'a, T> {
        let inner = self.running.inner();
        // SAFETY: staging has room for a piece; the rest is the caller's duty.
        unsafe { Peers::new(inner, len, false, |rank| inner.map(rank).staging(epoch)) }
    }
}
