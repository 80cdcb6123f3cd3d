//! Barrier of the handle, beside the limit: blocks of both by turns in the same processes, on the same cores.

use symmem::{Result, SymmetricMemory};

use super::futex::{Form, Lines};
use super::lab::Lab;
use super::limit::{Limit, STRIDE};
use super::report::Row;
use super::turns::Turns;
use crate::args::BenchArgs;

/// Rounds in which the order that a barrier makes is checked.
const ROUNDS: u64 = 500;

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs) -> usize {
    args.blocks()
}

/// The rows of the limit and of the library.
pub(super) fn run(lab: &Lab<'_>) -> Result<Vec<Row>> {
    let mut mem = lab.group.alloc::<u64>(1)?.rendezvous(lab.group)?;
    let flags = lab.group.alloc::<u64>(STRIDE * lab.group.size())?.rendezvous(lab.group)?;
    let rows = match (lab.load, lab.crowded) {
        (0, crowded) => {
            let mut limit = Limit::new(&flags, crowded);
            let waits = if crowded { "flags, yielding" } else { "flags, spinning" };
            beside(lab, &mut mem, waits, || limit.meet_all())
        }
        _ => {
            let mut lines = Lines::new(&flags);
            beside(lab, &mut mem, Form::Exchange.name(), || lines.exchange())
        }
    }?;
    mem.close()?;
    flags.close()?;
    Ok(rows)
}

fn beside(
    lab: &Lab<'_>,
    mem: &mut SymmetricMemory<u64>,
    name: &str,
    mut bare: impl FnMut() -> Result<()>,
) -> Result<Vec<Row>> {
    let bare_verified = lab.all_right(verify(mem, |_| bare())?)?;
    let verified = lab.all_right(verify(mem, |mem| mem.barrier(0))?)?;
    lab.start("barrier");
    let turns = Turns::take(lab, steps(lab.args), bare, || mem.barrier(0))?;
    Ok(turns.rows(lab, "barrier", (name, bare_verified), ("all-to-all epochs", verified)))
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
