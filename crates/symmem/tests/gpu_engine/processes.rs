//! Ranks as processes on one device, with or without MPS.

use symmem::ProcessSpawner;
use symmem::cuda::Settings;

use crate::marathon;
use crate::numerics::try_types;
use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, settings};

#[test]
fn processes_reduce_as_threads_do() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for world in [2, 3, 4] {
        ProcessSpawner::new("processes::processes_reduce_as_threads_do", world)
            .env(QUEUES, 4)
            .run(|group| {
                let rank = Rank::new(&group, settings())?;
                try_types(&rank, &[22, 8196, (1 << 20) + 6])
            })
            .unwrap();
    }
}

#[test]
fn a_thousand_replays_are_right_as_processes() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    // Half of a thousand replays of six operations before the wrap.
    let first_epoch = u64::from(u32::MAX) - 3000;
    let wraps = Settings { first_epoch, deadline: Some(PATIENCE / 4), ..settings() };
    ProcessSpawner::new("processes::a_thousand_replays_are_right_as_processes", 2)
        .env(QUEUES, 4)
        .run(|group| marathon::run(&Rank::new(&group, wraps)?))
        .unwrap();
}
