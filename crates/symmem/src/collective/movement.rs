//! Collectives that move symmetric memory without changing it.

use super::check_len;
use super::rooted::check_even;
use crate::Result;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` becomes everybody's memory, in rank order: as long as the memory times the number of
    /// ranks.
    pub fn all_gather(&self, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::AllGatherMemory;
        self.parts
            .told(OP, check_len(OP, "output", out.len(), self.len().saturating_mul(self.world_size())))?;
        self.read_all(&self.call(OP, 0, None), |peers| peers.gather(0, out))
    }

    /// Collective. Everybody's memory becomes that of rank `root`.
    pub fn broadcast(&mut self, root: usize) -> Result<()> {
        let _borrow =
            self.parts.told(Op::BroadcastMemory, self.borrow_exclusive(Op::BroadcastMemory.name()))?;
        self.broadcast_held(root)
    }

    /// [`SymmetricMemory::broadcast`] of memory that is borrowed for it.
    pub(super) fn broadcast_held(&self, root: usize) -> Result<()> {
        self.parts.told(Op::BroadcastMemory, self.group().check_rank(Op::BroadcastMemory.name(), root))?;
        let call = self.call(Op::BroadcastMemory, root, None);
        self.run(&call, |peers| peers.copy_to_own(root))
    }

    /// Collective. The memory is one chunk per rank; `out` becomes, in rank order, everybody's chunk for this
    /// rank.
    pub fn all_to_all(&self, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::AllToAll;
        let chunk = check_even(OP, self.len(), self.world_size())
            .and_then(|chunk| check_len(OP, "output", out.len(), self.len()).map(|()| chunk));
        let start = self.parts.told(OP, chunk)? * self.rank();
        self.read_all(&self.call(OP, 0, None), |peers| peers.gather(start, out))
    }
}
