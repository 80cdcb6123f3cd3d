//! Signals, there and back: the even rank of a pair puts and waits, the odd one waits and puts.
//!
//! All pairs play at once; a rank without a partner sits out. The time is that of the round trip, two signals.

use symmem::{Result, SymmetricMemory};

use super::lab::Lab;
use super::report::Row;
use crate::args::BenchArgs;

const CHANNEL: usize = 0;
/// Round trips in which payloads are checked.
const ROUNDS: u64 = 500;
/// Words of a payload: enough that one still being written does not pass for a whole one.
const PAYLOAD: usize = 512;

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs) -> usize {
    args.blocks().div_ceil(4)
}

/// The row of the round trip.
pub(super) fn run(lab: &Lab<'_>) -> Result<Vec<Row>> {
    let mut mem = lab.group.alloc::<u64>(PAYLOAD)?.rendezvous(lab.group)?;
    let partner = Some(mem.rank() ^ 1).filter(|partner| *partner < mem.world_size());
    let right = partner.map_or(Ok(true), |partner| verify(&mut mem, partner))?;
    let verified = lab.all_right(right)?;

    let mut samples = Vec::new();
    lab.start("signal");
    for _ in 0..steps(lab.args) {
        let round_trip = || partner.map_or(Ok(()), |partner| round_trip(&mem, partner));
        samples.extend(lab.time(lab.args.iters(), round_trip)?);
        lab.step();
    }
    mem.close()?;
    Ok(vec![lab.row("signal", "round trip", &mut samples, verified)])
}

#[inline]
fn round_trip(mem: &SymmetricMemory<u64>, partner: usize) -> Result<()> {
    if mem.rank() < partner {
        mem.put_signal(partner, CHANNEL)?;
        return mem.wait_signal(partner, CHANNEL);
    }
    mem.wait_signal(partner, CHANNEL)?;
    mem.put_signal(partner, CHANNEL)
}

/// Whether who waited for a signal sees what its sender wrote before, and nothing later.
fn verify(mem: &mut SymmetricMemory<u64>, partner: usize) -> Result<bool> {
    let first = mem.rank() < partner;
    let mut right = true;
    for round in 1..=ROUNDS {
        // Whoever is told first writes first; the other still has what it wrote in the round before.
        if first {
            mem.fill(round)?;
            mem.put_signal(partner, CHANNEL)?;
            mem.wait_signal(partner, CHANNEL)?;
            right &= mem.peer(partner)?.to_vec()? == [round; PAYLOAD];
        } else {
            mem.wait_signal(partner, CHANNEL)?;
            right &= mem.peer(partner)?.to_vec()? == [round; PAYLOAD];
            mem.fill(round)?;
            mem.put_signal(partner, CHANNEL)?;
        }
    }
    Ok(right)
}
