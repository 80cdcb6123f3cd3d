//! The program that `cargo xtask compare` builds against two revisions of the library.
//!
//! It uses only what every revision since the first has, because it is compiled with old ones too. The folder
//! of the revision gets a copy of it as a crate of its workspace.
//!
//! `bench FILE` times every row on two ranks, which are processes, and writes the medians as JSON.
//! `count OP BYTES TIMES` runs one operation so often in a group of one, and is silent: something else counts
//! instructions.

use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use symmem::{Group, ReduceOp, Result, SymmetricMemory};

const RANKS: usize = 2;
/// Blocks of every row. They take turns, so that a disturbance of the machine does not hit one row alone.
const BLOCKS: usize = 61;
/// Blocks that are measured on a machine that is too busy for more in this time.
const FEWEST_BLOCKS: usize = 4;
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes that all blocks of a row move, and the fewest and the most operations of a block.
const BYTES_OF_A_BLOCK: usize = 8 << 20;
const OPERATIONS: std::ops::RangeInclusive<usize> = 8..=1000;

/// What is measured: name of the operation, of its memory, and bytes.
const ROWS: [(&str, &str, usize); 11] = [
    ("barrier", "symmetric", 0),
    ("all_reduce", "symmetric", 8),
    ("all_reduce", "symmetric", 1 << 10),
    ("all_reduce", "symmetric", 8 << 10),
    ("all_reduce", "symmetric", 64 << 10),
    ("all_reduce", "symmetric", 1 << 20),
    ("all_reduce", "private", 8),
    ("all_reduce", "private", 1 << 10),
    ("all_reduce", "private", 8 << 10),
    ("all_reduce", "private", 64 << 10),
    ("all_reduce", "private", 1 << 20),
];

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bench", file] => {
            let times = symmem::spawn_processes("bench", RANKS, |group| bench(&group))?;
            Ok(std::fs::write(file, json(&times[0]))?)
        }
        ["count", op, bytes, times] => {
            let (op, memory) = op.split_once(':').ok_or("OP is NAME:MEMORY")?;
            let (bytes, times): (usize, usize) = (bytes.parse()?, times.parse()?);
            symmem::spawn(1, |group| {
                let mut work = Work::new(&group, op, memory, bytes)?;
                (0..times).try_for_each(|_| work.run(&group))
            })?;
            Ok(())
        }
        _ => Err("usage: bench FILE | count OP:MEMORY BYTES TIMES".into()),
    }
}

/// Collective. The median microseconds of every row, as this rank sees them.
fn bench(group: &Group) -> Result<Vec<f64>> {
    pin(group.rank());
    let new = |&(op, memory, bytes): &(&str, &str, usize)| Work::new(group, op, memory, bytes);
    let mut works = ROWS.iter().map(new).collect::<Result<Vec<_>>>()?;
    for work in &mut works {
        work.verify(group)?;
    }
    let start = Instant::now();
    let mut times = vec![Vec::new(); ROWS.len()];
    for block in 0..BLOCKS {
        for (work, times) in works.iter_mut().zip(&mut times) {
            let time = work.block(group)?;
            // The first block warms up.
            if block > 0 {
                times.push(time);
            }
        }
        // What one rank thinks of the time all must know, to end together.
        let late = group.all_gather(&u8::from(start.elapsed() > LIMIT))?;
        if block >= FEWEST_BLOCKS && late.contains(&1) {
            break;
        }
    }
    Ok(times.into_iter().map(median).collect())
}

/// Keeps a rank on a core of its own, if there are enough.
fn pin(rank: usize) {
    let Ok(all) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    let mut one = CpuSet::new();
    if let Some(core) = cores.get(rank % cores.len().max(1)) {
        one.set(*core);
        // Where it is not allowed, times vary more, in both builds.
        let _ = sched_setaffinity(None, &one);
    }
}

/// An operation and the memory it works on.
struct Work {
    symmetric: SymmetricMemory<f32>,
    private: Vec<f32>,
    kind: Kind,
    bytes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Barrier,
    Symmetric,
    Private,
}

impl Work {
    /// Collective.
    fn new(group: &Group, op: &str, memory: &str, bytes: usize) -> Result<Self> {
        let kind = match (op, memory) {
            ("barrier", _) => Kind::Barrier,
            (_, "symmetric") => Kind::Symmetric,
            _ => Kind::Private,
        };
        let len = (bytes / size_of::<f32>()).max(1);
        Ok(Self { symmetric: group.alloc(len)?.rendezvous(group)?, private: vec![0.0; len], kind, bytes })
    }

    fn run(&mut self, group: &Group) -> Result<()> {
        match self.kind {
            Kind::Barrier => self.symmetric.barrier(0),
            Kind::Symmetric => self.symmetric.all_reduce(ReduceOp::Sum),
            Kind::Private => group.all_reduce(ReduceOp::Sum, &mut self.private),
        }
    }

    /// Collective. A wrong sum ends the program: its time would say nothing. The memory is zero afterwards,
    /// and stays so.
    fn verify(&mut self, group: &Group) -> Result<()> {
        if self.kind == Kind::Barrier {
            return Ok(());
        }
        self.fill((group.rank() + 1) as f32)?;
        self.run(group)?;
        let sum = (group.size() * (group.size() + 1) / 2) as f32;
        let right = |values: &[f32]| values.iter().all(|value| *value == sum);
        let is_right =
            if self.kind == Kind::Private { right(&self.private) } else { right(&self.symmetric.local()?) };
        assert!(is_right, "an all_reduce of {} bytes is wrong", self.bytes);
        self.fill(0.0)
    }

    fn fill(&mut self, value: f32) -> Result<()> {
        self.private.fill(value);
        self.symmetric.local_mut()?.fill(value);
        Ok(())
    }

    /// Collective. Microseconds of an operation.
    fn block(&mut self, group: &Group) -> Result<f64> {
        let operations = (BYTES_OF_A_BLOCK / self.bytes.max(1)).clamp(*OPERATIONS.start(), *OPERATIONS.end());
        self.symmetric.barrier(0)?;
        let start = Instant::now();
        (0..operations).try_for_each(|_| self.run(group))?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / operations as f64)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The shape of `symmem bench --json`, as far as a comparison reads it.
fn json(times: &[f64]) -> String {
    let mut rows = String::new();
    for ((op, form, bytes), us) in ROWS.iter().zip(times) {
        let end = if rows.is_empty() { "" } else { ",\n" };
        let row = format!(
            r#"{{"system":"symmem","op":"{op}","form":"{form}","bytes":{bytes},"ranks":{RANKS},"us":{{"p50":{us}}},"verified":true}}"#
        );
        let _ = write!(rows, "{end}{row}");
    }
    format!("{{\"results\":[{rows}]}}\n")
}
