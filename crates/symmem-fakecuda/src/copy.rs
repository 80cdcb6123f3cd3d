//! Ordinary allocations, registered host memory, copies and fills. All of it happens within the call, or, on
//! a stream that is captured, when the graph is launched.

use std::ffi::{c_uint, c_void};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::device::current;
use crate::node::{NodeWork, give};
use crate::result::{Code, INVALID_VALUE, OUT_OF_MEMORY, Out, call, put, put_at};
use crate::state::{DriverState, Region};

/// Where memory of `bytes` was that is gone, if any was: real allocators give the same address out again,
/// too.
fn vacancy(state: &mut DriverState, bytes: usize) -> *mut c_void {
    let found = state.vacant.iter().rposition(|(_, vacant)| *vacant == bytes);
    found.map_or(ptr::null_mut(), |at| state.vacant.remove(at).0 as *mut c_void)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code {
    call(c"cuMemAlloc_v2", |state| {
        current()?;
        if bytes == 0 || address.is_null() {
            return Err(INVALID_VALUE);
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let wish = vacancy(state, bytes);
        // SAFETY: a fresh mapping, there if nothing else is, or wherever the kernel likes.
        let at = unsafe { mmap_anonymous(wish, bytes, prot, flags) };
        let at = at.map_err(|_| OUT_OF_MEMORY)? as u64;
        let serial = state.number();
        state.allocations.insert(at, Region { bytes, serial });
        // SAFETY: the caller's place for the result.
        unsafe { put_at(address, at) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call(c"cuMemFree_v2", |state| {
        let bytes = state.allocations.remove(&address).ok_or(INVALID_VALUE)?.bytes;
        state.vacant.push((address, bytes));
        // SAFETY: mapped by `cuMemAlloc_v2`.
        unsafe { munmap(address as *mut c_void, bytes) }.map_err(|_| INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    call(c"cuMemHostRegister_v2", |state| {
        current()?;
        if host.is_null() || bytes == 0 || state.registered.contains_key(&(host as u64)) {
            return Err(INVALID_VALUE);
        }
        let serial = state.number();
        state.registered.insert(host as u64, Region { bytes, serial });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostUnregister(host: *mut c_void) -> Code {
    call(c"cuMemHostUnregister", |state| {
        state.registered.remove(&(host as u64)).map(drop).ok_or(INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: Out<'_, u64>,
    host: *mut c_void,
    _flags: c_uint,
) -> Code {
    call(c"cuMemHostGetDevicePointer_v2", |state| {
        if !state.is_accessible(host as u64, 1) {
            return Err(INVALID_VALUE);
        }
        put(address, host as u64)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyHtoDAsync_v2", |state| {
        give(state, stream, &[(to, bytes)], NodeWork::Copy { to, from: from as u64, bytes })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyDtoHAsync_v2", |state| {
        give(state, stream, &[(from, bytes)], NodeWork::Copy { to: to as u64, from, bytes })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyDtoDAsync_v2", |state| {
        give(state, stream, &[(to, bytes), (from, bytes)], NodeWork::Copy { to, from, bytes })
    })
}

/// Sets `count` words at `to`.
fn fill_words(state: &mut DriverState, to: u64, value: u32, count: usize, stream: u64) -> Result<(), Code> {
    let bytes = count.checked_mul(size_of::<u32>()).ok_or(INVALID_VALUE)?;
    if !to.is_multiple_of(align_of::<u32>() as u64) {
        return Err(INVALID_VALUE);
    }
    give(state, stream, &[(to, bytes)], NodeWork::FillWords { to, value, count })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) -> Code {
    call(c"cuMemsetD8Async", |state| {
        give(state, stream, &[(to, count)], NodeWork::FillBytes { to, value, count })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) -> Code {
    call(c"cuMemsetD32Async", |state| fill_words(state, to, value, count, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(stream: u64, to: u64, value: u32, _flags: c_uint) -> Code {
    call(c"cuStreamWriteValue32_v2", |state| fill_words(state, to, value, 1, stream))
}
