//! Memory of GPUs: each rank on a device of its own, or both on the only one.

use std::time::{Duration, Instant};

use symmem::cuda::{Device, Engine, Settings, Stream};
use symmem::nccl::{self, Version};
use symmem::{Group, ProcessSpawner, ReduceOp, Result};

use super::super::row::Fact;
use super::{BARRIERS, LEN, Outcome, RANKS, fact, first_wrong, input, us};

/// Seconds after which a rank stops to wait: kernels may have to be compiled meanwhile.
const PATIENCE: u64 = 40;
/// The first NCCL that takes several ranks on one GPU.
const SHARED_GPU: Version = Version::new(2, 30, 3);
/// The first NCCL with windows.
const WINDOWS: Version = Version::new(2, 27, 3);

/// Tries memory of the driver.
pub(in crate::doctor) fn vmm() -> Fact {
    match Device::count() {
        Err(error) => Fact::failure("vmm", &error.to_string()),
        Ok(_) => run("vmm"),
    }
}

/// Tries memory in windows of NCCL, where there is an NCCL that can do it.
pub(in crate::doctor) fn nccl() -> Fact {
    const NAME: &str = "nccl";
    let (devices, library) = match (Device::count(), nccl::library()) {
        (Err(error), _) => return Fact::failure(NAME, &error.to_string()),
        (_, Err(_)) => return Fact::skip(NAME, "there is no NCCL"),
        (Ok(devices), Ok(library)) => (devices, library),
    };
    if library.version < WINDOWS {
        return Fact::skip(
            NAME,
            format!("NCCL {} has no windows, which came with {WINDOWS}", library.version),
        );
    }
    if devices < RANKS && library.version < SHARED_GPU {
        return Fact::skip(
            NAME,
            format!(
                "NCCL {} takes one rank a GPU, and there is one GPU; {SHARED_GPU} takes more",
                library.version
            ),
        );
    }
    let has_mps = Device::new(0).is_ok_and(|device| device.has_mps());
    if devices < RANKS && !has_mps {
        return Fact::skip(NAME, "two ranks on one GPU need MPS with NCCL; start nvidia-cuda-mps-control -d");
    }
    run(NAME)
}

/// Starts the ranks; the provider has the name of the row.
fn run(provider: &'static str) -> Fact {
    let start = Instant::now();
    let spawner = ProcessSpawner::new(&format!("doctor-{provider}"), RANKS)
        .env("SYMMEM_TIMEOUT", PATIENCE)
        .env("SYMMEM_PROVIDER", provider)
        .env("SYMMEM_ALLOW_OVERLAPPING_DEVICES", 1)
        .env("NCCL_MULTI_RANK_GPU_ENABLE", 1);
    fact(provider, start, spawner.run(|group| rank(&group)))
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
