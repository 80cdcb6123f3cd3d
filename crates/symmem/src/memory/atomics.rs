//! Atomic cells: integers of every rank that all ranks may change at once.
//!
//! Called by users through the group. The cells are in memory of their own, of which nobody gets a slice or a
//! view: only atomics touch it, so every call is safe whatever the others do. A meeting compares type and
//! number of the cells, and then the rendezvous refuses memory that is for cells on some ranks and not on
//! others. A call works on the peer's memory itself: it waits for nobody, and the peer need not be alive.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::place::PlaceParts as _;
use super::{PeerView, SymmetricMemory};
use crate::group::Group;
use crate::numeric::Element;
use crate::operation::{Op, signature};
use crate::{Error, Result};

/// An integer that cells can hold: `u32`, `i32`, `u64`, `i64`.
pub trait AtomicElement: Element {
    /// The cell itself.
    #[doc(hidden)]
    type Cell;
    #[doc(hidden)]
    fn load(cell: &Self::Cell) -> Self;
    #[doc(hidden)]
    fn store(cell: &Self::Cell, value: Self);
    #[doc(hidden)]
    fn add(cell: &Self::Cell, value: Self) -> Self;
    #[doc(hidden)]
    fn swap(cell: &Self::Cell, value: Self) -> Self;
    #[doc(hidden)]
    fn compare_swap(cell: &Self::Cell, current: Self, new: Self) -> Self;
}

macro_rules! cells {
    ($($type:ty: $cell:ty),*) => {
        $(impl AtomicElement for $type {
            type Cell = $cell;

            fn load(cell: &$cell) -> Self {
                cell.load(Ordering::SeqCst)
            }

            fn store(cell: &$cell, value: Self) {
                cell.store(value, Ordering::SeqCst);
            }

            fn add(cell: &$cell, value: Self) -> Self {
                cell.fetch_add(value, Ordering::SeqCst)
            }

            fn swap(cell: &$cell, value: Self) -> Self {
                cell.swap(value, Ordering::SeqCst)
            }

            fn compare_swap(cell: &$cell, current: Self, new: Self) -> Self {
                let swapped = cell.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst);
                swapped.unwrap_or_else(|found| found)
            }
        })*
    };
}

cells!(u32: AtomicU32, i32: AtomicI32, u64: AtomicU64, i64: AtomicI64);

/// Integers of every rank that all ranks may change at once. Made by [`Group::atomics`].
///
/// All calls are sequentially consistent: what a rank wrote before it changed a cell is seen by who sees that
/// change. They wait for nobody. Sums wrap.
#[derive(Debug)]
pub struct Atomics<T: AtomicElement> {
    memory: SymmetricMemory<T>,
    /// By rank.
    cells: Vec<PeerView<T>>,
}

impl Group {
    /// Collective. `len` cells on every rank, all of them 0.
    ///
    /// ```
    /// let tickets = symmem::spawn(4, |group| {
    ///     let counter = group.atomics::<u64>(1)?;
    ///     let ticket = counter.add(0, 0, 1)?;
    ///     counter.barrier()?;
    ///     assert_eq!(counter.load(0, 0)?, 4);
    ///     counter.close()?;
    ///     Ok(ticket)
    /// })?;
    /// assert_eq!(tickets.iter().sum::<u64>(), 0 + 1 + 2 + 3);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn atomics<T: AtomicElement>(&self, len: usize) -> Result<Atomics<T>> {
        let made = self.alloc::<T>(len);
        let own = self.operate(Op::Atomics, None, |running| {
            running.check_local()?;
            let own = running.told(made)?;
            running.meet(signature(Op::Atomics, T::DTYPE as usize, len as u64))?;
            Ok(own)
        })?;
        own.block.mark_as_cells();
        let memory = own.rendezvous(self)?;
        let cells = (0..self.size()).map(|rank| memory.peer(rank)).collect::<Result<_>>()?;
        Ok(Atomics { memory, cells })
    }
}

impl<T: AtomicElement> Atomics<T> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.memory.rank()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.memory.world_size()
    }

    /// Number of cells of each rank.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no cells.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// What is in cell `index` of rank `rank`.
    pub fn load(&self, rank: usize, index: usize) -> Result<T> {
        self.cell(rank, index).map(T::load)
    }

    /// Cell `index` of rank `rank` becomes `value`.
    pub fn store(&self, rank: usize, index: usize, value: T) -> Result<()> {
        self.cell(rank, index).map(|cell| T::store(cell, value))
    }

    /// Adds `value` to cell `index` of rank `rank`; what was there before.
    pub fn add(&self, rank: usize, index: usize, value: T) -> Result<T> {
        self.cell(rank, index).map(|cell| T::add(cell, value))
    }

    /// Cell `index` of rank `rank` becomes `value`; what was there before.
    pub fn swap(&self, rank: usize, index: usize, value: T) -> Result<T> {
        self.cell(rank, index).map(|cell| T::swap(cell, value))
    }

    /// Cell `index` of rank `rank` becomes `new` if it is `current`; what was there before, which is
    /// `current` exactly if it did.
    ///
    /// ```
    /// let winners = symmem::spawn(3, |group| {
    ///     let lock = group.atomics::<i32>(1)?;
    ///     let won = lock.compare_swap(2, 0, 0, 1 + group.rank() as i32)? == 0;
    ///     lock.close()?;
    ///     Ok(won)
    /// })?;
    /// assert_eq!(winners.iter().filter(|won| **won).count(), 1);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn compare_swap(&self, rank: usize, index: usize, current: T, new: T) -> Result<T> {
        self.cell(rank, index).map(|cell| T::compare_swap(cell, current, new))
    }

    /// Collective. Returns when every rank has come here.
    pub fn barrier(&self) -> Result<()> {
        self.memory.barrier(0)
    }

    /// Collective. Ends the use of the cells: every call gives [`Error::Closed`] from here on. A close that
    /// could not begin ([`Error::Busy`]) changes nothing and can be repeated.
    pub fn close(&self) -> Result<()> {
        self.memory.parts.close()
    }

    #[inline]
    fn cell(&self, rank: usize, index: usize) -> Result<&T::Cell> {
        let (op, world) = (Op::Atomics.name(), self.cells.len());
        self.memory.parts.check_view(op)?;
        let cells = self.cells.get(rank).ok_or(Error::RankOutOfRange { op, rank, world })?;
        cells.cell(index)
    }
}
