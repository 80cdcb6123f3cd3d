//! The push algorithm: the bytes travel in the cache lines of the announcement, the first of them in the very
//! line that the receiver looks at.
//!
//! No barrier, no staging: a rank announces, hears, and works on the parcels that it took up. The argument
//! for reusing the lines is that of the meeting's slots.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::mem::MaybeUninit;

use super::call::CollectiveCall;
use super::pipelined::{PieceBuffer, Pieces, StagedPieces};
use crate::Result;
use crate::group::Running;
use crate::operation::Signature;
use crate::sync::protocol::PARCEL_WORDS;
use crate::sys::fault::{self, Point};
use crate::tuning::PUSH_RANKS;

const WORD: usize = size_of::<u64>();

/// The parcels of all ranks, on the stack of the operation that took them up.
pub(super) struct Parcels([MaybeUninit<[u64; PARCEL_WORDS]>; PUSH_RANKS]);

impl Parcels {
    pub(super) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; PUSH_RANKS])
    }

    /// Where the parcel of each rank is.
    pub(super) fn addresses(&mut self) -> [*mut u8; PUSH_RANKS] {
        self.0.each_mut().map(|parcel| parcel.as_mut_ptr().cast())
    }

    /// The first `words` words of the parcel of `rank`, set to zero.
    fn cleared(&mut self, rank: usize, words: usize) -> &mut [u64] {
        assert!(words <= PARCEL_WORDS);
        let first = self.0[rank].as_mut_ptr().cast::<u64>();
        // SAFETY: the parcel has that many words, which are initialised here.
        unsafe {
            first.write_bytes(0, words);
            std::slice::from_raw_parts_mut(first, words)
        }
    }
}

/// Sends this rank's bytes, at most what a parcel holds, and takes up those of all ranks that it hears from.
#[inline]
pub(super) fn exchange(
    running: &Running<'_>,
    call: &CollectiveCall,
    signature: Signature,
    parcels: &mut Parcels,
    fill: impl FnOnce(*mut u8),
) -> Result<()> {
    let inner = running.inner();
    let me = inner.rank;
    let words = call.bytes.div_ceil(WORD);
    let epoch = running.next_epoch()?;
    let own = parcels.cleared(me, words);
    if call.gives(me) {
        fill(own.as_mut_ptr().cast());
    }
    fault::point(Point::ParcelPacked);
    let sent = if call.gives(me) { &*own } else { &[] };
    running.announce(epoch, signature, 0, sent);
    running.hear(epoch, signature, |peer| call.hears(me, peer))?;
    fault::point(Point::ParcelsHeard);
    for peer in (0..inner.world).filter(|peer| *peer != me && call.gives(*peer) && call.hears(me, *peer)) {
        running.unpack(epoch, peer, parcels.cleared(peer, words));
    }
    Ok(())
}

/// Carries the one piece of `pieces`, which fits a parcel.
pub(super) fn run(
    running: &Running<'_>,
    call: &CollectiveCall,
    signature: Signature,
    pieces: &mut impl Pieces,
) -> Result<()> {
    let bytes = call.bytes.next_multiple_of(WORD);
    let mut parcels = Parcels::new();
    exchange(running, call, signature, &mut parcels, |to| {
        // SAFETY: this rank's parcel, which it alone sees, has that many bytes.
        pieces.lay_out(0, &unsafe { PieceBuffer::new(to, bytes) }, None);
    })?;
    let parcels = parcels.addresses();
    // SAFETY: the parcels are on the stack; those of the ranks that gave one hold the call's bytes.
    pieces.take_up(0, &unsafe { StagedPieces::in_parcels(running.inner(), &parcels, bytes) }, None);
    Ok(())
}
