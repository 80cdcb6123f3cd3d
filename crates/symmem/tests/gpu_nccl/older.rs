//! An older NCCL, which refuses ranks that share a GPU unless each says that it is on a host of its own: one
//! rank, and two over sockets.

use symmem::cuda::{Device, Settings};
use symmem::nccl::{self, Communicator, Version};
use symmem::{Error, Group, ProcessSpawner, ReduceOp, Result};

use crate::collectives::try_types;
use crate::nccl_cases::Rank as Member;
use crate::stage::{PATIENCE, Rank, alone, ranks};

/// Names an older library.
const OLD: &str = "SYMMEM_TEST_OLD_NCCL";

/// Ranks of the older library, where there is one and a device; else says why not.
fn old_ranks(name: &str, world: usize) -> Option<ProcessSpawner> {
    if let Err(error @ Error::NoCuda { .. }) = Device::new(0) {
        println!("skipped: {error}");
        return None;
    }
    let Some(library) = std::env::var_os(OLD) else {
        println!("skipped: {OLD} names no library");
        return None;
    };
    let library = library.to_string_lossy().into_owned();
    Some(ranks(name, world).env("SYMMEM_NCCL_LIBRARY", library).env("NCCL_SOCKET_IFNAME", "lo"))
}

/// Makes this rank's host its own, for NCCL. Before NCCL is loaded.
fn separate(group: &Group) {
    // SAFETY: NCCL, which alone reads it, is not loaded yet, and no other thread of this test changes the
    // environment.
    unsafe { std::env::set_var("NCCL_HOSTID", format!("rank-{}", group.rank())) };
}

#[test]
fn every_collective_is_right_over_sockets() {
    let _alone = alone();
    for world in [1, 2] {
        let Some(ranks) = old_ranks("older::every_collective_is_right_over_sockets", world) else { return };
        ranks
            .run(|group| {
                separate(&group);
                let nccl = Communicator::new(&group, &Device::new(0)?)?;
                try_types(&Member::new(nccl.clone())?)?;
                group.barrier()?;
                nccl.finish(PATIENCE)
            })
            .unwrap();
    }
}

#[test]
fn what_it_lacks_is_named() {
    let _alone = alone();
    let Some(ranks) = old_ranks("older::what_it_lacks_is_named", 1) else { return };
    ranks
        .run(|group| {
            let nccl = Communicator::new(&group, &Device::new(0)?)?;
            let stream = symmem::cuda::Stream::new(nccl.device())?;
            let (version, since) = (nccl::version()?, Version::new(2, 29, 2));
            match nccl.signal(0, &stream) {
                Err(Error::LibraryTooOld { needed, found, .. }) => {
                    assert!(version < since);
                    assert_eq!((&*needed, &*found), (&*since.to_string(), &*version.to_string()));
                }
                other => assert!(version >= since, "{other:?}"),
            }
            Ok(())
        })
        .unwrap();
}

/// Collective. An all-reduce on memory of NCCL.
fn try_memory(rank: &Rank) -> Result<bool> {
    let memory = rank.engine.alloc::<f32>(1 << 16)?.rendezvous(&rank.engine)?;
    let world = memory.world_size();
    memory.write(&vec![memory.rank() as f32 + 1.0; 1 << 16], &rank.stream)?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    let sum = (world * (world + 1) / 2) as f32;
    assert!(memory.read(&rank.stream)?.iter().all(|number| *number == sum));
    let is_direct = memory.is_direct();
    memory.group().barrier()?;
    Ok(is_direct)
}

#[test]
fn windows_work_with_and_without_peers_in_reach() {
    let _alone = alone();
    for world in [1, 2] {
        const NAME: &str = "older::windows_work_with_and_without_peers_in_reach";
        let Some(ranks) = old_ranks(NAME, world) else { return };
        let direct = ranks.run(|group| {
            separate(&group);
            let rank = Rank::new(&group, Settings::default())?;
            try_memory(&rank)
        });
        assert_eq!(direct.unwrap(), vec![world == 1; world], "by sockets there are no pointers");
    }
}
