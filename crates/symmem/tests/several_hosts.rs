//! Ranks that count as on different hosts: they exchange through the store, and share memory within a host
//! only.

mod common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{PATIENCE, assert_error, config_with_secret, connect, serve};
use symmem::store::{HashStore, Store};
use symmem::{Deadline, Error, Group, RankContext, Result};

/// The hosts of the ranks: neither blocks of ranks nor equal numbers.
const HOSTS: [&str; 5] = ["a", "b", "a", "b", "b"];

/// Runs `f` on a rank per host of `HOSTS`.
fn on_hosts(store: impl Fn() -> Arc<dyn Store> + Sync, f: impl Fn(&Group) -> Result<()> + Sync) {
    thread::scope(|scope| {
        let rank = |rank: usize| {
            let (store, f) = (&store, &f);
            scope.spawn(move || {
                let context = RankContext::new(config_with_secret().host_id(HOSTS[rank]));
                f(&Group::from_store_in(&context, store(), rank, HOSTS.len(), "hosts")?)
            })
        };
        let ranks: Vec<_> = (0..HOSTS.len()).map(rank).collect();
        for (rank, ended) in ranks.into_iter().enumerate() {
            ended.join().unwrap().unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        }
    });
}

/// In a store of this process.
fn on_hosts_in_memory(f: impl Fn(&Group) -> Result<()> + Sync) {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    on_hosts(|| Arc::clone(&store), f);
}

fn exchange(group: &Group) -> Result<()> {
    let size = group.size();
    for round in 0..5u64 {
        let expected: Vec<u64> = (0..size as u64).map(|rank| rank * 10 + round).collect();
        assert_eq!(group.all_gather(&(group.rank() as u64 * 10 + round))?, expected);
        group.barrier()?;
    }
    for root in 0..size {
        assert_eq!(group.broadcast(root, &group.rank())?, root);
    }
    let parts = group.all_gather_bytes(&vec![7; group.rank() * 20_000])?;
    assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [0, 20_000, 40_000, 60_000, 80_000]);
    Ok(())
}

#[test]
fn exchange_runs_through_the_store() {
    on_hosts_in_memory(exchange);
}

#[test]
fn exchange_runs_through_a_tcp_store_and_leaves_little_behind() {
    let server = serve();
    on_hosts(|| connect(server.port()), exchange);
    let keys = connect(server.port()).list_keys(&common::patiently()).unwrap();
    let parts = keys.iter().filter(|key| key.contains("/x/")).count();
    // The last exchange's: what each rank gave, and that it has read the others'.
    assert!(parts <= 2 * HOSTS.len(), "{keys:?}");
}

#[test]
fn different_operations_are_a_mismatch_and_the_group_goes_on() {
    on_hosts_in_memory(|group| {
        let outcome = if group.rank() == 3 { group.barrier() } else { group.all_gather(&0u8).map(drop) };
        assert_error!(outcome, Error::Mismatch { values, .. } if values.len() == HOSTS.len());
        group.barrier()
    });
}

#[test]
fn a_wrong_root_of_one_rank_is_told_to_all_and_the_group_goes_on() {
    on_hosts_in_memory(|group| {
        let group = group.within(PATIENCE);
        match group.rank() {
            3 => assert_error!(group.broadcast(9, &1u8), Error::RankOutOfRange { rank: 9, .. }),
            _ => {
                assert_error!(group.broadcast(0, &1u8), Error::Rank { rank: 3, message, .. } if message.contains("rank 9"));
            }
        }
        assert!(!group.is_local());
        match group.rank() {
            2 => group.refuse("not now")?,
            _ => assert_error!(group.barrier(), Error::Rank { rank: 2, message, .. } if message == "not now"),
        }
        group.barrier()
    });
}

fn members_of(host: &str) -> Vec<usize> {
    (0..HOSTS.len()).filter(|rank| HOSTS[*rank] == host).collect()
}

#[test]
fn the_local_group_has_the_ranks_of_the_host() {
    on_hosts_in_memory(|group| {
        let local = group.local()?;
        let members = members_of(HOSTS[group.rank()]);
        assert_eq!(local.all_gather(&group.rank())?, members);
        assert_eq!(local.size(), members.len());
        group.barrier()
    });
}

#[test]
fn memory_reaches_the_host_and_not_beyond() {
    on_hosts_in_memory(|group| {
        let mut x = group.alloc::<u32>(16)?;
        x.fill(group.rank() as u32)?;
        let here = members_of(HOSTS[group.rank()]);
        let elsewhere: Vec<usize> = (0..HOSTS.len()).filter(|rank| !here.contains(rank)).collect();
        assert_error!(x.rendezvous(group), Error::NotLocal { ranks, .. } if ranks == elsewhere);
        assert_error!(group.survivors(Deadline::after(PATIENCE)), Error::NotLocal { .. });
        let local = group.local()?;
        let mem = x.rendezvous(&local)?;
        mem.barrier(0)?;
        for (place, rank) in here.iter().enumerate() {
            assert_eq!(mem.peer(place)?.to_vec()?, [*rank as u32; 16]);
        }
        mem.put_signal(local.next(), 0)?;
        mem.wait_signal(local.prev(), 0)?;
        mem.close()?;
        group.barrier()
    });
}

#[test]
fn a_subgroup_within_a_host_has_memory_and_one_across_has_not() {
    on_hosts_in_memory(|group| {
        if [1, 4].contains(&group.rank()) {
            let pair = group.subgroup(&[4, 1], "pair")?;
            pair.alloc::<u8>(1)?.rendezvous(&pair)?.close()?;
        }
        if [0, 1].contains(&group.rank()) {
            let pair = group.subgroup(&[0, 1], "across")?;
            assert_eq!(pair.all_gather(&group.rank())?, [0, 1]);
            assert_error!(pair.alloc::<u8>(1)?.rendezvous(&pair), Error::NotLocal { .. });
        }
        group.barrier()
    });
}

#[test]
fn a_missing_rank_of_another_host_is_a_timeout() {
    on_hosts_in_memory(|group| {
        let doomed = group.try_clone()?;
        if group.rank() == 0 {
            let outcome = doomed.within(Duration::from_millis(100)).barrier();
            assert_error!(outcome, Error::Timeout { .. });
        }
        group.barrier()
    });
}
