//! Signals, there and back: the even rank of a pair puts and waits, the odd one waits and puts.
//!
//! All pairs play at once; a rank without a partner sits out. The time is that of the round trip, two signals. Beside busy
//! loops a bare ping-pong by futex takes turns with it.

use symmem::{Result, SymmetricMemory};

use super::futex::{Form, Lines};
use super::lab::Lab;
use super::limit::STRIDE;
use super::report::Row;
use super::turns::Turns;
use crate::args::BenchArgs;

const OP: &str = "signal";
const WAY: &str = "round trip";
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
    let partner = Some(mem.rank() ^ 1).filter(|partner| *partner < mem.world_size());
    let right = partner.map_or(Ok(true), |partner| verify(&mut mem, partner))?;
    let verified = lab.all_right(right)?;

    lab.start(OP);
    let round_trip = || partner.map_or(Ok(()), |partner| round_trip(&mem, partner));
    let rows = match lab.load {
        0 => alone(lab, round_trip, verified)?,
        _ => beside_limit(lab, round_trip, verified)?,
    };
    mem.close()?;
    Ok(rows)
}

fn alone(lab: &Lab<'_>, mut round_trip: impl FnMut() -> Result<()>, verified: bool) -> Result<Vec<Row>> {
    let mut samples = Vec::new();
    for _ in 0..steps(lab.args) {
        samples.extend(lab.time(lab.args.iters(0), &mut round_trip)?);
        lab.step();
    }
    Ok(vec![lab.row(OP, WAY, &mut samples, verified)])
}

fn beside_limit(lab: &Lab<'_>, round_trip: impl FnMut() -> Result<()>, verified: bool) -> Result<Vec<Row>> {
    let flags = lab.group.alloc::<u64>(STRIDE * lab.group.size())?.rendezvous(lab.group)?;
    let mut lines = Lines::new(&flags);
    let turns = Turns::take(lab, steps(lab.args), || lines.ping_pong(), round_trip)?;
    // It carries nothing that could be wrong.
    let rows = turns.rows(lab, OP, (Form::PingPong.name(), true), (WAY, verified));
    flags.close()?;
    Ok(rows)
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
