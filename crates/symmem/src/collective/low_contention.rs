//! All-gather and reduce-scatter that take the ranks one at a time.
//!
//! Called by users through the handle. The plain forms wait for all ranks and then read. These read each rank
//! as soon as it has come, themselves first and then backwards (`rank - 1`, `rank - 2`, ...): while all ranks
//! are equally fast no two of them read the same one, and nobody waits for the slowest before it starts.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::mem::MaybeUninit;

use super::check_len;
use super::rooted::check_even;
use crate::error::{Error, Result};
use crate::group::Running;
use crate::memory::{Local, SymmetricMemory};
use crate::numeric::{Element, ReduceKernel, ReduceOp};
use crate::operation::{Algorithm, Op, Signature};
use crate::sys::copy;

/// What a rank reads of every rank: first element and number of elements.
pub(super) struct ReadRange {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. [`SymmetricMemory::all_gather`] that copies each rank's memory as soon as that rank has
    /// come: for ranks that come at different times. When it fails, also with [`Error::Mismatch`], `out` may
    /// be partly written.
    pub fn low_contention_all_gather(&self, out: &mut [T]) -> Result<()> {
        let call = self.call(Op::LowContentionAllGather, 0, None);
        let (len, stores) = (self.len(), self.stores());
        let fits = check_len(call.op, "output", out.len(), len.saturating_mul(self.world_size()));
        let wanted = fits.map(|()| ReadRange { start: 0, len });
        self.parts.operate(call.op, None, |running| {
            let signature = call.signature(Algorithm::Direct, self.parts.number());
            let _borrow = self.visit(running, signature, wanted, |rank, from| {
                let to = &mut out[rank * len..][..len];
                // SAFETY: `from` has `len` elements, and `to` is private to this rank.
                unsafe { copy::read_with(from, to.as_mut_ptr().cast(), size_of_val(to), stores) };
            })?;
            self.sealed_by_meeting(running.meet(signature)).map(drop)
        })
    }

    /// Collective. [`SymmetricMemory::reduce_scatter`], with the same bits, that fetches each rank's chunk as
    /// soon as that rank has come: for ranks that come at different times. With more than two ranks it
    /// allocates memory for chunks that came before the last one.
    pub fn low_contention_reduce_scatter(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        let call = self.call(Op::LowContentionReduceScatter, 0, Some(op));
        let rank = self.rank();
        let wanted = check_even(call.op, self.len(), self.world_size())
            .and_then(|len| check_len(call.op, "output", out.len(), len).map(|()| len))
            .and_then(|len| Ok((ReadRange { start: len * rank, len }, ReduceKernel::select(T::DTYPE, op)?)));
        self.parts.operate(call.op, None, |running| {
            let (wanted, kernel) = running.told(wanted)?;
            let mut stash = Stash::new(rank, self.world_size(), size_of_val(out));
            let signature = call.signature(Algorithm::Direct, self.parts.number());
            let _borrow = self.visit(running, signature, Ok(wanted), |rank, from| {
                // SAFETY: the chunk of a rank has as many elements as `out`.
                unsafe { stash.keep(rank, from) };
            })?;
            // From here on all ranks agree.
            // SAFETY: nobody writes any memory until the next meeting, or touches it any more after a
            // failure. Every source has as many elements as `out`, which is private to this rank.
            unsafe { kernel.reduce(out.as_mut_ptr().cast(), &stash.sources, out.len()) };
            self.sealed_by_meeting(running.meet(signature)).map(drop)
        })
    }

    /// Announces this rank, then calls `visit` with every rank, and with the address of what is wanted of it,
    /// as soon as that rank has come. Returns once all have come and agree.
    pub(super) fn visit(
        &self,
        running: &Running<'_>,
        signature: Signature,
        wanted: Result<ReadRange>,
        visit: impl FnMut(usize, *const u8),
    ) -> Result<Local<'_, T>> {
        let (borrow, wanted) = running.told(wanted.and_then(|wanted| Ok((self.local()?, wanted))))?;
        let heard = self.hear_each(running, signature, &wanted, visit);
        match self.sealed_by_meeting(heard)? {
            None => Ok(borrow),
            Some(rank) => {
                let message = "what it announced about its memory is impossible".to_owned();
                Err(Error::Rank { context: running.context(), rank, message })
            }
        }
    }

    /// Hears the ranks one after the other; the first one of them whose offset, which is its note, cannot be.
    fn hear_each(
        &self,
        running: &Running<'_>,
        signature: Signature,
        wanted: &ReadRange,
        mut visit: impl FnMut(usize, *const u8),
    ) -> Result<Option<usize>> {
        let (me, world) = (self.rank(), self.world_size());
        let epoch = running.next_epoch()?;
        running.announce(epoch, signature, self.offset() as u64, &[]);
        let mut wrong: Option<usize> = None;
        for rank in (0..world).map(|step| (me + world - step) % world) {
            running.hear(epoch, signature, |peer| peer == rank)?;
            let offset = if rank == me { self.offset() } else { running.note(rank, epoch) as usize };
            let start = wanted.start.checked_add(offset);
            match start.and_then(|start| self.element_address(rank, start, wanted.len)) {
                Some(address) if wrong.is_none() => visit(rank, address),
                None => wrong = wrong.into_iter().chain([rank]).min(),
                _ => {}
            }
        }
        Ok(wrong)
    }
}

/// Where the chunks of all ranks are until they are reduced, in rank order. This rank's and that of the last
/// rank to be visited stay where they are, the others are copied: as long as not all have come, a rank that
/// disagrees may end the call and write its memory.
struct Stash {
    rank: usize,
    /// Bytes of a chunk.
    bytes: usize,
    memory: Box<[MaybeUninit<u8>]>,
    sources: Vec<*const u8>,
}

impl Stash {
    fn new(rank: usize, world: usize, bytes: usize) -> Self {
        let memory = Box::new_uninit_slice(bytes * world.saturating_sub(2));
        Self { rank, bytes, memory, sources: vec![std::ptr::null(); world] }
    }

    /// Remembers where the chunk of `rank` is.
    ///
    /// # Safety
    /// `from` must be valid for reading the chunk; for as long as the stash is used if it stays there.
    unsafe fn keep(&mut self, rank: usize, from: *const u8) {
        let world = self.sources.len();
        let step = (self.rank + world - rank) % world;
        if step == 0 || step == world - 1 {
            self.sources[rank] = from;
            return;
        }
        let to = self.memory[(step - 1) * self.bytes..][..self.bytes].as_mut_ptr().cast();
        // SAFETY: the caller's duty; `to` is memory of this stash's own, of the chunk's size.
        unsafe { copy::read(from, to, self.bytes) };
        self.sources[rank] = to;
    }
}
