//! Memory of GPUs: each rank on a device of its own, or both on the only one.

use std::time::{Duration, Instant};

use symmem::cuda::{Device, Engine, Provider, Settings, Stream};
use symmem::{Group, ProcessSpawner, ReduceOp, Result, machine};

use super::super::row::Fact;
use super::{BARRIERS, LEN, Outcome, RANKS, fact, first_wrong, input, us};

/// Seconds after which a rank stops to wait: kernels may have to be compiled meanwhile.
const PATIENCE: u64 = 40;
/// Tries it, where nothing stands in the way.
pub(super) fn run(provider: Provider) -> Fact {
    match machine::obstacle(provider, RANKS).and_then(|found| Device::count().map(|_| found)) {
        Err(error) => return Fact::failure(provider.name(), &error.to_string()),
        Ok(Some(obstacle)) => return Fact::skip(provider.name(), obstacle),
        Ok(None) => {}
    }
    let start = Instant::now();
    let spawner = ProcessSpawner::new(&format!("doctor-{provider}"), RANKS)
        .env("SYMMEM_TIMEOUT", PATIENCE)
        .env("SYMMEM_PROVIDER", provider)
        .env("SYMMEM_ALLOW_OVERLAPPING_DEVICES", 1)
        .env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
    fact(provider.name(), start, spawner.run(|group| rank(&group)))
}

fn rank(group: &Group) -> Result<Outcome> {
    let patience = Duration::from_secs(PATIENCE);
    let device = Device::new(group.rank() % Device::count()?.max(1))?;
    let stream = Stream::new(&device)?;
    let settings = Settings { deadline: Some(patience), ..Settings::from_config(group.context().config()) };
    let engine = Engine::with(group, &device, settings)?;
    let array = engine.alloc::<f32>(LEN)?;
    let inputs: Vec<f32> = (0..LEN).map(|at| input(group.rank(), at)).collect();
    array.write(&inputs, &stream)?;
    let start = Instant::now();
    let memory = array.rendezvous(&engine)?;
    let rendezvous = us(start.elapsed());
    // The first one may load kernels; it is not timed.
    memory.barrier(0, &stream)?;
    engine.sync(&stream, patience)?;
    let start = Instant::now();
    memory.all_reduce(ReduceOp::Sum, &stream)?;
    engine.sync(&stream, patience)?;
    let all_reduce = us(start.elapsed());
    let wrong = first_wrong(&array.read(&stream)?);
    memory.put_signal(group.next(), 0, &stream)?;
    memory.wait_signal(group.prev(), 0, &stream)?;
    let start = Instant::now();
    for _ in 0..BARRIERS {
        memory.barrier(0, &stream)?;
    }
    engine.sync(&stream, patience)?;
    let barrier = us(start.elapsed()) / f64::from(BARRIERS);
    group.barrier()?;
    Ok(Outcome { rendezvous, all_reduce, barrier, wrong })
}
