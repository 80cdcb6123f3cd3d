//! GPUs, and the libraries of NVIDIA's beside them. No context is made on any device.

#![allow(unsafe_code, reason = "calls of foreign libraries")]

use std::ffi::c_int;

use cudarc::driver::sys::CUdevice_attribute as Attribute;

use crate::cuda::device::Facts;
use crate::cuda::library::{self, WantedLibrary};
use crate::{Result, topology};

/// What matters of a device to this library.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Gpu {
    /// Its number among the visible devices.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of memory.
    pub memory: usize,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Whether it is a MIG instance.
    pub is_mig: bool,
    /// Virtual memory management: without it, its memory cannot be shared.
    pub has_vmm: bool,
    /// Memory as file descriptors: what ranks of one machine send each other.
    pub has_descriptors: bool,
    /// Memory as fabric handles: for NVLink between machines.
    pub has_fabric_handles: bool,
    /// Multicast objects.
    pub has_multicast: bool,
    /// One address space with the host.
    pub has_unified_addresses: bool,
    /// Kernels whose blocks all run at once.
    pub has_cooperative_launch: bool,
    /// Whether an MPS server runs its work.
    pub has_mps: bool,
    /// How far the fabric manager is with it.
    pub fabric: FabricState,
}

/// How far the fabric manager is with a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricState {
    /// The GPU is in no fabric, or NVML cannot tell.
    None,
    /// The manager has not looked at it yet, or does not run.
    NotStarted,
    /// It is at it.
    InProgress,
    /// The GPU is a member.
    Member,
    /// It was refused, with this error of NVML.
    Failed(u32),
}

/// All visible devices.
pub fn gpus() -> Result<Vec<Gpu>> {
    Ok(topology::devices()?.iter().map(gpu).collect())
}

fn gpu(device: &Facts) -> Gpu {
    let fabric = device.bus_id().ok().and_then(|bus_id| topology::fabric_state_of(&bus_id));
    Gpu {
        ordinal: device.ordinal,
        name: device.name.clone(),
        memory: device.total_memory,
        capability: device.capability,
        is_mig: device.is_mig,
        has_vmm: device.has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
        has_descriptors: device
            .has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        has_fabric_handles: device.has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
        has_multicast: device.has(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
        has_unified_addresses: device.has(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
        has_cooperative_launch: device.has(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH),
        has_mps: device.has(Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
        fabric: fabric.map_or(FabricState::None, |(state, status)| fabric_state(state, status)),
    }
}

/// What NVML's numbers mean.
fn fabric_state(state: u8, status: u32) -> FabricState {
    match (state, status) {
        (1, _) => FabricState::NotStarted,
        (2, _) => FabricState::InProgress,
        (3, 0) => FabricState::Member,
        (3, status) => FabricState::Failed(status),
        _ => FabricState::None,
    }
}

/// The version of the kernel's driver, or why it is not known.
pub fn kernel_driver() -> std::result::Result<String, String> {
    topology::kernel_driver()
}

/// The version of NVRTC, or why there is none.
pub fn nvrtc() -> Result<(i32, i32)> {
    crate::cuda::nvrtc::version()
}

/// The version of cuBLASLt, or why there is none. Loads it.
pub fn cublaslt() -> Result<String> {
    crate::cublas::version()
}

/// The version of NVSHMEM where it is found. Loads it, and starts nothing.
pub fn nvshmem() -> Option<String> {
    const WANTED: WantedLibrary =
        WantedLibrary { name: "NVSHMEM", variable: "", sonames: &["libnvshmem_host.so.3"], companion: None };
    type VersionInfo = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_int);
    let found = library::find(&WANTED).ok()?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the type is that of nvshmemx_api.h; writes three integers.
    unsafe {
        if let Ok(function) = found.library.get::<VersionInfo>("nvshmemx_vendor_get_version_info") {
            function(&mut major, &mut minor, &mut patch);
        }
    }
    std::mem::forget(found.library);
    Some(if major == 0 { "3".to_owned() } else { format!("{major}.{minor}.{patch}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_the_fabric_are_those_of_nvml() {
        assert_eq!(fabric_state(0, 0), FabricState::None);
        assert_eq!(fabric_state(1, 0), FabricState::NotStarted);
        assert_eq!(fabric_state(2, 0), FabricState::InProgress);
        assert_eq!(fabric_state(3, 0), FabricState::Member);
        assert_eq!(fabric_state(3, 9), FabricState::Failed(9));
    }
}
