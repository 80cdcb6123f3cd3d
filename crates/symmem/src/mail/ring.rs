//! The rings that messages travel in: one per ordered pair of ranks, in the memory of the one who receives.
//!
//! Used by `mail` only, under the lock of this rank's [`MailQueues`](super::queues::MailQueues): of one rank,
//! one thread at a time. A ring is a few slots; a message takes as many as it needs, one after the other.
//!
//! # Memory ordering
//! [`SlotCounts`] says whose a slot is. Whoever raised a count passes [`Bell::publish_fence`] and rings the
//! other's bell; who waits for mail looks at the counts between announcing that it sleeps and sleeping (see
//! [`Bell`]), so no wake-up is lost.

#![allow(unsafe_code, reason = "rings in shared memory")]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Result;
use crate::group::Group;
use crate::memory::SymmetricMemory;
pub(super) use crate::sync::protocol::SLOTS;
use crate::sync::protocol::{Bell, SlotCounts};
use crate::sys::copy;

/// Bytes of all rings of a rank, and the bounds of what one slot holds.
const RINGS_OF_A_RANK: usize = 4 << 20;
const SLOT_BOUNDS: (usize, usize) = (2 << 10, 32 << 10);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    /// The first bytes of a message.
    First = 1,
    /// More of the message that the slot before holds bytes of.
    More = 2,
    /// Nothing: what came of the last message is void.
    Void = 3,
}

/// What the head of a slot says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) kind: SlotKind,
    pub(super) tag: u64,
    pub(super) note: u64,
    /// Bytes of the whole message.
    pub(super) total: usize,
    /// Bytes in this slot.
    pub(super) bytes: usize,
}

#[repr(C, align(64))]
struct MailHead {
    kind: AtomicU64,
    tag: AtomicU64,
    note: AtomicU64,
    total: AtomicU64,
    bytes: AtomicU64,
}

/// The rings and bells of all ranks.
#[derive(Debug)]
pub(super) struct MailRings {
    memory: SymmetricMemory<u64>,
    bases: Vec<*mut u8>,
    /// Bytes that a slot holds.
    slot: usize,
}

// SAFETY: the addresses stay mapped while `memory` lives; what is there are atomics, and bytes accessed by
// opaque copies.
unsafe impl Send for MailRings {}
// SAFETY: as above.
unsafe impl Sync for MailRings {}

impl MailRings {
    /// Collective. New rings for `group`, all of them empty.
    pub(super) fn new(group: &Group) -> Result<Self> {
        let (least, most) = SLOT_BOUNDS;
        let slot = (RINGS_OF_A_RANK / group.size() / SLOTS as usize).clamp(least, most) & !63;
        let bytes = size_of::<Bell>() + group.size() * ring_bytes(slot);
        let memory = group.alloc::<u64>(bytes / size_of::<u64>())?.rendezvous(group)?;
        let bases = memory.base_ptrs();
        Ok(Self { memory, bases, slot })
    }

    pub(super) fn group(&self) -> &Group {
        self.memory.group()
    }

    /// What tells them from other rings of the group, the same on all ranks.
    pub(super) fn number(&self) -> u64 {
        self.memory.parts.number()
    }

    /// The bell on which the threads of `rank` sleep while they wait for mail.
    pub(super) fn bell(&self, rank: usize) -> &Bell {
        // SAFETY: the memory starts with it, is page-aligned and stays mapped; a bell is atomics, and fine
        // when all zero.
        unsafe { &*self.bases[rank].cast::<Bell>() }
    }

    /// Tells `rank` that something changed in a ring between it and this rank.
    pub(super) fn ring(&self, rank: usize) {
        Bell::publish_fence();
        self.bell(rank).ring_if_waited();
    }

    /// The ring that `from` fills for `to`.
    fn between(&self, from: usize, to: usize) -> MailRing<'_> {
        debug_assert!(from < self.bases.len());
        let offset = size_of::<Bell>() + from * ring_bytes(self.slot);
        // SAFETY: within the memory of `to`, as `new` laid it out.
        let start = unsafe { self.bases[to].add(offset) };
        MailRing { start, slot: self.slot, rings: std::marker::PhantomData }
    }

    /// The ring for `rank` to fill by `me`, if it has a free slot: what [`Free::fill`] fills.
    pub(super) fn free_slot(&self, me: usize, rank: usize) -> Option<Free<'_>> {
        let ring = self.between(me, rank);
        ring.counts().free().map(|head| Free { ring, head })
    }

    /// The oldest slot that `rank` filled for `me`, if there is one.
    pub(super) fn filled_slot(&self, me: usize, rank: usize) -> Option<Filled<'_>> {
        let ring = self.between(rank, me);
        ring.counts().filled().map(|tail| Filled { label: ring.label(tail), ring, tail })
    }
}

fn ring_bytes(slot: usize) -> usize {
    size_of::<SlotCounts>() + SLOTS as usize * (size_of::<MailHead>() + slot)
}

/// One ring, while its memory is mapped.
#[derive(Clone, Copy)]
struct MailRing<'a> {
    start: *mut u8,
    slot: usize,
    rings: std::marker::PhantomData<&'a MailRings>,
}

impl MailRing<'_> {
    fn counts(&self) -> &SlotCounts {
        // SAFETY: a ring starts with them, at a multiple of 64; they are atomics.
        unsafe { &*self.start.cast::<SlotCounts>() }
    }

    /// The head and the bytes of slot number `count`.
    fn at(&self, count: u64) -> (&MailHead, *mut u8) {
        let index = (count % SLOTS) as usize;
        // SAFETY: within the ring; heads are at multiples of 64 and are atomics.
        unsafe {
            let head = self.start.add(size_of::<SlotCounts>() + index * (size_of::<MailHead>() + self.slot));
            (&*head.cast::<MailHead>(), head.add(size_of::<MailHead>()))
        }
    }

    fn label(&self, count: u64) -> Label {
        let (head, _) = self.at(count);
        // Relaxed: published by the count of filled slots.
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let kind = match read(&head.kind) {
            1 => SlotKind::First,
            2 => SlotKind::More,
            _ => SlotKind::Void,
        };
        let (total, bytes) = (read(&head.total) as usize, read(&head.bytes) as usize);
        Label { kind, tag: read(&head.tag), note: read(&head.note), total, bytes: bytes.min(self.slot) }
    }
}

/// A slot that this rank may fill.
pub(super) struct Free<'a> {
    ring: MailRing<'a>,
    head: u64,
}

impl Free<'_> {
    /// Bytes that it holds.
    pub(super) fn room(&self) -> usize {
        self.ring.slot
    }

    /// Fills the slot and hands it over; at most [`Free::room`] bytes.
    pub(super) fn fill(self, kind: SlotKind, (tag, note): (u64, u64), total: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "more than a slot holds");
        let (head, to) = self.ring.at(self.head);
        for (word, value) in [
            (&head.kind, kind as u64),
            (&head.tag, tag),
            (&head.note, note),
            (&head.total, total as u64),
            (&head.bytes, bytes.len() as u64),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        // SAFETY: the slot has room for them, and is this rank's until it is handed over.
        unsafe { copy::write(bytes.as_ptr(), to, bytes.len()) };
        self.ring.counts().fill(self.head);
    }
}

/// A slot that a peer filled for this rank.
pub(super) struct Filled<'a> {
    pub(super) label: Label,
    ring: MailRing<'a>,
    tail: u64,
}

impl Filled<'_> {
    /// Copies the slot's first bytes, as many as `out` takes, which must not be more than the label says.
    pub(super) fn read(&self, out: &mut [u8]) {
        assert!(out.len() <= self.label.bytes, "more than the slot holds");
        let (_, from) = self.ring.at(self.tail);
        // SAFETY: the slot has that many bytes, and is this rank's until it is handed back.
        unsafe { copy::read(from, out.as_mut_ptr(), out.len()) };
    }

    /// Hands the slot back.
    pub(super) fn empty(self) {
        self.ring.counts().empty(self.tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_full_after_its_slots_and_keeps_their_order() {
        crate::group::spawn(2, |group| {
            let rings = MailRings::new(&group)?;
            if group.rank() == 0 {
                for tag in 0..SLOTS {
                    let bytes = vec![tag as u8; tag as usize];
                    rings.free_slot(0, 1).expect("a free slot").fill(SlotKind::First, (tag, !tag), 9, &bytes);
                }
                assert!(rings.free_slot(0, 1).is_none());
            }
            group.barrier()?;
            if group.rank() == 1 {
                for tag in 0..SLOTS {
                    let filled = rings.filled_slot(1, 0).expect("a filled slot");
                    let mut bytes = vec![0; filled.label.bytes];
                    filled.read(&mut bytes);
                    let label = filled.label;
                    assert_eq!((label.tag, label.note, label.total), (tag, !tag, 9));
                    assert_eq!(bytes, vec![tag as u8; tag as usize]);
                    filled.empty();
                }
                assert!(rings.filled_slot(1, 0).is_none());
            }
            group.barrier()?;
            assert!(rings.free_slot(0, 1).is_some());
            Ok(())
        })
        .unwrap();
    }
}
