//! Ranks that bring nothing to a rendezvous: one array for all of them. What works there, and what does not;
//! as threads and as processes. That every collective is refused is tested beside the wrong arguments
//! (`tests/collectives/refusals.rs`).

use std::time::Duration;

use symmem::{DType, Error, Group, ProcessSpawner, Result, SymmetricMemory};

const RANKS: usize = 3;
/// The rank with the memory.
const OWNER: usize = 1;
const LEN: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// The memory of one rank, on all of them. Element `i` is `i`.
fn one_array(group: &Group) -> Result<SymmetricMemory<u32>> {
    if group.rank() != OWNER {
        return group.rendezvous_nothing()?.cast();
    }
    let mut x = group.alloc::<u32>(LEN)?;
    x.local_mut()?.iter_mut().zip(0..).for_each(|(element, i)| *element = i);
    x.rendezvous(group)
}

fn is_nothing<R>(result: Result<R>, rank: usize) -> bool {
    matches!(result, Err(Error::NothingBrought { ranks, .. }) if ranks == [rank])
}

fn what_works(group: &Group) -> Result<()> {
    let mut mem = one_array(group)?;
    let me = group.rank();
    assert_eq!((mem.len(), mem.buffer_size(), mem.ranks_without_memory()), (LEN, 4 * LEN, &[0, 2][..]));
    let layout = mem.layout();
    assert_eq!((layout.dtype, layout.start, &layout.shape[..]), (DType::U32, 0, &[LEN][..]));

    // Views, and reading and writing, of the rank that has memory.
    assert_eq!(mem.peer(OWNER)?.read(LEN - 1)?, LEN as u32 - 1);
    assert_eq!(mem.remote::<u8>(OWNER, &[2, 2])?.shape(), [2, 2]);
    let mut two = [0; 2];
    mem.get(OWNER, 10, &mut two)?;
    assert_eq!(two, [10, 11]);
    mem.barrier(0)?;
    // SAFETY: nobody holds a guard between the two barriers, and everybody writes elements of its own.
    unsafe { mem.put(OWNER, me * 2, &[7, me as u32])? };
    mem.barrier(0)?;
    assert_eq!(mem.peer(OWNER)?.to_vec()?[..6], [7, 0, 7, 1, 7, 2]);

    // There are none of those that brought nothing.
    for rank in [0, 2] {
        assert!(mem.base_ptrs()[rank].is_null() && !mem.reaches(rank)?);
        assert!(is_nothing(mem.peer(rank), rank) && is_nothing(mem.buffer::<u8>(rank, &[0], 0), rank));
        assert!(is_nothing(mem.get(rank, 0, &mut []), rank));
        // SAFETY: nothing is written.
        assert!(is_nothing(unsafe { mem.put(rank, 0, &[]) }, rank));
        // SAFETY: as above.
        assert!(is_nothing(unsafe { mem.put_with_flag(rank, 0, &[], 0, 1) }, rank));
    }
    match me {
        OWNER => assert_eq!((mem.local()?.len(), mem.salvage().len()), (LEN, LEN)),
        _ => {
            assert!(is_nothing(mem.local(), me) && is_nothing(mem.local_mut(), me));
            assert!(is_nothing(mem.fill(1), me) && mem.salvage().is_empty());
        }
    }

    // Signals of all ranks, to all ranks.
    for channel in 0..2 {
        mem.put_signal(group.next(), channel)?;
        mem.wait_signal(group.prev(), channel)?;
    }
    mem.signal_pad(0)?;
    mem.barrier(0)?;
    mem.close()
}

#[test]
fn one_array_for_threads() {
    symmem::spawn(RANKS, |group| what_works(&group.within(PATIENCE))).unwrap();
}

#[test]
fn one_array_for_processes() {
    ProcessSpawner::new("one_array_for_processes", RANKS)
        .env("SYMMEM_TIMEOUT", 30)
        .run(|group| what_works(&group))
        .unwrap();
}

/// There is nothing to keep a table with on ranks without memory, so the others do not keep theirs either.
#[test]
fn a_second_rendezvous_is_collective_and_both_handles_stay() {
    symmem::spawn(RANKS, |group| {
        let group = group.within(PATIENCE);
        let x = (group.rank() == OWNER).then(|| group.alloc::<u32>(LEN)).transpose()?;
        let meet = || match &x {
            Some(x) => x.rendezvous(&group),
            None => group.rendezvous_nothing()?.cast(),
        };
        let (first, second) = (meet()?, meet()?);
        first.barrier(0)?;
        second.barrier(0)?;
        first.close()?;
        assert_eq!(second.peer(OWNER)?.read(3)?, 0);
        second.barrier(0)?;
        second.close()?;
        // Where all ranks bring memory the next time, that is kept, also when the handle from before is
        // closed.
        let third = meet()?;
        let own = x.map_or_else(|| group.alloc::<u32>(LEN), Ok)?;
        let mut whole = own.rendezvous(&group)?;
        third.close()?;
        whole.all_reduce(symmem::ReduceOp::Sum)?;
        if group.rank() == OWNER {
            own.rendezvous(&group)?; // local
        }
        whole.close()
    })
    .unwrap();
}

/// What a rank covers with its handle is what the ranks without memory see.
#[test]
fn a_part_of_the_memory_can_be_brought() {
    symmem::spawn(2, |group| {
        let mem = match group.rank() {
            0 => group.alloc::<u8>(100)?.rendezvous_shaped::<u16>(&group, 10, &[3, 4])?,
            _ => group.rendezvous_nothing()?.cast()?,
        };
        assert_eq!((mem.offset(), mem.len(), mem.buffer_size()), (5, 12, 100));
        assert_eq!((mem.layout().dtype, &mem.layout().shape[..]), (DType::U16, &[3, 4][..]));
        mem.close()
    })
    .unwrap();
}

/// Whatever is wrong is the same error on all ranks, and the group goes on.
#[test]
fn what_does_not_fit_together_is_still_an_error() {
    symmem::spawn(RANKS, |group| {
        let group = group.within(PATIENCE);
        // Of those that bring something.
        let said = match group.rank() {
            0 => group.rendezvous_nothing().map(drop),
            rank => group.alloc::<u32>(LEN + rank)?.rendezvous(&group).map(drop),
        };
        match said {
            Err(Error::Mismatch { values, .. }) => assert!(values[0].contains("nothing"), "{values:?}"),
            other => panic!("{other:?}"),
        }
        // Nobody brings anything.
        match group.rendezvous_nothing() {
            Err(Error::Invalid { problem, .. }) => assert!(problem.contains("no rank brings memory")),
            other => panic!("{other:?}"),
        }
        // The pads are of all ranks.
        if group.rank() == 0 {
            group.context().set_signal_pad_size(64)?;
        }
        assert!(matches!(one_array(&group), Err(Error::Mismatch { .. })));
        if group.rank() == 0 {
            group.context().set_signal_pad_size(symmem::DEFAULT_SIGNAL_PAD_SIZE)?;
        }
        // An argument of the rank that brings something.
        let said = match group.rank() {
            OWNER => group.alloc::<u32>(1)?.rendezvous_at(&group, 2).map(drop),
            _ => group.rendezvous_nothing().map(drop),
        };
        assert!(matches!(said, Err(Error::Rank { rank: OWNER, .. })), "{said:?}");
        what_works(&group)
    })
    .unwrap();
}
