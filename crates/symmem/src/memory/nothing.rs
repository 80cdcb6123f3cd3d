//! Taking part in a rendezvous without memory of one's own, so that one array can be everybody's.
//!
//! Called by users. Such a rank has a signal pad and maps what the others brought; the handles of all ranks
//! refuse collectives, since those need memory of every rank.

use std::sync::Arc;

use super::host::HostParts;
use super::rendezvous::HostTable;
use super::{MemoryBlock, SymmetricMemory};
use crate::Result;
use crate::group::Group;

impl Group {
    /// Collective, as the part of a rank that brings nothing to
    /// [`Allocation::rendezvous`](crate::Allocation::rendezvous), which the others call: it allocates no
    /// memory but its signal pad. At least one rank must bring memory.
    ///
    /// The handle covers what that of the first rank with memory does, as bytes ([`SymmetricMemory::cast`]
    /// makes elements of them, [`SymmetricMemory::layout`] says which). On all ranks: views, `get` and `put`
    /// of the ranks that brought memory work, and so do signals, `barrier` and `close`; collectives, and the
    /// memory of this rank, are [`Error::NothingBrought`](crate::Error::NothingBrought). Nothing is kept for
    /// a second call: it is collective again, and so is the other ranks' rendezvous of the same allocation
    /// then.
    ///
    /// ```
    /// symmem::spawn(3, |group| {
    ///     let mem = match group.rank() {
    ///         0 => {
    ///             let mut x = group.alloc::<f32>(1000)?;
    ///             x.fill(1.5)?;
    ///             x.rendezvous(&group)?
    ///         }
    ///         _ => group.rendezvous_nothing()?.cast::<f32>()?,
    ///     };
    ///     assert_eq!((mem.len(), mem.ranks_without_memory()), (1000, &[1, 2][..]));
    ///     assert_eq!(mem.peer(0)?.read(999)?, 1.5);
    ///     assert!(mem.peer(1).is_err());
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn rendezvous_nothing(&self) -> Result<SymmetricMemory<u8>> {
        let block = Arc::new(MemoryBlock::nothing(self.context().signal_pad_size()));
        let met = HostTable::rendezvous_nothing(&block, self)?;
        let layout = &met.table.layout;
        // All ranks have seen that it is within the memory.
        let (start, bytes) = (layout.start, layout.bytes_within(met.table.bytes).unwrap_or_default());
        Ok(SymmetricMemory::new(HostParts::new(block, met, self, start, bytes)))
    }
}
