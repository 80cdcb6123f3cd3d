//! A GPU, and its primary context.
//!
//! Public. Everything on the device holds a [`Device`], so the context outlives anything that lives in it.
//! What it guarantees: calls made under [`Device::bind`] see the right context, and afterwards the thread's
//! current context is what it was before.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::ffi::{CStr, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUresult, CUstream};

use super::capture::Relaxed;
use super::driver::{self, check, driver, trace_release};
use super::stream;
use crate::sys::{fork, ids};
use crate::{Error, Result};

/// A GPU with its primary context, the one that the CUDA runtime, PyTorch and cudarc use too. Cheap to clone;
/// the last clone releases the context.
#[derive(Clone)]
pub struct Device(Arc<SharedDevice>);

struct SharedDevice {
    facts: Facts,
    context: CUcontext,
    /// See [`Device::service`].
    service: OnceLock<CUstream>,
}

/// What can be known of a device without a context on it.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) ordinal: usize,
    pub(crate) raw: CUdevice,
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    pub(crate) total_memory: usize,
    pub(crate) is_mig: bool,
}

// SAFETY: handles of contexts and streams may be used from every thread; they are only numbers here.
unsafe impl Send for SharedDevice {}
// SAFETY: as above; what is made later is behind a lock.
unsafe impl Sync for SharedDevice {}

/// Where a GPU is in an NVLink fabric that spans machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fabric {
    /// The cluster.
    pub cluster: [u8; 16],
    /// The part of the cluster whose members reach each other.
    pub clique: u32,
}

impl Device {
    /// Number of visible devices.
    pub fn count() -> Result<usize> {
        driver()?;
        let mut count = 0;
        // SAFETY: writes one integer.
        check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device with this number among the visible ones. Retains its primary context, and makes it if
    /// nobody has.
    pub fn new(ordinal: usize) -> Result<Self> {
        let facts = Facts::of(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, facts.raw) })?;
        Ok(Self(Arc::new(SharedDevice { facts, context, service: OnceLock::new() })))
    }

    /// Its number among the visible devices.
    pub fn ordinal(&self) -> usize {
        self.0.facts.ordinal
    }

    /// Its name, e.g. `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.0.facts.name
    }

    /// What tells it apart from all other devices; of a MIG instance, the instance's own.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.facts.uuid
    }

    /// Compute capability: major, minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.0.facts.capability
    }

    /// Number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.0.facts.multiprocessors
    }

    /// Bytes of memory, used or not.
    pub fn total_memory(&self) -> usize {
        self.0.facts.total_memory
    }

    /// Whether it is a part of a GPU (a MIG instance), which no other device can reach.
    pub fn is_mig(&self) -> bool {
        self.0.facts.is_mig
    }

    /// Whether contexts on this device are shared through an MPS server.
    pub fn has_mps(&self) -> bool {
        self.0.facts.has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)
    }

    /// Whether it can be part of a multicast object.
    pub fn has_multicast(&self) -> bool {
        self.0.facts.has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)
    }

    /// Whether kernels on this device can reach the memory of `peer`. A device reaches itself.
    pub fn can_access(&self, peer: &Device) -> Result<bool> {
        self.0.facts.can_access(&peer.0.facts)
    }

    /// Waits until all work on it of this process is done, on whichever stream. Without a deadline: work that
    /// waits for a peer on the device has its own.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: a context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// What was known of it before it had a context.
    pub(crate) fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// An attribute of the device.
    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        attribute_of(self.0.facts.raw, attribute)
    }

    /// The driver's handle.
    pub(crate) fn raw(&self) -> CUdevice {
        self.0.facts.raw
    }

    /// The primary context, valid as long as this device.
    pub(crate) fn context(&self) -> CUcontext {
        self.0.context
    }

    /// Makes the context current until what this returns is dropped. Costs one call where it is current
    /// already.
    #[inline]
    pub(crate) fn bind(&self) -> Result<Bound<'_>> {
        if fork::is_child() {
            return Err(Error::Forked { op: "CUDA" });
        }
        let mut current = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.0.context {
            return Ok(Bound { restore: None, _device: PhantomData });
        }
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.0.context) })?;
        Ok(Bound { restore: Some(current), _device: PhantomData })
    }

    /// A stream for memsets and copies that the caller waits for, valid as long as this device. One for all
    /// of them: a stream with work needs a queue, and where ranks of a process share the device one queue is
    /// left for it (`queues.rs`).
    pub(crate) fn service(&self) -> Result<CUstream> {
        if let Some(stream) = self.0.service.get() {
            return Ok(*stream);
        }
        let _bound = self.bind()?;
        let made = stream::create(0)?;
        let kept = *self.0.service.get_or_init(|| made);
        if kept != made {
            // SAFETY: made here, and another thread was faster.
            trace_release("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(made) });
        }
        Ok(kept)
    }

    /// Frees something of this device in a drop: with the context bound, its failure traced, without harm to
    /// a capture of this thread, and not at all in a forked child, where the driver is dead.
    pub(crate) fn release(&self, call: &'static str, free: impl FnOnce() -> CUresult) {
        match self.bind() {
            Ok(_bound) => {
                let _relaxed = Relaxed::enter();
                trace_release(call, free());
            }
            Err(Error::Forked { .. }) => {}
            Err(error) => tracing::warn!(%error, call, "not released"),
        }
    }
}

impl Facts {
    /// Looks at the device with this number.
    pub(crate) fn of(ordinal: usize) -> Result<Self> {
        let count = Device::count()?;
        if count == 0 {
            let problem = "no CUDA device is visible. Hint: look at nvidia-smi and CUDA_VISIBLE_DEVICES";
            return Err(Error::NoCuda { problem: problem.to_owned() });
        }
        if ordinal >= count {
            return Err(Error::invalid("CUDA device", format!("{ordinal} must be in [0, {count})")));
        }
        let mut raw = 0;
        // SAFETY: writes one integer; the ordinal is below the count, which is an int.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut raw, ordinal as i32) })?;
        let name = name_of(raw)?;
        let uuid = uuid_of(raw)?;
        let number = |attribute| attribute_of(raw, attribute).map(|value| u32::try_from(value).unwrap_or(0));
        Ok(Self {
            ordinal,
            raw,
            is_mig: name.contains(" MIG ") || gpu_uuid_of(raw).is_some_and(|gpu| gpu != uuid),
            name,
            uuid,
            capability: (
                number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_memory: total_memory_of(raw)?,
        })
    }

    /// Whether an attribute is there and set.
    pub(crate) fn has(&self, attribute: CUdevice_attribute) -> bool {
        attribute_of(self.raw, attribute).is_ok_and(|value| value != 0)
    }

    /// As [`Device::can_access`].
    pub(crate) fn can_access(&self, peer: &Self) -> Result<bool> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: writes one integer; both are devices.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw) })?;
        Ok(can != 0)
    }

    /// Where it sits on the PCI bus, as CUDA writes it: `0000:1B:00.0`.
    pub(crate) fn bus_id(&self) -> Result<String> {
        let mut text: [c_char; 32] = [0; 32];
        // SAFETY: writes a terminated string of at most 32 bytes.
        check("cuDeviceGetPCIBusId", unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, self.raw) })?;
        Ok(string_of(&text))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.0.facts.raw == other.0.facts.raw
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.0.facts.ordinal)
            .field("name", &self.0.facts.name)
            .field("uuid", &ids::hex(&self.0.facts.uuid))
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({}, {})", self.0.facts.ordinal, self.0.facts.name, ids::hex(&self.0.facts.uuid))
    }
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        if let Some(stream) = self.service.get() {
            // SAFETY: made here; nobody has it any more.
            trace_release("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(*stream) });
        }
        // SAFETY: retained once when this was made; nothing on the device outlives this.
        trace_release("cuDevicePrimaryCtxRelease", unsafe {
            sys::cuDevicePrimaryCtxRelease_v2(self.facts.raw)
        });
    }
}

/// The time in which a device's context is current on this thread.
#[must_use]
#[derive(Debug)]
pub(crate) struct Bound<'a> {
    /// What was current before, where that was something else; null for nothing.
    restore: Option<CUcontext>,
    /// Also keeps this on its thread.
    _device: PhantomData<(&'a Device, *mut ())>,
}

impl Drop for Bound<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(context) = self.restore {
            // SAFETY: it was current before, or null.
            trace_release("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) });
        }
    }
}

fn attribute_of(raw: CUdevice, attribute: CUdevice_attribute) -> Result<i32> {
    driver()?;
    let mut value = 0;
    // SAFETY: writes one integer.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, raw) })?;
    Ok(value)
}

fn name_of(raw: CUdevice) -> Result<String> {
    let mut text: [c_char; 256] = [0; 256];
    // SAFETY: writes a terminated string of at most 256 bytes.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(text.as_mut_ptr(), 256, raw) })?;
    Ok(string_of(&text))
}

fn total_memory_of(raw: CUdevice) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: writes one integer.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, raw) })?;
    Ok(bytes)
}

fn uuid_of(raw: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, raw) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

/// The UUID of the whole GPU, where the driver tells.
fn gpu_uuid_of(raw: CUdevice) -> Option<[u8; 16]> {
    let function: driver::DeviceUuid = driver().ok()?.gpu_uuid?;
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes 16 bytes.
    let code = unsafe { function(&mut uuid, raw) };
    (code == CUresult::CUDA_SUCCESS).then(|| uuid.bytes.map(|byte| byte as u8))
}

/// The text of a buffer that holds a terminated string.
fn string_of(text: &[c_char]) -> String {
    let bytes: Vec<u8> = text.iter().map(|letter| *letter as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_a_device_is_one_clear_error() {
        if driver().is_ok() {
            println!("skipped: this machine has a CUDA driver");
            return;
        }
        for error in [Device::new(0).unwrap_err(), Device::count().unwrap_err()] {
            assert!(matches!(error, Error::NoCuda { .. }), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn a_buffer_ends_at_its_first_zero() {
        assert_eq!(string_of(&[b'H' as c_char, b'2' as c_char, 0, b'x' as c_char]), "H2");
        assert_eq!(string_of(&[b'H' as c_char]), "");
    }

    #[test]
    fn the_context_is_left_as_it_was() {
        let Ok(device) = Device::new(0) else {
            println!("skipped: no CUDA device");
            return;
        };
        let current = || {
            let mut current = std::ptr::null_mut();
            // SAFETY: writes one handle.
            check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) }).unwrap();
            current
        };
        let before = current();
        {
            let _outer = device.bind().unwrap();
            assert_eq!(current(), device.context());
            drop(device.bind().unwrap());
            assert_eq!(current(), device.context());
        }
        assert_eq!(current(), before);
        assert!(device.can_access(&device.clone()).unwrap());
        assert!(Device::new(Device::count().unwrap()).is_err());
    }
}
