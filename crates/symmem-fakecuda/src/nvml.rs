//! The part of NVML that tells where a device is in an NVLink fabric. Nothing here is counted or made to
//! fail: what NVML cannot tell is never an error.

use std::ffi::{CStr, c_char, c_int, c_uint};

const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_FOUND: c_uint = 6;
const DRIVER_NOT_LOADED: c_uint = 9;
const VERSION_MISMATCH: c_uint = 25;
/// The members of the fabric have found each other.
const COMPLETED: u8 = 3;

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

/// What begins a struct of that version.
const VERSION: c_uint = size_of::<FabricInfo>() as c_uint | 2 << 24;

/// The clique of each device.
fn cliques() -> Vec<u32> {
    let text = std::env::var("FAKECUDA_CLIQUES").unwrap_or_default();
    text.split(',').filter_map(|clique| clique.parse().ok()).collect()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_uint {
    if cliques().is_empty() { DRIVER_NOT_LOADED } else { SUCCESS }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(_code: c_uint) -> *const c_char {
    c"an error of the fake NVML".as_ptr()
}

/// A handle is the device's number, plus one.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, handle: *mut usize) -> c_uint {
    if bus_id.is_null() || handle.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller's string.
    let bus_id = unsafe { CStr::from_ptr(bus_id) }.to_string_lossy().into_owned();
    let device = (0..cliques().len()).find(|device| crate::device::bus_id_of(*device as c_int) == bus_id);
    let Some(device) = device else { return NOT_FOUND };
    // SAFETY: the caller's place for the result.
    unsafe { handle.write(device + 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(handle: usize, info: *mut FabricInfo) -> c_uint {
    // SAFETY: the caller's struct, of which the first word is there in every version.
    let Some(info) = (unsafe { info.as_mut() }) else { return INVALID_ARGUMENT };
    if info.version != VERSION {
        return VERSION_MISMATCH;
    }
    let Some(clique) = handle.checked_sub(1).and_then(|device| cliques().get(device).copied()) else {
        return NOT_FOUND;
    };
    info.cluster = *b"the fake cluster";
    (info.status, info.clique, info.state, info.health) = (SUCCESS, clique, COMPLETED, 0);
    SUCCESS
}
