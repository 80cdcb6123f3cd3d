//! Multicast objects over plain memory: nothing is multiplied, but the protocol of making one is kept.
//!
//! The object's file ends in a page that all processes see, with the number of devices that were added. The
//! driver waits in the bind until all were; here that is an error, because whoever binds must know.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::device::{check_device, is_on};
use crate::memory::{granularity, keep, new_file};
use crate::result::{
    Code, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Outcome, call, put_at,
};
use crate::state::{Backing, Binding};

/// Bytes of the page that all processes see, after the object's own.
pub(crate) const HEAD: usize = 4096;

/// `CUmulticastObjectProp`.
#[repr(C)]
struct Properties {
    devices: c_uint,
    bytes: usize,
    handle_types: u64,
    flags: u64,
}

/// What all processes see.
#[repr(C)]
struct Head {
    wanted: AtomicU32,
    added: AtomicU32,
}

/// Works on the object's head.
fn with_head<T>(object: &Backing, work: impl FnOnce(&Head) -> T) -> Result<T, Code> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping of the file's last page.
    let at = unsafe { mmap(ptr::null_mut(), HEAD, prot, flags, &object.file, object.bytes as u64) };
    let at = at.map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: mapped, aligned, zero or written by this function; only atomics.
    let result = work(unsafe { &*at.cast::<Head>() });
    // SAFETY: mapped above, and no longer used.
    let _ = unsafe { munmap(at, HEAD) };
    Ok(result)
}

fn check_multicast(object: &Backing) -> Outcome {
    if object.multicast { Ok(()) } else { Err(INVALID_HANDLE) }
}

/// # Safety
/// `prop` points to properties, or is null.
unsafe fn check_properties<'a>(prop: *const Properties) -> Result<&'a Properties, Code> {
    if !is_on("FAKECUDA_MULTICAST") {
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: as promised by the caller.
    let prop = unsafe { prop.as_ref() }.ok_or(INVALID_VALUE)?;
    if prop.devices > 0 && prop.flags == 0 { Ok(prop) } else { Err(INVALID_VALUE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMulticastGetGranularity(
    result: *mut usize,
    prop: *const Properties,
    _option: c_uint,
) -> Code {
    call(c"cuMulticastGetGranularity", |_| {
        // SAFETY: the caller's properties, and its place for the result.
        unsafe { check_properties(prop).and_then(|_| put_at(result, granularity())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMulticastCreate(handle: *mut u64, prop: *const Properties) -> Code {
    call(c"cuMulticastCreate", |state| {
        // SAFETY: the caller's properties.
        let prop = unsafe { check_properties(prop) }?;
        if prop.bytes == 0 || !prop.bytes.is_multiple_of(granularity()) {
            return Err(INVALID_VALUE);
        }
        let file = new_file(c"fakecuda-multicast", prop.bytes + HEAD)?;
        let kinds = prop.handle_types as u32;
        let object = Backing { file, bytes: prop.bytes, kinds, multicast: true };
        with_head(&object, |head| head.wanted.store(prop.devices, Ordering::SeqCst))?;
        // SAFETY: the caller's place for the result.
        unsafe { keep(state, handle, object) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMulticastAddDevice(handle: u64, device: c_int) -> Code {
    call(c"cuMulticastAddDevice", |state| {
        check_device(device)?;
        let object = state.backing(handle)?;
        check_multicast(object)?;
        let room = with_head(object, |head| {
            head.added.fetch_add(1, Ordering::SeqCst) < head.wanted.load(Ordering::SeqCst)
        })?;
        if room { Ok(()) } else { Err(INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMulticastBindMem(
    handle: u64,
    offset: usize,
    memory: u64,
    memory_offset: usize,
    bytes: usize,
    _flags: u64,
) -> Code {
    call(c"cuMulticastBindMem", |state| {
        let object = state.backing(handle)?;
        check_multicast(object)?;
        let fits = bytes <= object.bytes && bytes <= state.backing(memory)?.bytes;
        if !fits || bytes == 0 || offset != 0 || memory_offset != 0 {
            return Err(INVALID_VALUE);
        }
        let complete = with_head(object, |head| {
            head.added.load(Ordering::SeqCst) == head.wanted.load(Ordering::SeqCst)
        })?;
        if !complete {
            return Err(ILLEGAL_STATE);
        }
        state.bindings.push(Binding { object: handle, memory });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMulticastUnbind(handle: u64, device: c_int, offset: usize, _bytes: usize) -> Code {
    call(c"cuMulticastUnbind", |state| {
        check_device(device)?;
        let bound = state.bindings.iter().position(|binding| binding.object == handle);
        state.bindings.remove(bound.filter(|_| offset == 0).ok_or(INVALID_VALUE)?);
        Ok(())
    })
}
