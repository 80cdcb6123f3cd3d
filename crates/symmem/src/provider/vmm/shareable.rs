//! How memory travels between processes: as a file descriptor within a host, as a fabric handle within an
//! NVLink domain.
//!
//! The device attribute for fabric handles is set on machines where none can be made (it takes a running IMEX
//! service and its channel), so what counts is one that was made.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute, CUmemAllocationHandleType, CUmemFabricHandle};

use super::physical::{Physical, granularity, properties};
use crate::cuda::Device;
use crate::cuda::driver::check;
use crate::sys::fd::close_on_exec;
use crate::{Error, Result};

const FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

/// A fabric handle: plain bytes, valid in the whole NVLink domain.
pub(crate) type FabricHandle = [u8; 64];

/// Every kind of handle that memory of `device` can be exported as. None at all is no error here: a rank
/// alone needs none, and ranks that meet are told which of them cannot (`card.rs`).
pub(crate) fn kinds(device: &Device) -> Result<CUmemAllocationHandleType> {
    let fd = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    Ok(match (device.attribute(fd)? != 0, has_fabric(device)) {
        (true, true) => CUmemAllocationHandleType(FD.0 | FABRIC.0),
        (true, false) => FD,
        (false, true) => FABRIC,
        (false, false) => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
    })
}

/// Whether there is any among `kinds`.
pub(crate) fn is_any(kinds: CUmemAllocationHandleType) -> bool {
    includes_fd(kinds) || includes_fabric(kinds)
}

/// Whether file descriptors are among `kinds`.
pub(crate) fn includes_fd(kinds: CUmemAllocationHandleType) -> bool {
    kinds.0 & FD.0 != 0
}

/// Whether fabric handles are among `kinds`.
pub(crate) fn includes_fabric(kinds: CUmemAllocationHandleType) -> bool {
    kinds.0 & FABRIC.0 != 0
}

/// Whether fabric handles can be made: found out once per device, by making one.
pub(crate) fn has_fabric(device: &Device) -> bool {
    static PROVEN: Mutex<Option<HashMap<usize, bool>>> = Mutex::new(None);
    let mut proven = PROVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let proven = proven.get_or_insert_default();
    *proven.entry(device.ordinal()).or_insert_with(|| match prove_fabric(device) {
        Ok(proven) => proven,
        Err(error) => {
            tracing::debug!(device = device.ordinal(), %error, "no fabric handles here, file descriptors only");
            false
        }
    })
}

fn prove_fabric(device: &Device) -> Result<bool> {
    let claimed = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    if device.attribute(claimed)? == 0 {
        return Ok(false);
    }
    let prop = properties(device, FABRIC)?;
    let one = Physical::create_with(device, granularity(device, &prop)?, &prop)?;
    export_fabric(&one)?;
    Ok(true)
}

/// A file descriptor of `physical`, for a process of this host.
pub(crate) fn export_fd(physical: &Physical) -> Result<OwnedFd> {
    let _bound = physical.device().bind()?;
    let mut fd: RawFd = -1;
    // SAFETY: for this kind the call writes one descriptor.
    let code = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), physical.raw(), FD, 0) };
    check("cuMemExportToShareableHandle", code)?;
    if fd < 0 {
        return Err(Error::invalid("cuMemExportToShareableHandle", "the driver gave no file descriptor"));
    }
    // SAFETY: the driver made it for this caller, who closes it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // Nothing that a rank starts may inherit its memory.
    close_on_exec(&fd).map_err(|error| Error::sys("fcntl of an exported descriptor", error))?;
    Ok(fd)
}

/// The fabric handle of `physical`, for any process of the NVLink domain.
pub(crate) fn export_fabric(physical: &Physical) -> Result<FabricHandle> {
    let _bound = physical.device().bind()?;
    let mut handle = CUmemFabricHandle { data: [0; 64] };
    // SAFETY: for this kind the call writes one such struct.
    let code =
        unsafe { sys::cuMemExportToShareableHandle((&raw mut handle).cast(), physical.raw(), FABRIC, 0) };
    check("cuMemExportToShareableHandle", code)?;
    Ok(handle.data)
}

/// The memory of `bytes` behind a descriptor that a peer exported. The descriptor can be closed afterwards.
pub(crate) fn import_fd(device: &Device, fd: BorrowedFd<'_>, bytes: usize) -> Result<Physical> {
    // The driver takes the number itself in place of a pointer.
    let number = fd.as_fd().as_raw_fd() as usize as *mut std::ffi::c_void;
    import(device, number, FD, bytes)
}

/// The memory of `bytes` behind a fabric handle that a peer exported.
pub(crate) fn import_fabric(device: &Device, handle: &FabricHandle, bytes: usize) -> Result<Physical> {
    let mut handle = CUmemFabricHandle { data: *handle };
    import(device, (&raw mut handle).cast(), FABRIC, bytes)
}

fn import(
    device: &Device,
    from: *mut std::ffi::c_void,
    kind: CUmemAllocationHandleType,
    bytes: usize,
) -> Result<Physical> {
    let _bound = device.bind()?;
    let mut handle = 0;
    // SAFETY: `from` is what the call wants for this kind; it writes one handle.
    let code = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, from, kind) };
    check("cuMemImportFromShareableHandle", code)?;
    // SAFETY: the handle was just made for this owner. A size that does not fit is refused when it is mapped.
    Ok(unsafe { Physical::from_raw(device, handle, bytes) })
}
