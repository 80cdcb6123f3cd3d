//! The addresses of a column as host pointers: the one place where the numbers of a table get a type again.

use crate::table::Column;

/// Everybody's memory, by rank.
#[derive(Debug)]
pub(super) struct Bases {
    addresses: Vec<u64>,
    /// Keeps them valid.
    _column: Column,
}

impl Bases {
    pub(super) fn new(column: Column) -> Self {
        Self { addresses: column.addresses().collect(), _column: column }
    }

    /// Where the memory of `rank` begins; null if it brought nothing.
    #[inline]
    pub(super) fn at(&self, rank: usize) -> *mut u8 {
        // Who made the memory exposed its provenance with the address.
        std::ptr::with_exposed_provenance_mut(self.addresses[rank] as usize)
    }

    /// [`Bases::at`] of all ranks.
    pub(super) fn all(&self) -> Vec<*mut u8> {
        (0..self.addresses.len()).map(|rank| self.at(rank)).collect()
    }
}
