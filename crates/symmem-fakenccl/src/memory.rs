//! Memory and windows.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, OnceLock};

use libloading::Library;

use crate::comm::{NONE, comm};
use crate::control::{
    Code, INVALID_ARGUMENT, Kind, SUCCESS, call, count, failure, is_on, lock, number, version, violation,
};

/// The functions of the CUDA driver that are needed here.
struct Driver {
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    context: unsafe extern "C" fn(*mut usize) -> c_int,
    capture: unsafe extern "C" fn(u64, *const u64, usize) -> bool,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let open = || {
        // SAFETY: the fake driver, which the process has loaded; the types are those of its functions.
        unsafe {
            let library = Library::new("libcuda.so.1").ok()?;
            let driver = Driver {
                alloc: *library.get(b"cuMemAlloc_v2").ok()?,
                free: *library.get(b"cuMemFree_v2").ok()?,
                context: *library.get(b"cuCtxGetCurrent").ok()?,
                capture: *library.get(b"fakecuda_capture").ok()?,
            };
            std::mem::forget(library);
            Some(driver)
        }
    };
    DRIVER.get_or_init(open).as_ref()
}

/// The device whose context is current on this thread.
pub(crate) fn current_device() -> Result<c_int, Code> {
    let driver = driver().ok_or_else(|| failure(INVALID_ARGUMENT, "there is no driver"))?;
    let mut context = 0;
    // SAFETY: writes one handle.
    let code = unsafe { (driver.context)(&mut context) };
    if code != 0 || context == 0 {
        return Err(failure(INVALID_ARGUMENT, "no device is current"));
    }
    Ok((context >> 12) as c_int - 1)
}

/// Whether `stream` is captured; then the graph knows that work on memory at these addresses is a part of it.
pub(crate) fn is_captured(stream: u64, addresses: &[u64]) -> bool {
    // SAFETY: as many addresses as said.
    driver().is_some_and(|driver| unsafe { (driver.capture)(stream, addresses.as_ptr(), addresses.len()) })
}

/// How many consecutive ranks load and store each other's memory.
pub(crate) fn team(world: usize) -> usize {
    (number("FAKENCCL_LSA", world as u64) as usize).clamp(1, world.max(1))
}

/// What is alive.
#[derive(Default)]
struct LiveMemory {
    /// Allocations: how often they are registered.
    memory: BTreeMap<u64, usize>,
    windows: HashMap<usize, Window>,
}

struct Window {
    /// The communicator, by its handle.
    comm: usize,
    address: u64,
    rank: usize,
    bases: Vec<u64>,
}

fn table() -> &'static Mutex<LiveMemory> {
    static TABLE: OnceLock<Mutex<LiveMemory>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclMemAlloc(out: *mut u64, bytes: usize) -> Code {
    call("ncclMemAlloc", || {
        current_device()?;
        let driver = driver().ok_or(INVALID_ARGUMENT)?;
        // SAFETY: the caller's place for one address.
        if unsafe { (driver.alloc)(out, bytes) } != 0 {
            return Err(failure(1, "out of memory"));
        }
        // SAFETY: just written.
        lock(table()).memory.insert(unsafe { out.read() }, 0);
        count(Kind::Memory, 1);
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclMemFree(address: u64) -> Code {
    call("ncclMemFree", || {
        match lock(table()).memory.remove(&address) {
            None => return Err(violation("memory was freed that is not there")),
            Some(0) => {}
            Some(_) => return Err(violation("memory was freed while it was registered")),
        }
        count(Kind::Memory, -1);
        let driver = driver().ok_or(INVALID_ARGUMENT)?;
        // SAFETY: allocated by the driver.
        if unsafe { (driver.free)(address) } == 0 { Ok(SUCCESS) } else { Err(INVALID_ARGUMENT) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommWindowRegister(
    handle: *mut c_void,
    address: u64,
    _bytes: usize,
    out: *mut *mut c_void,
    flags: c_int,
) -> Code {
    let owner = handle as usize;
    call("ncclCommWindowRegister", || {
        if flags != 1 || !lock(table()).memory.contains_key(&address) {
            return Err(failure(INVALID_ARGUMENT, "this cannot be a window"));
        }
        let found = comm(handle)?;
        let mut comm = lock(&found);
        let step = comm.next_step();
        comm.clique.post(step, comm.rank, address.to_le_bytes().to_vec());
        // SAFETY: the caller's place for one handle.
        unsafe { out.write(NONE) };
        let out = out as usize;
        comm.later(Box::new(move |comm| {
            let parts = comm.clique.parts(step)?;
            let base = |part: &crate::clique::Part| part.as_slice().try_into().map_or(0, u64::from_le_bytes);
            let bases = parts.iter().map(base).collect();
            let made = new_window(Window { comm: owner, address, rank: comm.rank, bases })?;
            comm.windows += 1;
            // SAFETY: the caller's place, which stays until this is done.
            unsafe { (out as *mut usize).write(made) };
            Some(SUCCESS)
        }))
    })
}

/// Makes a window known; its handle. Before 2.29.2 that is the address of a structure.
fn new_window(window: Window) -> Option<usize> {
    static LAST: Mutex<usize> = Mutex::new(0x10_0000);
    let handle = if version() >= 22902 {
        let mut last = lock(&LAST);
        *last += 16;
        *last
    } else {
        new_structure(&window)?
    };
    let mut table = lock(table());
    *table.memory.get_mut(&window.address)? += 1;
    table.windows.insert(handle, window);
    count(Kind::Windows, 1);
    Some(handle)
}

/// A structure in device memory that says where the first rank of the team is, and that all are at the same
/// place, which is true of one rank only.
fn new_structure(window: &Window) -> Option<usize> {
    let mut address = 0;
    // SAFETY: writes one address.
    if unsafe { (driver()?.alloc)(&mut address, 4096) } != 0 {
        return None;
    }
    let first = window.rank - window.rank % team(window.bases.len());
    // SAFETY: device memory is host memory here, and this is the structure's own.
    unsafe { ((address + 8) as *mut u64).write(window.bases[first]) };
    Some(address as usize)
}

/// Forgets the windows of a communicator that was aborted: they are gone with it.
pub(crate) fn forget_windows(handle: *mut c_void) {
    let mut table = lock(table());
    let (gone, left) = std::mem::take(&mut table.windows)
        .into_iter()
        .partition::<HashMap<_, _>, _>(|(_, window)| window.comm == handle as usize);
    table.windows = left;
    for window in gone.values() {
        if let Some(times) = table.memory.get_mut(&window.address) {
            *times -= 1;
        }
        count(Kind::Windows, -1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommWindowDeregister(handle: *mut c_void, window: *mut c_void) -> Code {
    call("ncclCommWindowDeregister", || {
        let found = comm(handle)?;
        let mut table = lock(table());
        let gone = table.windows.remove(&(window as usize));
        let gone = gone.ok_or_else(|| violation("a window that is gone was deregistered"))?;
        match table.memory.get_mut(&gone.address) {
            Some(times) => *times -= 1,
            None => return Err(violation("a window outlived its memory")),
        }
        lock(&found).windows -= 1;
        count(Kind::Windows, -1);
        if version() < 22902 {
            let driver = driver().ok_or(INVALID_ARGUMENT)?;
            // SAFETY: allocated when the window was made.
            unsafe { (driver.free)(window as u64) };
        }
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetPeerDevicePointer(
    window: *mut c_void,
    offset: usize,
    peer: c_int,
    out: *mut u64,
) -> Code {
    call("ncclGetPeerDevicePointer", || {
        let table = lock(table());
        let window = table.windows.get(&(window as usize)).ok_or(INVALID_ARGUMENT)?;
        let (peer, team) = (peer as usize, team(window.bases.len()));
        let is_near = peer / team == window.rank / team;
        let peer = if is_on("FAKENCCL_WRONG_POINTERS") { window.rank } else { peer };
        let address = window.bases.get(peer).ok_or(INVALID_ARGUMENT)? + offset as u64;
        // SAFETY: the caller's place for one address.
        unsafe { out.write(if is_near { address } else { 0 }) };
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetLsaMultimemDevicePointer(
    window: *mut c_void,
    offset: usize,
    out: *mut u64,
) -> Code {
    call("ncclGetLsaMultimemDevicePointer", || {
        let table = lock(table());
        let window = table.windows.get(&(window as usize)).ok_or(INVALID_ARGUMENT)?;
        let address = window.bases[0] + offset as u64;
        // SAFETY: the caller's place for one address.
        unsafe { out.write(if is_on("FAKENCCL_MULTICAST") { address } else { 0 }) };
        Ok(SUCCESS)
    })
}
