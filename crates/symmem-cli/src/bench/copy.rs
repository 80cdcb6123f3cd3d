//! Peer copies: every rank reads from the next one, all at once.
//!
//! The owner writes its buffer again before every copy, so no reader finds an old copy in its cache, and
//! every copy is compared with what the owner must have written.

use symmem::{Result, SymmetricMemory};

use super::lab::Lab;
use super::report::Row;
use crate::args::{BenchArgs, short};

const WORD: usize = size_of::<u64>();
/// Bytes of the copies; a quick run leaves the last one out.
const SIZES: [usize; 4] = [8, 64 << 10, 1 << 20, 16 << 20];
/// Bytes to copy per size, as far as the bounds on the number of copies allow.
const TOTAL: usize = 512 << 20;

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs) -> usize {
    sizes(args).len()
}

fn sizes(args: &BenchArgs) -> &'static [usize] {
    if args.is_quick() { &SIZES[..3] } else { &SIZES }
}

/// A row for each size.
pub(super) fn run(lab: &Lab<'_>) -> Result<Vec<Row>> {
    let sizes = sizes(lab.args);
    let largest = sizes.iter().max().copied().unwrap_or(WORD);
    let mut mem = lab.group.alloc::<u64>(largest / WORD)?.rendezvous(lab.group)?;
    let mut rows = Vec::new();
    for bytes in sizes {
        lab.start(&format!("copy {}", short(*bytes)));
        rows.push(one_size(lab, &mut mem, *bytes)?);
        lab.step();
    }
    mem.close()?;
    Ok(rows)
}

fn one_size(lab: &Lab<'_>, mem: &mut SymmetricMemory<u64>, bytes: usize) -> Result<Row> {
    let copies = if lab.args.is_quick() { 10 } else { (TOTAL / bytes).clamp(32, 2000) };
    let from = lab.group.next();
    let mut out = vec![0; bytes / WORD];
    let mut right = true;
    let mut own = Vec::with_capacity(copies);
    for copy in 0..copies {
        let ours = pattern(mem.rank(), copy);
        mem.local_mut()?.iter_mut().zip(ours).take(out.len()).for_each(|(word, value)| *word = value);
        mem.barrier(0)?;
        let start = lab.clock.now();
        mem.get(from, 0, &mut out)?;
        own.push(lab.clock.now() - start);
        right &= out.iter().copied().eq(pattern(from, copy).take(out.len()));
        // Only now may the owner write again.
        mem.barrier(0)?;
    }
    let mut samples = lab.slowest(&own)?;
    let row = lab.row("copy", "get", &mut samples, lab.all_right(right)?);
    let gb_per_s = Some(bytes as f64 / row.us.p50.max(1e-3) / 1e3);
    Ok(Row { bytes, gb_per_s, ..row })
}

/// The words that `rank` writes before its `copy`-th copy: different for every rank, copy and position.
fn pattern(rank: usize, copy: usize) -> impl Iterator<Item = u64> {
    let seed = (rank as u64) << 56 ^ (copy as u64) << 32;
    // An odd factor and a shift spread every bit of the position; both can be undone, so no two words are
    // equal.
    (0..).map(move |position: u64| {
        let word = (seed ^ position).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^ word >> 29
    })
}
