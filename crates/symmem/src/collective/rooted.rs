//! Collectives with one rank that gives or takes: gather and scatter.
//!
//! Called by users through the handle. Arguments are judged by all ranks alike ([`super::statement`]): the same
//! error everywhere, nothing written.

use super::Call;
use super::statement::{Refusal, Said};
use crate::memory::{Element, SymmetricMemory};
use crate::op::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` of rank `root` becomes everybody's memory, in rank order: as long as the memory times the number
    /// of ranks. The others' `out` is ignored.
    pub fn gather(&self, root: usize, out: &mut [T]) -> Result<()> {
        let (len, world) = (self.len(), self.world_size());
        let plan = |said: &Said<'_, T>| {
            self.group().check_rank(Op::Gather.name(), root)?;
            said.check_output(root, len.saturating_mul(world))
        };
        let numbers = Ok(vec![out.len()]);
        self.state_and_read(self.rooted(Op::Gather, root), &[], numbers, plan, |said, ()| {
            if self.rank() == root {
                for rank in 0..world {
                    said.copy(rank, 0, &mut out[rank * len..][..len]);
                }
            }
        })
    }

    /// Collective. The memory of rank `root` is one chunk per rank; `out` becomes this rank's chunk.
    pub fn scatter(&self, root: usize, out: &mut [T]) -> Result<()> {
        let (len, world) = (self.len(), self.world_size());
        let plan = |said: &Said<'_, T>| {
            self.group().check_rank(Op::Scatter.name(), root)?;
            let chunk = check_even(Op::Scatter, len, world)?;
            (0..world).try_for_each(|rank| said.check_output(rank, chunk))
        };
        let numbers = Ok(vec![out.len()]);
        self.state_and_read(self.rooted(Op::Scatter, root), &[], numbers, plan, |said, ()| {
            said.copy(root, out.len() * self.rank(), out);
        })
    }

    /// A root too large for the signature is out of range on all ranks, whatever they said.
    fn rooted(&self, op: Op, root: usize) -> Call {
        self.call(op, root.min(u16::MAX.into()), None)
    }
}

impl<T: Element> Said<'_, T> {
    /// Whether `rank` said that its output, its first number, has the length it needs.
    pub(super) fn check_output(&self, rank: usize, needed: usize) -> Result<(), Refusal> {
        match self.numbers(rank).first() {
            Some(len) if *len == needed => Ok(()),
            len => {
                let len = len.unwrap_or(&0);
                let problem = format!("the output has {len} elements, but {needed} are needed");
                Err(Refusal::Rank(rank, problem))
            }
        }
    }
}

/// Elements per rank, if they come out even.
pub(super) fn check_even(op: Op, len: usize, world: usize) -> Result<usize> {
    if len.is_multiple_of(world) {
        return Ok(len / world);
    }
    Err(Error::invalid(op.name(), format!("{len} elements are not divisible by {world} ranks")))
}
