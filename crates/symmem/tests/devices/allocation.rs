//! Memory that is made, met, kept and let go.

use symmem::cuda::{DeviceSlice, Provider, topology};
use symmem::{Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::stage::{Rank, Ranks};
use crate::value::{addend, assert_elements, elements};

pub(crate) fn memory_starts_as_zeros(rank: &Rank) -> Result<()> {
    for len in [1, 1000, 1 << 20] {
        let x = rank.engine.alloc::<u8>(len)?;
        assert!(x.read(&rank.stream)?.iter().all(|byte| *byte == 0));
        let memory = x.rendezvous(&rank.engine)?;
        assert!(memory.read(&rank.stream)?.iter().all(|byte| *byte == 0));
        rank.end()?;
    }
    Ok(())
}

pub(crate) fn an_empty_allocation_works_like_any_other(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<f32>(0)?;
    let memory = x.rendezvous(&rank.engine)?;
    assert!(x.is_empty() && memory.is_empty());
    assert_eq!((memory.len(), memory.offset(), memory.buffer_size()), (0, 0, 0));
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    memory.barrier(0, &rank.stream)?;
    rank.sync()?;
    assert!(memory.read(&rank.stream)?.is_empty());
    rank.end()
}

pub(crate) fn an_allocation_knows_where_it_came_from(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<u16>(7)?;
    assert_eq!((x.len(), x.provider(), x.device()), (7, rank.kind.provider, &rank.device));
    let memory = x.rendezvous(&rank.engine)?;
    let is_nccl = rank.kind.provider == Provider::Nccl;
    assert_eq!((memory.nccl_window().is_some(), rank.engine.communicator().is_some()), (is_nccl, is_nccl));
    assert_eq!((memory.is_direct(), rank.engine.is_direct()), (rank.is_direct(), rank.is_direct()));
    assert_eq!(memory.slice(3..)?.window_offset(), 6);
    rank.end()
}

pub(crate) fn a_handle_knows_its_rank_sizes_and_pointers(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<f32>(1000)?;
    let memory = x.rendezvous(&rank.engine)?;
    assert_eq!((memory.rank(), memory.world_size()), (rank.rank(), rank.world()));
    assert_eq!((memory.len(), memory.offset(), memory.buffer_size()), (1000, 0, 4000));
    assert_eq!(memory.device(), &rank.device);
    // The device of all ranks may be one; a rank's own memory is where it was allocated all the same.
    assert_eq!(memory.peer_ptr(rank.rank())?, x.device_ptr());
    assert_eq!(memory.local()?.device_ptr(), x.device_ptr());
    assert_eq!(memory.base_ptrs(), memory.peer_ptrs());
    for peer in 0..rank.world() {
        assert_eq!(memory.peer_ptrs()[peer] != 0, rank.reaches(peer));
        assert_eq!(
            memory.peer_ptr(peer).ok(),
            Some(memory.peer_ptrs()[peer]).filter(|address| *address != 0)
        );
        assert_eq!(memory.pad_ptr(peer).ok(), Some(memory.pad_ptrs()[peer]).filter(|address| *address != 0));
    }
    assert_error!(memory.peer_ptr(rank.world()), Error::RankOutOfRange { .. });
    assert_error!(memory.pad_ptr(rank.world()), Error::RankOutOfRange { .. });
    assert_eq!(memory.signal_pad_size(), rank.group.context().signal_pad_size());
    rank.end()
}

pub(crate) fn the_tables_on_the_device_say_what_those_on_the_host_say(rank: &Rank) -> Result<()> {
    let world = rank.world();
    let memory = rank.memory::<f32>(100)?;
    let slice = memory.slice(10..20)?;
    let room = rank.memory::<u64>(world)?;
    let tables = [
        (memory.peer_ptrs_dev()?, memory.peer_ptrs()),
        (memory.pad_ptrs_dev()?, memory.pad_ptrs()),
        (slice.peer_ptrs_dev()?, slice.peer_ptrs()),
        (slice.base_ptrs_dev()?, memory.peer_ptrs()),
    ];
    rank.ready()?;
    for (address, expected) in tables {
        // SAFETY: a table of as many addresses as ranks, which stays as long as the memory.
        let table = unsafe { DeviceSlice::<u64>::from_raw(address, world, &rank.device) }?;
        room.put(rank.rank(), 0, table, &rank.stream)?;
        assert_eq!(room.read(&rank.stream)?, expected);
    }
    assert_eq!(slice.peer_ptr(rank.rank())?, memory.peer_ptr(rank.rank())? + 40);
    rank.end()
}

pub(crate) fn a_second_rendezvous_is_the_same(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<u32>(64)?;
    let memory = x.rendezvous(&rank.engine)?;
    let again = x.rendezvous(&rank.engine)?;
    assert_eq!((again.peer_ptrs(), again.pad_ptrs()), (memory.peer_ptrs(), memory.pad_ptrs()));
    assert_eq!(again.nccl_window(), memory.nccl_window());
    rank.ready()?;
    memory.memset32(0, 5, 64, &rank.stream)?;
    again.barrier(0, &rank.stream)?;
    rank.sync()?;
    assert_eq!(again.read(&rank.stream)?, [5; 64]);
    rank.end()
}

pub(crate) fn the_handle_outlives_its_allocation(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<u32>(64)?;
    let memory = x.rendezvous(&rank.engine)?;
    let mut seen = rank.buffer::<u32>(64 * rank.world())?;
    drop(x);
    rank.ready()?;
    assert_eq!((memory.offset(), memory.buffer_size()), (0, 256));
    for round in [42, 43] {
        memory.memset32(0, round + rank.rank() as i64, 64, &rank.stream)?;
        memory.barrier(0, &rank.stream)?;
        memory.all_gather(&mut seen, &rank.stream)?;
        rank.sync()?;
        assert_elements("round", &seen.read(&rank.stream)?, |at| round as usize + at / 64);
    }
    rank.end()
}

pub(crate) fn sizes_and_types_must_agree(rank: &Rank) -> Result<()> {
    let last = rank.rank() == rank.world() - 1;
    let x = rank.engine.alloc::<f32>(if last { 11 } else { 10 })?;
    assert_error!(x.rendezvous(&rank.engine), Error::Mismatch { values, .. }
        if values.iter().any(|said| said.contains("44 bytes")));
    let (floats, words) = (rank.engine.alloc::<f32>(10)?, rank.engine.alloc::<u32>(10)?);
    let said = match last {
        true => floats.rendezvous(&rank.engine).unwrap_err(),
        false => words.rendezvous(&rank.engine).unwrap_err(),
    };
    assert!(said.to_string().contains("u32") && said.to_string().contains("f32"), "{said}");
    let wrong = floats.rendezvous_at(&rank.engine, if last { 11 } else { 0 });
    assert_error!(wrong, Error::Rank { rank: who, .. } if who == rank.world() - 1);
    // After all that, the same engine and memory go on.
    let memory = floats.rendezvous(&rank.engine)?;
    memory.write(&[1.0; 10], &rank.stream)?;
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    assert_eq!(memory.read(&rank.stream)?, [rank.world() as f32; 10]);
    rank.end()
}

pub(crate) fn memory_that_is_dropped_at_work_stays_until_that_is_done(rank: &Rank) -> Result<()> {
    let (len, world) = (1 << 20, rank.world());
    let x = rank.engine.alloc::<f32>(len)?;
    let memory = x.rendezvous(&rank.engine)?;
    let mut out = rank.buffer::<f32>(len)?;
    memory.write(&elements(len, |at| addend(rank.rank(), at)), &rank.stream)?;
    rank.ready()?;
    for _ in 0..4 {
        memory.all_reduce_out(ReduceOp::Sum, &mut out, &rank.stream)?;
    }
    drop((x, memory));
    rank.sync()?;
    let sum = |at: usize| (0..world).map(|rank| addend(rank, at)).sum();
    assert_elements("all_reduce_out", &out.read(&rank.stream)?, sum);
    rank.end()
}

pub(crate) fn memory_comes_and_goes(rank: &Rank) -> Result<()> {
    for round in 0..10 {
        let len = 1000 + round;
        let memory = rank.memory::<f32>(len)?;
        memory.write(&vec![round as f32; len], &rank.stream)?;
        rank.ready()?;
        memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
        rank.sync()?;
        assert_elements("all_reduce", &memory.read(&rank.stream)?, |_| round * rank.world());
        rank.end()?;
        drop(memory);
        rank.ready()?;
    }
    Ok(())
}

pub(crate) fn nothing_is_made_in_a_capture(rank: &Rank) -> Result<()> {
    rank.ready()?;
    rank.stream.begin_capture()?;
    let made = rank.engine.alloc::<u8>(1);
    drop(rank.stream.end_capture()?);
    assert_error!(made, Error::Invalid { problem, .. } if problem.contains("before begin_capture"));
    rank.end()?;
    rank.engine.alloc::<u8>(1).map(drop)
}

pub(crate) fn pads_have_the_size_that_was_set(rank: &Rank) -> Result<()> {
    let context = rank.group.context();
    let before = context.signal_pad_size();
    context.set_signal_pad_size(2 * before)?;
    let memory = rank.memory::<u8>(16);
    context.set_signal_pad_size(before)?;
    let memory = memory?;
    assert_eq!(memory.signal_pad_size(), 2 * before);
    rank.ready()?;
    // Twice the channels: the last one of them is one that other memory does not have.
    memory.barrier(2 * before / 4 / rank.world() - 1, &rank.stream)?;
    rank.end()
}

pub(crate) fn the_links_of_all_devices_can_be_asked_for(rank: &Rank) -> Result<()> {
    let links = topology::detect_dma_connectivity("cuda", "nvlink")?;
    assert_eq!((&*links.device_type, &*links.connection_type), ("cuda", "nvlink"));
    let devices = symmem::cuda::Device::count()?;
    assert!(links.matrix.len() == devices && links.matrix.iter().all(|row| row.len() == devices));
    assert!(devices > rank.rank() || rank.kind.ranks != Ranks::Fake);
    assert_error!(topology::detect_dma_connectivity("cuda", "smoke"), Error::Invalid { .. });
    Ok(())
}
