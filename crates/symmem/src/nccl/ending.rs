//! The end of a communicator, which takes NCCL a while: it joins threads, frees memory and ends streams.
//!
//! Called by `shared.rs`. What it guarantees: where ranks of this process share a device, it comes in a
//! moment in which nothing runs there, on a thread of its own, so that no rank waits for it (`cuda/queues.rs`
//! says why); and a process that exits waits for those threads that are in NCCL, which would go on in memory
//! that is gone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use symmem_store::{Interrupt, Wait};

use crate::cuda::{Device, queues};
use crate::sys::exit;

/// How long a moment is waited for in which the device is idle. After it something is stuck there, which the
/// end may free.
const UNTIL_IDLE: Duration = Duration::from_secs(60);
/// How long the end of the process waits for threads in NCCL.
const AT_EXIT: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(1);

/// Threads in NCCL that end a communicator.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
/// Whether the process is about to end: nobody begins any more.
static EXITING: AtomicBool = AtomicBool::new(false);

fn wait_for_all() {
    EXITING.store(true, Ordering::SeqCst);
    // Whoever is still there after that is left there.
    let _: Result<(), Interrupt> = Wait::for_at_most(AT_EXIT).until(|slice| {
        if INSIDE.load(Ordering::SeqCst) == 0 {
            return Ok(Some(()));
        }
        std::thread::sleep(slice.min(NAP));
        Ok(None)
    });
}

/// A thread that is in NCCL, or about to be.
struct Inside;

impl Inside {
    /// The handler is registered after NCCL was loaded, so it runs before NCCL's own end.
    fn new() -> Self {
        exit::on_exit(wait_for_all);
        INSIDE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Runs `call`, which ends a communicator, unless the process is about to.
pub(super) fn now(call: impl FnOnce()) {
    let _inside = Inside::new();
    if !is_exiting() {
        call();
    }
}

/// [`now`], where ranks of this process share a device in a while, on another thread: nobody may wait for it.
pub(super) fn soon(device: &Device, call: impl FnOnce() + Send + 'static) {
    if !queues::is_shared() {
        return now(call);
    }
    let (device, inside) = (device.clone(), Inside::new());
    let thread = std::thread::Builder::new().name("symmem-nccl-end".to_owned());
    let spawned = thread.spawn(move || {
        let _inside = inside;
        let quiet = queues::quiet(&device, UNTIL_IDLE, &is_exiting);
        if quiet.is_none() && !is_exiting() {
            tracing::warn!(
                "{device} was not idle for {UNTIL_IDLE:?}; a communicator ends beside what runs there"
            );
        }
        now(call);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "a communicator stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_is_counted_until_it_is_out() {
        let before = INSIDE.load(Ordering::SeqCst);
        let mut ran = false;
        now(|| {
            ran = true;
            assert!(INSIDE.load(Ordering::SeqCst) > before);
        });
        assert!(ran);
    }
}
