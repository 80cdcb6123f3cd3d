//! What rendezvous gives: everybody's memory, pads, tables, slices, offsets.

use symmem::cuda::{Device, Engine, Stream};
use symmem::{Error, Group, ProcessSpawner, Result};

use crate::common::assert_error;
use crate::{DEVICES, check, engine, fake, peek, unanimous};

fn everybody_maps_everybody(group: Group) -> Result<()> {
    let engine = engine(&group)?;
    let x = engine.device().alloc::<f32>(1000)?;
    let memory = x.rendezvous(&engine)?;
    assert_eq!((memory.len(), memory.offset(), memory.buffer_size()), (1000, 0, 4000));
    assert_eq!(memory.peer_ptr(group.rank())?, x.device_ptr());
    assert_error!(memory.peer_ptr(group.size()), Error::RankOutOfRange { .. });
    assert_error!(memory.pad_ptr(group.size()), Error::RankOutOfRange { .. });
    check(&memory)?;

    // The tables on the device say what those on the host say.
    for (index, address) in memory.peer_ptrs().iter().enumerate() {
        assert_eq!(peek::<u64>(memory.peer_ptrs_dev()?, index), *address);
        assert_eq!(peek::<u64>(memory.pad_ptrs_dev()?, index), memory.pad_ptrs()[index]);
    }

    // A slice is local, keeps the memory alive, and has a table of its own.
    let slice = memory.slice(10..20)?;
    assert_error!(memory.slice(990..1001), Error::OutOfBounds { .. });
    assert_eq!((slice.len(), slice.offset()), (10, 10));
    assert_eq!(slice.peer_ptr(0)?, memory.peer_ptr(0)? + 40);
    assert_ne!(slice.peer_ptrs_dev()?, memory.peer_ptrs_dev()?);
    assert_eq!(slice.peer_ptrs_dev()?, memory.slice(10..)?.peer_ptrs_dev()?);
    assert_eq!(peek::<u64>(slice.peer_ptrs_dev()?, 0), slice.peer_ptr(0)?);

    // A second rendezvous maps nothing new, whoever has a handle.
    let again = x.rendezvous(&engine)?;
    assert_eq!(again.peer_ptrs(), memory.peer_ptrs());
    group.barrier()?;
    let stale = (group.rank() != 0).then(|| (memory.clone(), again.clone(), slice.clone()));
    let pads = memory.pad_ptrs().to_vec();
    drop((memory, again, slice));
    group.barrier()?;
    let again = x.rendezvous_at(&engine, 0)?;
    assert_eq!(again.pad_ptrs(), pads);

    // Once the memory is closed all map again.
    again.close()?;
    let again = x.rendezvous(&engine)?;
    check(&again)?;
    if let Some((memory, ..)) = stale {
        assert_ne!(again.pad_ptrs(), memory.pad_ptrs());
        assert_error!(memory.pad_ptr(0), Error::Closed { .. });
    }
    // The allocation may go before its handles.
    drop(x);
    check(&again)
}

#[test]
fn everybody_maps_everybody_as_threads() {
    fake::run("memory::everybody_maps_everybody_as_threads", &[DEVICES], || {
        for world in 1..=4 {
            symmem::spawn(world, everybody_maps_everybody).unwrap();
        }
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn everybody_maps_everybody_as_processes() {
    const NAME: &str = "memory::everybody_maps_everybody_as_processes";
    fake::run(NAME, &[DEVICES], || {
        ProcessSpawner::new(NAME, 3).run(everybody_maps_everybody).unwrap();
    });
}

/// Ranks that are threads may share an allocation, but it is the memory of one of them.
#[test]
fn ranks_that_bring_one_allocation_all_get_the_same_error() {
    const NAME: &str = "memory::ranks_that_bring_one_allocation_all_get_the_same_error";
    let vars = [("FAKECUDA_UUIDS", "gpu-a"), ("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1")];
    fake::run(NAME, &vars, || {
        let shared = [(); 2].map(|()| Device::new(0).unwrap().alloc::<f32>(1000).unwrap());
        let share = |group: Group| -> Result<()> {
            let engine = Engine::new(&group, &Device::new(0)?)?;
            let refused = unanimous(&group, &shared[0].rendezvous(&engine))?;
            assert!(refused.contains("brought to this group"), "{refused}");
            let own = &shared[group.rank()];
            let memory = own.rendezvous(&engine)?;
            // Rank 1 brings what is rank 0's, while that is in use.
            let fresh = engine.device().alloc::<f32>(1000)?;
            let brought = if group.rank() == 0 { &fresh } else { &shared[0] };
            let refused = unanimous(&group, &brought.rendezvous(&engine))?;
            assert!(refused.starts_with("rank 1: ") && refused.contains("rank 0 brought"), "{refused}");
            assert_eq!(own.rendezvous(&engine)?.peer_ptrs(), memory.peer_ptrs());
            memory.close()?;
            // Each has given its own free.
            group.barrier()?;
            check(&shared[1 - group.rank()].rendezvous(&engine)?)
        };
        symmem::spawn(2, share).unwrap();
    });
}

#[test]
fn fabric_handles_do_no_harm_where_they_lie() {
    const NAME: &str = "memory::fabric_handles_do_no_harm_where_they_lie";
    for fabric in ["1", "lies"] {
        fake::run(NAME, &[DEVICES, ("FAKECUDA_FABRIC", fabric)], || {
            symmem::spawn(2, everybody_maps_everybody).unwrap();
        });
    }
}

#[test]
fn offsets_may_differ() {
    fake::run("memory::offsets_may_differ", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let x = engine.device().alloc::<f32>(100)?;
            let whole = x.rendezvous(&engine)?;
            let memory = x.rendezvous_at(&engine, group.rank() * 3)?;
            for rank in 0..3 {
                assert_eq!(memory.peer_ptr(rank)?, whole.peer_ptr(rank)? + 12 * rank as u64);
                assert_eq!(peek::<u64>(memory.peer_ptrs_dev()?, rank), memory.peer_ptr(rank)?);
            }
            assert_eq!((memory.offset(), memory.len()), (group.rank() * 3, 100 - 6));
            // A rank that is wrong takes all with it.
            let wrong = x.rendezvous_at(&engine, if group.rank() == 1 { 101 } else { 0 });
            assert!(unanimous(&group, &wrong)?.starts_with("rank 1: "), "{wrong:?}");
            check(&x.rendezvous(&engine)?)
        })
        .unwrap();
    });
}

#[test]
fn memory_reads_what_was_written() {
    fake::run("memory::memory_reads_what_was_written", &[DEVICES], || {
        let (device, other) = (Device::new(0).unwrap(), Device::new(1).unwrap());
        let stream = Stream::new(&device).unwrap();
        let x = device.alloc::<u16>(3).unwrap();
        assert_eq!(x.read(&stream).unwrap(), [0, 0, 0]);
        x.write(&[1, 2, 3], &stream).unwrap();
        assert_eq!(x.read(&stream).unwrap(), [1, 2, 3]);
        assert!(x.write(&[1], &stream).is_err());
        assert_error!(x.read(&Stream::new(&other).unwrap()), Error::Invalid { .. });
        assert!(device.alloc::<u64>(usize::MAX / 4).is_err());
        assert!(device.alloc::<f32>(0).unwrap().is_empty());

        // Nothing is made while this thread captures.
        stream.begin_capture().unwrap();
        assert_error!(device.alloc::<u8>(1), Error::Invalid { problem, .. } if problem.contains("before begin_capture"));
        assert!(x.read(&stream).is_err());
        drop(stream.end_capture().unwrap());
        device.alloc::<u8>(1).unwrap();
    });
}

#[test]
fn sizes_and_types_must_agree() {
    fake::run("memory::sizes_and_types_must_agree", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            let x = engine.device().alloc::<f32>(if group.rank() == 2 { 11 } else { 10 })?;
            let said = unanimous(&group, &x.rendezvous(&engine))?;
            assert!(said.starts_with("mismatch of the allocation") && said.contains("11 x f32"), "{said}");

            let types = match group.rank() {
                0 => unanimous(&group, &engine.device().alloc::<f32>(10)?.rendezvous(&engine))?,
                _ => unanimous(&group, &engine.device().alloc::<u32>(10)?.rendezvous(&engine))?,
            };
            assert!(types.contains("10 x u32") && types.contains("10 x f32"), "{types}");

            // After either, the same engine goes on.
            check(&engine.device().alloc::<f32>(10)?.rendezvous(&engine)?)
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn bytes_rendezvous_as_elements() {
    fake::run("memory::bytes_rendezvous_as_elements", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let (engine, rank) = (engine(&group)?, group.rank());
            let x = engine.device().alloc::<u8>(100)?;
            let memory = x.rendezvous_as::<f32>(&engine, rank * 8, 5)?;
            assert_eq!((memory.offset(), memory.len(), memory.buffer_size()), (rank * 2, 5, 100));
            let bytes = memory.cast::<u8>()?;
            assert_eq!((bytes.offset(), bytes.len()), (rank * 8, 20));
            assert_eq!(bytes.peer_ptrs(), memory.peer_ptrs());
            assert_error!(memory.slice(..3)?.cast::<u64>(), Error::Invalid { .. });
            assert_error!(memory.slice(1..3)?.cast::<u64>(), Error::Invalid { .. });
            check(&memory)?;

            // One rank that is wrong, or of another mind, takes all with it.
            let wrong = x.rendezvous_as::<f32>(&engine, if rank == 1 { 2 } else { 0 }, 5);
            assert!(unanimous(&group, &wrong)?.starts_with("rank 1: "), "{wrong:?}");
            let said = unanimous(&group, &x.rendezvous_as::<f32>(&engine, 0, 5 + rank))?;
            assert!(said.contains("a part of 6 elements"), "{said}");
            let said = match rank {
                0 => unanimous(&group, &x.rendezvous_as::<f32>(&engine, 0, 5))?,
                _ => unanimous(&group, &x.rendezvous_as::<i32>(&engine, 0, 5))?,
            };
            assert!(said.contains("i32"), "{said}");
            check(&x.rendezvous_as::<f32>(&engine, 80, 5)?)
        })
        .unwrap();
    });
}
