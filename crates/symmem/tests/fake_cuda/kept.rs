//! What is kept with an allocation: tables, for how long and for whom; what `close` ends; and what a failed
//! group leaves.

use symmem::cuda::{Allocation, Engine, Provider, Stream};
use symmem::{Config, Error, RankContext, Result};

use crate::common::assert_error;
use crate::{DEVICES, check, engine, fake, unanimous};

#[test]
fn a_table_outlives_its_engine_and_goes_with_the_allocation() {
    fake::run("kept::a_table_outlives_its_engine_and_goes_with_the_allocation", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let first = engine(&group)?;
            let x = first.alloc::<f32>(100)?;
            check(&x.rendezvous(&first)?)?;
            drop(first);
            group.barrier()?;
            // Another engine on the same group has a table of its own.
            let second = engine(&group)?;
            let memory = x.rendezvous(&second)?;
            check(&memory)?;
            if group.rank() == 0 {
                assert_eq!(x.rendezvous(&second)?.pad_ptrs(), memory.pad_ptrs());
            }
            group.barrier()?;
            // The engine goes first, then the handle, then the allocation.
            drop(second);
            drop(memory);
            group.barrier()?;
            let held = fake::Live::now();
            assert!(!held.has_no_memory(), "{held:?}");
            group.barrier()?;
            drop(x);
            group.barrier()
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

/// Nobody can find or close the table of an engine that is gone: the next rendezvous lets go of it.
#[test]
fn engines_that_are_gone_leave_nothing_behind() {
    fake::run("kept::engines_that_are_gone_leave_nothing_behind", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let x = engine(&group)?.alloc::<f32>(100)?;
            let mut held = Vec::new();
            for _ in 0..10 {
                let engine = engine(&group)?;
                check(&x.rendezvous(&engine)?)?;
                drop(engine);
                group.barrier()?;
                held.push(fake::Live::now().memory());
                group.barrier()?;
            }
            assert!(held[1..].iter().all(|now| *now == held[1]), "{held:?}");
            Ok(())
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn closing_gives_free_what_peers_exported() {
    fake::run("kept::closing_gives_free_what_peers_exported", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let x = engine.alloc::<f32>(100)?;
            x.rendezvous(&engine)?.close()?;
            group.barrier()?;
            let before = fake::Live::now();
            group.barrier()?;
            for _ in 0..10 {
                let memory = x.rendezvous(&engine)?;
                check(&memory)?;
                memory.close()?;
            }
            group.barrier()?;
            assert!(fake::Live::now().is_as(&before, ""), "{before:?}, {:?}", fake::Live::now());
            group.barrier()
        })
        .unwrap();
    });
}

#[test]
fn a_graph_keeps_memory_that_was_closed() {
    fake::run("kept::a_graph_keeps_memory_that_was_closed", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let stream = engine.stream()?;
            let x = engine.alloc::<u32>(64)?;
            let memory = x.rendezvous(&engine)?;
            let closed = memory.clone();
            stream.begin_capture()?;
            memory.memset32(0, 7, 64, &stream)?;
            let graph = stream.end_capture()?;
            memory.close()?;
            assert_error!(closed.memset32(0, 8, 64, &stream), Error::Closed { .. });
            drop(closed);
            graph.launch(&stream)?;
            assert_eq!(x.read(&stream)?, [7; 64]);
            // The allocation goes too; the graph has what it needs.
            drop(x);
            let _makes_room = engine.alloc::<u32>(64)?;
            graph.launch(&stream)?;
            assert_eq!((fake::stale(), fake::violations()), (0, 0));
            group.barrier()
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn arguments_that_are_wrong_are_told_to_nobody_once_memory_is_closed() {
    const NAME: &str = "kept::arguments_that_are_wrong_are_told_to_nobody_once_memory_is_closed";
    fake::run(NAME, &[DEVICES], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let stream = engine.stream()?;
            let x = engine.alloc::<f32>(64)?;
            let (memory, other) = (x.rendezvous(&engine)?, x.rendezvous(&engine)?);
            memory.close()?;
            if group.rank() == 0 {
                assert_error!(other.barrier(1 << 40, &stream), Error::Closed { op: "barrier" });
                assert_error!(other.broadcast(99, &stream), Error::Closed { .. });
            }
            group.barrier()?;
            check(&x.rendezvous(&engine)?)
        })
        .unwrap();
    });
}

/// The engine that worked on the memory is gone, and so is its group.
#[test]
fn poison_outlives_the_group() {
    fake::run("kept::poison_outlives_the_group", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let stream = engine.stream()?;
            let doomed = crate::engine(&group.try_clone()?)?;
            let (x, closed) = (engine.alloc::<u32>(4)?, engine.alloc::<u32>(4)?);
            let stranger = engine.alloc::<u32>(4)?;
            for each in [&x, &closed, &stranger] {
                each.write(&[3; 4], &stream)?;
            }
            drop(x.rendezvous(&doomed)?);
            closed.rendezvous(&doomed)?.close()?;
            group.barrier()?;
            if group.rank() == 0 {
                doomed.group().abort("spoilt");
            }
            group.barrier()?;
            drop(doomed);
            group.barrier()?;
            assert_error!(x.read(&stream), Error::Poisoned { op: "read", cause } if cause.contains("spoilt"));
            assert_error!(x.write(&[0; 4], &stream), Error::Poisoned { op: "write", .. });
            let said = unanimous(&group, &x.rendezvous(&engine))?;
            assert!(said.contains("poisoned") && said.contains("`salvage`"), "{said}");
            assert_eq!(x.salvage(&stream)?, [3; 4]);
            // What the group did not work on, or not any more, is as it was.
            for each in [&closed, &stranger] {
                assert_eq!(each.rendezvous(&engine)?.read(&stream)?, [3; 4]);
            }
            group.barrier()
        })
        .unwrap();
        assert!(fake::Live::now().has_no_memory(), "{:?}", fake::Live::now());
    });
}

#[test]
fn an_allocation_follows_whom_it_is_asked_of() {
    const NAME: &str = "kept::an_allocation_follows_whom_it_is_asked_of";
    let vars = [DEVICES, ("SYMMEM_SIGNAL_PAD_SIZE", "4096")];
    fake::run(NAME, &vars, || {
        let device = symmem::cuda::Device::new(0).unwrap();
        assert_eq!(device.alloc::<u8>(1).unwrap().signal_pad_size(), 4096);
        assert_eq!(Allocation::<u8>::with(&device, 1, Provider::Vmm).unwrap().signal_pad_size(), 4096);
        let config = Config::from_env().unwrap().signal_pad_size(8192).unwrap();
        let context = RankContext::new(config);
        assert_eq!(context.alloc_on::<u8>(&device, 1).unwrap().signal_pad_size(), 8192);
        context.set_signal_pad_size(64).unwrap();
        assert_eq!(context.alloc_on::<u8>(&device, 1).unwrap().signal_pad_size(), 64);
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            // One rank asks the device, the other its engine, whose group has another size.
            group.context().set_signal_pad_size(8192)?;
            let x = if group.rank() == 0 { engine.device().alloc::<u8>(8)? } else { engine.alloc(8)? };
            let said = unanimous(&group, &x.rendezvous(&engine))?;
            assert!(said.contains("pad of 4096 bytes") && said.contains("pad of 8192 bytes"), "{said}");
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_wrong_value_in_the_environment_is_an_error_of_every_allocation() -> Result<()> {
    const NAME: &str = "kept::a_wrong_value_in_the_environment_is_an_error_of_every_allocation";
    for (variable, value) in [("SYMMEM_PROVIDER", "shmm"), ("SYMMEM_SIGNAL_PAD_SIZE", "7")] {
        fake::run(NAME, &[DEVICES, (variable, value)], || {
            let device = symmem::cuda::Device::new(0).unwrap();
            let is_told = |result: Result<Allocation<u8>>| {
                assert_error!(result, Error::Invalid { what, .. } if what == variable);
            };
            is_told(device.alloc(1));
            is_told(Allocation::new(&device, 1));
            is_told(Allocation::with(&device, 1, Provider::Vmm));
            assert!(RankContext::from_env().is_err());
        });
    }
    Ok(())
}

#[test]
fn memory_of_another_engine_is_told_apart() {
    fake::run("kept::memory_of_another_engine_is_told_apart", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let engines: [Engine; 2] = [engine(&group)?, engine(&group)?];
            let x = engines[0].alloc::<f32>(8)?;
            let handles = [x.rendezvous(&engines[0])?, x.rendezvous(&engines[1])?];
            assert_ne!(handles[0].pad_ptrs(), handles[1].pad_ptrs());
            let [first, second] = handles;
            first.close()?;
            // Only those of the first are closed.
            check(&second)?;
            let stream = Stream::new(engines[0].device())?;
            assert_eq!(x.read(&stream)?, [group.rank() as f32; 8]);
            second.close()
        })
        .unwrap();
    });
}
