//! The loop around every system: dirty the buffers, meet, look at the clock, operate, look at the clock.
//!
//! Contenders of one race run on the same ranks and take turns, block by block. The sample of an operation is
//! that of its slowest rank. The last result of every block is compared with the reference.
//!
//! Beside busy loops a number of operations says little: a thousand of them may come between two decisions of
//! the scheduler, of which one costs as much as ten thousand. There a race is over when its time is, and
//! means count.

use std::time::Duration;

use symmem::Result;

use super::case::Case;
use super::contender::Contender;
use super::pattern::Pattern;
use super::reference::is_right;
use crate::bench::clock::Clock;
use crate::bench::stats::{Percentiles, slowest};

/// Batches of warming up after which a machine that does not settle is taken as it is.
const MOST_BATCHES: usize = 10;

/// How much to measure.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Plan {
    pub(in crate::bench) blocks: usize,
    /// Operations in a block.
    pub(in crate::bench) iters: usize,
    /// After so long, with enough blocks for a median, it is over.
    pub(in crate::bench) limit: Option<Duration>,
    /// Each contender runs for this long, in however many blocks; the other numbers do not count.
    pub(in crate::bench) timed: Option<Duration>,
}

/// Blocks that are measured whatever the time.
const FEWEST_BLOCKS: usize = 3;
/// How long a block of a timed race should be, in microseconds, and the operations in it: a block is never
/// cut short, so it must not be long when all at once each of them takes milliseconds.
const BLOCK_US: f64 = 10_000.0;
const BLOCK_ITERS: (u64, u64) = (5, 2000);

/// What a contender did: ticks of every operation, block by block.
#[derive(Default)]
pub(in crate::bench) struct Record {
    pub(in crate::bench) blocks: Vec<Vec<u64>>,
    /// Whether everything that was looked at was right on every rank.
    pub(in crate::bench) verified: bool,
}

/// Collective. Measures `contenders` by turns; calls `step` after each block.
pub(in crate::bench) fn race(
    contenders: &mut [&mut dyn Contender],
    case: &Case,
    plan: Plan,
    clock: &Clock,
    step: impl Fn(),
) -> Result<Vec<Record>> {
    let count = contenders.len();
    let limit = plan.timed.map(|each| each * count as u32).or(plan.limit);
    let timer = Timer { clock, start: clock.now(), limit };
    let mut runners: Vec<_> =
        contenders.iter_mut().map(|each| Runner::new(&mut **each, case, timer)).collect();
    for runner in &mut runners {
        match plan.timed {
            Some(_) => drop(runner.block(runner.iters)?),
            None => runner.warm_up(plan.iters)?,
        }
    }
    let mut records: Vec<_> = runners.iter().map(|_| Record::default()).collect();
    for block in 0.. {
        // Whoever comes second finds a warmer or a more tired machine, so that changes with every block.
        for turn in (0..count).map(|turn| (turn + block) % count) {
            let iters = if plan.timed.is_some() { runners[turn].iters } else { plan.iters };
            records[turn].blocks.push(runners[turn].block(iters)?);
        }
        let (done, late) = (block + 1, runners.iter().any(|runner| runner.late));
        let over = done >= FEWEST_BLOCKS && late || done == plan.blocks && plan.timed.is_none();
        match over {
            false if done < plan.blocks => step(),
            false => {}
            true => {
                (done.min(plan.blocks)..=plan.blocks).for_each(|_| step());
                break;
            }
        }
    }
    for (runner, record) in runners.iter_mut().zip(&mut records) {
        record.verified = runner.all_right()?;
    }
    Ok(records)
}

/// How long a race has been on.
#[derive(Clone, Copy)]
struct Timer<'a> {
    clock: &'a Clock,
    start: u64,
    limit: Option<Duration>,
}

impl Timer<'_> {
    fn is_late(&self) -> bool {
        let us = self.clock.us(self.clock.now() - self.start);
        self.limit.is_some_and(|limit| us > limit.as_secs_f64() * 1e6)
    }
}

/// A contender on the track.
struct Runner<'a> {
    contender: &'a mut dyn Contender,
    case: &'a Case,
    timer: Timer<'a>,
    iteration: u64,
    /// Operations in the next block of a timed race.
    iters: usize,
    right: bool,
    /// Whether the time was up for any rank after the last block.
    late: bool,
}

impl<'a> Runner<'a> {
    fn new(contender: &'a mut dyn Contender, case: &'a Case, timer: Timer<'a>) -> Self {
        Self { contender, case, timer, iteration: 0, iters: BLOCK_ITERS.0 as usize, right: true, late: false }
    }

    /// Operates until the typical time of a batch is within a tenth of that of the one before. All ranks see
    /// the same samples, so they end together.
    fn warm_up(&mut self, iters: usize) -> Result<()> {
        let mut before = None;
        for _ in 0..MOST_BATCHES {
            let now = Percentiles::of(&mut self.block((iters / 10).max(5))?).p50;
            if self.late || before.is_some_and(|before| now.abs_diff(before) * 10 <= before) {
                break;
            }
            before = Some(now);
        }
        Ok(())
    }

    /// The ticks of `count` operations on the slowest rank.
    fn block(&mut self, count: usize) -> Result<Vec<u64>> {
        let (rank, clock) = (self.contender.rank(), self.timer.clock);
        let mut samples = Vec::with_capacity(count + 2);
        for _ in 0..count {
            self.iteration += 1;
            let pattern = Pattern::new(self.case.dtype, rank, self.iteration);
            self.contender.input(&|bytes| pattern.fill(bytes))?;
            self.contender.barrier()?;
            let start = clock.now();
            self.contender.operate()?;
            samples.push(clock.now() - start);
        }
        self.judge()?;
        // What one rank thinks of the time all must know, to end together. Clocks differ in the length of
        // their tick.
        samples.push(self.timer.is_late().into());
        samples.push((BLOCK_US / clock.us(1)) as u64);
        let mut slowest = slowest(&self.contender.gather(&samples)?, samples.len());
        let block = slowest.pop().unwrap_or_default();
        self.late = slowest.pop() == Some(1);
        let mean = Percentiles::of(&mut slowest.clone()).mean.max(1);
        self.iters = (block / mean).clamp(BLOCK_ITERS.0, BLOCK_ITERS.1) as usize;
        Ok(slowest)
    }

    /// Looks at the result of the last operation.
    fn judge(&mut self) -> Result<()> {
        let place = (self.contender.rank(), self.contender.ranks());
        let (case, iteration, accuracy) = (self.case, self.iteration, self.contender.accuracy());
        self.right &= self.contender.output(&|result| is_right(case, place, iteration, accuracy, result))?;
        Ok(())
    }

    fn all_right(&mut self) -> Result<bool> {
        Ok(self.contender.gather(&[u64::from(self.right)])?.iter().all(|right| *right == 1))
    }
}
