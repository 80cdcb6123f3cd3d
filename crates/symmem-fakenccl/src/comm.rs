//! Communicators: made, split, shrunk, asked and ended. What NCCL does beside the call is done when it is
//! asked how far it is.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::clique::{Clique, with_id};
use crate::control::{
    Code, IN_PROGRESS, INVALID_ARGUMENT, Kind, REMOTE_ERROR, SUCCESS, call, count, failure, lock, version,
    violation,
};
use crate::memory::{current_device, forget_windows};

/// One rank's communicator.
pub(crate) struct Comm {
    pub(crate) clique: Arc<Clique>,
    pub(crate) rank: usize,
    pub(crate) device: c_int,
    pub(crate) step: u64,
    pub(crate) windows: usize,
    /// What is under way; the code once it is done.
    pending: Option<Pending>,
    state: Code,
    /// Only good for being shrunk, split or ended any more.
    pub(crate) is_revoked: bool,
}

/// Work beside the call: asked until it has a code.
pub(crate) type Pending = Box<dyn FnMut(&mut Comm) -> Option<Code> + Send>;

impl Comm {
    fn new(clique: Arc<Clique>, rank: usize, device: c_int) -> Self {
        Self { clique, rank, device, step: 0, windows: 0, pending: None, state: SUCCESS, is_revoked: false }
    }

    pub(crate) fn next_step(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    /// Leaves `pending` to be done later. That the call succeeded says nothing about it, as with NCCL's own
    /// splits and windows.
    pub(crate) fn later(&mut self, pending: Pending) -> Result<Code, Code> {
        self.pending = Some(pending);
        Ok(SUCCESS)
    }

    fn poll(&mut self) -> Code {
        if let Some(mut pending) = self.pending.take() {
            match pending(self) {
                Some(code) => self.state = code,
                None => {
                    self.pending = Some(pending);
                    return IN_PROGRESS;
                }
            }
        }
        self.state
    }
}

type Comms = HashMap<usize, Arc<Mutex<Comm>>>;

fn comms() -> MutexGuard<'static, Comms> {
    static COMMS: OnceLock<Mutex<Comms>> = OnceLock::new();
    lock(COMMS.get_or_init(Mutex::default))
}

/// The communicator with this handle.
pub(crate) fn comm(handle: *mut c_void) -> Result<Arc<Mutex<Comm>>, Code> {
    let found = comms().get(&(handle as usize)).cloned();
    found.ok_or_else(|| violation("a communicator that is gone was used"))
}

/// Makes a communicator known; its handle.
fn keep(comm: Comm) -> *mut c_void {
    static LAST: Mutex<usize> = Mutex::new(0x1000);
    let mut last = lock(&LAST);
    *last += 16;
    comms().insert(*last, Arc::new(Mutex::new(comm)));
    count(Kind::Communicators, 1);
    *last as *mut c_void
}

/// The beginning of `ncclConfig_t`.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// Bytes of the structure of this version.
fn config_size() -> usize {
    match version() / 100 {
        ..=226 => 48,
        227 => 72,
        228 => 80,
        229 => 88,
        _ => 96,
    }
}

/// # Safety
/// Points to a configuration.
unsafe fn check_config(config: *const Config) -> Result<(), Code> {
    // SAFETY: as promised by the caller.
    let config = unsafe { config.as_ref() }.ok_or(INVALID_ARGUMENT)?;
    let sound = config.size == config_size()
        && config.magic == 0xcafe_beef
        && config.version <= version() as c_uint
        && config.blocking == 0;
    if sound { Ok(()) } else { Err(failure(INVALID_ARGUMENT, "the configuration is not of this version")) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut [u8; 128]) -> Code {
    static LAST: Mutex<u64> = Mutex::new(0);
    call("ncclGetUniqueId", || {
        let mut last = lock(&LAST);
        *last += 1;
        let mut bytes = [7; 128];
        bytes[..8].copy_from_slice(&last.to_le_bytes());
        // SAFETY: the caller's place for one id.
        unsafe { id.write(bytes) };
        Ok(SUCCESS)
    })
}

#[repr(C)]
struct Id([u8; 128]);

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut c_void,
    world: c_int,
    id: Id,
    rank: c_int,
    config: *const Config,
) -> Code {
    call("ncclCommInitRankConfig", || {
        // SAFETY: the caller's configuration.
        unsafe { check_config(config) }?;
        let device = current_device()?;
        let mut made = Comm::new(with_id(id.0, world as usize), rank as usize, device);
        let code = join(&mut made);
        // SAFETY: the caller's place for one handle.
        unsafe { out.write(keep(made)) };
        code
    })
}

/// As programs that know nothing of configurations make one: it is there when the call returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(out: *mut *mut c_void, world: c_int, id: Id, rank: c_int) -> Code {
    call("ncclCommInitRank", || {
        let mut made = Comm::new(with_id(id.0, world as usize), rank as usize, current_device()?);
        let step = made.next_step();
        made.clique.post(step, made.rank, Vec::new());
        made.clique.all(step)?;
        // SAFETY: the caller's place for one handle.
        unsafe { out.write(keep(made)) };
        Ok(SUCCESS)
    })
}

/// Lets a communicator fail beside its calls, as when another rank is gone.
#[unsafe(no_mangle)]
extern "C" fn fakenccl_break(handle: *mut c_void) {
    if let Ok(comm) = comm(handle) {
        lock(&comm).state = failure(REMOTE_ERROR, "another rank is gone");
    }
}

/// Done once all ranks are there.
fn join(comm: &mut Comm) -> Result<Code, Code> {
    let step = comm.next_step();
    comm.clique.post(step, comm.rank, Vec::new());
    comm.later(Box::new(move |comm| comm.clique.parts(step).map(|_| SUCCESS)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, state: *mut Code) -> Code {
    let Ok(comm) = comm(handle) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's place for one code.
    unsafe { state.write(lock(&comm).poll()) };
    SUCCESS
}

fn ask(handle: *mut c_void, out: *mut c_int, value: impl FnOnce(&Comm) -> usize) -> Code {
    let Ok(comm) = comm(handle) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's place for one integer.
    unsafe { out.write(value(&lock(&comm)) as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCount(comm: *mut c_void, out: *mut c_int) -> Code {
    ask(comm, out, |comm| comm.clique.world)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommUserRank(comm: *mut c_void, out: *mut c_int) -> Code {
    ask(comm, out, |comm| comm.rank)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommCuDevice(comm: *mut c_void, out: *mut c_int) -> Code {
    ask(comm, out, |comm| comm.device as usize)
}

/// Makes a communicator of those that choose `colour`, ordered by `key` and rank.
fn divide(
    handle: *mut c_void,
    colour: c_int,
    key: c_int,
    out: *mut *mut c_void,
    config: *const Config,
) -> Result<Code, Code> {
    // SAFETY: the caller's configuration.
    unsafe { check_config(config) }?;
    let found = comm(handle)?;
    let mut parent = lock(&found);
    let step = parent.next_step();
    let part = [colour.to_le_bytes(), key.to_le_bytes()].concat();
    parent.clique.post(step, parent.rank, part);
    let out = out as usize;
    parent.later(Box::new(move |parent| {
        let parts = parent.clique.parts(step)?;
        let number = |part: &[u8], at: usize| c_int::from_le_bytes([0, 1, 2, 3].map(|byte| part[at + byte]));
        let mut members: Vec<(c_int, usize)> = (0..parts.len())
            .filter(|rank| number(&parts[*rank], 0) == colour)
            .map(|rank| (number(&parts[rank], 4), rank))
            .collect();
        members.sort_unstable();
        if let Some(rank) = members.iter().position(|(_, rank)| *rank == parent.rank).filter(|_| colour >= 0)
        {
            let clique = parent.clique.child(step, colour, members.len());
            let child = keep(Comm::new(clique, rank, parent.device));
            // SAFETY: the caller's place, which stays until this is done.
            unsafe { (out as *mut *mut c_void).write(child) };
        }
        Some(SUCCESS)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommSplit(
    comm: *mut c_void,
    colour: c_int,
    key: c_int,
    out: *mut *mut c_void,
    config: *const Config,
) -> Code {
    call("ncclCommSplit", || divide(comm, colour, key, out, config))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommShrink(
    handle: *mut c_void,
    excluded: *const c_int,
    excluded_count: c_int,
    out: *mut *mut c_void,
    config: *const Config,
    _flags: c_int,
) -> Code {
    call("ncclCommShrink", || {
        // SAFETY: the caller's configuration and list.
        let excluded = unsafe {
            check_config(config)?;
            std::slice::from_raw_parts(excluded, excluded_count as usize)
        };
        let found = comm(handle)?;
        let mut parent = lock(&found);
        let stays = |rank: &usize| !excluded.contains(&(*rank as c_int));
        let members: Vec<usize> = (0..parent.clique.world).filter(stays).collect();
        let rank = members.iter().position(|rank| *rank == parent.rank).ok_or(INVALID_ARGUMENT)?;
        // The ranks that are gone do not count steps any more.
        let clique = parent.clique.child(u64::MAX, excluded_count, members.len());
        let mut child = Comm::new(clique, rank, parent.device);
        let code = join(&mut child);
        parent.pending = None;
        // SAFETY: the caller's place for one handle.
        unsafe { out.write(keep(child)) };
        code.map(|_| SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommRevoke(handle: *mut c_void, flags: c_int) -> Code {
    call("ncclCommRevoke", || {
        if flags != 0 {
            return Err(INVALID_ARGUMENT);
        }
        let found = comm(handle)?;
        let mut comm = lock(&found);
        comm.pending = None;
        comm.is_revoked = true;
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommFinalize(handle: *mut c_void) -> Code {
    call("ncclCommFinalize", || join(&mut lock(&*comm(handle)?)))
}

/// Lets go of a communicator.
fn end(handle: *mut c_void, with_windows: bool) -> Result<Code, Code> {
    let gone = comm(handle)?;
    comms().remove(&(handle as usize));
    count(Kind::Communicators, -1);
    let windows = lock(&gone).windows;
    if windows > 0 && !with_windows {
        return Err(violation("a communicator with windows was destroyed"));
    }
    forget_windows(handle);
    Ok(SUCCESS)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(handle: *mut c_void) -> Code {
    call("ncclCommDestroy", || end(handle, false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(handle: *mut c_void) -> Code {
    call("ncclCommAbort", || end(handle, true))
}

/// `ncclTeam_t`.
#[repr(C)]
struct Team {
    ranks: c_int,
    rank: c_int,
    stride: c_int,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclTeamLsa(handle: *mut c_void) -> Team {
    let Ok(comm) = comm(handle) else { return Team { ranks: 0, rank: 0, stride: 0 } };
    let comm = lock(&comm);
    let size = crate::memory::team(comm.clique.world);
    Team { ranks: size as c_int, rank: (comm.rank % size) as c_int, stride: 1 }
}

/// A null handle, for results that are not there yet.
pub(crate) const NONE: *mut c_void = ptr::null_mut();
