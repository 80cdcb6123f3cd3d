//! Dispatch of rows to experts that live on the ranks, and the way back.
//!
//! Every rank has the same number of experts. Called by users through the handle; the exchange itself is
//! [`super::variable`]'s.

use super::variable::{ChunkOrder, Chunks, Received, RowRoute, pack, pack_in_sequence};
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

impl<T: Element> SymmetricMemory<T> {
    /// Collective. Sends rows to experts: the memory is rows of `row` elements, sorted by the rank they go to
    /// and then by expert, and `splits` says how many go where (rank-major:
    /// `splits[rank * experts + expert]`).
    ///
    /// `out` becomes the rows for this rank's experts, sorted by expert and then by the rank they came from.
    /// Each expert's rows are followed by padding up to a multiple of `align` rows, at least `align` even for
    /// an expert that got none; padding is left as it was. The entries of the result are expert-major
    /// (`[expert * world + rank]`), which is what [`SymmetricMemory::all_to_all_2d_offset`] takes to send the
    /// rows back.
    ///
    /// A rank whose splits reach beyond its memory, or whose `out` is too short for what it is sent, is named
    /// in the same [`Error::Rank`] on all ranks, and nothing is written.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let me = group.rank() as u32;
    ///     let mut mem = group.alloc::<u32>(4)?.rendezvous(&group)?;
    ///     // One row for each of two experts on each of two ranks: 100 * from + 10 * to + expert.
    ///     mem.local_mut()?.copy_from_slice(&[0, 1, 10, 11].map(|row| 100 * me + row));
    ///     let mut out = [0; 8];
    ///     let sent = mem.all_to_all_2d(1, &[1, 1, 1, 1], 4, &mut out)?;
    ///     assert_eq!(sent.offsets, [0, 1, 4, 5]);
    ///     assert_eq!(out, if me == 0 { [0, 100, 0, 0, 1, 101, 0, 0] } else { [10, 110, 0, 0, 11, 111, 0, 0] });
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_to_all_2d(
        &self,
        row: usize,
        splits: &[usize],
        align: usize,
        out: &mut [T],
    ) -> Result<Received> {
        let route = self.route(row, splits, ChunkOrder::RankMajor, ChunkOrder::ExpertMajor, align);
        let checked = match align {
            0 => Err(Error::invalid("align", "must be at least 1")),
            _ => self.check_splits(splits),
        };
        let numbers = checked.and_then(|()| pack_in_sequence(out.len(), splits));
        self.exchange_rows(Op::AllToAll2d, &route, numbers, out)
    }

    /// Collective. The inverse of [`SymmetricMemory::all_to_all_2d`]: sends the experts' rows back to where
    /// they came from. The memory is rows of `row` elements; `splits` says how many belong to each expert and
    /// rank (expert-major: `splits[expert * world + rank]`), `offsets` at which row they start. What lies
    /// between them is not sent.
    ///
    /// `out` becomes the rows for this rank, sorted by the rank they came from and then by expert, without
    /// padding; the entries of the result have the same order. Errors are those of
    /// [`SymmetricMemory::all_to_all_2d`].
    pub fn all_to_all_2d_offset(
        &self,
        row: usize,
        splits: &[usize],
        offsets: &[usize],
        out: &mut [T],
    ) -> Result<Received> {
        let route = self.route(row, splits, ChunkOrder::ExpertMajor, ChunkOrder::RankMajor, 0);
        let checked = match splits.len() == offsets.len() {
            true => self.check_splits(splits),
            false => {
                let problem = format!("{} of them for {} splits", offsets.len(), splits.len());
                Err(Error::invalid("offsets", problem))
            }
        };
        let numbers = checked.map(|()| pack(out.len(), &Chunks { rows: splits, starts: offsets }));
        self.exchange_rows(Op::AllToAll2dOffset, &route, numbers, out)
    }

    fn route(
        &self,
        row: usize,
        splits: &[usize],
        sent: ChunkOrder,
        received: ChunkOrder,
        align: usize,
    ) -> RowRoute {
        let world = self.world_size();
        RowRoute { row, world, experts: splits.len() / world, sent, received, align }
    }

    /// Whether there is one split for each expert of each rank.
    fn check_splits(&self, splits: &[usize]) -> Result<()> {
        if splits.len().is_multiple_of(self.world_size()) {
            return Ok(());
        }
        let problem = format!("{} of them are not divisible by {} ranks", splits.len(), self.world_size());
        Err(Error::invalid("splits", problem))
    }
}
