//! Collectives whose parts are as long as counts say, one per rank, which all ranks give alike.
//!
//! Called by users through the handle, or through the group for private memory. Ranks compare the counts as
//! they compare shapes, in the meetings that there are anyway. Counts that are all the same are known by the
//! bytes of the call: such a call is the collective of that name without counts, and costs what that does.
//! What is wrong with a rank's counts is told to the others.

use super::peers::Peers;
use super::private::{Pattern, Private};
use super::{CollectiveCall, check_len};
use crate::group::Group;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::{Algorithm, Op, Shape};
use crate::{Error, Result};

/// What counts come to.
struct SplitCounts {
    most: usize,
    total: usize,
    /// Whether all of them are the same.
    even: bool,
}

impl SplitCounts {
    /// What `counts` of `world` ranks come to.
    fn new(op: Op, counts: &[usize], world: usize) -> Result<Self> {
        let wrong = |problem: String| Err(Error::invalid(op.name(), problem));
        if counts.len() != world {
            return wrong(format!("there are {} counts for {world} ranks", counts.len()));
        }
        let (mut most, mut total, mut even) = (0, 0usize, true);
        for count in counts {
            let Some(sum) = total.checked_add(*count) else {
                return wrong("the counts add up to more than can be counted".to_owned());
            };
            (total, even, most) = (sum, even && *count == counts[0], most.max(*count));
        }
        Ok(Self { most, total, even })
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. `out` becomes the first `counts[rank]` elements of every rank's memory, in rank order: as
    /// long as the counts add up to. All ranks give the same counts; they may be 0.
    ///
    /// ```
    /// symmem::spawn(3, |group| {
    ///     let mut mem = group.alloc::<u8>(2)?.rendezvous(&group)?;
    ///     mem.fill(group.rank() as u8)?;
    ///     let mut out = [9; 3];
    ///     mem.all_gather_v(&[1, 0, 2], &mut out)?;
    ///     assert_eq!(out, [0, 2, 2]);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_v(&self, counts: &[usize], out: &mut [T]) -> Result<()> {
        const OP: Op = Op::AllGatherV;
        let fits = self
            .check_counts(OP, counts)
            .and_then(|sum| check_len(OP, "output", out.len(), sum.total).map(|()| sum));
        let sum = self.parts.told(OP, fits)?;
        let given = counts[self.rank()];
        self.run_counted(OP, 0, (counts, sum.even), (sum.most, given), |peers| match sum.even {
            true => peers.gather(0, out),
            false => peers.gather_counts(counts, out),
        })
    }

    /// Collective. `out` of rank `root` becomes the first `counts[rank]` elements of every rank's memory, in
    /// rank order: as long as the counts add up to. The others' `out` is ignored. All ranks give the same
    /// counts; they may be 0.
    pub fn gather_v(&self, root: usize, counts: &[usize], out: &mut [T]) -> Result<()> {
        const OP: Op = Op::GatherV;
        let is_root = self.rank() == root;
        let fits = self.group().check_rank(OP.name(), root).and_then(|()| self.check_counts(OP, counts));
        let fits = fits.and_then(|sum| match is_root {
            true => check_len(OP, "output", out.len(), sum.total).map(|()| sum),
            false => Ok(sum),
        });
        let sum = self.parts.told(OP, fits)?;
        let given = if is_root { 0 } else { counts[self.rank()] };
        self.run_counted(OP, root, (counts, sum.even), (sum.most, given), |peers| match (is_root, sum.even) {
            (true, true) => peers.gather(0, out),
            (true, false) => peers.gather_counts(counts, out),
            (false, _) => {}
        })
    }

    /// Collective. The memory of rank `root` is, in rank order, `counts[rank]` elements for each rank; `out`,
    /// as long, becomes those for this one. All ranks give the same counts; they may be 0.
    pub fn scatter_v(&self, root: usize, counts: &[usize], out: &mut [T]) -> Result<()> {
        const OP: Op = Op::ScatterV;
        let fits = self.group().check_rank(OP.name(), root).and_then(|()| {
            let sum = SplitCounts::new(OP, counts, self.world_size())?;
            self.check_room(OP, sum.total)?;
            check_len(OP, "output", out.len(), counts[self.rank()]).map(|()| sum)
        });
        let sum = self.parts.told(OP, fits)?;
        let given = if self.rank() == root { sum.total } else { 0 };
        let start = counts[..self.rank()].iter().sum();
        self.run_counted(OP, root, (counts, sum.even), (sum.total, given), |peers| {
            peers.copy(root, start, out)
        })
    }

    /// What `counts` come to, each of which must be in every rank's memory.
    fn check_counts(&self, op: Op, counts: &[usize]) -> Result<SplitCounts> {
        let sum = SplitCounts::new(op, counts, self.world_size())?;
        self.check_room(op, sum.most).map(|()| sum)
    }

    fn check_room(&self, op: Op, needed: usize) -> Result<()> {
        if needed <= self.len() {
            return Ok(());
        }
        let problem = format!("the counts need {needed} elements of memory that has {}", self.len());
        Err(Error::invalid(op.name(), problem))
    }

    /// Runs `work` on everybody's first `most` elements, `given` of which are this rank's, where all ranks
    /// have the same `counts`.
    #[inline]
    fn run_counted(
        &self,
        op: Op,
        root: usize,
        (counts, even): (&[usize], bool),
        (most, given): (usize, usize),
        work: impl FnOnce(&Peers<'_, T>),
    ) -> Result<()> {
        let size = size_of::<T>();
        let shaped;
        let (group, shape) = match even {
            true => (self.group(), Shape::ANY),
            false => {
                shaped = self.group().counted(counts);
                (&shaped, shaped.shape)
            }
        };
        let bytes = most * size;
        let call = CollectiveCall { op, root, dtype: T::DTYPE, reduce: None, bytes, shape };
        let chosen = match op.row().and_then(|row| row.tuned) {
            Some(collective) => self.parts.algorithm_for(collective, bytes),
            None => Ok(Algorithm::Direct),
        };
        let (algorithm, _borrow) =
            self.parts.told(op, chosen.and_then(|chosen| Ok((chosen, self.local()?))))?;
        tracing::trace!(op = op.name(), %algorithm, bytes, "collective");
        self.parts.operate_as(group, op, |running| {
            self.carry(&call, (most, given * size), algorithm, running, work)
        })
    }
}

impl Group {
    /// Collective. `out` becomes everybody's `input`, in rank order; that of rank `r` has `counts[r]`
    /// elements, and `out` as many as the counts add up to. All ranks give the same counts; they may be 0.
    ///
    /// ```
    /// let all = symmem::spawn(3, |group| {
    ///     let input = vec![group.rank() as u8; [1, 0, 2][group.rank()]];
    ///     let mut out = [9; 3];
    ///     group.all_gather_v(&input, &[1, 0, 2], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(all, [[0, 2, 2]; 3]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_v<T: Element>(&self, input: &[T], counts: &[usize], out: &mut [T]) -> Result<()> {
        const OP: Op = Op::PrivateAllGatherV;
        let fits = SplitCounts::new(OP, counts, self.size()).and_then(|sum| {
            check_len(OP, "input", input.len(), counts[self.rank()])?;
            check_len(OP, "output", out.len(), sum.total).map(|()| sum)
        });
        let most = fits.as_ref().map_or(0, |sum| sum.most);
        let shaped = self.counted_unless_even(counts, &fits);
        let group = shaped.as_ref().unwrap_or(self);
        let (private, sum) = group.begin_counted::<T>(OP, 0, most, fits)?;
        match sum.even {
            true => private.transfer(Pattern::Same { root: None, len: most }, input, out),
            false => private.transfer(Pattern::AllCounts(counts), input, out),
        }
    }

    /// Collective. `out` of rank `root` becomes everybody's `input`, in rank order; that of rank `r` has
    /// `counts[r]` elements, and `out` as many as the counts add up to. The others' `out` is ignored. All
    /// ranks give the same counts; they may be 0.
    ///
    /// ```
    /// let all = symmem::spawn(3, |group| {
    ///     let input = vec![group.rank() as u8; [1, 0, 2][group.rank()]];
    ///     let mut out = [9; 3];
    ///     group.gather_v(1, &input, &[1, 0, 2], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(all, [[9; 3], [0, 2, 2], [9; 3]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn gather_v<T: Element>(
        &self,
        root: usize,
        input: &[T],
        counts: &[usize],
        out: &mut [T],
    ) -> Result<()> {
        const OP: Op = Op::PrivateGatherV;
        let fits = self.check_rank(OP.name(), root).and_then(|()| {
            let sum = SplitCounts::new(OP, counts, self.size())?;
            check_len(OP, "input", input.len(), counts[self.rank()])?;
            let needed = if self.rank() == root { sum.total } else { out.len() };
            check_len(OP, "output", out.len(), needed).map(|()| sum)
        });
        let most = fits.as_ref().map_or(0, |sum| sum.most);
        let shaped = self.counted_unless_even(counts, &fits);
        let group = shaped.as_ref().unwrap_or(self);
        let (private, sum) = group.begin_counted::<T>(OP, root, most, fits)?;
        match sum.even {
            true => private.transfer(Pattern::Gather { root, len: most }, input, out),
            false => private.transfer(Pattern::GatherCounts { root, counts }, input, out),
        }
    }

    /// Collective. `input` of rank `root` is, in rank order, `counts[rank]` elements for each rank; `out`, as
    /// long, becomes those for this one. The others' `input` is ignored. All ranks give the same counts; they
    /// may be 0.
    ///
    /// ```
    /// let mine = symmem::spawn(3, |group| {
    ///     let input = if group.rank() == 2 { vec![7, 8, 9] } else { vec![] };
    ///     let mut out = vec![0; [1, 0, 2][group.rank()]];
    ///     group.scatter_v(2, &input, &[1, 0, 2], &mut out)?;
    ///     Ok(out)
    /// })?;
    /// assert_eq!(mine, [vec![7], vec![], vec![8, 9]]);
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn scatter_v<T: Element>(
        &self,
        root: usize,
        input: &[T],
        counts: &[usize],
        out: &mut [T],
    ) -> Result<()> {
        const OP: Op = Op::PrivateScatterV;
        let fits = self.check_rank(OP.name(), root).and_then(|()| {
            let sum = SplitCounts::new(OP, counts, self.size())?;
            let given = if self.rank() == root { input.len() } else { sum.total };
            check_len(OP, "input", given, sum.total)?;
            check_len(OP, "output", out.len(), counts[self.rank()]).map(|()| sum)
        });
        let total = fits.as_ref().map_or(0, |sum| sum.total);
        let shaped = self.counted_unless_even(counts, &fits);
        let group = shaped.as_ref().unwrap_or(self);
        let (private, sum) = group.begin_counted::<T>(OP, root, total, fits)?;
        match sum.even {
            true => private.transfer(Pattern::Scatter { root, chunk: sum.most }, input, out),
            false => private.transfer(Pattern::ScatterCounts { root, counts }, input, out),
        }
    }

    /// This group, which compares `counts` as it does shapes, unless all are alike: then their bytes say it.
    fn counted_unless_even(&self, counts: &[usize], fits: &Result<SplitCounts>) -> Option<Self> {
        fits.as_ref().is_ok_and(|sum| !sum.even).then(|| self.counted(counts))
    }

    /// Begins `op` on this group, which compares counts that are not even, and in which no rank lays out more
    /// than `most` elements.
    fn begin_counted<T: Element>(
        &self,
        op: Op,
        root: usize,
        most: usize,
        arguments: Result<SplitCounts>,
    ) -> Result<(Private<'_>, SplitCounts)> {
        let even = arguments.as_ref().map_or(true, |sum| sum.even);
        let (bytes, shape) =
            (most.saturating_mul(size_of::<T>()), if even { Shape::ANY } else { self.shape });
        self.begin_private(
            CollectiveCall { op, root, dtype: T::DTYPE, reduce: None, bytes, shape },
            arguments,
        )
    }
}
