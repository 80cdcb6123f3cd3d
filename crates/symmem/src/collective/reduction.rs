//! Collectives that reduce symmetric memory.

use super::rooted::check_even;
use super::{check_len, two_shot};
use crate::Result;
use crate::memory::SymmetricMemory;
use crate::numeric::{Element, ReduceKernel, ReduceOp};
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// Collective. Every rank's memory becomes the reduction of all ranks' memory, with the same bits on
    /// every rank.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// symmem::spawn(4, |group| {
    ///     let mut x = group.alloc::<f32>(1000)?;
    ///     x.fill(group.rank() as f32)?;
    ///     let mut mem = x.rendezvous(&group)?;
    ///     mem.all_reduce(ReduceOp::Sum)?;
    ///     assert!(mem.local()?.iter().all(|value| *value == 6.0));
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        let _borrow = self.parts.told(Op::AllReduce, self.borrow_exclusive(Op::AllReduce.name()))?;
        self.all_reduce_held(op)
    }

    /// [`SymmetricMemory::all_reduce`] of memory that is borrowed for it.
    #[inline]
    pub(super) fn all_reduce_held(&self, op: ReduceOp) -> Result<()> {
        let kernel = self.parts.told(Op::AllReduce, ReduceKernel::select(T::DTYPE, op))?;
        tracing::trace!(isa = ?kernel.isa(), "all_reduce");
        let call = self.call(Op::AllReduce, 0, Some(op));
        self.run(&call, |peers| match peers.are_shared() {
            true => two_shot::run(peers, kernel, self.len(), (self.rank(), self.world_size())),
            false => peers.reduce_to_own(kernel),
        })
    }

    /// Collective. `out` becomes the reduction of all ranks' memory, which stays as it is. `out` is as long
    /// as the memory.
    pub fn all_reduce_out(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::AllReduceOut;
        let fits = check_len(OP, "output", out.len(), self.len());
        let kernel = self.parts.told(OP, fits.and_then(|()| ReduceKernel::select(T::DTYPE, op)))?;
        self.read_all(&self.call(OP, 0, Some(op)), |peers| peers.reduce(kernel, 0, out))
    }

    /// Collective. `out` of rank `root` becomes the reduction of all ranks' memory; the others' `out` is
    /// ignored.
    pub fn reduce(&self, op: ReduceOp, root: usize, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::Reduce;
        let is_root = self.rank() == root;
        let fits = self.group().check_rank(OP.name(), root).and_then(|()| match is_root {
            true => check_len(OP, "output", out.len(), self.len()),
            false => Ok(()),
        });
        let kernel = self.parts.told(OP, fits.and_then(|()| ReduceKernel::select(T::DTYPE, op)))?;
        self.read_all(&self.call(OP, root, Some(op)), |peers| {
            if is_root {
                peers.reduce(kernel, 0, out);
            }
        })
    }

    /// Collective. The memory is one chunk per rank; `out` becomes the reduction of everybody's chunk for
    /// this rank.
    pub fn reduce_scatter(&self, op: ReduceOp, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::ReduceScatter;
        let chunk = check_even(OP, self.len(), self.world_size())
            .and_then(|chunk| check_len(OP, "output", out.len(), chunk).map(|()| chunk));
        let (chunk, kernel) =
            self.parts.told(OP, chunk.and_then(|chunk| Ok((chunk, ReduceKernel::select(T::DTYPE, op)?))))?;
        let start = chunk * self.rank();
        self.read_all(&self.call(OP, 0, Some(op)), |peers| peers.reduce(kernel, start, out))
    }
}
