//! Memory that is made, met, kept and let go.

use symmem::cuda::{DeviceSlice, Provider, topology};
use symmem::{Error, ReduceOp, Result};

use crate::common::assert_error;
use crate::suite::device::rank::Rank;
use crate::suite::stage::Place;
use crate::suite::value::{addend, assert_elements, elements};

pub(crate) fn an_allocation_knows_where_it_came_from(rank: &Rank) -> Result<()> {
    let x = rank.engine.alloc::<u16>(7)?;
    assert_eq!((x.len(), x.provider(), x.device()), (7, rank.stage.provider(), &rank.device));
    let memory = x.rendezvous(&rank.engine)?;
    let is_nccl = rank.stage.provider() == Provider::Nccl;
    assert_eq!((memory.nccl_window().is_some(), rank.engine.communicator().is_some()), (is_nccl, is_nccl));
    assert_eq!((memory.is_direct(), rank.engine.is_direct()), (rank.is_direct(), rank.is_direct()));
    assert_eq!(memory.slice(3..)?.window_offset(), 6);
    rank.end()
}

pub(crate) fn a_handle_knows_its_device_and_its_tables(rank: &Rank) -> Result<()> {
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

pub(crate) fn a_second_rendezvous_has_the_same_window(rank: &Rank) -> Result<()> {
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

pub(crate) fn memory_that_is_dropped_at_work_stays_until_that_is_done(rank: &Rank) -> Result<()> {
    let (len, world) = ((1 << 20).min(rank.most()), rank.world());
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

pub(crate) fn nothing_is_made_in_a_capture(rank: &Rank) -> Result<()> {
    rank.ready()?;
    rank.stream.begin_capture()?;
    let made = rank.engine.alloc::<u8>(1);
    drop(rank.stream.end_capture()?);
    assert_error!(made, Error::Invalid { problem, .. } if problem.contains("before begin_capture"));
    rank.end()?;
    rank.engine.alloc::<u8>(1).map(drop)
}

pub(crate) fn the_pads_last_channel_is_there(rank: &Rank) -> Result<()> {
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
    assert!(devices > rank.rank() || rank.stage.place != Place::Fakes);
    assert_error!(topology::detect_dma_connectivity("cuda", "smoke"), Error::Invalid { .. });
    Ok(())
}
