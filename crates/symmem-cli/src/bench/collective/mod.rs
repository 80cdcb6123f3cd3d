//! Collectives: every one of the library's, each row verified, an f32 all_reduce beside the limit; beside
//! busy loops a small all_reduce beside that of [`super::futex`].

mod case;
mod contender;
mod kernel;
mod limit;
mod ours;
mod pattern;
mod private;
mod race;
mod reference;

use symmem::{Allocation, DType, Result, SymmetricMemory};

pub(super) use self::case::{Case, Collective, ROOT};
pub(super) use self::contender::Contender;
use self::kernel::Stores;
use self::limit::{LimitReduce, Meeting};
pub(super) use self::limit::{Telling, futex_memory};
pub(super) use self::ours::{OurContender, Ours, open};
pub(super) use self::race::{Plan, Record, race};
pub(super) use self::reference::Accuracy;
use super::futex::Form;
use super::lab::Lab;
use super::limit::{Limit, STRIDE};
use super::report::Row;
use super::stats::{Percentiles, Ratio, median};
use crate::args::{BenchArgs, Memory};

/// Beyond this many bytes the work hides what the meetings cost.
const ABOVE_BARRIER: usize = 64 << 10;

/// What `op` is measured on.
pub(super) fn cases(args: &BenchArgs, op: Collective, ranks: usize) -> Vec<Case> {
    let sizes = args.sizes();
    let of = |dtype: &DType| {
        let dtype = *dtype;
        sizes.iter().map(move |bytes| Case::new(op, dtype, *bytes, ranks))
    };
    let mut cases: Vec<Case> = args.dtypes().iter().flat_map(of).collect();
    cases.dedup();
    cases
}

/// Steps of progress that `op` takes.
pub(super) fn steps(args: &BenchArgs, op: Collective, ranks: usize) -> usize {
    cases(args, op, ranks).iter().map(|case| plan(args, case, 0).blocks).sum()
}

fn plan(args: &BenchArgs, case: &Case, load: usize) -> Plan {
    let (blocks, iters) = args.plan(case.bytes.max(1));
    Plan { blocks, iters, limit: args.case_limit(), timed: args.timed(load) }
}

/// The rows of `op`. Of cases that are `compared` with peers only what a comparison does not say is measured.
pub(super) fn run(lab: &Lab<'_>, op: Collective, compared: impl Fn(&Case) -> bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in cases(lab.args, op, lab.group.size()) {
        lab.start(&format!("{} {} {}", op.name(), case.dtype, crate::args::short(case.bytes)));
        let mut memories = lab.args.memories();
        let limits = limits(&case, lab.load);
        if compared(&case) {
            // Launches measure the limit beside busy loops; the other one is measured here, beside symmetric
            // memory.
            memories.retain(|memory| *memory == Memory::Symmetric && limits == Limits::Loop);
        }
        if memories.is_empty() {
            (0..plan(lab.args, &case, lab.load).blocks).for_each(|_| lab.step());
        } else {
            rows.extend(one_case(lab, &case, &memories, limits)?);
        }
    }
    Ok(rows)
}

/// What a case is measured beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limits {
    Nothing,
    /// The barest loop over symmetric memory.
    Loop,
    /// Telling and being told by futex.
    Futex,
}

/// What `case` is measured beside, next to `load` busy loops.
pub(super) fn limits(case: &Case, load: usize) -> Limits {
    match (case.op, case.dtype) {
        (Collective::Signal, _) if load > 0 => Limits::Futex,
        (Collective::AllReduce, DType::F32) if load == 0 => Limits::Loop,
        (Collective::AllReduce, DType::F32 | DType::BF16) if load > 0 && case.bytes <= ABOVE_BARRIER => {
            Limits::Futex
        }
        _ => Limits::Nothing,
    }
}

/// The rows of `case` in each of `memories`, and of what it is measured beside.
pub(super) fn one_case(lab: &Lab<'_>, case: &Case, memories: &[Memory], limits: Limits) -> Result<Vec<Row>> {
    // The loop works on the very pages that the library does.
    let shared = match limits {
        Limits::Loop => Some(lab.group.alloc::<f32>(case.len())?),
        _ => None,
    };
    let open = |memory: &Memory| -> Result<Box<dyn OurContender>> {
        match shared.as_ref().filter(|_| *memory == Memory::Symmetric) {
            Some(shared) => Ok(Box::new(Ours::over(shared, lab.group, case)?)),
            None => open(lab.group, case, *memory),
        }
    };
    let mut ours = memories.iter().map(open).collect::<Result<Vec<_>>>()?;
    let beside = match (&shared, limits) {
        (Some(shared), _) => beside_loop(lab, case, &mut ours, shared)?,
        (None, Limits::Futex) => beside_futex(lab, case, &mut ours)?,
        (None, _) => {
            let records =
                race(&mut contenders(&mut ours), case, plan(lab.args, case, lab.load), &lab.clock, || {
                    lab.step()
                })?;
            Beside { ours: records, limits: Vec::new(), barrier: None }
        }
    };
    let algorithms: Vec<String> = ours.iter().map(|one| one.algorithm()).collect();
    ours.into_iter().try_for_each(|one| one.close())?;
    Ok(beside.rows(lab, case, memories, &algorithms))
}

fn contenders(ours: &mut [Box<dyn OurContender>]) -> Vec<&mut dyn Contender> {
    ours.iter_mut().map(|one| &mut **one as &mut dyn Contender).collect()
}

/// What came of a race.
struct Beside {
    ours: Vec<Record>,
    /// The first one is the one that counts.
    limits: Vec<(&'static str, Record)>,
    barrier: Option<Record>,
}

fn beside_loop(
    lab: &Lab<'_>,
    case: &Case,
    ours: &mut [Box<dyn OurContender>],
    memory: &Allocation<f32>,
) -> Result<Beside> {
    let group = lab.group;
    let flags = || group.alloc::<u64>(STRIDE * group.size())?.rendezvous(group);
    let (cached_flags, streaming_flags) = (flags()?, flags()?);
    let mut meeting = Meeting(memory.rendezvous(group)?);
    let limit = |flags, stores| -> Result<_> {
        Ok(LimitReduce::new(memory.rendezvous(group)?, Limit::new(flags, lab.crowded), stores))
    };
    let mut cached = limit(&cached_flags, Stores::Cached)?;
    let mut streaming = limit(&streaming_flags, Stores::Streaming)?;

    let count = ours.len();
    let mut contenders = contenders(ours);
    contenders.extend([&mut cached as &mut dyn Contender, &mut streaming]);
    if case.bytes <= ABOVE_BARRIER {
        contenders.push(&mut meeting);
    }
    let mut records = race(&mut contenders, case, plan(lab.args, case, lab.load), &lab.clock, || lab.step())?;
    let barrier = if case.bytes <= ABOVE_BARRIER { records.pop() } else { None };
    let mut limits: Vec<_> =
        ["loop, cached stores", "loop, streaming stores"].into_iter().zip(records.split_off(count)).collect();
    limits.sort_by(|one, other| median(medians(&one.1)).total_cmp(&median(medians(&other.1))));
    limits.truncate(1);
    cached_flags.close()?;
    streaming_flags.close()?;
    Ok(Beside { ours: records, limits, barrier })
}

fn beside_futex(lab: &Lab<'_>, case: &Case, ours: &mut [Box<dyn OurContender>]) -> Result<Beside> {
    let memories = [futex_memory(lab.group)?, futex_memory(lab.group)?];
    let mut bare: Vec<Telling<'_>> =
        memories.iter().zip(Form::ALL).map(|(memory, form)| Telling::new(memory, form, case.bytes)).collect();
    let count = ours.len();
    let mut contenders = contenders(ours);
    contenders.extend(bare.iter_mut().map(|one| one as &mut dyn Contender));
    let mut records = race(&mut contenders, case, plan(lab.args, case, lab.load), &lab.clock, || lab.step())?;
    let limits = Form::ALL.map(Form::name).into_iter().zip(records.split_off(count)).collect();
    memories.into_iter().try_for_each(SymmetricMemory::close)?;
    Ok(Beside { ours: records, limits, barrier: None })
}

/// The rows of the limit and of the barrier beside busy loops.
pub(super) fn barrier_beside_futex(lab: &Lab<'_>, verified: bool) -> Result<Vec<Row>> {
    let (mem, lines) = (lab.group.alloc::<f32>(1)?, futex_memory(lab.group)?);
    let (mut ours, mut bare) = (Meeting(mem.rendezvous(lab.group)?), Telling::new(&lines, Form::Exchange, 0));
    let case = Case::SIGNAL;
    let mut plan = plan(lab.args, &case, lab.load);
    plan.blocks = lab.args.blocks();
    let records = race(&mut [&mut bare, &mut ours], &case, plan, &lab.clock, || lab.step())?;
    ours.0.close()?;
    lines.close()?;
    let row = |at: usize, name| lab.row("barrier", name, &mut records[at].blocks.concat(), verified);
    let ratio = ratio(lab, &records[1].blocks, &records[0].blocks);
    let ours = row(1, super::barrier::NAME).beside_limit(ratio);
    Ok(vec![row(0, Form::Exchange.name()).of_limit(), ours])
}

impl Beside {
    /// The rows of the limits, and those of the library.
    fn rows(&self, lab: &Lab<'_>, case: &Case, memories: &[Memory], algorithms: &[String]) -> Vec<Row> {
        let first = self.limits.first().map(|(_, record)| record);
        let to_limit = |record: &Record| ratio(lab, &record.blocks, &first?.blocks);
        let limits = self
            .limits
            .iter()
            .map(|(name, record)| row(lab, case, name, record).of_limit().beside_limit(to_limit(record)));
        let by_hand = memories.iter().position(|memory| *memory == Memory::ByHand);
        let ours = memories.iter().zip(algorithms).zip(&self.ours).map(|((memory, algorithm), record)| {
            let hand = by_hand.filter(|_| *memory == Memory::Private);
            Row {
                memory: memory.name().to_owned(),
                above_barrier_us: self.barrier.as_ref().map(|barrier| above(lab, record, barrier)),
                to_hand: hand.and_then(|at| ratio(lab, &record.blocks, &self.ours[at].blocks)),
                ..row(lab, case, algorithm, record).beside_limit(to_limit(record))
            }
        });
        limits.chain(ours).collect()
    }
}

/// The median over all blocks of the typical time of one less that of the other, in microseconds.
fn above(lab: &Lab<'_>, record: &Record, barrier: &Record) -> f64 {
    ratio(lab, &record.blocks, &barrier.blocks).map_or(f64::NAN, |ratio| ratio.above_us)
}

/// The medians of the blocks' ratios. Of means it is the ratio of those over all blocks: a block is short
/// beside what the scheduler does with busy loops.
fn ratio(lab: &Lab<'_>, ours: &[Vec<u64>], theirs: &[Vec<u64>]) -> Option<Ratio> {
    let times = |blocks: &[Vec<u64>]| -> Vec<Percentiles<f64>> {
        let of =
            |block: &Vec<u64>| Percentiles::of(&mut block.clone()).map(|ticks| lab.clock.us(ticks.max(1)));
        blocks.iter().map(of).collect()
    };
    let mean = |blocks: &[Vec<u64>]| Percentiles::of(&mut blocks.concat()).mean.max(1) as f64;
    let ratio = Ratio::of(times(ours).iter().zip(&times(theirs)))?;
    Some(Ratio { mean: mean(ours) / mean(theirs), ..ratio })
}

/// The typical ticks of each block.
fn medians(record: &Record) -> Vec<f64> {
    record.blocks.iter().map(|block| Percentiles::of(&mut block.clone()).p50.max(1) as f64).collect()
}

fn row(lab: &Lab<'_>, case: &Case, algorithm: &str, record: &Record) -> Row {
    let row = lab.row(case.op.name(), algorithm, &mut record.blocks.concat(), record.verified);
    Row { dtype: case.dtype.to_string(), ..row.with_bandwidth(case) }
}
