//! One-sided copies: get, put, put with a flag, and waiting for such a flag.
//!
//! Called by users through the handle. The other rank takes no part, so writing is `unsafe`: that it holds no
//! borrow of the bytes is the caller's duty.
//!
//! # Memory ordering
//! A flag is a u64 word of the pad. The sender writes the data, passes a Release fence and writes the word;
//! the receiver reads the word and, if it has the value, passes an Acquire fence: it then sees the data. The
//! word is written and read by opaque copies of 8 aligned bytes, which are whole, and not as a Rust atomic:
//! the same bytes are the u32 slots of `put_signal`, and racing atomics of two sizes would be undefined.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::sync::atomic::{Ordering, fence};

use symmem_store::Interrupt;

use super::{Local, SymmetricMemory};
use crate::engine::cpu;
use crate::group::Running;
use crate::numeric::{Element, element};
use crate::operation::Op;
use crate::sync::control::CounterWords;
use crate::sync::protocol::{Bell, MeetingWords};
use crate::sys::copy;
use crate::{Error, Result};

/// Bytes written between two looks at the group: long enough to be cheap, short enough to end soon after a
/// failure.
const CHUNK: usize = 1 << 20;
/// Bytes of a flag.
const WORD: usize = size_of::<u64>();

impl<T: Element> SymmetricMemory<T> {
    /// Reads `out.len()` elements of rank `rank` from `start` on (counted from the offset of its handle),
    /// like [`PeerView::read_into`](super::PeerView::read_into), but as an operation of the group: it ends
    /// when the group fails, and counts.
    pub fn get(&self, rank: usize, start: usize, out: &mut [T]) -> Result<()> {
        self.group().check_rank(Op::Copy.name(), rank)?;
        self.parts.check_brought(Op::Copy.name(), rank)?;
        self.parts.operate(Op::Copy, None, |running| self.copy_out(running, rank, start, out))
    }

    fn copy_out(&self, running: &Running<'_>, rank: usize, start: usize, out: &mut [T]) -> Result<()> {
        let from = self.checked_address(Op::Copy, rank, start, out.len())?;
        let own = (rank == self.rank()).then_some(&*self.parts.block);
        let _borrow = own.map(|block| Local::<T>::new(block, self.offset(), self.len())).transpose()?;
        // SAFETY: in range, as just checked, and mapped while the table lives; `out` is exclusive, and so no
        // part of the memory: this rank's own is borrowed for reading.
        let copied = unsafe { cpu::copy_from_peer(running, from, out.as_mut_ptr().cast(), size_of_val(out)) };
        self.parts.seal(copied)
    }

    /// Writes `data` into the memory of rank `rank` from `start` on (counted from the offset of its handle):
    /// the counterpart of `get`. An operation of the group: it ends when the group fails,
    /// and counts.
    ///
    /// # Safety
    /// The rank `rank`, if it is not this one, holds no guard (`local`, `local_mut`) of these bytes until it
    /// has synchronised with this rank after the write, and runs no operation on them meanwhile.
    pub unsafe fn put(&self, rank: usize, start: usize, data: &[T]) -> Result<()> {
        // SAFETY: the caller's duty.
        self.operate_on(Op::Put, rank, |running| unsafe { self.write(running, rank, start, data) })
    }

    /// Writes `data` like `put`, then sets the u64 word number `word` of that rank's
    /// signal pad to `value`. When [`SymmetricMemory::wait_flag`] has seen the value, it sees the data as
    /// well.
    ///
    /// A word is set, not counted: a value that nobody waited for is overwritten. Word `w` shares its bytes
    /// with the slots `2 * w` and `2 * w + 1` of `put_signal`; a program that uses both keeps them apart.
    ///
    /// # Safety
    /// The rank `rank`, if it is not this one, holds no guard (`local`, `local_mut`) of these bytes until it
    /// has synchronised with this rank after the write, and runs no operation on them meanwhile.
    pub unsafe fn put_with_flag(
        &self,
        rank: usize,
        start: usize,
        data: &[T],
        word: usize,
        value: u64,
    ) -> Result<()> {
        self.operate_on(Op::PutWithFlag, rank, |running| {
            let flag = self.flag_address(Op::PutWithFlag, rank, word)?;
            // SAFETY: the elements are the caller's duty; the flag is a word of the pad, which is mapped
            // while `self` lives.
            unsafe {
                self.write(running, rank, start, data)?;
                fence(Ordering::Release);
                copy::write(value.to_ne_bytes().as_ptr(), flag, WORD);
            }
            Bell::publish_fence();
            running.inner().bell(rank).ring_if_waited();
            Ok(())
        })
    }

    /// Waits until the u64 word number `word` of this rank's own signal pad is `value`. The word stays as it
    /// is. A deadline that passes leaves everything as it was, so the call can be repeated.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<f32>(100)?.rendezvous(&group)?;
    ///     // SAFETY: nobody holds a guard before it has waited for the flag.
    ///     unsafe { mem.put_with_flag(group.next(), 10, &[1.5, 2.5], 0, 7)? };
    ///     mem.wait_flag(0, 7)?;
    ///     assert_eq!(mem.local()?[10..12], [1.5, 2.5]);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn wait_flag(&self, word: usize, value: u64) -> Result<()> {
        self.parts.operate(Op::WaitFlag, None, |running| self.wait_for_word(running, word, value))
    }

    fn wait_for_word(&self, running: &Running<'_>, word: usize, value: u64) -> Result<()> {
        let flag = self.flag_address(Op::WaitFlag, self.rank(), word)?;
        let is_set = || {
            let mut bytes = [0; WORD];
            // SAFETY: a word of the pad, which is mapped while `self` lives.
            unsafe { copy::read(flag, bytes.as_mut_ptr(), WORD) };
            u64::from_ne_bytes(bytes) == value
        };
        let waited = self.wait_until(running, is_set);
        fence(Ordering::Acquire);
        self.parts.seal(waited)
    }

    /// Runs `work` as the operation `op`, which is on rank `rank`'s memory.
    fn operate_on(&self, op: Op, rank: usize, work: impl FnOnce(&Running<'_>) -> Result<()>) -> Result<()> {
        self.group().check_rank(op.name(), rank)?;
        self.parts.check_brought(op.name(), rank)?;
        self.parts.operate(op, None, work)
    }

    /// Anybody may set the word, so nobody is missed as long as somebody is left.
    fn wait_until(&self, running: &Running<'_>, is_set: impl Fn() -> bool) -> Result<()> {
        let inner = running.inner();
        let peers = (0..self.world_size()).filter(|rank| *rank != self.rank());
        let all_left = || peers.clone().all(|rank| inner.has_left(rank));
        let awaited = |_| all_left() && !is_set();
        let waited = running.wait(self.rank(), awaited, || is_set().then_some(()));
        waited.map_err(|interrupt| match interrupt {
            Interrupt::Watch(_) => running.fail(interrupt, &|_| false),
            _ => running.interrupted(interrupt, Vec::new()),
        })
    }

    /// The address of a u64 word of `rank`'s pad.
    fn flag_address(&self, op: Op, rank: usize, word: usize) -> Result<*mut u8> {
        let words = self.parts.table.pad_bytes / WORD;
        if word >= words {
            let (offset, size) =
                ((word as u64).saturating_mul(WORD as u64), self.parts.table.pad_bytes as u64);
            return Err(Error::OutOfBounds { op: op.name(), offset, bytes: WORD as u64, size });
        }
        Ok(self.parts.table.pads.at(rank).wrapping_add(word * WORD))
    }

    /// Copies `data` into `rank`'s memory, looking at the group between chunks.
    ///
    /// # Safety
    /// As for `put`.
    unsafe fn write(&self, running: &Running<'_>, rank: usize, start: usize, data: &[T]) -> Result<()> {
        let to = self.checked_address(running.op(), rank, start, data.len())?;
        let own = rank == self.rank();
        let _borrow = own.then(|| self.borrow_exclusive(running.op().name())).transpose()?;
        let from = data.as_ptr().cast::<u8>();
        for done in (0..size_of_val(data)).step_by(CHUNK) {
            let bytes = CHUNK.min(size_of_val(data) - done);
            // SAFETY: within `data` and the checked range; this rank's own memory is borrowed for writing, so
            // `data` is no part of it, and that nobody else uses the range is the caller's duty.
            unsafe { copy::write(from.add(done), to.add(done), bytes) };
            if let Some(verdict) = running.inner().verdict() {
                return self.parts.seal(Err(running.failed_by(verdict)));
            }
        }
        CounterWords::add(&running.inner().own().counters.bytes, size_of_val(data) as u64);
        Ok(())
    }

    /// The address of element `start` of `rank`'s memory, counted from the offset of its handle, if `len`
    /// follow in this handle, and in that rank's memory: handles of parts may differ in length.
    pub(super) fn checked_address(&self, op: Op, rank: usize, start: usize, len: usize) -> Result<*mut u8> {
        let within = start.checked_add(len).is_some_and(|end| end <= self.len());
        // All offsets are multiples of the elements' size: the ranks agree on the type, and casts look at
        // everybody's.
        let first = self.parts.first_byte(rank) / size_of::<T>();
        let address = within.then(|| self.element_address(rank, first + start, len)).flatten();
        address.ok_or_else(|| {
            let behind = (self.parts.table.bytes / size_of::<T>()).saturating_sub(first);
            element::out_of_bounds::<T>(op.name(), start, len, self.len().min(behind))
        })
    }

    /// The address of element `start` of rank `rank`'s allocation, if it brought one, and if `len` elements
    /// follow.
    pub(crate) fn element_address(&self, rank: usize, start: usize, len: usize) -> Option<*mut u8> {
        let end = start.checked_add(len)?.checked_mul(size_of::<T>())?;
        let first = self.parts.table.data.at(rank);
        // The allocation has the same size on every rank that brought one.
        let is_within = end <= self.parts.table.bytes && !first.is_null();
        is_within.then(|| first.wrapping_add(start * size_of::<T>()))
    }
}
