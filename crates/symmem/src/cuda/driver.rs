//! The door to the CUDA driver: once per process it is found, checked and initialised.
//!
//! Called by anything that makes the first object of a kind ([`super::Device`] above all); everybody who
//! holds a device may call `cudarc::driver::sys` from then on. What it guarantees: every symbol in
//! [`REQUIRED`] exists once [`driver`] succeeded (cudarc panics on a missing one, so each symbol that this
//! crate calls must be listed here; a test looks), the driver is new enough, and this process is not a forked
//! child.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUevent, CUresult};

use super::library::in_short;
use super::queues;
use crate::sys::fork;
use crate::{Error, Result};

/// Oldest driver: 12.3 has multicast objects, fabric handles and capture information with edge data.
const OLDEST: i32 = 12030;

/// The symbols that must be there. All are in the driver of CUDA 12.3.
const REQUIRED: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphGetNodes",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphNodeGetType",
    "cuGraphRetainUserObject",
    "cuInit",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastCreate",
    "cuMulticastGetGranularity",
    "cuMulticastUnbind",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamBeginCapture_v2",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamGetCtx",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWriteValue32_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
];

/// Symbols that are asked for with [`has`] before each use.
#[cfg(test)]
const OPTIONAL: &[&str] = &["cuFuncLoad"];

type ErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
pub(super) type DeviceUuid = unsafe extern "C" fn(*mut sys::CUuuid, sys::CUdevice) -> CUresult;

/// The driver of this process.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The CUDA version it speaks: 1000 * major + 10 * minor.
    pub(crate) version: i32,
    /// cudarc's newest bindings know its successor only, which drivers before 12.8 do not have.
    pub(super) elapsed_time: ElapsedTime,
    /// The UUID of the whole GPU, also for a MIG instance.
    pub(super) gpu_uuid: Option<DeviceUuid>,
    /// What MPS was told of this process when the driver was initialised.
    pub(crate) mps: MpsShare,
}

/// The driver; the first call finds and initialises it.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    if fork::is_child() {
        return Err(Error::Forked { op: "CUDA" });
    }
    match DRIVER.get_or_init(open) {
        Ok(driver) => Ok(driver),
        Err(problem) => Err(Error::NoCuda { problem: problem.clone() }),
    }
}

/// The CUDA version that the driver speaks: major, minor. Not that of any toolkit.
pub fn driver_version() -> Result<(u32, u32)> {
    let version = driver()?.version.unsigned_abs();
    Ok((version / 1000, version % 1000 / 10))
}

/// Whether the driver has `symbol`. False where there is no driver.
pub(crate) fn has(symbol: &str) -> bool {
    // SAFETY: the symbol is only looked for, never called or read.
    driver().is_ok() && unsafe { find::<unsafe extern "C" fn()>(symbol) }.is_some()
}

/// An error if `code` is one.
#[inline]
pub(crate) fn check(call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(error(call, code)) }
}

/// The error that `code` stands for.
#[cold]
pub(crate) fn error(call: &'static str, code: CUresult) -> Error {
    let code = code as i32;
    Error::Cuda { call, code, name: name(code), hint: hint(code) }
}

/// Writes down what went wrong while something was released; nobody can be told.
pub(crate) fn trace_release(call: &'static str, code: CUresult) {
    if code == CUresult::CUDA_SUCCESS {
        return;
    }
    let error = error(call, code);
    match code {
        // The process is ending, and the driver went first.
        CUresult::CUDA_ERROR_DEINITIALIZED => tracing::debug!(%error, "not released"),
        _ => tracing::warn!(%error, "not released"),
    }
}

/// Loads, checks and initialises; or says in a sentence and a hint why CUDA cannot be used.
fn open() -> Result<Driver, String> {
    load()?;
    if let Some(missing) = REQUIRED.iter().find(|name| !exists(name)) {
        return Err(format!(
            "the driver has no {missing}. Hint: CUDA 12.3 or newer is needed; update the NVIDIA driver"
        ));
    }
    // From here on a forked child must not act: the driver does not survive a fork.
    fork::arm();
    queues::remember();
    let variable = |name| std::env::var(name).ok();
    let mps = MpsShare::read(variable(MPS_SHARE).as_deref(), variable(MPS_PER_CONTEXT).as_deref());
    // SAFETY: takes a plain number.
    let code = unsafe { sys::cuInit(0) };
    if code != CUresult::CUDA_SUCCESS {
        return Err(init_problem(code as i32));
    }
    let version = version();
    if version < OLDEST {
        return Err(format!(
            "the driver speaks CUDA {}, and {} is the oldest that will do. Hint: update the NVIDIA driver",
            spoken(version),
            spoken(OLDEST)
        ));
    }
    // SAFETY: the types are those of cuda.h.
    let (elapsed_time, gpu_uuid) = unsafe { (find("cuEventElapsedTime"), find("cuDeviceGetUuid")) };
    let elapsed_time = elapsed_time.ok_or("the driver has no cuEventElapsedTime")?;
    tracing::debug!(version = %spoken(version), "CUDA driver");
    Ok(Driver { version, elapsed_time, gpu_uuid, mps })
}

/// Of MPS: the part of a device that a client may use, in per cent.
const MPS_SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// Whether contexts have shares of their own. Then clients see whole devices.
const MPS_PER_CONTEXT: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";

/// The part of a device's multiprocessors that MPS gives a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MpsShare {
    percent: f64,
    /// Whether the driver shows the client all of them all the same.
    shows_all: bool,
}

impl MpsShare {
    /// By the values of the two variables; everything where they make no sense.
    fn read(percentage: Option<&str>, per_context: Option<&str>) -> Self {
        let percentage = percentage.and_then(|text| text.trim().parse::<f64>().ok());
        let percentage = percentage.filter(|percentage| (1.0..=100.0).contains(percentage));
        Self {
            percent: percentage.unwrap_or(100.0),
            shows_all: !matches!(per_context, None | Some("" | "0")),
        }
    }

    /// Of a device that shows `seen` multiprocessors: how many it has, and how many of them this client may
    /// use. Rounded down.
    pub(crate) fn of(self, seen: u32) -> (u32, u32) {
        let part = self.percent / 100.0;
        match self.shows_all {
            true => (seen, ((f64::from(seen) * part) as u32).max(1)),
            false => ((f64::from(seen) / part) as u32, seen),
        }
    }
}

/// Loads the library by the names that cudarc tries, in its order, and keeps it: cudarc then finds it by the
/// same name instead of panicking.
fn load() -> Result<(), String> {
    let names = ["cuda", "nvcuda"].into_iter().flat_map(cudarc::get_lib_name_candidates);
    let mut reason = "no such file".to_owned();
    for name in names {
        // SAFETY: the initialisers of the CUDA driver are made to be run by any program.
        match unsafe { libloading::Library::new(&name) } {
            Ok(library) => {
                std::mem::forget(library);
                return Ok(());
            }
            Err(error) if name == "libcuda.so.1" => reason = in_short(&error),
            Err(_) => {}
        }
    }
    Err(format!(
        "the driver library libcuda.so.1 cannot be loaded ({reason}). Hint: install the NVIDIA driver; a container must be started with GPUs (--gpus all)"
    ))
}

/// Looks for `symbol` in the library that cudarc calls.
///
/// # Safety
/// [`load`] succeeded, and `T` is the symbol's type: a function pointer.
unsafe fn find<T: Copy>(symbol: &str) -> Option<T> {
    // SAFETY: as promised by the caller.
    unsafe { sys::culib().get::<T>(symbol).ok().map(|symbol| *symbol) }
}

fn exists(symbol: &str) -> bool {
    // SAFETY: called after `load`; the symbol is only looked for.
    unsafe { find::<unsafe extern "C" fn()>(symbol) }.is_some()
}

fn version() -> i32 {
    let mut version = 0;
    // SAFETY: writes one integer.
    let code = unsafe { sys::cuDriverGetVersion(&mut version) };
    if code == CUresult::CUDA_SUCCESS { version } else { 0 }
}

/// `12030` as `12.3`.
fn spoken(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Why `cuInit` failed with `code`, and what to do.
fn init_problem(code: i32) -> String {
    match code {
        3 => "the driver cannot be initialised in a forked child of a process that uses CUDA. Hint: use exec or the spawn start method".to_owned(),
        34 => "libcuda is the toolkit's stub, not the driver. Hint: take the folder \"stubs\" out of LD_LIBRARY_PATH".to_owned(),
        100 => "no CUDA device is visible. Hint: look at nvidia-smi, CUDA_VISIBLE_DEVICES, and the GPUs the container was given".to_owned(),
        _ => {
            let hint = hint(code);
            let mark = if hint.is_empty() { "" } else { ". Hint: " };
            format!("cuInit: {} (error {code}){mark}{hint}", name(code))
        }
    }
}

/// The driver's name of `code`. The code is passed as a number: it may be one that this crate has never heard
/// of.
fn name(code: i32) -> String {
    static NAME: OnceLock<Option<ErrorName>> = OnceLock::new();
    // SAFETY: there is a code, so the library is loaded; the type is that of cuda.h, an enum being an int
    // there.
    let function = NAME.get_or_init(|| unsafe { find("cuGetErrorName") });
    let mut text: *const c_char = std::ptr::null();
    if let Some(function) = function {
        // SAFETY: writes one pointer, to a constant string or null.
        unsafe { function(code, &mut text) };
    }
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, so a constant string of the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What to do about `code`; empty where there is nothing to say.
fn hint(code: i32) -> &'static str {
    match code {
        2 => "the device has too little free memory left; nvidia-smi shows who holds it",
        3 => "CUDA does not survive fork; use exec or the spawn start method",
        46 | 100 | 101 => "look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        200 | 209 | 218 | 222 => {
            "the kernels are for another GPU or a newer driver; update the driver, or clear SYMMEM_CACHE_DIR"
        }
        217 | 704 | 705 => {
            "these devices cannot reach each other's memory; `nvidia-smi topo -p2p r` shows which can"
        }
        221 | 223 => "the driver's just-in-time compiler is missing or switched off; install NVRTC",
        304 => "the driver was refused by the system; in a container, look at /dev/nvidia* and at ulimit -n",
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 => {
            "a kernel failed on this device and its context is lost; start the process again; compute-sanitizer shows where"
        }
        800 => {
            "the system does not permit this; fabric handles need access to /dev/nvidia-caps-imex-channels"
        }
        802 => "the GPUs are not ready; machines with NVSwitch need the nvidia-fabricmanager service",
        803 => "driver library and kernel module differ in version; reload the module or restart the machine",
        805..=810 => {
            "look at the log of the MPS server; a client that was killed with work under way takes it down"
        }
        900..=908 => "this cannot be done while a stream is being captured; do it before the capture begins",
        919 => "the NVLink fabric is not ready; look at the fabric state in nvidia-smi -q",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The text of all sources of this crate.
    fn sources(folder: &Path, into: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn what_mps_says_is_a_percentage() {
        let share = |percentage, per_context| MpsShare::read(percentage, per_context);
        assert_eq!(share(None, None).of(132), (132, 132));
        assert_eq!(share(Some("25"), None).of(33), (132, 33));
        assert_eq!(share(Some(" 12.5 "), Some("0")).of(16), (128, 16));
        assert_eq!(share(Some("12.5"), Some("1")).of(132), (132, 16));
        for odd in ["", "x", "-3", "0", "250", "nan"] {
            assert_eq!(share(Some(odd), None).of(132), (132, 132), "{odd}");
        }
    }

    #[test]
    fn every_symbol_that_is_called_is_known_to_exist() {
        let mut text = String::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
        let calls = text.match_indices("sys::cu").filter_map(|(at, _)| {
            let name = &text[at + "sys::".len()..];
            let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
            let called = name[end..].starts_with('(') && name[2..].starts_with(|c: char| c.is_uppercase());
            called.then(|| &name[..end])
        });
        let mut seen = 0;
        for name in calls {
            assert!(
                REQUIRED.contains(&name) || OPTIONAL.contains(&name),
                "{name} is called; list it in cuda/driver.rs, where it is looked for, or cudarc panics without it"
            );
            seen += 1;
        }
        assert!(seen > 40, "{seen}");
    }

    #[test]
    fn symbols_are_listed_once() {
        let mut names = REQUIRED.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REQUIRED.len());
    }

    #[test]
    fn without_a_driver_there_is_one_clear_sentence() {
        let Err(error) = driver() else {
            println!("skipped: this machine has a CUDA driver");
            return;
        };
        let text = error.to_string();
        assert!(matches!(error, Error::NoCuda { .. }), "{text}");
        assert!(text.starts_with("CUDA cannot be used: ") && text.contains("Hint: "), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!has("cuInit"));
        assert_eq!(driver().unwrap_err().to_string(), text, "the answer stays the same");
    }

    #[test]
    fn reasons_of_a_failed_start_are_told_apart() {
        for (code, word) in [(3, "forked"), (34, "stub"), (100, "CUDA_VISIBLE_DEVICES")] {
            assert!(init_problem(code).contains(word), "{}", init_problem(code));
        }
        assert_eq!(spoken(12030), "12.3");
        assert_eq!(spoken(13000), "13.0");
    }

    #[test]
    fn success_is_no_error_and_hints_follow_the_code() {
        assert!(check("cuInit", CUresult::CUDA_SUCCESS).is_ok());
        for code in [2, 700, 802, 900, 908] {
            assert!(!hint(code).is_empty(), "{code}");
        }
        assert_eq!(hint(1), "");
    }
}
