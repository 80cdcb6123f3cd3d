//! Signals and barriers on host memory: one-word messages in the pads.
//!
//! Called by users through the handle. The protocol is PyTorch's (`docs/memory-model.md`); what is here finds
//! the words, and `engine/cpu.rs` waits for them.

#![allow(unsafe_code, reason = "memory that peers write")]

use std::sync::atomic::AtomicU32;

use super::SymmetricMemory;
use super::host::HostParts;
use super::place::PlaceParts as _;
use crate::Result;
use crate::engine::cpu;
use crate::group::Running;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// Collective. Returns once every rank is here; what any rank wrote before is visible to all after.
    #[inline]
    pub fn barrier(&self, channel: usize) -> Result<()> {
        // Before the operation begins: inside of it the check would cost a barrier a fifth of its
        // instructions.
        self.parts.told(Op::MemoryBarrier, self.parts.check_channel(Op::MemoryBarrier.name(), channel))?;
        self.parts.operate(Op::MemoryBarrier, Some(channel), |running| {
            self.parts.seal(cpu::barrier(running, channel, self.parts.table.number))
        })
    }

    /// Raises this rank's signal on `channel` at `rank`, after waiting until the previous one was consumed.
    /// What this rank wrote before is visible to `rank` once it has waited for the signal.
    pub fn put_signal(&self, rank: usize, channel: usize) -> Result<()> {
        let slot = self.parts.slot(Op::PutSignal, rank, channel, rank, self.rank())?;
        let put = |running: &Running<'_>| self.parts.seal(cpu::put_signal(running, slot, rank));
        self.parts.operate(Op::PutSignal, Some(channel), put)
    }

    /// Consumes the signal on `channel` from `rank`, waiting for it.
    pub fn wait_signal(&self, rank: usize, channel: usize) -> Result<()> {
        let slot = self.parts.slot(Op::WaitSignal, rank, channel, self.rank(), rank)?;
        let wait = |running: &Running<'_>| self.parts.seal(cpu::wait_signal(running, slot, rank));
        self.parts.operate(Op::WaitSignal, Some(channel), wait)
    }

    /// `put_signal` without waiting: false if the previous signal is still pending.
    pub fn try_put_signal(&self, rank: usize, channel: usize) -> Result<bool> {
        let slot = self.parts.slot(Op::PutSignal, rank, channel, rank, self.rank())?;
        self.parts
            .operate(Op::PutSignal, Some(channel), |running| Ok(cpu::try_put_signal(running, slot, rank)))
    }

    /// `wait_signal` without waiting: false if there is no signal.
    pub fn try_wait_signal(&self, rank: usize, channel: usize) -> Result<bool> {
        let slot = self.parts.slot(Op::WaitSignal, rank, channel, self.rank(), rank)?;
        self.parts
            .operate(Op::WaitSignal, Some(channel), |running| Ok(cpu::try_wait_signal(running, slot, rank)))
    }
}

impl HostParts {
    /// The slot in rank `at`'s pad that rank `from` raises.
    #[inline]
    fn slot(&self, op: Op, rank: usize, channel: usize, at: usize, from: usize) -> Result<&AtomicU32> {
        self.group.check_rank(op.name(), rank)?;
        self.check_channel(op.name(), channel)?;
        let index = self.group.size() * channel + from;
        // SAFETY: the pad begins with a page or, in a pool, a line of the cache, and has this slot, as
        // `check_channel` saw; it is mapped while `self` lives; everybody accesses it by atomics or opaque
        // copies.
        Ok(unsafe { &*self.table.pads.at(at).cast::<AtomicU32>().add(index) })
    }
}
