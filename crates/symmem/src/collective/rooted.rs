//! Collectives with one rank that gives or takes: gather and scatter.
//!
//! Called by users through the handle. A rank with wrong arguments refuses the call: an error everywhere,
//! nothing written.

use super::check_len;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` of rank `root` becomes everybody's memory, in rank order: as long as the memory
    /// times the number of ranks. The others' `out` is ignored.
    pub fn gather(&self, root: usize, out: &mut [T]) -> Result<()> {
        let (len, world) = (self.len(), self.world_size());
        let is_root = self.rank() == root;
        let fits = self.group().check_rank(Op::Gather.name(), root).and_then(|()| match is_root {
            true => check_len(Op::Gather, "output", out.len(), len.saturating_mul(world)),
            false => Ok(()),
        });
        let (call, numbers) = (self.call(Op::Gather, root, None), fits.map(|()| Vec::new()));
        self.state_and_read(
            call,
            &[],
            numbers,
            |_| Ok(()),
            |said, ()| {
                if is_root {
                    for rank in 0..world {
                        said.copy(rank, 0, &mut out[rank * len..][..len]);
                    }
                }
            },
        )
    }

    /// Collective. The memory of rank `root` is one chunk per rank; `out` becomes this rank's chunk.
    pub fn scatter(&self, root: usize, out: &mut [T]) -> Result<()> {
        let (len, world) = (self.len(), self.world_size());
        let fits = self
            .group()
            .check_rank(Op::Scatter.name(), root)
            .and_then(|()| check_even(Op::Scatter, len, world))
            .and_then(|chunk| check_len(Op::Scatter, "output", out.len(), chunk));
        let (call, numbers) = (self.call(Op::Scatter, root, None), fits.map(|()| Vec::new()));
        self.state_and_read(
            call,
            &[],
            numbers,
            |_| Ok(()),
            |said, ()| {
                said.copy(root, out.len() * self.rank(), out);
            },
        )
    }
}

/// Elements per rank, if they come out even.
pub(super) fn check_even(op: Op, len: usize, world: usize) -> Result<usize> {
    if len.is_multiple_of(world) {
        return Ok(len / world);
    }
    Err(Error::invalid(op.name(), format!("{len} elements are not divisible by {world} ranks")))
}
