//! Ranks that are threads and share an allocation: memory is that of one rank of a group, and the others are
//! refused.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{PATIENCE, assert_error, config, context};
use symmem::{Error, Group, RankContext, ReduceOp, Result};

/// Before anything is broken, nobody waits this long.
const SOON: Duration = Duration::from_secs(10);

/// Which rank a refusal names, and why.
fn refusal(error: Error) -> (usize, String) {
    match error {
        Error::Rank { rank, message, .. } => (rank, message),
        other => panic!("not a refusal: {other:?}"),
    }
}

#[test]
fn ranks_that_bring_one_allocation_all_get_the_same_error() {
    for _ in 0..20 {
        let shared = Arc::new(context().alloc::<u32>(8).unwrap());
        let refusals = symmem::spawn(3, |group| {
            let group = group.within(SOON);
            let refused = refusal(shared.rendezvous(&group).unwrap_err());
            // Nothing is left of it: the group goes on, and one of them may bring it.
            group.barrier()?;
            let own = group.alloc::<u32>(8)?;
            let mem = if group.rank() == 1 { shared.rendezvous(&group)? } else { own.rendezvous(&group)? };
            mem.barrier(0)?;
            mem.close()?;
            Ok(refused)
        });
        let refusals = refusals.unwrap();
        assert!(refusals[0].1.contains("brought to this group"), "{refusals:?}");
        assert!(refusals.iter().all(|refused| *refused == refusals[0]), "{refusals:?}");
    }
}

#[test]
fn memory_that_another_rank_has_rendezvoused_is_refused_until_it_is_closed() {
    let memory = [(); 2].map(|()| Arc::new(context().alloc::<u32>(8).unwrap()));
    symmem::spawn(2, |group| {
        let (group, rank) = (group.within(SOON), group.rank());
        let mem = memory[rank].rendezvous(&group)?;
        let fresh = group.alloc::<u32>(8)?;
        // Rank 1 brings what is rank 0's.
        let brought = if rank == 0 { &fresh } else { &*memory[0] };
        let (culprit, message) = refusal(brought.rendezvous(&group).unwrap_err());
        assert_eq!(culprit, 1);
        assert!(message.contains("rank 0"), "{message}");
        // The same rank gets its own again, without anybody else.
        assert_eq!(memory[rank].rendezvous(&group)?.base_ptrs(), mem.base_ptrs());
        mem.barrier(0)?;
        mem.close()?;
        // Until the other rank has left the call, too.
        group.barrier()?;
        let mem = memory[1 - rank].rendezvous(&group)?;
        assert_eq!(mem.base_ptrs()[rank].cast_const().cast(), memory[1 - rank].as_ptr());
        mem.close()
    })
    .unwrap();
}

/// All safe: a guard of this rank's own memory keeps it as it is, whatever handles other ranks' memory gives.
#[test]
fn a_guard_holds_against_handles_of_a_shared_allocation() {
    let memory = [(); 2].map(|()| Arc::new(context().alloc::<u32>(8).unwrap()));
    symmem::spawn(2, |group| {
        let (group, rank) = (group.within(SOON), group.rank());
        let mut mem = memory[rank].rendezvous(&group)?;
        mem.fill(rank as u32)?;
        mem.barrier(0)?;
        let guard = memory[rank].local()?;
        match memory[1 - rank].rendezvous(&group) {
            Ok(mut other) => {
                let outcome = other.all_reduce(ReduceOp::Sum);
                panic!("under a guard {rank} became {}, {outcome:?}", guard[0]);
            }
            Err(error) => assert_eq!(refusal(error).0, 0),
        }
        drop(guard);
        mem.close()
    })
    .unwrap();
}

/// A context is a rank's own; two ranks that share one get the persistent memory of each other.
#[test]
fn persistent_memory_of_another_rank_is_refused() {
    let context = RankContext::new(config());
    let turn = Mutex::new(());
    symmem::spawn(2, |group| {
        let store = Arc::clone(group.store());
        let own = Group::from_store_in(&context, store, group.rank(), 2, "shared context")?.within(PATIENCE);
        let bring = |id: &str| -> Result<_> {
            let _turn = turn.lock().unwrap();
            context.alloc_persistent::<u32>(id, 8)
        };
        let mine = bring(&format!("of rank {}", own.rank()))?;
        let mem = mine.rendezvous(&own)?;
        drop(mine);
        own.barrier()?;
        let theirs = bring(&format!("of rank {}", own.next()))?;
        assert_error!(theirs.rendezvous(&own), Error::Rank { rank: 0, .. });
        mem.close()
    })
    .unwrap();
}
