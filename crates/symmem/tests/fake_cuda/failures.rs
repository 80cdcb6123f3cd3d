//! Every driver call fails once, on each rank in turn: all ranks get the same error, a retry works, and
//! nothing leaks.

use std::cell::Cell;

use symmem::cuda::{Algorithm, Device, Engine, Form, SymmetricMemory};
use symmem::{DType, Group, ProcessSpawner, Result};

use crate::fabric::{FABRIC, ONE_CLIQUE, apart};
use crate::fake::Live;
use crate::{DEVICES, check, engine, fake, unanimous};

/// Calls whose failure nothing depends on: they give something back, or ask for something one can do without.
const HARMLESS: [&str; 10] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuFuncLoad",
];

/// Calls without which there is no multicast, and all go on without it.
const FOR_MULTICAST: [&str; 9] = [
    "cuMemAddressReserve",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuMulticastGetGranularity",
];

/// Collective. Makes the `n`-th call of `victim` in `action` fail. Returns what all ranks said, and which
/// call it was, if there was one. What they have if all is fine is given to `look`.
fn fail_once<T>(
    group: &Group,
    victim: usize,
    n: u64,
    action: impl FnOnce() -> Result<T>,
    look: impl FnOnce(&T) -> Result<()>,
) -> Result<(String, Option<String>)> {
    group.barrier()?;
    if group.rank() == victim {
        fake::fail(n);
    }
    let result = action();
    let call = fake::failed();
    fake::fail(0);
    let said = unanimous(group, &result)?;
    if let Ok(made) = &result {
        look(made)?;
    }
    drop(result);
    let calls = group.all_gather_bytes(call.unwrap_or_default().as_bytes())?;
    let call = Some(&calls[victim]).filter(|call| !call.is_empty());
    Ok((said, call.map(|call| String::from_utf8_lossy(call).into_owned())))
}

/// Collective. Goes through all calls of `action`, on each rank, and checks what all ranks say, and have;
/// afterwards `retry` must work. `is_optional`: whether all may go on without what the call was for.
fn fail_everywhere<T>(
    group: &Group,
    action: impl Fn() -> Result<T>,
    look: impl Fn(&T) -> Result<()>,
    retry: impl Fn() -> Result<()>,
    is_optional: impl Fn(&str) -> bool,
) -> Result<()> {
    let (mut refused, mut harmless) = (0, 0);
    for victim in 0..group.size() {
        for n in 1.. {
            group.barrier()?;
            let before = Live::now();
            let (said, call) = fail_once(group, victim, n, &action, &look)?;
            let Some(call) = call else {
                assert_eq!(said, "fine", "nothing failed");
                break;
            };
            if said == "fine" {
                assert!(
                    HARMLESS.contains(&call.as_str()) || is_optional(&call),
                    "{call} failed, and nobody cared"
                );
                harmless += 1;
            } else {
                assert!(tells(&said, victim, &call), "{call} failed on {victim}: {said}");
                refused += 1;
            }
            retry()?;
            group.barrier()?;
            let after = Live::now();
            assert!(
                after.is_as(&before, &call),
                "{call}, number {n} of rank {victim}: {before:?}, {after:?}"
            );
            assert_eq!(fake::violations(), 0, "after {call} of rank {victim}");
        }
    }
    if group.rank() == 0 {
        println!("{} ranks: {refused} calls refused, {harmless} without consequence", group.size());
    }
    assert!(refused >= 10 * group.size());
    Ok(())
}

/// Whether what all ranks said tells whose call failed. A device whose place on the bus is not known is in no
/// NVLink domain, and then the pair of ranks that cannot reach each other is named.
fn tells(said: &str, victim: usize, call: &str) -> bool {
    let names_the_pair = call == "cuDeviceGetPCIBusId" && said.contains("cannot reach the memory of rank");
    said.starts_with(&format!("rank {victim}: ")) || names_the_pair
}

/// Every call of a rendezvous fails once on each rank.
fn rendezvous_fails_everywhere(group: Group) -> Result<()> {
    rendezvous_on_fails_everywhere(&group, &engine(&group)?, |_| false)
}

/// The same with an engine on the same ranks.
fn rendezvous_on_fails_everywhere(
    group: &Group,
    engine: &Engine,
    is_optional: impl Fn(&str) -> bool,
) -> Result<()> {
    let x = engine.device().alloc::<f32>(1000)?;
    let rendezvous = || x.rendezvous(engine);
    // Closed, so that the next one is not local.
    let look = |memory: &SymmetricMemory<f32>| check(memory).and_then(|()| memory.clone().close());
    fail_everywhere(group, rendezvous, look, || look(&x.rendezvous(engine)?), is_optional)
}

/// Every call with which an engine is made fails once on each rank.
fn engine_fails_everywhere(group: Group) -> Result<()> {
    let device = Device::new(group.rank())?;
    // A device keeps the stream that it makes for its first allocation.
    device.alloc::<u8>(1)?;
    let retry = || {
        let engine = Engine::new(&group, &device)?;
        check(&device.alloc::<f32>(10)?.rendezvous(&engine)?)
    };
    // A kernel that is not there for this size of group is taken from those for any.
    let is_optional = |call: &str| call.starts_with("cuModule") || call.starts_with("cuFunc");
    fail_everywhere(&group, || Engine::new(&group, &device), |_| Ok(()), retry, is_optional)
}

/// Every call with which an engine with multicast is made fails once on each rank: then all go on without, or
/// fail together.
fn engine_with_multicast_fails_everywhere(group: Group) -> Result<()> {
    let device = Device::new(group.rank())?;
    device.alloc::<u8>(1)?;
    let plan = |engine: &Engine| engine.using(Algorithm::Multimem).plan(Form::InPlace, DType::F32, 64);
    let look = |engine: &Engine| unanimous(&group, &plan(engine)).map(drop);
    let retry = || {
        let engine = Engine::new(&group, &device)?;
        plan(&engine).map(drop)
    };
    fail_everywhere(&group, || Engine::new(&group, &device), look, retry, |_| true)
}

/// Every call of a rendezvous with multicast fails once on each rank: then all go on without, or fail
/// together.
fn multicast_fails_everywhere(group: Group) -> Result<()> {
    let engine = engine(&group)?;
    let x = engine.device().alloc::<f32>(1000)?;
    let has_multicast = Cell::new(false);
    let look = |memory: &SymmetricMemory<f32>| {
        let all = group.all_gather(&u32::from(memory.multicast_ptr().is_some()))?;
        assert!(all.iter().all(|has| *has == all[0]), "some have multicast: {all:?}");
        has_multicast.set(all[0] != 0);
        check(memory)?;
        memory.clone().close()
    };
    let retry = || {
        let memory = x.rendezvous(&engine)?;
        assert!(memory.multicast_ptr().is_some());
        check(&memory)?;
        memory.close()
    };
    // Rank 0 lets go of the object that it made when all have bound: that may fail, and all have multicast.
    let is_optional = |call: &str| match has_multicast.get() {
        true => call == "cuMemRelease",
        false => FOR_MULTICAST.contains(&call),
    };
    fail_everywhere(&group, || x.rendezvous(&engine), look, retry, is_optional)
}

#[test]
fn every_call_of_a_rendezvous_fails_once_as_threads() {
    fake::run("failures::every_call_of_a_rendezvous_fails_once_as_threads", &[DEVICES], || {
        for world in [1, 3] {
            symmem::spawn(world, rendezvous_fails_everywhere).unwrap();
        }
        assert!(Live::now().has_no_memory(), "{:?}", Live::now());
    });
}

#[test]
fn every_call_of_a_rendezvous_fails_once_as_processes() {
    const NAME: &str = "failures::every_call_of_a_rendezvous_fails_once_as_processes";
    fake::run(NAME, &[DEVICES], || {
        ProcessSpawner::new(NAME, 2).run(rendezvous_fails_everywhere).unwrap();
    });
}

#[test]
fn every_call_of_a_rendezvous_fails_once_on_one_device() {
    const NAME: &str = "failures::every_call_of_a_rendezvous_fails_once_on_one_device";
    fake::run(NAME, &[("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1")], || {
        symmem::spawn(2, |group| {
            let engine = Engine::new(&group, &Device::new(0)?)?;
            rendezvous_on_fails_everywhere(&group, &engine, |_| false)
        })
        .unwrap();
    });
}

#[test]
fn every_call_of_a_rendezvous_fails_once_within_a_domain() {
    const NAME: &str = "failures::every_call_of_a_rendezvous_fails_once_within_a_domain";
    fake::run(NAME, &[DEVICES, FABRIC, ONE_CLIQUE], || {
        symmem::spawn(2, |group| {
            // A fabric handle that is refused is no loss where there is a descriptor.
            let is_optional = |call: &str| call == "cuMemImportFromShareableHandle";
            rendezvous_on_fails_everywhere(&group, &engine(&group)?, is_optional)
        })
        .unwrap();
        assert!(fake::imports().1 > fake::imports().0, "{:?}", fake::imports());
        assert!(Live::now().has_no_memory(), "{:?}", Live::now());
    });
}

#[test]
fn every_call_of_a_rendezvous_fails_once_over_hosts() {
    const NAME: &str = "failures::every_call_of_a_rendezvous_fails_once_over_hosts";
    fake::run(NAME, &[DEVICES, FABRIC, ONE_CLIQUE], || {
        symmem::spawn(2, |group| {
            rendezvous_on_fails_everywhere(&group, &engine(&apart(&group)?)?, |_| false)
        })
        .unwrap();
        assert_eq!(fake::imports().0, 0);
        assert!(Live::now().has_no_memory(), "{:?}", Live::now());
    });
}

#[test]
fn every_call_of_an_engine_fails_once() {
    fake::run("failures::every_call_of_an_engine_fails_once", &[DEVICES], || {
        symmem::spawn(2, engine_fails_everywhere).unwrap();
        assert!(Live::now().has_no_memory(), "{:?}", Live::now());
    });
}

#[test]
fn every_call_of_an_engine_with_multicast_fails_once() {
    let vars = [DEVICES, ("FAKECUDA_MULTICAST", "1")];
    fake::run("failures::every_call_of_an_engine_with_multicast_fails_once", &vars, || {
        symmem::spawn(2, engine_with_multicast_fails_everywhere).unwrap();
    });
}

#[test]
fn every_call_of_multicast_fails_once() {
    let vars = [DEVICES, ("FAKECUDA_MULTICAST", "1")];
    fake::run("failures::every_call_of_multicast_fails_once", &vars, || {
        // Among the calls is the release of the object that rank 0 made, so at the end there is one handle
        // left.
        symmem::spawn(3, multicast_fails_everywhere).unwrap();
    });
}
