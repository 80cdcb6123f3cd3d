//! Exchanges in which every rank sends every rank as many rows as it likes.
//!
//! The memory of a rank is rows; chunks of them go to the ranks. Ranks first tell each other how large their
//! chunks are and where they start ([`super::statement`]), then each pulls what is for it. [`RowRoute`] says
//! in which order chunks are sent and received; the expert forms ([`super::experts`]) differ from
//! `all_to_all_v` in nothing else.

use super::statement::{CallRefusal, RankStatements};
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;
use crate::{Error, Result};

/// Where the rows of an exchange are in its output: one entry per chunk, in the order of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Rows of each chunk.
    pub splits: Vec<usize>,
    /// First row of each chunk in the output.
    pub offsets: Vec<usize>,
}

/// The order of chunks that belong to a rank and an expert.
#[derive(Clone, Copy)]
pub(super) enum ChunkOrder {
    /// All of rank 0, then all of rank 1, ...
    RankMajor,
    /// All of expert 0, then all of expert 1, ...
    ExpertMajor,
}

/// How rows travel: the same on all ranks.
pub(super) struct RowRoute {
    /// Elements of a row.
    pub(super) row: usize,
    pub(super) world: usize,
    /// Chunks that each rank sends to each rank.
    pub(super) experts: usize,
    pub(super) sent: ChunkOrder,
    pub(super) received: ChunkOrder,
    /// Rows to which each expert's part of an expert-major output is rounded up; 0 for none.
    pub(super) align: usize,
}

/// The rows that a rank sends: how many in each chunk, and where each chunk starts.
pub(super) struct Chunks<'a> {
    pub(super) rows: &'a [usize],
    pub(super) starts: &'a [usize],
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. The memory is rows of `row` elements; the first `splits[0]` of them go to rank 0, the next
    /// `splits[1]` to rank 1, and so on. `out` becomes the rows for this rank, in rank order; it may be
    /// longer than they need.
    ///
    /// A rank whose splits reach beyond its memory, or whose `out` is too short for what it is sent, is named
    /// in the same [`Error::Rank`] on all ranks, and nothing is written.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mut mem = group.alloc::<u32>(3)?.rendezvous(&group)?;
    ///     mem.local_mut()?.copy_from_slice(if group.rank() == 0 { &[1, 2, 3] } else { &[4, 5, 6] });
    ///     let splits = if group.rank() == 0 { [1, 2] } else { [2, 0] };
    ///     let mut out = [0; 3];
    ///     let received = mem.all_to_all_v(1, &splits, &mut out)?;
    ///     if group.rank() == 0 {
    ///         assert_eq!((received.splits, received.offsets), (vec![1, 2], vec![0, 1]));
    ///         assert_eq!(out, [1, 4, 5]);
    ///     } else {
    ///         assert_eq!(out, [2, 3, 0]);
    ///     }
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_to_all_v(&self, row: usize, splits: &[usize], out: &mut [T]) -> Result<Received> {
        let world = self.world_size();
        let (sent, received) = (ChunkOrder::RankMajor, ChunkOrder::RankMajor);
        let route = RowRoute { row, world, experts: 1, sent, received, align: 0 };
        let numbers = match splits.len() == world {
            true => pack_in_sequence(out.len(), splits),
            false => Err(Error::invalid("splits", format!("{} of them for {world} ranks", splits.len()))),
        };
        self.exchange_rows(Op::AllToAllV, &route, numbers, out)
    }

    /// Sends rows along `route`; `numbers` is what [`pack`] made of this rank's arguments.
    pub(super) fn exchange_rows(
        &self,
        op: Op,
        route: &RowRoute,
        numbers: Result<Vec<usize>>,
        out: &mut [T],
    ) -> Result<Received> {
        let terms = [("row", route.row), ("experts", route.experts), ("align", route.align)];
        let plan = |said: &RankStatements<'_, T>| route.plan(said, self.rank(), self.len());
        let work =
            |said: &RankStatements<'_, T>, received: &Received| route.pull(said, self.rank(), received, out);
        self.state_and_read(self.call(op, 0, None), &terms, numbers, plan, work)
    }
}

/// What a rank says: the length of its output, and its chunks.
pub(super) fn pack(out: usize, chunks: &Chunks<'_>) -> Vec<usize> {
    [&[out], chunks.rows, chunks.starts].concat()
}

/// [`pack`], for chunks that lie one after the other.
pub(super) fn pack_in_sequence(out: usize, rows: &[usize]) -> Result<Vec<usize>> {
    let mut end = Some(0usize);
    let starts: Option<Vec<usize>> = rows
        .iter()
        .map(|rows| {
            let start = end;
            end = end.and_then(|end| end.checked_add(*rows));
            start
        })
        .collect();
    match (starts, end) {
        (Some(starts), Some(_)) => Ok(pack(out, &Chunks { rows, starts: &starts })),
        _ => Err(Error::invalid("splits", "their sum is more than can be counted")),
    }
}

/// What [`pack`] made.
fn unpack(numbers: &[usize]) -> (usize, Chunks<'_>) {
    let (out, chunks) = numbers.split_first().map_or((0, &[][..]), |(out, chunks)| (*out, chunks));
    let (rows, starts) = chunks.split_at(chunks.len() / 2);
    (out, Chunks { rows, starts })
}

impl Chunks<'_> {
    /// Whether all of them are among the first `limit` rows.
    fn are_within(&self, limit: usize) -> bool {
        let ends = self.rows.iter().zip(self.starts).map(|(rows, start)| start.checked_add(*rows));
        ends.into_iter().all(|end| end.is_some_and(|end| end <= limit))
    }
}

impl RowRoute {
    /// The position of a chunk among those of one rank.
    fn position(&self, order: ChunkOrder, rank: usize, expert: usize) -> usize {
        match order {
            ChunkOrder::RankMajor => rank * self.experts + expert,
            ChunkOrder::ExpertMajor => expert * self.world + rank,
        }
    }

    /// Rows that fit `elements`.
    fn rows_in(&self, elements: usize) -> usize {
        elements.checked_div(self.row).unwrap_or(usize::MAX)
    }

    /// Judges what all ranks said; what the rank `me` will have received.
    fn plan<T: Element>(
        &self,
        said: &RankStatements<'_, T>,
        me: usize,
        len: usize,
    ) -> Result<Received, CallRefusal> {
        let limit = self.rows_in(len);
        let mut totals = vec![0usize; self.world * self.experts];
        for rank in 0..self.world {
            let (_, chunks) = unpack(said.numbers(rank));
            if chunks.rows.len() != totals.len() || !chunks.are_within(limit) {
                let memory = format!("the {limit} rows of {} elements of its memory", self.row);
                return Err(CallRefusal::Rank(rank, format!("its splits or offsets reach beyond {memory}")));
            }
            for (total, rows) in totals.iter_mut().zip(chunks.rows) {
                *total = total.saturating_add(*rows);
            }
        }
        for rank in 0..self.world {
            let room = self.rows_in(unpack(said.numbers(rank)).0);
            let needed = self.needed(&totals, rank);
            // That many is what the sum of more is, too.
            if needed > room || needed == usize::MAX {
                return Err(CallRefusal::Rank(
                    rank,
                    format!("its output has room for {room} rows, not {needed}"),
                ));
            }
        }
        Ok(self.layout(said, me))
    }

    /// Rows of the output of `rank`, which gets `totals` from all ranks together.
    fn needed(&self, totals: &[usize], rank: usize) -> usize {
        let parts = (0..self.experts).map(|expert| totals[self.position(self.sent, rank, expert)]);
        parts.fold(0, |needed, total| needed.saturating_add(self.aligned(total)))
    }

    /// Rows that an expert with `rows` takes in the output.
    fn aligned(&self, rows: usize) -> usize {
        match self.align {
            0 => rows,
            // An expert without rows has a place all the same.
            align => rows.max(1).checked_next_multiple_of(align).unwrap_or(usize::MAX),
        }
    }

    /// Where everything is in the output of rank `me`.
    fn layout<T: Element>(&self, said: &RankStatements<'_, T>, me: usize) -> Received {
        let chunks = self.world * self.experts;
        let mut received = Received { splits: vec![0; chunks], offsets: vec![0; chunks] };
        let (majors, minors) = match self.received {
            ChunkOrder::RankMajor => (self.world, self.experts),
            ChunkOrder::ExpertMajor => (self.experts, self.world),
        };
        let mut major_start = 0;
        for major in 0..majors {
            let mut next = major_start;
            for minor in 0..minors {
                let (rank, expert) = match self.received {
                    ChunkOrder::RankMajor => (major, minor),
                    ChunkOrder::ExpertMajor => (minor, major),
                };
                let rows = unpack(said.numbers(rank)).1.rows[self.position(self.sent, me, expert)];
                let position = major * minors + minor;
                (received.splits[position], received.offsets[position]) = (rows, next);
                next += rows;
            }
            major_start += self.aligned(next - major_start);
        }
        received
    }

    /// Copies every chunk for `me` to its place. Ranks start with themselves, so that not all read the same
    /// one.
    fn pull<T: Element>(&self, said: &RankStatements<'_, T>, me: usize, received: &Received, out: &mut [T]) {
        for rank in (0..self.world).map(|step| (me + step) % self.world) {
            let (_, chunks) = unpack(said.numbers(rank));
            for expert in 0..self.experts {
                let to = self.position(self.received, rank, expert);
                let (rows, offset) = (received.splits[to], received.offsets[to]);
                if rows * self.row > 0 {
                    let start = chunks.starts[self.position(self.sent, me, expert)];
                    said.copy(rank, start * self.row, &mut out[offset * self.row..][..rows * self.row]);
                }
            }
        }
    }
}
