//! Subgroups, several engines at once, and engines one after the other.

use symmem::cuda::{Allocation, SymmetricMemory};
use symmem::{Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::suite::device::rank::Rank;
use crate::suite::value::assert_elements;

/// Collective. What everybody of `rank`'s group has in its memory, of which this rank has `value`.
fn values_of_all(rank: &Rank, memory: &SymmetricMemory<u32>, value: usize) -> Result<Vec<u32>> {
    let mut seen = rank.buffer::<u32>(memory.len() * rank.world())?;
    rank.ready()?;
    memory.memset32(0, value as i64, memory.len() as i64, &rank.stream)?;
    memory.all_gather(&mut seen, &rank.stream)?;
    rank.sync()?;
    let found = seen.read(&rank.stream)?;
    // Before the others go on: freeing it waits for the device, where a group that this rank is not in may
    // have kernels that wait.
    drop(seen);
    rank.end()?;
    Ok(found.into_iter().step_by(memory.len()).collect())
}

/// Collective over `members`. Their engine on a group of theirs.
fn subgroup(rank: &Rank, members: &[usize], name: &str) -> Result<Rank> {
    rank.among(rank.group.subgroup(members, name)?, members)
}

pub(crate) fn halves_gather_beside_the_world(rank: &Rank) -> Result<()> {
    let (me, world) = (rank.rank(), rank.world());
    let half = |rank: usize| rank * 2 / world;
    let members: Vec<usize> = (0..world).filter(|rank| half(*rank) == half(me)).collect();
    let part = subgroup(rank, &members, "half")?;
    let x: Allocation<u32> = rank.engine.alloc(64)?;
    let (whole, own) = (x.rendezvous(&rank.engine)?, x.rendezvous(&part.engine)?);
    assert_eq!((whole.rank(), whole.world_size()), (me, world));
    assert_eq!((own.rank(), own.world_size()), (part.rank(), members.len()));
    let expected: Vec<u32> = (0..world as u32).collect();
    assert_eq!(values_of_all(rank, &whole, me)?, expected);
    // One half after the other: what is made and freed in one must not wait for kernels of the other.
    for turn in 0..2 {
        if half(me) == turn {
            assert_elements("the half", &values_of_all(&part, &own, me)?, |at| members[at]);
        }
        rank.ready()?;
    }
    // By pointers too: the next rank's memory through either handle.
    let mut seen = rank.buffer::<u32>(64)?;
    rank.ready()?;
    let peers = [
        (&whole, rank.group.next(), rank.group.next()),
        (&own, part.group.next(), members[part.group.next()]),
    ];
    for (memory, peer, value) in peers {
        if rank.reaches(value) {
            memory.get(peer, 0, &mut seen, &rank.stream)?;
            assert_elements("get", &seen.read(&rank.stream)?, |_| value);
        }
    }
    rank.end()
}

pub(crate) fn several_engines_and_memories_work_side_by_side(rank: &Rank) -> Result<()> {
    let (len, stream) = (2000, &rank.stream);
    let other = rank.again()?;
    // One allocation on both, and memory of each alone.
    let x = rank.engine.alloc::<f32>(len)?;
    let memories = [
        x.rendezvous(&rank.engine)?,
        x.rendezvous(&other.engine)?,
        rank.memory::<f32>(len)?,
        other.memory::<f32>(len)?,
    ];
    let mut outs = Vec::new();
    for memory in &memories {
        memory.write(&vec![1.0; len], stream)?;
        outs.push(rank.buffer::<f32>(len)?);
    }
    rank.ready()?;
    for _ in 0..5 {
        for (memory, out) in memories.iter().zip(&mut outs) {
            memory.all_reduce_out(ReduceOp::Sum, out, stream)?;
            memory.barrier(0, stream)?;
        }
    }
    rank.sync()?;
    for out in &outs {
        assert_elements("all_reduce_out", &out.read(stream)?, |_| rank.world());
    }
    other.end()?;
    rank.end()
}

pub(crate) fn an_engine_that_is_gone_leaves_room_for_the_next(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<f32>(100)?;
    let check = |rank: &Rank, number: usize| {
        let memory = x.rendezvous(&rank.engine)?;
        memory.write(&[number as f32; 100], &rank.stream)?;
        rank.ready()?;
        memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
        rank.sync()?;
        assert_elements("all_reduce", &memory.read(&rank.stream)?, |_| number * rank.world());
        rank.end()
    };
    for number in [1, 2] {
        let next = rank.again()?;
        check(&next, number)?;
        drop(next);
        rank.ready()?;
    }
    // The memory, too, goes on.
    check(rank, 3)
}

pub(crate) fn ranks_must_agree_on_the_engine(rank: &Rank) -> Result<()> {
    let lanes = 1 + rank.rank() as u32;
    let made = rank.with(|settings| symmem::cuda::Settings { lanes, ..settings });
    assert_error!(made.map(drop), Error::Mismatch { what, .. } if what.contains("engine"));
    rank.end()
}
