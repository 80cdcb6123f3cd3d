//! Barrier of the handle, beside the limit: blocks of both by turns in the same processes, on the same cores.
//! Beside busy loops the limit is that of [`super::futex`].

use symmem::{Result, SymmetricMemory};

use super::collective::barrier_beside_futex;
use super::lab::Lab;
use super::limit::{Limit, STRIDE};
use super::report::Row;
use super::stats::{Percentiles, median};
use crate::args::BenchArgs;

/// Rounds in which the order that a barrier makes is checked.
const ROUNDS: u64 = 500;

/// How ours works.
pub(super) const NAME: &str = "all-to-all epochs";

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs) -> usize {
    args.blocks()
}

/// The rows of the limit and of the library.
pub(super) fn run(lab: &Lab<'_>) -> Result<Vec<Row>> {
    let mut mem = lab.group.alloc::<u64>(1)?.rendezvous(lab.group)?;
    if lab.load > 0 {
        lab.start("barrier");
        let verified = lab.all_right(verify(&mut mem, |mem| mem.barrier(0))?)?;
        mem.close()?;
        return barrier_beside_futex(lab, verified);
    }
    let flags = lab.group.alloc::<u64>(STRIDE * lab.group.size())?.rendezvous(lab.group)?;
    let mut limit = Limit::new(&flags, lab.crowded);
    let mut bare = || limit.meet_all();

    let bare_verified = lab.all_right(verify(&mut mem, |_| bare())?)?;
    let verified = lab.all_right(verify(&mut mem, |mem| mem.barrier(0))?)?;

    let mut times = Times::default();
    lab.start("barrier");
    for block in 0..steps(lab.args) {
        // Whoever comes second finds a warmer or a more tired machine, so that changes with every block.
        for turn in [block % 2, (block + 1) % 2] {
            match turn {
                0 => times.bare.push(lab.time(lab.args.iters(), &mut bare)?),
                _ => times.ours.push(lab.time(lab.args.iters(), || mem.barrier(0))?),
            }
        }
        lab.step();
    }
    mem.close()?;
    flags.close()?;
    Ok(times.rows(lab, bare_verified, verified))
}

/// Whether after a meeting every rank sees what every rank wrote before it, and nothing later.
fn verify(
    mem: &mut SymmetricMemory<u64>,
    mut meet: impl FnMut(&SymmetricMemory<u64>) -> Result<()>,
) -> Result<bool> {
    let mut right = true;
    for round in 1..=ROUNDS {
        mem.local_mut()?[0] = round;
        meet(mem)?;
        for rank in 0..mem.world_size() {
            right &= mem.peer(rank)?.read(0)? == round;
        }
        meet(mem)?;
    }
    Ok(right)
}

/// The samples of both systems, block by block.
#[derive(Default)]
struct Times {
    bare: Vec<Vec<u64>>,
    ours: Vec<Vec<u64>>,
}

impl Times {
    fn rows(&self, lab: &Lab<'_>, bare_verified: bool, verified: bool) -> Vec<Row> {
        let ratio = self.ratio();
        let waits = if lab.crowded { "flags, yielding" } else { "flags, spinning" };
        let bare = lab.row("barrier", waits, &mut self.bare.concat(), bare_verified);
        let ours = lab.row("barrier", NAME, &mut self.ours.concat(), verified);
        vec![
            Row { system: "limit".to_owned(), ratio_to_limit: Some(1.0), ..bare },
            Row { ratio_to_limit: Some(ratio), ..ours },
        ]
    }

    /// The median of the blocks' ratios, each that of their median operations.
    fn ratio(&self) -> f64 {
        let typical = |block: &Vec<u64>| Percentiles::of(&mut block.clone()).p50.max(1) as f64;
        let pairs = self.ours.iter().zip(&self.bare);
        median(pairs.map(|(ours, bare)| typical(ours) / typical(bare)).collect())
    }
}
