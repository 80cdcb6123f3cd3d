//! Memory in NCCL's windows: directly reached, or carried by NCCL; and the order in which all of it goes.

use std::time::{Duration, Instant};

use symmem::cuda::{Allocation, Device, Engine, Provider, Settings, Stream, SymmetricMemory};
use symmem::nccl::Communicator;
use symmem::{Error, Group, ReduceOp, Result};

use crate::common::{AT_ONCE, assert_error, config, same_ranks_with};
use crate::{DEVICES, communicator, cuda, fake};

pub(crate) const NCCL: (&str, &str) = ("SYMMEM_PROVIDER", "nccl");

/// Collective. An engine on a device of this rank's own.
pub(crate) fn engine(group: &Group) -> Result<Engine> {
    Engine::new(group, &Device::new(group.rank())?)
}

/// Element `index` at the device address `address`: device memory is host memory here.
fn peek<T: Copy>(address: u64, index: usize) -> T {
    // SAFETY: callers ask for what they have just been told is mapped.
    unsafe { (address as *const T).add(index).read_volatile() }
}

/// Collective. Everybody's memory is everybody's.
pub(crate) fn check_direct(memory: &SymmetricMemory<f32>) -> Result<()> {
    assert!(memory.is_direct());
    let stream = Stream::new(memory.device())?;
    memory.write(&vec![memory.rank() as f32; memory.len()], &stream)?;
    memory.group().barrier()?;
    for (rank, address) in memory.peer_ptrs().iter().enumerate() {
        assert_eq!(peek::<f32>(*address, memory.len() - 1), rank as f32);
        assert_eq!(memory.peer_ptr(rank)?, *address);
        assert_eq!(peek::<u32>(memory.pad_ptr(rank)?, memory.rank()), 0);
    }
    memory.group().barrier()
}

/// Collective. NCCL does what kernels cannot.
fn check_carried(memory: &SymmetricMemory<f32>) -> Result<()> {
    assert!(!memory.is_direct());
    let (rank, world) = (memory.rank(), memory.world_size());
    let stream = Stream::new(memory.device())?;
    let mine: Vec<f32> = (0..memory.len()).map(|at| (rank + at) as f32).collect();
    let sum = |at: usize| (0..world).map(|rank| (rank + at) as f32).sum::<f32>();
    let sums: Vec<f32> = (0..memory.len()).map(sum).collect();
    memory.write(&mine, &stream)?;
    let mut out = symmem::cuda::Buffer::new(memory.device(), memory.len())?;
    memory.all_reduce_out(ReduceOp::Sum, &mut out, &stream)?;
    assert_eq!((out.read(&stream)?, memory.read(&stream)?), (sums.clone(), mine.clone()));
    let input = symmem::cuda::Buffer::from_slice(memory.device(), &mine, &stream)?;
    memory.all_reduce_from(ReduceOp::Sum, &input, &mut out, &stream)?;
    assert_eq!(out.read(&stream)?, sums);
    memory.all_reduce(ReduceOp::Sum, &stream)?;
    assert_eq!(memory.read(&stream)?, sums);
    check_carried_parts(memory, &stream)?;
    // What the engine does not do by itself, NCCL does.
    memory.all_reduce(ReduceOp::Max, &stream)?;
    memory.engine().barrier(&stream)?;
    memory.barrier(0, &stream)?;
    memory.engine().sync(&stream, Duration::from_secs(10))
}

/// Collective. The collectives that give each rank a part.
fn check_carried_parts(memory: &SymmetricMemory<f32>, stream: &Stream) -> Result<()> {
    let (rank, world) = (memory.rank(), memory.world_size());
    let memory = memory.slice(..memory.len() / world * world)?;
    let (len, chunk, root) = (memory.len(), memory.len() / world, world - 1);
    let all: Vec<Vec<f32>> =
        (0..world).map(|rank| (0..len).map(|at| (10 * rank + at) as f32).collect()).collect();
    let own = |part: &dyn Fn(&Vec<f32>) -> Vec<f32>| all.iter().flat_map(part).collect::<Vec<f32>>();
    memory.write(&all[rank], stream)?;
    let buffer = |len| symmem::cuda::Buffer::<f32>::new(memory.device(), len);
    let (mut whole, mut same, mut part) = (buffer(len * world)?, buffer(len)?, buffer(chunk)?);
    let mine = rank * chunk..(rank + 1) * chunk;
    memory.all_gather(&mut whole, stream)?;
    assert_eq!(whole.read(stream)?, all.concat());
    memory.all_to_all(&mut same, stream)?;
    assert_eq!(same.read(stream)?, own(&|theirs| theirs[mine.clone()].to_vec()));
    memory.scatter(root, &mut part, stream)?;
    assert_eq!(part.read(stream)?, all[root][mine.clone()]);
    let sums: Vec<f32> = (0..len).map(|at| all.iter().map(|theirs| theirs[at]).sum()).collect();
    memory.reduce_scatter(ReduceOp::Sum, &mut part, stream)?;
    assert_eq!(part.read(stream)?, sums[mine]);
    let is_root = rank == root;
    memory.reduce(ReduceOp::Sum, root, is_root.then_some(same.as_slice_mut()), stream)?;
    memory.gather(root, is_root.then_some(whole.as_slice_mut()), stream)?;
    if is_root {
        assert_eq!((same.read(stream)?, whole.read(stream)?), (sums, all.concat()));
    }
    let columns = memory.reduce_scatter_columns(ReduceOp::Sum, world, &mut part, stream);
    assert!(columns.unwrap_err().to_string().contains("NCCL"));
    memory.broadcast(root, stream)?;
    assert_eq!(memory.read(stream)?, all[root]);
    memory.engine().sync(stream, Duration::from_secs(10))
}

/// Collective. Signals go around by NCCL, on the one channel it has.
fn check_signals(memory: &SymmetricMemory<f32>) -> Result<()> {
    let (stream, group) = (Stream::new(memory.device())?, memory.group());
    memory.put_signal(group.next(), 0, &stream)?;
    memory.wait_signal(group.prev(), 0, &stream)?;
    let refused = memory.put_signal(group.next(), 1, &stream);
    assert_error!(refused, Error::ChannelOutOfRange { channels: 1, .. });
    group.barrier()
}

pub(crate) fn nothing_is_left() {
    // An abort after a failure has a thread of its own.
    let start = Instant::now();
    while fake::live() != [0; 3] && start.elapsed() < AT_ONCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fake::violations(), 0);
    assert_eq!(fake::live(), [0; 3]);
    assert!(cuda::Live::now().has_no_memory(), "{:?}", cuda::Live::now());
}

#[test]
fn ranks_in_reach_map_each_others_windows() {
    let vars = [DEVICES, NCCL];
    fake::run("provider::ranks_in_reach_map_each_others_windows", &vars, || {
        symmem::spawn(3, |group| {
            let engine = engine(&group)?;
            assert!(engine.is_direct() && engine.communicator().is_some());
            let x = engine.device().alloc::<f32>(1001)?;
            assert_eq!(x.provider(), Provider::Nccl);
            let stream = Stream::new(engine.device())?;
            assert!(x.read(&stream)?.iter().all(|number| *number == 0.0));
            let memory = x.rendezvous(&engine)?;
            check_direct(&memory)?;
            assert!(memory.nccl_window().is_some() && memory.multicast_ptr().is_none());
            assert_eq!(memory.slice(3..)?.window_offset(), 12);
            // Another handle needs no other window.
            let again = x.rendezvous_at(&engine, group.rank())?;
            assert_eq!((again.len(), again.nccl_window()), (999, memory.nccl_window()));
            assert_eq!(fake::live()[1], 3);
            // Kernels are launched on it.
            memory.all_reduce(ReduceOp::Sum, &stream)?;
            engine.sync(&stream, Duration::from_secs(10))?;
            // The driver's memory works on the same engine.
            let other = Allocation::<f32>::with(engine.device(), 10, Provider::Vmm)?;
            check_direct(&other.rendezvous(&engine)?)
        })
        .unwrap();
        let log = fake::log();
        let last = |call: &str| log.iter().rposition(|line| line == call).unwrap();
        assert!(fake::place(&log, "ncclCommWindowDeregister") < fake::place(&log, "ncclMemFree"));
        assert!(last("ncclCommWindowDeregister") < last("ncclCommAbort"), "{log:?}");
        assert!(!log.iter().any(|call| call == "ncclAllReduce"), "the engine did it");
        nothing_is_left();
    });
}

#[test]
fn windows_come_and_go_without_growth() {
    fake::run("provider::windows_come_and_go_without_growth", &[DEVICES, NCCL], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            for round in 0..100 {
                let memory = engine.alloc::<f32>(1000 + round)?.rendezvous(&engine)?;
                check_direct(&memory)?;
                assert!(fake::live()[1] <= 4, "{:?}", fake::live());
                drop(memory);
                group.barrier()?;
            }
            Ok(())
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn multicast_is_there_if_nccl_has_it() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_MULTICAST", "1")];
    fake::run("provider::multicast_is_there_if_nccl_has_it", &vars, || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let x = engine.alloc::<f32>(100)?;
            let address = x.rendezvous(&engine)?.multicast_ptr().expect("NCCL has multicast");
            assert_eq!(x.rendezvous_at(&engine, 2)?.multicast_ptr(), Some(address + 8));
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}

/// Runs `test` on memory of `world` ranks, by NCCL of the given kind.
fn on_memory(world: usize, test: impl Fn(&SymmetricMemory<f32>) -> Result<()> + Sync) {
    symmem::spawn(world, |group| {
        let engine = engine(&group)?;
        let memory = engine.alloc::<f32>(300)?.rendezvous(&engine)?;
        test(&memory)?;
        group.barrier()
    })
    .unwrap();
    nothing_is_left();
}

#[test]
fn ranks_that_are_marked_are_carried() {
    let vars = [DEVICES, NCCL, ("SYMMEM_UNREACHABLE", "1")];
    fake::run("provider::ranks_that_are_marked_are_carried", &vars, || {
        on_memory(3, |memory| {
            assert!(!memory.engine().is_direct());
            check_carried(memory)?;
            check_signals(memory)?;
            // Who is not marked can still be reached by copies.
            let (rank, stream) = (memory.rank(), Stream::new(memory.device())?);
            let mut out = symmem::cuda::Buffer::<f32>::new(memory.device(), 1)?;
            for peer in (0..3).filter(|peer| *peer != rank) {
                let near = rank != 1 && peer != 1;
                assert_eq!(memory.peer_ptr(peer).is_ok(), near);
                let got = memory.get(peer, 0, &mut out, &stream);
                assert!(got.is_ok() == near && (near || matches!(got, Err(Error::NoPeerAccess { .. }))));
            }
            Ok(())
        });
    });
}

#[test]
fn ranks_out_of_nccls_reach_are_carried() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_LSA", "2")];
    fake::run("provider::ranks_out_of_nccls_reach_are_carried", &vars, || {
        on_memory(4, |memory| {
            // Kernels reach everybody by other means, but not this memory.
            assert!(memory.engine().is_direct());
            check_carried(memory)?;
            let far = (memory.rank() + 2) % 4;
            assert_eq!(memory.peer_ptrs()[far], 0);
            assert_error!(memory.peer_ptr(far), Error::NoPeerAccess { .. });
            assert_eq!(memory.slice(5..)?.peer_ptrs()[far], 0);
            // The pads are reached, so signals need no NCCL.
            memory.put_signal(memory.group().next(), 5, &Stream::new(memory.device())?)
        });
    });
}

#[test]
fn devices_without_peer_access_are_carried() {
    let vars = [DEVICES, NCCL, ("FAKECUDA_NO_PEER", "1"), ("FAKENCCL_LSA", "1")];
    fake::run("provider::devices_without_peer_access_are_carried", &vars, || {
        on_memory(3, |memory| {
            assert!(!memory.engine().is_direct());
            check_carried(memory)
        });
        // Without NCCL that is an error.
        symmem::spawn(2, |group| {
            let device = Device::new(group.rank())?;
            let made = Engine::with(
                &group,
                &device,
                Settings { provider: Some(Provider::Vmm), ..Settings::default() },
            );
            assert_error!(made, Error::NoPeerAccess { .. });
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn pointers_that_lead_elsewhere_are_not_believed() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_WRONG_POINTERS", "1")];
    fake::run("provider::pointers_that_lead_elsewhere_are_not_believed", &vars, || {
        on_memory(2, check_carried);
    });
}

#[test]
fn a_structure_is_read_for_versions_that_are_known_and_checked() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_VERSION", "2.28.9")];
    fake::run("provider::a_structure_is_read_for_versions_that_are_known_and_checked", &vars, || {
        on_memory(1, check_direct);
        // For two ranks the fake's structure is wrong, and the mark shows that.
        on_memory(2, |memory| {
            check_carried(memory)?;
            assert!(memory.engine().is_direct(), "the pads are reached");
            assert!(memory.peer_ptr(0).is_ok(), "of rank 0 it is right");
            Ok(())
        });
    });
}

#[test]
fn a_structure_that_nobody_has_checked_is_not_read() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_VERSION", "2.28.7")];
    fake::run("provider::a_structure_that_nobody_has_checked_is_not_read", &vars, || {
        on_memory(2, |memory| {
            check_carried(memory)?;
            let reached: Vec<bool> = memory.peer_ptrs().iter().map(|address| *address != 0).collect();
            assert_eq!(reached, [0, 1].map(|rank| rank == memory.rank()));
            Ok(())
        });
    });
}

#[test]
fn windows_without_pointers_are_carried_and_signals_need_a_newer_nccl() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_VERSION", "2.27.7"), ("SYMMEM_UNREACHABLE", "0")];
    fake::run("provider::windows_without_pointers_are_carried_and_signals_need_a_newer_nccl", &vars, || {
        on_memory(2, |memory| {
            check_carried(memory)?;
            let stream = Stream::new(memory.device())?;
            let refused = memory.put_signal(memory.group().next(), 0, &stream);
            assert!(
                matches!(&refused, Err(Error::LibraryTooOld { needed, .. }) if &**needed == "2.29.2"),
                "{refused:?}"
            );
            Ok(())
        });
    });
}

#[test]
fn a_version_without_windows_is_told() {
    let vars = [DEVICES, NCCL, ("FAKENCCL_VERSION", "2.26.2")];
    fake::run("provider::a_version_without_windows_is_told", &vars, || {
        let refused = Device::new(0).unwrap().alloc::<f32>(10);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("ncclCommWindowRegister") && text.contains("2.27.3"), "{text}");
    });
}

#[test]
fn memory_of_nccl_needs_an_engine_with_a_communicator() {
    fake::run("provider::memory_of_nccl_needs_an_engine_with_a_communicator", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let without = engine(&group)?;
            assert!(without.communicator().is_none());
            let x = Allocation::<f32>::with(without.device(), 100, Provider::Nccl)?;
            let text = x.rendezvous(&without).unwrap_err().to_string();
            assert!(text.contains("SYMMEM_PROVIDER"), "{text}");
            // An engine can be made on a communicator that is there.
            let theirs = communicator(&group)?;
            // SAFETY: it lives longer than what adopts it.
            let adopted = unsafe { Communicator::adopt(theirs.raw(), None) }?;
            let engine = Engine::with_communicator(&group, Settings::default(), &adopted)?;
            check_direct(&x.rendezvous(&engine)?)?;
            drop((x, engine, adopted));
            group.barrier()?;
            assert_eq!(fake::live()[1], 0);
            theirs.finish(Duration::from_secs(10))?;
            // One of other ranks is refused, by all.
            let all = communicator(&group)?;
            let alone = all.split(Some(group.rank() as u32), 0)?.expect("a rank of one");
            let made = Engine::with_communicator(&group, Settings::default(), &alone);
            assert_error!(made, Error::Rank { rank: 0, .. });
            group.barrier()
        })
        .unwrap();
        assert_eq!(fake::violations(), 0);
    });
}

#[test]
fn providers_must_agree() {
    fake::run("provider::providers_must_agree", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let provider = [Provider::Vmm, Provider::Nccl][group.rank()];
            let device = Device::new(group.rank())?;
            let made =
                Engine::with(&group, &device, Settings { provider: Some(provider), ..Settings::default() });
            assert_error!(made, Error::Mismatch { .. });
            let config = config().provider(Provider::Nccl);
            let engine = Engine::new(&same_ranks_with(&group, config)?, &device)?;
            let x = Allocation::<f32>::with(&device, 10, provider)?;
            assert_error!(x.rendezvous(&engine), Error::Mismatch { .. });
            check_direct(&engine.alloc::<f32>(10)?.rendezvous(&engine)?)
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn nothing_of_nccls_ends_while_the_same_thread_captures() {
    const NAME: &str = "provider::nothing_of_nccls_ends_while_the_same_thread_captures";
    fake::run(NAME, &[DEVICES, NCCL], || {
        symmem::spawn(1, |group| {
            let capture = |memory: &SymmetricMemory<f32>, stream: &Stream| {
                stream.begin_capture()?;
                memory.all_reduce(ReduceOp::Sum, stream)
            };
            let make = || -> Result<(Engine, SymmetricMemory<f32>, Stream)> {
                let engine = engine(&group)?;
                let memory = engine.alloc::<f32>(100)?.rendezvous(&engine)?;
                let stream = engine.stream()?;
                Ok((engine, memory, stream))
            };
            let (old, new) = (make()?, make()?);
            capture(&old.1, &old.2)?;
            // From here on only the graph keeps the old engine.
            let graph = old.2.end_capture()?;
            drop(old);
            fake::log();
            capture(&new.1, &new.2)?;
            drop(graph);
            new.1.all_reduce(ReduceOp::Sum, &new.2)?;
            assert_eq!(fake::log(), Vec::<String>::new(), "NCCL is called in a capture");
            drop(new.2.end_capture()?);
            let log = fake::log();
            assert!(log.iter().any(|call| call == "ncclCommAbort"), "nothing is kept for long: {log:?}");
            Ok(())
        })
        .unwrap();
        nothing_is_left();
    });
}
