//! Initialisation, devices and contexts.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint};

use crate::result::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Out, Outcome, call, put};
use crate::state::DriverState;

/// The version that it speaks.
const VERSION: c_int = 13000;
/// Bytes of memory of a device.
const MEMORY: usize = 16 << 30;

thread_local! {
    /// The device whose context is current, plus one; 0: none.
    static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// The number in `variable`, else `default`.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Whether `variable` is exactly "1".
pub(crate) fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|text| text == "1")
}

/// Whether `variable` lists the number of `device`.
pub(crate) fn is_listed(variable: &str, device: c_int) -> bool {
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').any(|number| number.parse() == Ok(device))
}

/// Whether memory with GPUDirect RDMA can be had; the device may claim it all the same.
pub(crate) fn has_rdma() -> bool {
    !std::env::var("FAKECUDA_RDMA").is_ok_and(|text| text == "0" || text == "refused")
}

fn names() -> Vec<String> {
    let text = std::env::var("FAKECUDA_UUIDS").unwrap_or_else(|_| "fake-gpu".to_owned());
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

pub(crate) fn check_device(device: c_int) -> Outcome {
    let known = usize::try_from(device).is_ok_and(|device| device < names().len());
    if known { Ok(()) } else { Err(INVALID_DEVICE) }
}

/// The device whose context is current, for calls that need one.
pub(crate) fn current() -> Result<c_int, Code> {
    match CURRENT.get() {
        0 => Err(INVALID_CONTEXT),
        device => Ok(device - 1),
    }
}

/// A context's handle: never dereferenced, only compared.
fn context_of(device: c_int) -> usize {
    (device as usize + 1) << 12
}

fn device_of(context: usize, state: &DriverState) -> Result<c_int, Code> {
    let device = (context >> 12) as c_int - 1;
    let retained =
        context_of(device) == context && state.contexts.get(&device).is_some_and(|count| *count > 0);
    if retained { Ok(device) } else { Err(INVALID_CONTEXT) }
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Code {
    call(c"cuInit", |state| {
        state.initialised = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<'_, c_int>) -> Code {
    call(c"cuDriverGetVersion", |_| put(version, VERSION))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<'_, c_int>) -> Code {
    call(c"cuDeviceGetCount", |_| put(count, names().len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<'_, c_int>, ordinal: c_int) -> Code {
    call(c"cuDeviceGet", |_| {
        check_device(ordinal)?;
        put(device, ordinal)
    })
}

/// Writes `text` and a zero into a buffer of `length` bytes.
///
/// # Safety
/// The buffer has them.
unsafe fn put_text(to: *mut c_char, length: c_int, text: &str) -> Outcome {
    let length =
        usize::try_from(length).ok().filter(|length| *length > 0 && !to.is_null()).ok_or(INVALID_VALUE)?;
    for (index, byte) in text.bytes().take(length - 1).chain([0]).enumerate() {
        // SAFETY: below the length.
        unsafe { to.add(index).write(byte as c_char) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code {
    call(c"cuDeviceGetName", |_| {
        check_device(device)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(name, length, "Fake GPU") }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) -> Code {
    call(c"cuDeviceGetPCIBusId", |_| {
        check_device(device)?;
        // SAFETY: the caller's buffer.
        unsafe { put_text(id, length, &bus_id_of(device)) }
    })
}

/// Where a device sits on the bus.
pub(crate) fn bus_id_of(device: c_int) -> String {
    format!("FFFF:{device:02X}:00.0")
}

fn uuid_of(device: c_int) -> Result<[u8; 16], Code> {
    check_device(device)?;
    let mut uuid = [0; 16];
    for (byte, letter) in uuid.iter_mut().zip(names()[device as usize].bytes()) {
        *byte = letter;
    }
    Ok(uuid)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<'_, [u8; 16]>, device: c_int) -> Code {
    call(c"cuDeviceGetUuid", |_| {
        // This one tells the whole GPU's, the other one that of the part.
        let whole = *b"the whole of GPU";
        let told = if is_listed("FAKECUDA_MIG", device) { whole } else { uuid_of(device)? };
        put(uuid, told)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<'_, [u8; 16]>, device: c_int) -> Code {
    call(c"cuDeviceGetUuid_v2", |_| put(uuid, uuid_of(device)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: c_int) -> Code {
    call(c"cuDeviceTotalMem_v2", |_| {
        check_device(device)?;
        put(bytes, MEMORY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> Code {
    call(c"cuMemGetInfo_v2", |_| {
        current()?;
        put(free, MEMORY).and_then(|()| put(total, MEMORY))
    })
}

/// The first number of the compute capability.
fn capability() -> c_int {
    std::env::var("FAKECUDA_CAPABILITY").ok().and_then(|text| text.parse().ok()).unwrap_or(9)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<'_, c_int>, attribute: c_int, device: c_int) -> Code {
    call(c"cuDeviceGetAttribute", |_| {
        check_device(device)?;
        let answer = match attribute {
            // Threads per block; shared memory per block; warp size; registers per block.
            1 => 1024,
            8 => 48 << 10,
            10 => 32,
            12 => 65536,
            // Multiprocessors; integrated; threads per multiprocessor; compute capability.
            16 => 132,
            18 => 0,
            39 => 2048,
            75 => capability(),
            76 => 0,
            // Shared memory per multiprocessor, and per block if asked for.
            81 => 228 << 10,
            97 => 227 << 10,
            // Descriptors; GPUDirect RDMA.
            103 => c_int::from(!is_listed("FAKECUDA_NO_EXPORT", device)),
            110 => c_int::from(!std::env::var("FAKECUDA_RDMA").is_ok_and(|text| text == "0")),
            // Fabric handles; multicast; MPS.
            128 => c_int::from(std::env::var_os("FAKECUDA_FABRIC").is_some_and(|text| text != "0")),
            132 => c_int::from(is_on("FAKECUDA_MULTICAST")),
            133 => 0,
            _ => 1,
        };
        put(value, answer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<'_, c_int>, device: c_int, peer: c_int) -> Code {
    call(c"cuDeviceCanAccessPeer", |_| {
        check_device(device)?;
        check_device(peer)?;
        put(can, c_int::from(device != peer && !is_on("FAKECUDA_NO_PEER")))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(
    value: Out<'_, c_int>,
    attribute: c_uint,
    device: c_int,
    peer: c_int,
) -> Code {
    call(c"cuDeviceGetP2PAttribute", |_| {
        check_device(device)?;
        check_device(peer)?;
        if device == peer {
            return Err(INVALID_DEVICE);
        }
        let reaches = !is_on("FAKECUDA_NO_PEER");
        let answer = match attribute {
            // Access; native atomics.
            2 => reaches,
            3 => reaches && !is_on("FAKECUDA_NO_ATOMICS"),
            _ => false,
        };
        put(value, c_int::from(answer))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<'_, usize>, device: c_int) -> Code {
    call(c"cuDevicePrimaryCtxRetain", |state| {
        check_device(device)?;
        put(context, context_of(device))?;
        *state.contexts.entry(device).or_default() += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    call(c"cuDevicePrimaryCtxRelease_v2", |state| {
        let count = state.contexts.get_mut(&device).filter(|count| **count > 0).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<'_, usize>) -> Code {
    call(c"cuCtxGetCurrent", |_| {
        let current = current().map_or(0, context_of);
        put(context, current)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    call(c"cuCtxSetCurrent", |state| {
        let device = match context {
            0 => -1,
            context => device_of(context, state)?,
        };
        CURRENT.set(device + 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call(c"cuCtxSynchronize", |_| current().map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<'_, c_int>, greatest: Out<'_, c_int>) -> Code {
    call(c"cuCtxGetStreamPriorityRange", |_| {
        current()?;
        put(least, 0).and_then(|()| put(greatest, -5))
    })
}

/// The context of the current device, for `cuStreamGetCtx`.
pub(crate) fn current_context() -> Result<usize, Code> {
    current().map(context_of)
}
