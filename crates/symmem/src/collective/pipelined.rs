//! The pipelined algorithm: private memory of any size through staging, piece by piece.
//!
//! Carries what the collectives on private memory say as [`Pieces`]: what a rank lays out for the others, and
//! what it does with what they laid out. A piece fits half of a rank's staging and the second-level cache, so
//! that it is still there when it is used. One meeting per piece: the two halves of staging let a rank lay
//! out a piece while others still work on the one before. What fits a parcel goes as one piece with the
//! announcement ([`super::push`]).
//!
//! # Whose cache the lines are in
//! Staging is written and read over and over, so what counts is how its cache lines travel, which differs by
//! processor (`sys/copy/x86_64.rs` says how). [`PieceBuffer::give`], [`StagedPieces::take`] and [`place`] do
//! what suits this one. Reductions put their result in the place of what they read ([`Peers::reduce_back`]),
//! on every processor.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::call::CollectiveCall;
use super::peers::Peers;
use super::staged;
use crate::Result;
use crate::group::{Membership, Running};
use crate::numeric::Element;
use crate::operation::Signature;
use crate::sync::control::staging_bytes;
use crate::sys::copy::{self, Stores};
use crate::sys::fault::{self, Point};
use crate::tuning::PUSH_RANKS;

/// An operation cut into pieces.
pub(super) trait Pieces {
    /// Smaller pieces had better stay in the first-level cache: their few lines are at hand then.
    const LEAST_THAT_RESTS: usize = 4 << 10;
    /// How many there are, at least one: the same on all ranks.
    fn count(&self) -> usize;
    /// The most bytes of a piece: the same on all ranks.
    fn bytes(&self) -> usize;
    /// Lays out what others need of this rank's piece `index`. `before` is everybody's piece before this one:
    /// who did not use it in [`Pieces::take_up`] can do so for the last time here.
    fn lay_out(&mut self, index: usize, room: &PieceBuffer, before: Option<&StagedPieces<'_>>);
    /// Uses everybody's piece `index`. Of `before`, everybody's piece before this one, only what this rank
    /// itself laid out is still there: with what others put in its place.
    fn take_up(&mut self, index: usize, laid: &StagedPieces<'_>, before: Option<&StagedPieces<'_>>);
}

/// Where this rank lays a piece out.
pub(super) struct PieceBuffer {
    start: *mut u8,
    bytes: usize,
}

impl PieceBuffer {
    /// # Safety
    /// The bytes at `start` are valid for writes and nobody reads them, while the value lives.
    pub(super) unsafe fn new(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// The address of `bytes` bytes from byte `at` on: this rank's alone while the piece is laid out.
    #[inline]
    pub(super) fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "beyond the room for a piece");
        // SAFETY: within the room.
        unsafe { self.start.add(at) }
    }

    /// Lays `elements` out from byte `at` on.
    #[inline]
    pub(super) fn put<T: Element>(&self, at: usize, elements: &[T]) {
        self.put_by(at, elements, false);
    }

    /// [`PieceBuffer::put`], of what others only read.
    #[inline]
    pub(super) fn give<T: Element>(&self, at: usize, elements: &[T]) {
        self.put_by(at, elements, true);
    }

    #[inline(always)]
    fn put_by<T: Element>(&self, at: usize, elements: &[T], gives: bool) {
        let (from, to, bytes) =
            (elements.as_ptr().cast(), self.at(at, size_of_val(elements)), size_of_val(elements));
        // SAFETY: there is room for them, and they are no part of it: it is the library's own memory.
        unsafe { if gives { copy::give(from, to, bytes) } else { copy::write(from, to, bytes) } };
    }
}

/// Where everybody's piece lies.
pub(super) struct StagedPieces<'a> {
    inner: &'a Membership,
    place: PiecePlace<'a>,
    bytes: usize,
}

enum PiecePlace<'a> {
    /// In everybody's staging of this epoch, from this byte on.
    Staging(u64, usize),
    /// In these parcels.
    Parcels(&'a [*mut u8; PUSH_RANKS]),
}

impl<'a> StagedPieces<'a> {
    /// # Safety
    /// The value is used only between the meeting of `epoch` and this rank's announcement of the next one.
    unsafe fn in_staging(inner: &'a Membership, epoch: u64, start: usize) -> Self {
        Self { inner, place: PiecePlace::Staging(epoch, start), bytes: staging_bytes(inner.world) - start }
    }

    /// # Safety
    /// The parcels of all ranks that gave one hold `bytes` bytes while the value lives.
    pub(super) unsafe fn in_parcels(
        inner: &'a Membership,
        parcels: &'a [*mut u8; PUSH_RANKS],
        bytes: usize,
    ) -> Self {
        Self { inner, place: PiecePlace::Parcels(parcels), bytes }
    }

    #[inline]
    fn at(&self, rank: usize, at: usize, bytes: usize) -> *mut u8 {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "beyond a piece");
        let (start, at) = match self.place {
            PiecePlace::Staging(epoch, start) => (self.inner.map(rank).staging(epoch), start + at),
            PiecePlace::Parcels(parcels) => (parcels[rank], at),
        };
        // Within the piece, which is within its staging or parcel.
        start.wrapping_add(at)
    }

    /// Copies what `rank` laid out from byte `at` on.
    #[inline]
    pub(super) fn read<T: Element>(&self, rank: usize, at: usize, out: &mut [T], stores: Stores) {
        let from = self.at(rank, at, size_of_val(out));
        // SAFETY: the piece lies there for as long as `self` may be used; `out` is private to this rank.
        unsafe { copy::read_with(from, out.as_mut_ptr().cast(), size_of_val(out), stores) };
    }

    /// [`StagedPieces::read`], of what no other rank reads: the lines are modified when they go back to who
    /// laid them out.
    #[inline]
    pub(super) fn take<T: Element>(&self, rank: usize, at: usize, out: &mut [T], stores: Stores) {
        let from = self.at(rank, at, size_of_val(out));
        // SAFETY: as above, and nobody else uses these bytes until this rank's next announcement.
        unsafe { copy::take_with(from, out.as_mut_ptr().cast(), size_of_val(out), stores) };
    }

    /// As many elements as `own` has that everybody laid out from byte `at` on, with `own` in the place of
    /// this rank's.
    #[inline]
    pub(super) fn peers_with<'s, T: Element>(&'s self, at: usize, own: &'s [T]) -> Peers<'s, T> {
        // SAFETY: borrowed for as long as the value lives.
        unsafe { self.peers(at, own.len(), Some(own.as_ptr())) }
    }

    /// The `len` elements that everybody laid out from byte `at` on; those at `own` in the place of this
    /// rank's, if given.
    ///
    /// # Safety
    /// `own` must be valid for as many elements while the value lives.
    #[inline]
    pub(super) unsafe fn peers<T: Element>(
        &self,
        at: usize,
        len: usize,
        own: Option<*const T>,
    ) -> Peers<'_, T> {
        let bytes = len * size_of::<T>();
        let address = |rank: usize| match own {
            Some(own) if rank == self.inner.rank => own.cast_mut().cast(),
            _ => self.at(rank, at, bytes),
        };
        // SAFETY: the pieces lie there for as long as `self` may be used, and nobody writes them but by
        // `Peers::reduce_back`; what is at `own` is only read by what works on them.
        unsafe { Peers::new(self.inner, len, false, address) }
    }
}

/// Carries all `pieces` through staging.
pub(super) fn run<P: Pieces>(
    running: &Running<'_>,
    call: &CollectiveCall,
    signature: Signature,
    pieces: &mut P,
) -> Result<()> {
    let inner = running.inner();
    let (staging, piece) = (staging_bytes(inner.world), pieces.bytes());
    let rests = inner.choices.rests && piece >= P::LEAST_THAT_RESTS;
    let mut before = None;
    for index in 0..pieces.count() {
        let epoch = staged::exchange(running, call, signature, |epoch, to| {
            let start = place(epoch, piece, staging, rests);
            // SAFETY: nobody reads this half of the staging before this rank announces; the piece starts
            // within it.
            let room = unsafe { PieceBuffer::new(to.add(start), staging - start) };
            pieces.lay_out(index, &room, before.as_ref());
        })?;
        // SAFETY: just met. The last use of what others laid out is when the next piece is laid out, which is
        // announced after that; this rank's own part stays until it lays out the piece after the next.
        let laid = unsafe { StagedPieces::in_staging(inner, epoch, place(epoch, piece, staging, rests)) };
        pieces.take_up(index, &laid, before.as_ref());
        before = Some(laid);
        fault::point(Point::PieceDone);
    }
    Ok(())
}

/// At which byte of its half of staging, of `staging` bytes, the piece of `epoch` lies: all ranks find the
/// same one, since they have agreed on whether it `rests`.
///
/// Pieces that are much smaller than staging take turns in it where lines are the better for a rest. Any
/// place in the half of an epoch may be written once the half may be.
fn place(epoch: u64, bytes: usize, staging: usize, rests: bool) -> usize {
    let bytes = bytes.next_multiple_of(64);
    match rests {
        true => (epoch / 2 % (staging / bytes).max(1) as u64) as usize * bytes,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_fits_wherever_it_lies() {
        let staging = staging_bytes(2);
        let sizes = [1, 4095, 4096, 5000, 100_000, staging - 1, staging];
        for (bytes, rests) in sizes.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true)]) {
            let places: Vec<usize> = (0..200).map(|epoch| place(epoch, bytes, staging, rests)).collect();
            assert!(
                places.iter().all(|start| start + bytes <= staging && start % 64 == 0),
                "{bytes}: {places:?}"
            );
            let turns = rests && bytes <= staging / 2;
            assert_eq!(places[0] != places[2], turns, "{bytes}");
            assert_eq!(places[0], places[1], "the halves are apart anyway");
        }
    }
}
