//! Signals, there and back: the even rank of a pair puts and waits, the odd one waits and puts.
//!
//! All pairs play at once; a rank without a partner sits out. The time is that of the round trip, two
//! signals. Beside busy loops a bare ping-pong by futex takes turns with it.

use symmem::{Element, Result, SymmetricMemory};

use super::collective::{Case, Limits, one_case};
use super::lab::Lab;
use super::report::Row;
use crate::args::{BenchArgs, Memory};

const OP: &str = "signal";
/// What the rows call it.
pub(super) const WAY: &str = "round trip";
const CHANNEL: usize = 0;
/// Round trips in which payloads are checked.
const ROUNDS: u64 = 500;
/// Words of a payload: enough that one still being written does not pass for a whole one.
const PAYLOAD: usize = 512;

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs) -> usize {
    args.blocks().div_ceil(4)
}

/// The row of the round trip, and beside busy loops that of the limit.
pub(super) fn run(lab: &Lab<'_>) -> Result<Vec<Row>> {
    let mut mem = lab.group.alloc::<u64>(PAYLOAD)?.rendezvous(lab.group)?;
    let right = partner(&mem).map_or(Ok(true), |partner| verify(&mut mem, partner))?;
    let verified = lab.all_right(right)?;

    lab.start(OP);
    let round_trip = || round_trip(&mem);
    let rows = match lab.load {
        0 => alone(lab, round_trip, verified)?,
        _ => {
            let mut rows = one_case(lab, &Case::SIGNAL, &[Memory::Symmetric], Limits::Futex)?;
            rows.iter_mut().for_each(|row| row.verified &= verified);
            rows
        }
    };
    mem.close()?;
    Ok(rows)
}

fn alone(lab: &Lab<'_>, mut round_trip: impl FnMut() -> Result<()>, verified: bool) -> Result<Vec<Row>> {
    let mut samples = Vec::new();
    for _ in 0..steps(lab.args) {
        samples.extend(lab.time(lab.args.iters(), &mut round_trip)?);
        lab.step();
    }
    Ok(vec![lab.row(OP, WAY, &mut samples, verified)])
}

/// The other of this rank's pair, if it has one.
fn partner<T: Element>(mem: &SymmetricMemory<T>) -> Option<usize> {
    Some(mem.rank() ^ 1).filter(|partner| *partner < mem.world_size())
}

/// There and back; a rank without a partner sits out.
#[inline]
pub(super) fn round_trip<T: Element>(mem: &SymmetricMemory<T>) -> Result<()> {
    let Some(partner) = partner(mem) else { return Ok(()) };
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
