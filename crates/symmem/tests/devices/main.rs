//! What every memory of devices must do, whatever its provider, however its ranks came to be, and whoever carries the work.
//!
//! A behaviour is a function over a rank: its group, its engine and a stream. It is listed once, in `table.rs`, with what it
//! needs. Here are the kinds of ranks it is run on: memory of the driver or of NCCL, threads or processes, all in reach of
//! each other or some, or all, marked as out of reach, so that NCCL carries the work; and the fake driver with the fake NCCL,
//! which need no GPU. What a kind lacks is stated (`stage::Kind::lacks`), and what is left out for it is printed.
//!
//! Kinds on a GPU share one device, and skip themselves, with a printed reason, where there is none, or no NCCL that lets
//! ranks share it. Every wait is bounded: by the device's deadline, by that of `sync`, and by the group's.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fake_cuda/fake.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../fake_nccl/fake.rs"]
#[allow(dead_code)]
mod fake;

mod allocation;
mod barrier;
mod collectives;
mod failure;
mod graphs;
mod groups;
mod memory;
mod order;
mod signals;
mod stage;
mod table;
mod value;
mod words;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use symmem::cuda::{Provider, Status};
use symmem::{Group, ProcessSpawner, Result};

use self::stage::{Kind, PATIENCE, Rank, Ranks, alone, is_there};
use self::table::ALL;

/// Runs every behaviour that this kind of ranks can, one after the other on one engine: what ruins an engine makes its own.
fn state_all(kind: Kind, world: &Group) -> Result<()> {
    let rank = Rank::first(kind, &world.within(PATIENCE))?;
    for behaviour in ALL.iter().filter(|behaviour| behaviour.runs_on(kind, world.size())) {
        let outcome = catch_unwind(AssertUnwindSafe(|| (behaviour.run)(&rank)));
        let said = match &outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("see above".to_owned()),
        };
        if let Some(said) = said {
            eprintln!("{} on {kind}, rank {} of {}: {said}", behaviour.name, world.rank(), world.size());
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
        assert_eq!(rank.engine.status(), Status::Whole, "{}", behaviour.name);
        // Everybody has let go of what it made.
        world.within(PATIENCE).barrier()?;
    }
    rank.end()
}

/// Says what is left out, and why.
fn tell(kind: Kind, world: usize) {
    let left_out = ALL.iter().filter_map(|behaviour| Some((behaviour, behaviour.missing(kind, world)?)));
    for (behaviour, missing) in left_out {
        println!("{kind}, {world} ranks: without {}: it needs {missing}", behaviour.name);
    }
}

/// All behaviours on ranks of a GPU, in processes that this program starts again for the test `name`.
fn on_device(kind: Kind, name: &str, world: usize) {
    if !is_there(kind) {
        return;
    }
    let _alone = alone();
    tell(kind, world);
    let result = match kind.ranks {
        // One process with its own environment: the driver reads it when it is loaded.
        Ranks::Threads => spawner(kind, name, 1, world).run(|_| on_threads(kind, world)).map(drop),
        _ => spawner(kind, name, world, world).run(|group| state_all(kind, &group)).map(drop),
    };
    result.unwrap_or_else(|error| panic!("{kind}, {world} ranks: {error}"));
}

fn on_threads(kind: Kind, world: usize) -> Result<()> {
    symmem::spawn(world, |group| state_all(kind, &group)).map(drop)
}

/// `processes` processes with `world` ranks in all.
fn spawner(kind: Kind, name: &str, processes: usize, world: usize) -> ProcessSpawner {
    let mut spawner = ProcessSpawner::new(name, processes)
        // A queue for each stream of all threads; processes have few, for a server of MPS has a limited number for all.
        .env("CUDA_DEVICE_MAX_CONNECTIONS", if processes < world { 32 } else { 8 })
        .env("SYMMEM_ALLOW_OVERLAPPING_DEVICES", 1)
        .env("SYMMEM_TIMEOUT", PATIENCE.as_secs());
    if kind.provider == Provider::Nccl {
        spawner = spawner
            .env("NCCL_MULTI_RANK_GPU_ENABLE", 1)
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100 / processes);
    }
    spawner
}

/// All behaviours without a GPU: on the fake driver, where the fake NCCL carries everything.
fn on_fakes(kind: Kind, name: &str, world: usize) {
    const DEVICES: (&str, &str) = ("FAKECUDA_UUIDS", "gpu-a,gpu-b,gpu-c,gpu-d");
    fake::run(name, &[DEVICES], || {
        tell(kind, world);
        on_threads(kind, world).unwrap_or_else(|error| panic!("{kind}, {world} ranks: {error}"));
        stage::nothing_is_left();
    });
}

/// A test per kind of ranks and world size; its name is what its processes are told to run.
macro_rules! worlds {
    ($module:ident: $run:ident($kind:expr), $($test:ident = $ranks:literal),*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$run($kind, concat!(stringify!($module), "::", stringify!($test)), $ranks);
            })*
        }
    };
}

worlds!(
    on_fakes: on_fakes(crate::Kind::FAKE),
    one_rank = 1, two_ranks = 2, three_ranks = 3, four_ranks = 4
);

worlds!(
    vmm_on_threads: on_device(crate::Kind::VMM.on_threads()),
    one_rank = 1, two_ranks = 2, three_ranks = 3, four_ranks = 4
);
worlds!(vmm_on_processes: on_device(crate::Kind::VMM), one_rank = 1, two_ranks = 2, four_ranks = 4);
worlds!(nccl_on_threads: on_device(crate::Kind::NCCL.on_threads()), two_ranks = 2, four_ranks = 4);
worlds!(nccl_on_processes: on_device(crate::Kind::NCCL), two_ranks = 2, four_ranks = 4);
worlds!(nccl_without_rank_0: on_device(crate::Kind::NCCL.without(&[0])), two_ranks = 2, four_ranks = 4);
worlds!(nccl_without_rank_1: on_device(crate::Kind::NCCL.without(&[1])), two_ranks = 2, four_ranks = 4);
worlds!(nccl_without_any: on_device(crate::Kind::NCCL.without(crate::stage::ALL_FAR)), two_ranks = 2, four_ranks = 4);
