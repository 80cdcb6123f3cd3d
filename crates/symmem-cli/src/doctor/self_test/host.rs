//! Memory of the host.

use std::time::Instant;

use symmem::cuda::Provider;
use symmem::{Group, ProcessSpawner, ReduceOp, Result};

use super::super::row::Fact;
use super::{BARRIERS, LEN, Outcome, PATIENCE, RANKS, fact, first_wrong, input, us};

/// Tries it.
pub(super) fn run(provider: Provider) -> Fact {
    let start = Instant::now();
    let spawner = ProcessSpawner::new(&format!("doctor-{provider}"), RANKS)
        .env("SYMMEM_TIMEOUT", PATIENCE)
        .env("SYMMEM_PROVIDER", provider);
    fact(provider.name(), start, spawner.run(|group| rank(&group)))
}

fn rank(group: &Group) -> Result<Outcome> {
    let mut array = group.alloc::<f32>(LEN)?;
    for (at, element) in array.local_mut()?.iter_mut().enumerate() {
        *element = input(group.rank(), at);
    }
    let start = Instant::now();
    let mut memory = array.rendezvous(group)?;
    let rendezvous = us(start.elapsed());
    let start = Instant::now();
    memory.all_reduce(ReduceOp::Sum)?;
    let all_reduce = us(start.elapsed());
    let wrong = first_wrong(&memory.local()?);
    memory.put_signal(group.next(), 0)?;
    memory.wait_signal(group.prev(), 0)?;
    let start = Instant::now();
    for _ in 0..BARRIERS {
        group.barrier()?;
    }
    let barrier = us(start.elapsed()) / f64::from(BARRIERS);
    memory.close()?;
    Ok(Outcome { rendezvous, all_reduce, barrier, wrong })
}
