//! What `symmem::inspect` says of ranks with GPUs, without asking the GPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use symmem::cuda::Stream;
use symmem::inspect::{self, GroupState};

use crate::common::PATIENCE;
use crate::{DEVICES, engine, fake};

/// The first state of the group that is as `wanted`.
fn until(id: &str, wanted: impl Fn(&GroupState) -> bool) -> GroupState {
    let start = Instant::now();
    loop {
        let groups = inspect::groups().expect("/proc can be read");
        let group = groups.into_iter().find(|group| group.id == id).expect("this rank's group");
        if wanted(&group) {
            return group;
        }
        assert!(start.elapsed() < PATIENCE, "it never came: {group:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_has_launched_less_than_the_others_is_waited_for() {
    const NAME: &str = "inspected::who_has_launched_less_than_the_others_is_waited_for";
    fake::run(NAME, &[DEVICES, ("SYMMEM_LANES", "2")], || {
        let over = AtomicBool::new(false);
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let stream = Stream::new(engine.device())?;
            engine.barrier(&stream)?;
            if group.rank() != 1 {
                engine.lane(1)?.barrier(&stream)?;
            }
            group.barrier()?;
            if group.rank() == 0 {
                let state = until(group.id(), |state| state.ranks[0].waiting.is_some());
                assert_eq!(state.culprits, [1]);
                let wait = state.ranks[0].waiting.as_ref().expect("it waits");
                assert_eq!((&wait.ranks[..], wait.lane, wait.operation), (&[1][..], Some((0, 1)), "barrier"));
                for (rank, launches) in [[1, 1], [1, 0], [1, 1]].into_iter().enumerate() {
                    let device = &state.ranks[rank].devices[0];
                    let lanes: Vec<u64> = device.lanes.iter().map(|lane| lane.launches).collect();
                    assert_eq!((device.device, &lanes[..]), (rank, &launches[..]));
                    assert!(device.failure.is_none() && !device.is_aborted);
                    assert_eq!(device.lanes[0].last, Some("barrier"));
                }
                // Of the two that wait, the GPU of the one that has waited longest is named.
                let sentence = state.explain();
                assert!(sentence.contains("waited for rank 1 in barrier (GPU "), "{sentence}");
                assert!(sentence.contains(", lane 1) for "), "{sentence}");
                group.abort("seen enough");
                let state =
                    until(group.id(), |state| state.ranks.iter().all(|rank| rank.devices[0].is_aborted));
                assert!(state.explain().contains("seen enough"), "{}", state.explain());
                over.store(true, Ordering::Relaxed);
            }
            let start = Instant::now();
            while !over.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
        .unwrap();
    });
}
