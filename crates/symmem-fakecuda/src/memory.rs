//! Virtual memory management: physical memory is a memfd, an address range a reserved part of the address
//! space.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::device::{check_device, has_rdma, is_listed, is_on, number};
use crate::multicast;
use crate::result::{
    Code, ILLEGAL_STATE, INVALID_HANDLE, INVALID_VALUE, NOT_PERMITTED, NOT_SUPPORTED, OUT_OF_MEMORY, Outcome,
    call, put_at,
};
use crate::state::{Backing, DriverState, Mapped};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FD: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
pub(crate) const FABRIC: u32 = 8;
/// Starts every fabric handle.
const FABRIC_MARK: [u8; 8] = *b"fakefabr";

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: *mut c_void,
    compression: u8,
    /// Whether network cards are to reach it.
    rdma: u8,
    more: [u8; 6],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

pub(crate) fn granularity() -> usize {
    number("FAKECUDA_GRANULARITY", 2 << 20) as usize
}

/// A new file that is memory of `bytes`. Its name starts with `fakecuda`, by which live descriptors are
/// counted.
pub(crate) fn new_file(name: &CStr, bytes: usize) -> Result<OwnedFd, Code> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(|_| OUT_OF_MEMORY)?;
    ftruncate(&file, bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file)
}

fn check_location(location: Location) -> Outcome {
    // CU_MEM_LOCATION_TYPE_DEVICE
    if location.kind == 1 { check_device(location.id) } else { Err(INVALID_VALUE) }
}

/// # Safety
/// `prop` points to properties, or is null.
unsafe fn check_properties<'a>(prop: *const Properties) -> Result<&'a Properties, Code> {
    // SAFETY: as promised by the caller.
    let prop = unsafe { prop.as_ref() }.ok_or(INVALID_VALUE)?;
    check_location(prop.location)?;
    // CU_MEM_ALLOCATION_TYPE_PINNED
    if prop.kind == 1 { Ok(prop) } else { Err(INVALID_VALUE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    result: *mut usize,
    prop: *const Properties,
    _option: u32,
) -> Code {
    call(c"cuMemGetAllocationGranularity", |_| {
        // SAFETY: the caller's properties, and its place for the result.
        unsafe { check_properties(prop).and_then(|_| put_at(result, granularity())) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    prop: *const Properties,
    _flags: u64,
) -> Code {
    call(c"cuMemCreate", |state| {
        // SAFETY: the caller's properties.
        let prop = unsafe { check_properties(prop) }?;
        if bytes == 0 || !bytes.is_multiple_of(granularity()) {
            return Err(INVALID_VALUE);
        }
        if prop.handle_types & FABRIC != 0 && !is_on("FAKECUDA_FABRIC") {
            return Err(NOT_PERMITTED);
        }
        let no_fds = is_listed("FAKECUDA_NO_EXPORT", prop.location.id);
        if (prop.handle_types & FD != 0 && no_fds) || (prop.rdma != 0 && !has_rdma()) {
            return Err(NOT_SUPPORTED);
        }
        state.made[usize::from(prop.rdma != 0)] += 1;
        let file = new_file(c"fakecuda", bytes)?;
        let backing = Backing { file, bytes, kinds: prop.handle_types, multicast: false };
        // SAFETY: the caller's place for the result.
        unsafe { keep(state, handle, backing) }
    })
}

/// Gives `backing` a handle.
///
/// # Safety
/// `handle` can be written, or is null.
pub(crate) unsafe fn keep(state: &mut DriverState, handle: *mut u64, backing: Backing) -> Outcome {
    let number = state.number();
    // SAFETY: as promised by the caller.
    unsafe { put_at(handle, number) }?;
    state.handles.insert(number, Arc::new(backing));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> Code {
    call(c"cuMemRelease", |state| {
        state.handles.remove(&handle).ok_or(INVALID_HANDLE)?;
        // Some drivers lose their way when memory goes before the multicast object that it is bound into.
        let bound = state.bindings.iter().any(|binding| binding.memory == handle || binding.object == handle);
        state.violations += usize::from(bound);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut u64,
    bytes: usize,
    _alignment: usize,
    _wish: u64,
    _flags: u64,
) -> Code {
    call(c"cuMemAddressReserve", |state| {
        if bytes == 0 || !bytes.is_multiple_of(granularity()) || address.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a fresh mapping, wherever the kernel likes.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) };
        let at = at.map_err(|_| OUT_OF_MEMORY)? as u64;
        state.ranges.insert(at, bytes);
        // SAFETY: the caller's place for the result.
        unsafe { put_at(address, at) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> Code {
    call(c"cuMemAddressFree", |state| {
        if state.ranges.get(&address) != Some(&bytes) {
            return Err(INVALID_VALUE);
        }
        if state.mappings.range(address..address + bytes as u64).next().is_some() {
            return Err(ILLEGAL_STATE);
        }
        state.ranges.remove(&address);
        // SAFETY: reserved by this library, and nothing is mapped in it.
        unsafe { munmap(address as *mut c_void, bytes) }.map_err(|_| INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) -> Code {
    call(c"cuMemMap", |state| {
        let backing = Arc::clone(state.backing(handle)?);
        let range = state.ranges.range(..=address).next_back();
        let end = address + bytes as u64;
        let reserved = range.is_some_and(|(start, length)| end <= start + *length as u64);
        let free = state.mappings.range(address..end).next().is_none();
        if !reserved || !free || bytes == 0 || offset != 0 || bytes > backing.bytes {
            return Err(INVALID_VALUE);
        }
        let serial = state.number();
        state.mappings.insert(address, Mapped { bytes, serial, backing, accessible: false });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) -> Code {
    call(c"cuMemSetAccess", |state| {
        // SAFETY: the caller's description.
        let access = unsafe { access.as_ref() }.filter(|_| count == 1).ok_or(INVALID_VALUE)?;
        check_location(access.location)?;
        let mapped = state.mappings.get_mut(&address).filter(|mapped| mapped.bytes == bytes);
        let mapped = mapped.ok_or(INVALID_VALUE)?;
        // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        if access.flags != 3 {
            return Err(INVALID_VALUE);
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces a part of a range that this library reserved.
        let at = unsafe { mmap(address as *mut c_void, bytes, prot, flags, &mapped.backing.file, 0) };
        at.map_err(|_| OUT_OF_MEMORY)?;
        mapped.accessible = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> Code {
    call(c"cuMemUnmap", |state| {
        if state.mappings.get(&address).is_none_or(|mapped| mapped.bytes != bytes) {
            return Err(INVALID_VALUE);
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: gives a part of a range that this library reserved back its emptiness.
        let at = unsafe { mmap_anonymous(address as *mut c_void, bytes, ProtFlags::empty(), flags) };
        at.map_err(|_| OUT_OF_MEMORY)?;
        state.mappings.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_void,
    handle: u64,
    kind: u32,
    _flags: u64,
) -> Code {
    call(c"cuMemExportToShareableHandle", |state| {
        let backing = state.backing(handle)?;
        if backing.kinds & kind == 0 {
            return Err(INVALID_VALUE);
        }
        match kind {
            FD => {
                let fd = fcntl_dupfd_cloexec(&backing.file, 0).map_err(|_| OUT_OF_MEMORY)?;
                // SAFETY: the caller's place for a descriptor, which is its own from here on.
                unsafe { put_at(to.cast::<c_int>(), fd.into_raw_fd()) }
            }
            // SAFETY: the caller's place for such a handle.
            FABRIC => unsafe { put_at(to.cast(), fabric_handle(backing)) },
            _ => Err(INVALID_VALUE),
        }
    })
}

/// A handle that says where the file is: open in this process.
fn fabric_handle(backing: &Backing) -> [u8; 64] {
    let mut handle = [0; 64];
    handle[..8].copy_from_slice(&FABRIC_MARK);
    handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    handle[12..16].copy_from_slice(&backing.file.as_raw_fd().to_le_bytes());
    handle
}

/// The file behind a fabric handle.
fn open_fabric(handle: &[u8; 64]) -> Result<OwnedFd, Code> {
    let word = |at: usize| u32::from_le_bytes([handle[at], handle[at + 1], handle[at + 2], handle[at + 3]]);
    if handle[..8] != FABRIC_MARK {
        return Err(INVALID_VALUE);
    }
    let path = format!("/proc/{}/fd/{}", word(8), word(12));
    std::fs::File::options().read(true).write(true).open(path).map(OwnedFd::from).map_err(|_| INVALID_HANDLE)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, from: *mut c_void, kind: u32) -> Code {
    call(c"cuMemImportFromShareableHandle", |state| {
        let file = match kind {
            FD => {
                let number = c_int::try_from(from as usize).map_err(|_| INVALID_VALUE)?;
                // SAFETY: borrowed for the duration of a call that fails if it is no descriptor.
                fcntl_dupfd_cloexec(unsafe { BorrowedFd::borrow_raw(number) }, 0)
                    .map_err(|_| INVALID_VALUE)?
            }
            // SAFETY: the caller's handle.
            FABRIC => open_fabric(unsafe { from.cast::<[u8; 64]>().as_ref() }.ok_or(INVALID_VALUE)?)?,
            _ => return Err(INVALID_VALUE),
        };
        let backing = recognise(file, kind)?;
        state.imports[usize::from(kind == FABRIC)] += 1;
        // SAFETY: the caller's place for the result.
        unsafe { keep(state, handle, backing) }
    })
}

/// What an imported file is, if it is one of this library's.
fn recognise(file: OwnedFd, kind: u32) -> Result<Backing, Code> {
    let link =
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| INVALID_VALUE)?;
    let link = link.to_string_lossy();
    let multicast = link.starts_with("/memfd:fakecuda-multicast");
    let bytes = fstat(&file).map_err(|_| INVALID_VALUE)?.st_size as usize;
    if !link.starts_with("/memfd:fakecuda") {
        return Err(INVALID_VALUE);
    }
    let bytes = if multicast { bytes.saturating_sub(multicast::HEAD) } else { bytes };
    Ok(Backing { file, bytes, kinds: kind, multicast })
}
