//! The queues into which the driver sorts the streams of a process, where ranks of one process share a
//! device.
//!
//! A process has few hardware queues for a device ([`CONNECTIONS`]). A stream that gets work while it is idle
//! is put into a queue that looks free. Within a queue, work that must wait for a kernel (the next one of its
//! stream, or a wait for an event) holds up everything behind it, also work of other streams; a kernel that
//! runs holds up nothing. So if one rank launches a kernel that waits for its peers, and something behind it,
//! and a peer's kernel then comes into the same queue, both wait for each other until the deadline. Two
//! things put streams of different ranks into one queue, both seen on an H200 with driver 580:
//! - there are more busy streams than queues;
//! - two threads launch at the same moment, and the driver gives both the same free queue, however many there
//!   are.
//!
//! So while ranks of this process share a device, whatever this crate gives to a stream it gives with
//! [`turn`] held, one call at a time, and [`admit`] refuses streams beyond the number of queues. Between
//! processes there is nothing to do: each has queues of its own.
//!
//! Some calls of the driver (those that free memory or end streams) wait for all that runs on the device, and
//! let nobody launch meanwhile. If a kernel waits there for a launch of another rank of this process, all
//! three wait for each other until the deadline, as seen with communicators of NCCL's that end. [`quiet`]
//! finds a moment for such calls in which nothing runs, and keeps the turn.
//!
//! Used by the wrappers of this folder, by `nccl`, and by engines. Where no device is shared, a turn costs
//! one load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use super::stream::SharedStream;
use super::{Device, Stream, activity};
use crate::{Error, Result};

/// Into how many queues the driver sorts the streams of a process. It reads this when it starts.
pub(crate) const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// Most queues, whatever is asked for.
const MOST: usize = 32;
/// Queues unless asked for: alone, and as a client of MPS.
const DEFAULT: usize = 8;
const DEFAULT_OF_MPS: usize = 2;

/// Longer than any call takes that does not wait in the driver.
const PATIENCE: Duration = Duration::from_millis(100);
/// Longer than it takes to end a communicator.
const QUIET_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether a device is idle.
const NAP: Duration = Duration::from_micros(200);

/// Engines that share their device with another rank of this process.
static SHARING: AtomicUsize = AtomicUsize::new(0);
/// The streams that such engines may be waited for on.
static ADMITTED: Mutex<Vec<Admitted>> = Mutex::new(Vec::new());
/// Held by whoever gives work to a stream.
static TURN: Mutex<()> = Mutex::new(());
/// Whether it is held by somebody who gives nothing to streams, for longer.
static QUIET: AtomicBool = AtomicBool::new(false);
/// What the environment asked for when the driver started.
static ASKED: OnceLock<Option<usize>> = OnceLock::new();

/// A stream that has, or will have, work in a queue.
#[derive(Debug)]
struct Admitted {
    device: usize,
    handle: usize,
    /// Of a stream of ours, which gives its place back when it is gone; of others' streams nobody tells.
    stream: Option<Weak<SharedStream>>,
}

impl Admitted {
    fn is_gone(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.strong_count() == 0)
    }
}

/// Notes what the environment asks for, before the driver reads it.
pub(super) fn remember() {
    ASKED.get_or_init(|| std::env::var(CONNECTIONS).ok().and_then(|text| text.trim().parse().ok()));
}

/// How many queues the driver has made for this process on `device`.
fn count(device: &Device) -> usize {
    let default = if device.has_mps() { DEFAULT_OF_MPS } else { DEFAULT };
    match ASKED.get().copied().flatten() {
        Some(asked) if asked > 0 => asked.min(MOST),
        _ => default,
    }
}

/// Streams of `device` that ranks of this process may use: one queue is for copies and memsets that are
/// waited for at once.
fn limit(device: &Device) -> usize {
    count(device) - 1
}

/// An engine that shares its device with another rank of this process. While one lives, streams are counted
/// and turns are taken.
#[derive(Debug)]
pub(crate) struct Sharing(());

impl Sharing {
    pub(crate) fn new() -> Self {
        SHARING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        if SHARING.fetch_sub(1, Ordering::Relaxed) == 1 {
            admitted().clear();
        }
    }
}

fn admitted() -> MutexGuard<'static, Vec<Admitted>> {
    ADMITTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether ranks of this process share a device.
pub(crate) fn is_shared() -> bool {
    SHARING.load(Ordering::Relaxed) > 0
}

/// Waits for the calls of other threads that give work to streams, where ranks of this process share a
/// device. Nothing that waits for a device may be called while it is held.
#[inline]
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    if is_shared() { wait_for_turn() } else { None }
}

/// The turn, or none after [`PATIENCE`]: a rank that is far ahead of its peers fills its stream, and its
/// launch then waits in the driver, with the turn, for theirs.
fn wait_for_turn() -> Option<MutexGuard<'static, ()>> {
    let start = Instant::now();
    let patience = || if QUIET.load(Ordering::Relaxed) { QUIET_PATIENCE } else { PATIENCE };
    loop {
        match TURN.try_lock() {
            Ok(turn) => return Some(turn),
            Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) if start.elapsed() > patience() => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// The turn, while nothing runs on a device.
#[derive(Debug)]
pub(crate) struct Quiet {
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.store(false, Ordering::Relaxed);
    }
}

/// Waits, for at most `within`, for a moment in which nothing runs on `device` that this crate has launched,
/// and lets nobody launch anything until what it returns is dropped. `None` where there was no such moment,
/// or `stops` said so. For threads that no rank waits for.
pub(crate) fn quiet(device: &Device, within: Duration, stops: &dyn Fn() -> bool) -> Option<Quiet> {
    let (end, is_idle) = (Instant::now() + within, || activity::all_idle(device.ordinal()));
    while !stops() && Instant::now() < end {
        // Before the turn is taken as well: others launch while this looks.
        if is_idle()
            && let Some(turn) = wait_for_turn()
            && is_idle()
        {
            QUIET.store(true, Ordering::Relaxed);
            return Some(Quiet { _turn: turn });
        }
        std::thread::sleep(NAP);
    }
    None
}

/// Counts `stream` among those that need a queue; an error if there are as many already as there are queues
/// for.
pub(crate) fn admit(stream: &Stream) -> Result<()> {
    if is_shared() { admit_one(stream) } else { Ok(()) }
}

fn admit_one(stream: &Stream) -> Result<()> {
    let (device, handle) = (stream.device().ordinal(), stream.raw() as usize);
    let mut admitted = admitted();
    admitted.retain(|other| !other.is_gone());
    let here = || admitted.iter().filter(|other| other.device == device);
    if here().any(|other| other.handle == handle) {
        return Ok(());
    }
    let limit = limit(stream.device());
    if here().count() >= limit {
        return Err(too_many(stream.device(), limit));
    }
    admitted.push(Admitted { device, handle, stream: stream.weak() });
    Ok(())
}

#[cold]
fn too_many(device: &Device, limit: usize) -> Error {
    let count = count(device);
    Error::invalid(
        "stream",
        format!(
            "ranks of this process share {device}, where it has {count} queues: they may use at most {limit} streams there, or kernels could wait \
             behind those that wait for them. Hint: set {CONNECTIONS} (at most {MOST}) before the process starts, or give each rank a process"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_is_not_given_back_is_not_waited_for_for_ever() {
        let held = wait_for_turn();
        assert!(held.is_some());
        let other = std::thread::spawn(|| {
            let started = Instant::now();
            (wait_for_turn().is_some(), started.elapsed())
        });
        let (had_it, waited) = other.join().unwrap();
        assert!(!had_it && waited >= PATIENCE && waited < 50 * PATIENCE, "{waited:?}");
        drop(held);
        assert!(wait_for_turn().is_some());
    }
}
