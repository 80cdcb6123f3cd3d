//! Ordinary allocations, registered host memory, copies and fills. All of it happens within the call.

use std::ffi::{c_uint, c_void};
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::device::current;
use crate::result::{Code, ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY, Outcome, call, put};
use crate::state::State;
use crate::stream::is_captured;

/// Whether work on `stream` is to be done: not while it is captured.
fn begin(state: &State, stream: u64, ranges: &[(u64, usize)]) -> Result<bool, Code> {
    current()?;
    let captured = is_captured(state, stream)?;
    let accessible = ranges.iter().all(|(address, bytes)| state.is_accessible(*address, *bytes));
    if accessible { Ok(!captured) } else { Err(ILLEGAL_ADDRESS) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code {
    call(c"cuMemAlloc_v2", |state| {
        current()?;
        if bytes == 0 || address.is_null() {
            return Err(INVALID_VALUE);
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping, wherever the kernel likes.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, prot, flags) };
        let at = at.map_err(|_| OUT_OF_MEMORY)? as u64;
        state.allocations.insert(at, bytes);
        // SAFETY: the caller's place for the result.
        unsafe { put(address, at) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call(c"cuMemFree_v2", |state| {
        let bytes = state.allocations.remove(&address).ok_or(INVALID_VALUE)?;
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
        state.registered.insert(host as u64, bytes);
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
    address: *mut u64,
    host: *mut c_void,
    _flags: c_uint,
) -> Code {
    call(c"cuMemHostGetDevicePointer_v2", |state| {
        if !state.is_accessible(host as u64, 1) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's place for the result.
        unsafe { put(address, host as u64) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyHtoDAsync_v2", |state| {
        if begin(state, stream, &[(to, bytes)])? {
            // SAFETY: accessible, as just checked; `from` is the caller's.
            unsafe { ptr::copy(from.cast::<u8>(), to as *mut u8, bytes) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyDtoHAsync_v2", |state| {
        if begin(state, stream, &[(from, bytes)])? {
            // SAFETY: accessible, as just checked; `to` is the caller's.
            unsafe { ptr::copy(from as *const u8, to.cast::<u8>(), bytes) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> Code {
    call(c"cuMemcpyDtoDAsync_v2", |state| {
        if begin(state, stream, &[(to, bytes), (from, bytes)])? {
            // SAFETY: both are accessible, as just checked.
            unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) };
        }
        Ok(())
    })
}

/// Sets `count` elements at `to`.
fn fill<T: Copy>(state: &State, to: u64, value: T, count: usize, stream: u64) -> Outcome {
    let bytes = count.checked_mul(size_of::<T>()).ok_or(INVALID_VALUE)?;
    if !to.is_multiple_of(align_of::<T>() as u64) {
        return Err(INVALID_VALUE);
    }
    if begin(state, stream, &[(to, bytes)])? {
        // SAFETY: accessible and aligned, as just checked; any bits are such a number.
        unsafe { std::slice::from_raw_parts_mut(to as *mut T, count) }.fill(value);
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) -> Code {
    call(c"cuMemsetD8Async", |state| {
        // A whole mapping of zeros is given back to the system instead: control blocks are large, and mostly untouched.
        let whole = state.mappings.get(&to).is_some_and(|mapped| mapped.bytes == count);
        if value == 0 && whole && begin(state, stream, &[(to, count)])? {
            // SAFETY: mapped from a memfd, as just checked, which reads as zeros afterwards.
            let emptied = unsafe { madvise(to as *mut c_void, count, Advice::LinuxRemove) };
            if emptied.is_ok() {
                return Ok(());
            }
        }
        fill(state, to, value, count, stream)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) -> Code {
    call(c"cuMemsetD32Async", |state| fill(state, to, value, count, stream))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWriteValue32_v2(stream: u64, to: u64, value: u32, _flags: c_uint) -> Code {
    call(c"cuStreamWriteValue32_v2", |state| fill(state, to, value, 1, stream))
}
