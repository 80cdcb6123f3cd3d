//! Memories are told apart by their numbers, however many there were before.

use symmem::fault::set_start_tag;
use symmem::{Error, ReduceOp, Result, SymmetricMemory};

use crate::common::{PATIENCE, assert_error};

/// The number of the last memory that a group can have.
const LAST: u64 = (1 << 36) - 1;

/// Two memories whose numbers are `apart`, the second made on a group that begins again with its counting
/// there.
fn memories(group: &symmem::Group, first: u64, apart: u64) -> Result<Vec<SymmetricMemory<f32>>> {
    set_start_tag(first - 1);
    let group = group.try_clone()?.within(PATIENCE);
    set_start_tag(0);
    let make = || -> Result<SymmetricMemory<f32>> {
        let mut memory = group.alloc::<f32>(1 << 14)?.rendezvous(&group)?;
        memory.fill(1.0)?;
        Ok(memory)
    };
    let early = make()?;
    // Stands for as many rendezvous.
    symmem::fault::advance_tag(&group, apart - 1);
    Ok(vec![early, make()?])
}

/// What every rank is told by calls on the first memory on rank 0, and on the second on rank 1.
fn assert_told_apart(group: &symmem::Group, first: u64, apart: u64) -> Result<()> {
    let mut memories = memories(group, first, apart)?;
    let mine = &mut memories[group.rank()];
    for call in 0..4 {
        let told = match call {
            0 => mine.all_reduce(ReduceOp::Sum),
            1 => mine.all_gather(&mut vec![0.0; 2 << 14]),
            2 => mine.barrier(0),
            _ => mine.all_to_all_v(1, &[1, 1], &mut [0.0; 2]).map(drop),
        };
        assert_error!(told, Error::Mismatch { values, .. } if values[0].contains(&format!("memory {first}"))
            && values[1].contains(&format!("memory {}", first + apart)));
    }
    for mut memory in memories {
        assert!(memory.local()?.iter().all(|value| *value == 1.0));
        memory.all_reduce(ReduceOp::Sum)?;
        assert!(memory.local()?.iter().all(|value| *value == 2.0));
        memory.close()?;
    }
    Ok(())
}

#[test]
fn memories_far_apart_are_a_mismatch_on_both_ranks() {
    for (first, apart) in [
        (1, 1 << 20),
        ((1 << 20) - 1, 1 << 20),
        (7, 1 << 24),
        (1, 1 << 32),
        (9, 1 << 35),
        (LAST - (1 << 20), 1 << 20),
    ] {
        symmem::spawn(2, |group| assert_told_apart(&group, first, apart)).unwrap();
    }
}

#[test]
fn a_group_refuses_more_memories_than_it_can_tell_apart() {
    symmem::spawn(2, |group| {
        set_start_tag(LAST - 1);
        let worn = group.try_clone()?.within(PATIENCE);
        set_start_tag(0);
        let mut last = worn.alloc::<u32>(100)?.rendezvous(&worn)?;
        for _ in 0..3 {
            let allocation = worn.alloc::<u32>(100)?;
            assert_error!(allocation.rendezvous(&worn), Error::Invalid { problem, .. } if problem.contains("try_clone"));
            let null = std::fs::File::open("/dev/null").expect("every system has one");
            let fds = worn.all_gather_fds(std::os::fd::AsFd::as_fd(&null));
            assert_error!(fds, Error::Invalid { problem, .. } if problem.contains("try_clone"));
        }
        // What there is goes on, and so does a new group.
        last.fill(1)?;
        last.all_reduce(ReduceOp::Sum)?;
        assert_eq!(last.local()?[99], 2);
        last.close()?;
        let fresh = worn.try_clone()?;
        fresh.alloc::<u32>(100)?.rendezvous(&fresh)?.close()
    })
    .unwrap();
}
