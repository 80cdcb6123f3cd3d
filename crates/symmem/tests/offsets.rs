//! Handles that begin at different places of the ranks' allocations: what the ranks know of each other, and
//! with which table.

mod common;

use common::PATIENCE;
use symmem::tuning::Algorithm;
use symmem::{Allocation, DType, Group, ReduceOp, Result};

/// `len` elements; number `i` of rank `r` is `100 * r + i`.
fn numbered(group: &Group, len: usize) -> Result<Allocation<u32>> {
    let mut x = group.alloc::<u32>(len)?;
    let first = 100 * group.rank() as u32;
    x.local_mut()?.iter_mut().zip(first..).for_each(|(element, number)| *element = number);
    Ok(x)
}

#[test]
fn what_is_put_lands_behind_the_peers_offset() -> Result<()> {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let (me, next, prev) = (group.rank(), group.next(), group.prev());
        let x = numbered(&group, 20)?;
        let mem = x.rendezvous_at(&group, 5 * me)?;
        mem.barrier(0)?;
        // SAFETY: nobody holds a guard before the barrier.
        unsafe { mem.put(next, 1, &[1000 + me as u32])? };
        // SAFETY: nobody holds a guard before it has waited for the signal.
        unsafe { mem.slice(2..5)?.put_with_flag(next, 0, &[2000 + me as u32], 0, 7)? };
        mem.wait_flag(0, 7)?;
        mem.barrier(0)?;
        let first = 100 * me as u32 + 5 * me as u32;
        assert_eq!(mem.local()?[..4], [first, 1000 + prev as u32, 2000 + prev as u32, first + 3]);
        // One's own, by the same way.
        // SAFETY: this rank's memory, of which nobody holds a guard.
        unsafe { mem.put(me, 9, &[7])? };
        assert_eq!((mem.local()?[9], x.local()?[5 * me + 9]), (7, 7));
        mem.barrier(0)?;
        mem.close()
    })
    .map(drop)
}

/// Rank 0 brings memory that all ranks have a table of, the others bring other memory: no rank can use a
/// table that it has.
#[test]
fn memory_that_not_all_ranks_have_a_table_of_meets_again() -> Result<()> {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let x = numbered(&group, 20)?;
        let before = x.rendezvous(&group)?;
        let y = if group.rank() == 0 { x } else { numbered(&group, 20)? };
        let mut after = y.rendezvous_at(&group, 2 * group.rank())?;
        assert_eq!(after.len(), 16);
        assert_ne!(before.pad_ptrs(), after.pad_ptrs());
        after.barrier(0)?;
        assert_eq!(after.peer(2)?.read(1)?, 205);
        after.barrier(0)?;
        after.all_reduce(ReduceOp::Sum)?;
        assert_eq!(after.local()?[0], 102 + 204);
        // What was there before stays, and the new one is what is kept.
        before.barrier(0)?;
        let again = y.rendezvous(&group)?;
        assert_eq!((again.pad_ptrs(), again.len()), (after.pad_ptrs(), 20));
        before.close()?;
        after.barrier(0)?;
        after.close()
    })
    .map(drop)
}

/// Collectives go by the handle that each rank calls them on, whatever the others' handles say of this rank.
#[test]
fn ranks_may_call_a_collective_on_different_handles() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let x = numbered(&group, 20)?;
        let handles = [x.rendezvous_at(&group, 3 * group.rank())?, x.rendezvous_at(&group, 8)?];
        let start = [0, 8][group.rank()];
        for algorithm in [Algorithm::Push, Algorithm::Staged, Algorithm::Direct] {
            let mut out = [0; 8];
            handles[group.rank()].slice(..4)?.using(algorithm).all_gather(&mut out)?;
            assert_eq!(out, [0, 1, 2, 3, 108, 109, 110, 111]);
        }
        // Parts that are cut differently, too.
        let mut summed = handles[0].slice(start - 3 * group.rank()..)?.slice(..4)?.using(Algorithm::TwoShot);
        summed.all_reduce(ReduceOp::Sum)?;
        assert_eq!(*summed.local()?, [108, 110, 112, 114]);
        drop(summed);
        let [first, _second] = handles;
        first.close()
    })
    .map(drop)
}

#[test]
fn ranks_without_memory_see_everybody_from_its_own_offset() -> Result<()> {
    symmem::spawn(4, |group| {
        let group = group.within(PATIENCE);
        let mem = match group.rank() {
            rank @ (1 | 3) => numbered(&group, 20)?.rendezvous_at(&group, 2 * rank)?,
            _ => group.rendezvous_nothing()?.cast()?,
        };
        let own = if group.rank() == 3 { 6 } else { 2 };
        assert_eq!((mem.offset(), mem.len(), mem.ranks_without_memory()), (own, 14, &[0, 2][..]));
        let layout = mem.layout();
        assert_eq!((layout.dtype, layout.start, &layout.shape[..]), (DType::U32, 8, &[14][..]));
        mem.barrier(0)?;
        for rank in [1, 3] {
            let first = 102 * rank as u32;
            assert_eq!(mem.offset_of(rank)?, 2 * rank);
            assert_eq!(mem.peer(rank)?.to_vec()?, (first..first + 14).collect::<Vec<_>>());
            let mut out = [0; 2];
            mem.slice(4..14)?.get(rank, 8, &mut out)?;
            assert_eq!(out, [first + 12, first + 13]);
            assert!(mem.peer(0).is_err() && mem.get(2, 0, &mut []).is_err());
        }
        mem.barrier(0)?;
        mem.close()
    })
    .map(drop)
}

/// Handles of different lengths: what counts is what the counts need, and that is in everybody's memory.
#[test]
fn counted_collectives_take_handles_of_different_lengths() -> Result<()> {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let me = group.rank();
        // As parcels, staged and directly.
        for len in [8, 400, 4096, 400_000] {
            let mut x = group.alloc::<u32>(len)?;
            let first = 1_000_000 * me as u32;
            x.local_mut()?.iter_mut().zip(first..).for_each(|(element, number)| *element = number);
            let whole = x.rendezvous(&group)?;
            let mem = if me == 0 { whole } else { whole.slice(len / 2..)? };
            let counts = [len / 2, len / 4];
            let theirs =
                (0..(len / 2) as u32).chain((0..(len / 4) as u32).map(|i| 1_000_000 + (len / 2) as u32 + i));
            let expected: Vec<u32> = theirs.collect();
            let mut out = vec![0; expected.len()];
            mem.all_gather_v(&counts, &mut out)?;
            assert_eq!(out, expected, "{len}");
            out.fill(0);
            mem.gather_v(0, &counts, &mut out)?;
            assert_eq!(out, if me == 0 { expected } else { vec![0; out.len()] }, "{len}");
            let (counts, mut out) = ([len / 4; 2], vec![0; len / 4]);
            mem.scatter_v(1, &counts, &mut out)?;
            let start = 1_000_000 + (len / 2 + me * len / 4) as u32;
            assert!(out.iter().copied().eq(start..start + (len / 4) as u32), "{len}");
            mem.barrier(0)?;
        }
        Ok(())
    })
    .map(drop)
}
