//! The limit and the library by turns: blocks of both in the same processes, on the same cores.

use symmem::Result;

use super::lab::Lab;
use super::report::Row;
use super::stats::{Percentiles, Ratio};

/// The samples of both, block by block.
#[derive(Default)]
pub(super) struct Turns {
    bare: Vec<Vec<u64>>,
    ours: Vec<Vec<u64>>,
}

impl Turns {
    /// Collective. Times so many blocks of each.
    pub(super) fn take(
        lab: &Lab<'_>,
        blocks: usize,
        mut bare: impl FnMut() -> Result<()>,
        mut ours: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let (mut turns, iters) = (Self::default(), lab.args.iters(lab.load));
        for block in 0..blocks {
            // Whoever comes second finds a warmer or a more tired machine, so that changes with every block.
            for turn in [block % 2, (block + 1) % 2] {
                match turn {
                    0 => turns.bare.push(lab.time(iters, &mut bare)?),
                    _ => turns.ours.push(lab.time(iters, &mut ours)?),
                }
            }
            lab.step();
        }
        Ok(turns)
    }

    /// The row of the limit and that of the library, with the medians of the blocks' ratios. Each has a name and is
    /// verified or not.
    pub(super) fn rows(self, lab: &Lab<'_>, op: &str, bare: (&str, bool), ours: (&str, bool)) -> Vec<Row> {
        let ratio = ratio(lab, &self.ours, &self.bare);
        let row = |blocks: Vec<Vec<u64>>, (name, verified)| lab.row(op, name, &mut blocks.concat(), verified);
        let (bare, ours) = (row(self.bare, bare), row(self.ours, ours));
        vec![bare.as_limit(), ours.beside_limit(ratio)]
    }
}

/// The medians of the blocks' ratios.
pub(super) fn ratio(lab: &Lab<'_>, ours: &[Vec<u64>], theirs: &[Vec<u64>]) -> Option<Ratio> {
    let times = |blocks: &[Vec<u64>]| -> Vec<Percentiles<f64>> {
        let of =
            |block: &Vec<u64>| Percentiles::of(&mut block.clone()).map(|ticks| lab.clock.us(ticks.max(1)));
        blocks.iter().map(of).collect()
    };
    Ratio::of(times(ours).iter().zip(&times(theirs)))
}
