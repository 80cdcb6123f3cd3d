//! Collectives that move symmetric memory without changing it.

use crate::Result;
use crate::memory::{Element, SymmetricMemory};
use crate::op::Op;

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` becomes everybody's memory, in rank order: as long as the memory times the number of ranks.
    pub fn all_gather(&self, out: &mut [T]) -> Result<()> {
        self.check_out(Op::AllGatherMemory, out.len(), self.len() * self.world_size())?;
        let call = self.call(Op::AllGatherMemory, 0, None);
        self.read_all(&call, |peers| peers.gather(0, out))
    }

    /// Collective. Everybody's memory becomes that of rank `root`.
    pub fn broadcast(&mut self, root: usize) -> Result<()> {
        let _borrow = self.borrow_exclusive(Op::BroadcastMemory.name())?;
        self.broadcast_held(root)
    }

    /// [`SymmetricMemory::broadcast`] of memory that is borrowed for it.
    pub(super) fn broadcast_held(&self, root: usize) -> Result<()> {
        self.group().check_rank(Op::BroadcastMemory.name(), root)?;
        let call = self.call(Op::BroadcastMemory, root, None);
        self.run(&call, |peers| peers.copy_to_own(root))
    }

    /// Collective. The memory is one chunk per rank; `out` becomes, in rank order, everybody's chunk for this rank.
    pub fn all_to_all(&self, out: &mut [T]) -> Result<()> {
        let chunk = self.chunk(Op::AllToAll)?;
        self.check_out(Op::AllToAll, out.len(), self.len())?;
        let start = chunk * self.rank();
        let call = self.call(Op::AllToAll, 0, None);
        self.read_all(&call, |peers| peers.gather(start, out))
    }
}
