//! The synchronisation protocols, over nothing but atomics, so that loom can run them as they are.
//!
//! The crate `symmem-models` compiles this folder a second time with loom's atomics and removes each fence
//! and ordering in turn. Nothing here knows about groups, deadlines or mappings.

pub(crate) mod atomic;
mod ballot;
mod bell;
mod borrow;
mod consumed;
mod meet;
mod pad;
mod ring;

pub(crate) use ballot::{ALIVE_WORDS, Ballot, Sheet};
pub(crate) use bell::Bell;
pub(crate) use borrow::{BorrowRefusal, Borrows};
pub(crate) use consumed::{Owed, hear, next_epoch};
pub(crate) use meet::{
    MeetingWords, PARCEL_WORDS, Slot, announce, announced, arrived, leave_shape, note, shape, unpack,
};
pub(crate) use pad::{try_put, try_take};
pub(crate) use ring::{SLOTS, SlotCounts};
