//! Collectives: every one of the library's, each row verified, an f32 all_reduce beside the limit.

mod case;
mod contender;
mod kernel;
mod limit;
mod ours;
mod pattern;
mod race;
mod reference;

use symmem::{DType, Result};

pub(super) use self::case::{Case, Collective, ROOT};
pub(super) use self::contender::Contender;
use self::kernel::Stores;
use self::limit::{LimitReduce, Meeting};
pub(super) use self::ours::{OurContender, Ours, open};
pub(super) use self::race::{Plan, Record, race};
pub(super) use self::reference::Accuracy;
use super::lab::Lab;
use super::limit::{Limit, STRIDE};
use super::report::Row;
use super::stats::{Percentiles, median};
use crate::args::BenchArgs;

/// Beyond this many bytes the work hides what the meetings cost.
const ABOVE_BARRIER: usize = 64 << 10;

/// What `op` is measured on.
pub(super) fn cases(args: &BenchArgs, op: Collective, ranks: usize) -> Vec<Case> {
    let sizes = args.sizes();
    let of = |dtype: &DType| {
        let dtype = *dtype;
        sizes.iter().map(move |bytes| Case::new(op, dtype, *bytes, ranks))
    };
    let mut cases: Vec<Case> = args.dtypes.iter().flat_map(of).collect();
    cases.dedup();
    cases
}

/// Steps of progress that `op` takes.
pub(super) fn steps(args: &BenchArgs, op: Collective, ranks: usize) -> usize {
    cases(args, op, ranks).iter().map(|case| plan(args, case).blocks).sum()
}

fn plan(args: &BenchArgs, case: &Case) -> Plan {
    let (blocks, iters) = args.plan(case.bytes);
    Plan { blocks, iters, limit: args.case_limit() }
}

/// The rows of `op`.
pub(super) fn run(lab: &Lab<'_>, op: Collective) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in cases(lab.args, op, lab.group.size()) {
        lab.start(&format!("{} {} {}", op.name(), case.dtype, crate::args::short(case.bytes)));
        match (op, case.dtype) {
            (Collective::AllReduce, DType::F32) => rows.extend(beside_limit(lab, &case)?),
            _ => rows.push(alone(lab, &case)?),
        }
    }
    Ok(rows)
}

fn alone(lab: &Lab<'_>, case: &Case) -> Result<Row> {
    let mut ours = open(lab.group, case)?;
    let records = race(&mut [&mut *ours], case, plan(lab.args, case), &lab.clock, || lab.step())?;
    let row = row(lab, case, &ours.algorithm(), &records[0]);
    ours.close()?;
    Ok(row)
}

/// The rows of the limit, with the better stores, and of the library.
fn beside_limit(lab: &Lab<'_>, case: &Case) -> Result<Vec<Row>> {
    let group = lab.group;
    let memory = group.alloc::<f32>(case.len())?;
    let flags = || group.alloc::<u64>(STRIDE * group.size())?.rendezvous(group);
    let (cached_flags, streaming_flags) = (flags()?, flags()?);
    let mut ours = Box::new(Ours::over(&memory, group, case)?);
    let mut meeting = Meeting(memory.rendezvous(group)?);
    let limit = |flags, stores| -> Result<_> {
        Ok(LimitReduce::new(memory.rendezvous(group)?, Limit::new(flags, lab.crowded), stores))
    };
    let mut cached = limit(&cached_flags, Stores::Cached)?;
    let mut streaming = limit(&streaming_flags, Stores::Streaming)?;

    let mut contenders: Vec<&mut dyn Contender> = vec![&mut *ours, &mut cached, &mut streaming];
    if case.bytes <= ABOVE_BARRIER {
        contenders.push(&mut meeting);
    }
    let records = race(&mut contenders, case, plan(lab.args, case), &lab.clock, || lab.step())?;
    let rows = compare(lab, case, &ours.algorithm(), &records);
    ours.close()?;
    cached_flags.close()?;
    streaming_flags.close()?;
    Ok(rows)
}

/// The rows of a race between ours, both limits, and perhaps the barrier.
fn compare(lab: &Lab<'_>, case: &Case, algorithm: &str, records: &[Record]) -> Vec<Row> {
    let (ours, cached, streaming) = (medians(&records[0]), medians(&records[1]), medians(&records[2]));
    let (limit, stores, best) = match median(cached.clone()) <= median(streaming.clone()) {
        true => (cached, "loop, cached stores", &records[1]),
        false => (streaming, "loop, streaming stores", &records[2]),
    };
    let pairwise = |of: fn(f64, f64) -> f64, theirs: &[f64]| {
        median(ours.iter().zip(theirs).map(|(ours, theirs)| of(*ours, *theirs)).collect())
    };
    let ratio = pairwise(|ours, limit| ours / limit, &limit);
    let above = records.get(3).map(|barrier| pairwise(|ours, barrier| ours - barrier, &medians(barrier)));
    let limit = row(lab, case, stores, best);
    vec![
        Row { system: "limit".to_owned(), ratio_to_limit: Some(1.0), ..limit },
        Row {
            ratio_to_limit: Some(ratio),
            above_barrier_us: above.map(|ticks| ticks * lab.clock.us(1)),
            ..row(lab, case, algorithm, &records[0])
        },
    ]
}

/// The typical ticks of each block.
fn medians(record: &Record) -> Vec<f64> {
    record.blocks.iter().map(|block| Percentiles::of(&mut block.clone()).p50.max(1) as f64).collect()
}

fn row(lab: &Lab<'_>, case: &Case, algorithm: &str, record: &Record) -> Row {
    let row = lab.row(case.op.name(), algorithm, &mut record.blocks.concat(), record.verified);
    Row { dtype: case.dtype.to_string(), ..row.with_bandwidth(case) }
}
