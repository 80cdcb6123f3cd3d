//! What every symmetric memory must do, whatever its provider and however its ranks came to be.
//!
//! A behaviour is a function over a group, named after what it states, and listed once, in `table.rs`. Here are the
//! kinds of ranks it is run on: threads, processes that this program starts again, and processes that a launcher
//! started against a store that still holds the keys of earlier attempts. A new provider or a new kind of rank is one
//! more line below; it is done when everything passes.

#[path = "../common/mod.rs"]
mod common;

mod allocation;
mod borrow;
mod exchange;
mod failure;
mod groups;
mod large;
#[cfg(feature = "faults")]
mod leftovers;
mod memory;
mod signal;
mod table;

use common::PATIENCE;
use symmem::{Group, ProcessSpawner, Result};

use self::table::{ALL, Behaviour, LARGE};

/// Host shared memory.
const SHM: &str = "shm";

/// Runs `behaviour` on ranks of `world` that have just met.
fn state(provider: &str, world: &Group, behaviour: Behaviour) -> Result<()> {
    assert_eq!(world.context().backend(), provider);
    behaviour(&world.within(PATIENCE))
}

/// Runs every behaviour of `table`, each on a group of its own so that it may ruin it.
fn state_all(provider: &str, world: &Group, table: &[(&str, Behaviour)]) -> Result<()> {
    for (name, behaviour) in table {
        let outcome = state(provider, &world.within(PATIENCE).try_clone()?, *behaviour);
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
        world.within(PATIENCE).barrier()?;
    }
    Ok(())
}

/// The behaviour on threads, in worlds of 1 to 5.
fn on_threads(provider: &str, behaviour: Behaviour) {
    for ranks in 1..=5 {
        symmem::spawn(ranks, |world| state(provider, &world, behaviour))
            .unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
    }
}

/// All behaviours on processes that this program starts again for the test `name`.
fn on_processes(provider: &str, name: &str, ranks: usize) {
    let spawner = ProcessSpawner::new(name, ranks).env("SYMMEM_TIMEOUT", PATIENCE.as_secs());
    spawner.run(|world| state_all(provider, &world, ALL)).unwrap();
}

/// All behaviours on processes that a launcher started, in the second attempt.
#[cfg(feature = "faults")]
fn on_a_second_attempt(provider: &str, name: &str, ranks: usize) {
    use common::{Launch, is_rank_of};
    if is_rank_of(name) {
        return leftovers::end_early_or(|world| state_all(provider, &world, ALL).unwrap());
    }
    let agent = common::serve();
    leftovers::leave(&Launch::new(name, ranks, agent.port()));
    for rank in Launch::new(name, ranks, agent.port()).attempt(1).run() {
        rank.expect();
    }
}

/// Memory that takes gigabytes: one rank, one after the other.
#[test]
fn large_memory_on_shm() {
    symmem::spawn(1, |world| state_all(SHM, &world, LARGE)).unwrap();
}

/// A test per kind of ranks and world size; its name is what its processes are told to run.
macro_rules! worlds {
    ($module:ident: $run:ident($provider:expr), $($test:ident = $ranks:literal),*) => {
        mod $module {
            $(#[test]
            fn $test() {
                super::$run($provider, concat!(stringify!($module), "::", stringify!($test)), $ranks);
            })*
        }
    };
}

worlds!(processes_on_shm: on_processes(crate::SHM), one_rank = 1, two_ranks = 2, three_ranks = 3, four_ranks = 4);

#[cfg(feature = "faults")]
worlds!(
    second_attempt_on_shm: on_a_second_attempt(crate::SHM),
    one_rank = 1, two_ranks = 2, three_ranks = 3, four_ranks = 4
);

/// Everything again on groups that pass the end of 32 bits: epochs have 64, futexes half of them.
#[cfg(feature = "faults")]
mod epochs_beyond_32_bits_on_shm {
    use super::{ALL, Group, PATIENCE, ProcessSpawner, Result, SHM, state_all};

    /// Near enough that even the shortest behaviour passes it.
    const START: u64 = (1 << 32) - 3;

    fn run(world: Group) -> Result<()> {
        symmem::fault::set_start_epoch(START);
        let world = world.within(PATIENCE).try_clone()?;
        (0..6).try_for_each(|_| world.barrier())?;
        state_all(SHM, &world, ALL)
    }

    #[test]
    fn threads() {
        symmem::spawn(3, run).unwrap();
    }

    #[test]
    fn processes() {
        ProcessSpawner::new("epochs_beyond_32_bits_on_shm::processes", 2).run(run).unwrap();
    }
}
