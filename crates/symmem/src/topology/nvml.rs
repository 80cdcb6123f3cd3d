//! The few questions that only NVML answers.
//!
//! Called by the topology only. What it guarantees: a missing library, symbol or driver is an answer in
//! words; the bindings' own methods, which panic, are not called.

#![allow(unsafe_code, reason = "calls of NVML")]

use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

use nvml_wrapper_sys::bindings::{self as sys, NvmlLib, nvmlDevice_t, nvmlReturn_t};

use super::nvlink::Remote;
use crate::cuda::device::Fabric;

/// The state of a fabric whose members found each other.
const COMPLETED: u8 = sys::NVML_GPU_FABRIC_STATE_COMPLETED as u8;

/// Where a device sits on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PciAddress {
    pub(super) domain: u32,
    pub(super) bus: u32,
    pub(super) device: u32,
}

/// NVML, initialised; never shut down.
pub(super) struct Nvml(NvmlLib);

/// NVML; the first call finds and initialises it.
pub(super) fn nvml() -> Result<&'static Nvml, String> {
    static NVML: OnceLock<Result<Nvml, String>> = OnceLock::new();
    NVML.get_or_init(Nvml::open).as_ref().map_err(Clone::clone)
}

/// The function, or words that say it is missing.
fn known<F: Copy, E>(function: &Result<F, E>, name: &str) -> Result<F, String> {
    function.as_ref().copied().map_err(|_| format!("NVML has no {name}"))
}

impl Nvml {
    fn open() -> Result<Self, String> {
        // SAFETY: the initialisers of NVML are made to be run by any program.
        let library = unsafe { NvmlLib::new("libnvidia-ml.so.1") };
        let nvml = Self(library.map_err(|_| "libnvidia-ml.so.1 cannot be loaded".to_owned())?);
        // SAFETY: no arguments.
        let code = unsafe { (known(&nvml.0.nvmlInit_v2, "nvmlInit_v2")?)() };
        nvml.check("nvmlInit", code)?;
        Ok(nvml)
    }

    fn check(&self, call: &str, code: nvmlReturn_t) -> Result<(), String> {
        if code == sys::nvmlReturn_enum_NVML_SUCCESS {
            return Ok(());
        }
        let name = known(&self.0.nvmlErrorString, "nvmlErrorString").ok().map(|function| {
            // SAFETY: takes any number, and returns a constant string.
            unsafe { CStr::from_ptr(function(code)) }.to_string_lossy().into_owned()
        });
        Err(format!("{call}: {} (NVML error {code})", name.unwrap_or_default()))
    }

    /// The version of the kernel's driver, e.g. `570.86.15`.
    pub(super) fn driver_version(&self) -> Result<String, String> {
        let function = known(&self.0.nvmlSystemGetDriverVersion, "nvmlSystemGetDriverVersion")?;
        let mut text: [c_char; 96] = [0; 96];
        // SAFETY: writes a terminated string of at most as many bytes.
        self.check("nvmlSystemGetDriverVersion", unsafe { function(text.as_mut_ptr(), text.len() as u32) })?;
        let bytes: Vec<u8> = text.iter().map(|letter| *letter as u8).take_while(|byte| *byte != 0).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// How far the fabric manager is with a GPU: the state and the status of NVML. `None` where NVML does not
    /// tell.
    pub(super) fn fabric_state(&self, device: nvmlDevice_t) -> Option<(u8, u32)> {
        let (_, _, status, state) = self.fabric_v2(device).or_else(|| self.fabric_v1(device))?;
        Some((state, status))
    }

    /// The GPU at this bus id, as CUDA writes it.
    pub(super) fn device(&self, bus_id: &str) -> Result<nvmlDevice_t, String> {
        let text = CString::new(bus_id).map_err(|error| error.to_string())?;
        let mut device = std::ptr::null_mut();
        // SAFETY: a terminated string; writes one handle.
        let code = unsafe {
            (known(&self.0.nvmlDeviceGetHandleByPciBusId_v2, "nvmlDeviceGetHandleByPciBusId_v2")?)(
                text.as_ptr(),
                &mut device,
            )
        };
        self.check("nvmlDeviceGetHandleByPciBusId", code)?;
        Ok(device)
    }

    /// Where a GPU is, in the same words as [`Nvml::remote`].
    pub(super) fn address(&self, device: nvmlDevice_t) -> Result<PciAddress, String> {
        let mut info = no_pci();
        // SAFETY: a device; writes one struct.
        let code = unsafe {
            (known(&self.0.nvmlDeviceGetPciInfo_v3, "nvmlDeviceGetPciInfo_v3")?)(device, &mut info)
        };
        self.check("nvmlDeviceGetPciInfo", code)?;
        Ok(PciAddress { domain: info.domain, bus: info.bus, device: info.device })
    }

    /// What is at the other end of a GPU's link; `None` if it has no such link.
    pub(super) fn remote(&self, device: nvmlDevice_t, link: u32) -> Result<Option<Remote>, String> {
        let mut kind = 0;
        // SAFETY: a device; writes one number.
        let code = unsafe {
            (known(&self.0.nvmlDeviceGetNvLinkRemoteDeviceType, "nvmlDeviceGetNvLinkRemoteDeviceType")?)(
                device, link, &mut kind,
            )
        };
        if code != sys::nvmlReturn_enum_NVML_SUCCESS {
            return Ok(None);
        }
        match kind {
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU => {
                let mut info = no_pci();
                // SAFETY: a device with that link; writes one struct.
                let code = unsafe {
                    (known(
                        &self.0.nvmlDeviceGetNvLinkRemotePciInfo_v2,
                        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
                    )?)(device, link, &mut info)
                };
                self.check("nvmlDeviceGetNvLinkRemotePciInfo", code)?;
                let address = PciAddress { domain: info.domain, bus: info.bus, device: info.device };
                Ok(Some(Remote::Gpu(address)))
            }
            sys::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH => Ok(Some(Remote::Switch)),
            _ => Ok(Some(Remote::Other)),
        }
    }

    /// A GPU's place in a fabric of several machines. A fabric within one machine has no cluster: that is
    /// none.
    pub(super) fn fabric(&self, device: nvmlDevice_t) -> Option<Fabric> {
        let (cluster, clique, status, state) = self.fabric_v2(device).or_else(|| self.fabric_v1(device))?;
        let is_whole = status == sys::nvmlReturn_enum_NVML_SUCCESS && state == COMPLETED;
        (is_whole && cluster != [0; 16]).then_some(Fabric { cluster, clique })
    }

    fn fabric_v2(&self, device: nvmlDevice_t) -> Option<([u8; 16], u32, nvmlReturn_t, u8)> {
        let function = known(&self.0.nvmlDeviceGetGpuFabricInfoV, "nvmlDeviceGetGpuFabricInfoV").ok()?;
        // Version 2, which every driver with this call knows; it is the beginning of version 3.
        let version = size_of::<sys::nvmlGpuFabricInfo_v2_t>() as u32 | 2 << 24;
        let mut info = sys::nvmlGpuFabricInfo_v3_t {
            version,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
            healthSummary: 0,
        };
        // SAFETY: a device; writes as much as the version says.
        let code = unsafe { function(device, &mut info) };
        (code == sys::nvmlReturn_enum_NVML_SUCCESS).then_some((
            info.clusterUuid,
            info.cliqueId,
            info.status,
            info.state,
        ))
    }

    fn fabric_v1(&self, device: nvmlDevice_t) -> Option<([u8; 16], u32, nvmlReturn_t, u8)> {
        let function = known(&self.0.nvmlDeviceGetGpuFabricInfo, "nvmlDeviceGetGpuFabricInfo").ok()?;
        let mut info = sys::nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
        // SAFETY: a device; writes one struct.
        let code = unsafe { function(device, &mut info) };
        (code == sys::nvmlReturn_enum_NVML_SUCCESS).then_some((
            info.clusterUuid,
            info.cliqueId,
            info.status,
            info.state,
        ))
    }
}

fn no_pci() -> sys::nvmlPciInfo_t {
    sys::nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    }
}
