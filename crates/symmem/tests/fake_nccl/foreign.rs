//! Communicators that somebody else has made, by NCCL's own functions, as PyTorch and cudarc do, and lends to
//! this crate.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libloading::Library;
use symmem::cuda::{Allocation, Buffer, Device, Engine, Provider, Settings, Stream};
use symmem::nccl::{Communicator, UniqueId};
use symmem::{Error, Group, ReduceOp, Result};

use crate::common::assert_error;
use crate::provider::{check_direct, nothing_is_left};
use crate::{DEVICES, fake};

/// `ncclUniqueId`, by value.
#[repr(C)]
struct Id([u8; UniqueId::BYTES]);

/// The functions that a program without this crate would call.
struct Nccl {
    init: unsafe extern "C" fn(*mut *mut c_void, c_int, Id, c_int) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    abort: unsafe extern "C" fn(*mut c_void) -> c_int,
}

fn nccl() -> &'static Nccl {
    static NCCL: OnceLock<Nccl> = OnceLock::new();
    NCCL.get_or_init(|| {
        // SAFETY: the types are those of the header; the library is never unloaded.
        unsafe {
            let library = Library::new(fake::path()).expect("the fake NCCL");
            let nccl = Nccl {
                init: *library.get(b"ncclCommInitRank").expect("NCCL has it"),
                destroy: *library.get(b"ncclCommDestroy").expect("NCCL has it"),
                abort: *library.get(b"ncclCommAbort").expect("NCCL has it"),
            };
            std::mem::forget(library);
            nccl
        }
    })
}

/// Collective. A communicator that this crate knows nothing of, on a device of this rank's own.
fn foreign(group: &Group, device: &Device) -> Result<*mut c_void> {
    let id = group.broadcast_bytes(0, UniqueId::new()?.as_bytes())?;
    let id = Id(id.try_into().expect("an id"));
    // What makes the device current, as a program would.
    let context = symmem::cuda::cudarc::driver::CudaContext::new(device.ordinal()).expect("a device");
    context.bind_to_thread().expect("a device");
    let mut raw = ptr::null_mut();
    // SAFETY: the header's parameters; writes one handle.
    let code = unsafe { (nccl().init)(&mut raw, group.size() as c_int, id, group.rank() as c_int) };
    assert_eq!(code, 0);
    Ok(raw)
}

fn adopt(raw: *mut c_void) -> Result<Communicator> {
    // SAFETY: tests end it after everything that adopts it.
    unsafe { Communicator::adopt(raw, None) }
}

/// Ends it. A window that another rank's thread came to take off while this one was in NCCL waits for the
/// next allocation, and until then NCCL refuses.
fn destroy(raw: *mut c_void, device: &Device) {
    let start = Instant::now();
    // SAFETY: no handle uses it any more.
    while unsafe { (nccl().destroy)(raw) } != 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "it still has windows");
        drop(Buffer::<u8>::new(device, 1).unwrap());
    }
}

/// Collective. The sum of everybody's rank + 1.
fn sum(communicator: &Communicator) -> Result<i32> {
    let stream = Stream::new(communicator.device())?;
    let mut data = Buffer::from_slice(communicator.device(), &[communicator.rank() as i32 + 1], &stream)?;
    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum, &stream)?;
    Ok(data.read(&stream)?[0])
}

#[test]
fn a_foreign_communicator_is_used_and_left_to_its_owner() {
    fake::run("foreign::a_foreign_communicator_is_used_and_left_to_its_owner", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let device = Device::new(group.rank())?;
            let raw = foreign(&group, &device)?;
            let adopted = adopt(raw)?;
            assert_eq!((adopted.rank(), adopted.size(), adopted.device()), (group.rank(), 3, &device));
            assert_eq!(sum(&adopted)?, 6);
            let engine = Engine::with_communicator(&group, Settings::default(), &adopted)?;
            let x = Allocation::<f32>::with(&device, 100, Provider::Nccl)?;
            check_direct(&x.rendezvous(&engine)?)?;
            assert_error!(adopted.finish(Duration::from_secs(1)), Error::Invalid { .. });
            drop((x, engine));
            adopted.abort();
            assert_error!(sum(&adopted), Error::Closed { .. });
            drop(adopted);
            // It is as it was: windows are gone, and it works.
            assert_eq!(sum(&adopt(raw)?)?, 6);
            group.barrier()?;
            destroy(raw, &device);
            group.barrier()
        })
        .unwrap();
        let log = fake::log();
        assert!(!log.iter().any(|call| call == "ncclCommAbort"), "it is not ours to abort: {log:?}");
        nothing_is_left();
    });
}

#[test]
fn a_foreign_communicator_is_revoked_and_shrunk() {
    fake::run("foreign::a_foreign_communicator_is_revoked_and_shrunk", &[DEVICES], || {
        symmem::spawn(3, |group| {
            let raw = foreign(&group, &Device::new(group.rank())?)?;
            let adopted = adopt(raw)?;
            assert_eq!(sum(&adopted)?, 6);
            group.barrier()?;
            adopted.revoke()?;
            let refused = sum(&adopted).unwrap_err();
            assert!(refused.to_string().contains("revoked"), "{refused}");
            group.barrier()?;
            if group.rank() == 1 {
                assert_error!(adopted.shrink(&[1], false), Error::Library { .. });
            } else {
                let rest = adopted.shrink(&[1], false)?;
                assert_eq!((rest.rank(), rest.size()), (group.rank() / 2, 2));
                assert_eq!(sum(&rest)?, 3);
                // The child is ours, whoever made its parent.
                rest.finish(Duration::from_secs(10))?;
                assert!(rest.raw().is_null() && !adopted.raw().is_null());
            }
            group.barrier()?;
            drop(adopted);
            // SAFETY: nobody uses it any more.
            assert_eq!(unsafe { (nccl().abort)(raw) }, 0);
            group.barrier()
        })
        .unwrap();
        nothing_is_left();
    });
}

#[test]
fn revoking_and_shrinking_need_versions_that_have_them() {
    let vars = [DEVICES, ("FAKENCCL_VERSION", "2.26.2")];
    fake::run("foreign::revoking_and_shrinking_need_versions_that_have_them", &vars, || {
        symmem::spawn(1, |group| {
            let raw = foreign(&group, &Device::new(0)?)?;
            let adopted = adopt(raw)?;
            let refused = [adopted.revoke(), adopted.shrink(&[], false).map(drop)];
            for (refused, since) in refused.into_iter().zip(["2.28.9", "2.27.3"]) {
                let is_gated =
                    matches!(&refused, Err(Error::LibraryTooOld { needed, .. }) if &**needed == since);
                assert!(is_gated, "{refused:?}");
            }
            assert_eq!(sum(&adopted)?, 1);
            drop(adopted);
            destroy(raw, &Device::new(0)?);
            Ok(())
        })
        .unwrap();
        nothing_is_left();
    });
}
