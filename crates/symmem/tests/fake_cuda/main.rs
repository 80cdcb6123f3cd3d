//! Device memory without a device: provider, exchange and rendezvous on a fake CUDA driver, where device
//! memory is host memory and any call can be made to fail.

#[path = "../common/mod.rs"]
mod common;

mod algorithms;
mod captures;
mod devices;
mod fabric;
mod failures;
mod fake;
mod forked;
mod inspected;
mod kept;
mod local;
mod memory;
mod multimem;
mod products;
mod profile;
mod queues;
#[cfg(feature = "faults")]
mod recorded;
#[cfg(feature = "faults")]
mod slab;
mod traced;
mod tuned;

use symmem::cuda::{Device, Engine, SymmetricMemory};
use symmem::{Error, Group, Result};

/// As many devices as any test has ranks.
const DEVICES: (&str, &str) = ("FAKECUDA_UUIDS", "gpu-a,gpu-b,gpu-c,gpu-d");

/// Collective. An engine on a device of this rank's own.
fn engine(group: &Group) -> Result<Engine> {
    Engine::new(group, &Device::new(group.rank())?)
}

/// Collective. Every rank's error as the others would have to see it: variant and what it says, without whose
/// it is.
fn everybodys<T>(group: &Group, result: &Result<T>) -> Result<Vec<String>> {
    let mine = match result {
        Ok(_) => "fine".to_owned(),
        Err(Error::Rank { rank, message, .. }) => format!("rank {rank}: {message}"),
        Err(Error::Mismatch { what, values, .. }) => format!("mismatch of {what}: {values:?}"),
        Err(Error::GroupFailed { culprit, .. }) => format!("the group failed by {culprit}"),
        Err(other) => other.to_string(),
    };
    let all = group.all_gather_bytes(mine.as_bytes())?;
    Ok(all.into_iter().map(|said| String::from_utf8(said).expect("text")).collect())
}

/// Collective. What all ranks say, which must be the same.
fn unanimous<T>(group: &Group, result: &Result<T>) -> Result<String> {
    let mut all = everybodys(group, result)?;
    assert!(all.iter().all(|said| *said == all[0]), "ranks disagree: {all:?}");
    Ok(all.swap_remove(0))
}

/// Element `index` at the device address `address`: device memory is host memory here.
fn peek<T: Copy>(address: u64, index: usize) -> T {
    // SAFETY: callers ask for what they have just been told is mapped.
    unsafe { (address as *const T).add(index).read_volatile() }
}

/// Collective. Fills this rank's memory with its rank, and looks at everybody's.
fn check(memory: &SymmetricMemory<f32>) -> Result<()> {
    let stream = symmem::cuda::Stream::new(memory.device())?;
    memory.write(&vec![memory.rank() as f32; memory.len()], &stream)?;
    memory.group().barrier()?;
    for (rank, address) in memory.peer_ptrs().iter().enumerate().filter(|_| !memory.is_empty()) {
        assert_eq!(peek::<f32>(*address, memory.len() - 1), rank as f32);
    }
    // Pads are zero, and everybody's is everybody's.
    for rank in 0..memory.world_size() {
        assert_eq!(peek::<u32>(memory.pad_ptr(rank)?, memory.rank()), 0);
    }
    memory.group().barrier()
}
