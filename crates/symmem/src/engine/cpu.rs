//! The host's engine, synchronisation part: barrier, signals, and copies from peers.
//!
//! Functions over a running operation and words in the peers' memory; nothing here knows handles or
//! providers.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::sync::atomic::AtomicU32;

use symmem_store::Interrupt;

use crate::Result;
use crate::group::Running;
use crate::operation::{Op, signature};
use crate::sync::control::CounterWords;
use crate::sync::protocol::{Bell, MeetingWords, try_put, try_take};
use crate::sys::copy;
use crate::sys::fault::{self, Point};

/// Bytes copied between two looks at the group: long enough to be cheap, short enough to end soon after a
/// failure.
const COPY_CHUNK: usize = 1 << 20;

/// Meets all ranks; they must agree on `channel` and on the `memory`'s number.
#[inline]
pub(crate) fn barrier(running: &Running<'_>, channel: usize, memory: u64) -> Result<()> {
    fault::point(Point::BarrierEntered);
    running.meet(signature(Op::MemoryBarrier, channel, memory)).map(drop)
}

/// Raises the signal in `slot` of rank `peer`, once the previous one was consumed.
pub(crate) fn put_signal(running: &Running<'_>, slot: &AtomicU32, peer: usize) -> Result<()> {
    wait_for(running, peer, || try_put(slot).then_some(()))?;
    fault::point(Point::SignalPut);
    wake(running, peer);
    Ok(())
}

/// Raises the signal if the previous one was consumed.
pub(crate) fn try_put_signal(running: &Running<'_>, slot: &AtomicU32, peer: usize) -> bool {
    let put = try_put(slot);
    if put {
        wake(running, peer);
    }
    put
}

/// Consumes the signal that rank `peer` raises in this rank's `slot`.
pub(crate) fn wait_signal(running: &Running<'_>, slot: &AtomicU32, peer: usize) -> Result<()> {
    wait_for(running, peer, || try_take(slot).then_some(()))?;
    fault::point(Point::SignalWaited);
    // The peer may be waiting to put the next one.
    wake(running, peer);
    Ok(())
}

/// Consumes the signal if there is one.
pub(crate) fn try_wait_signal(running: &Running<'_>, slot: &AtomicU32, peer: usize) -> bool {
    let taken = try_take(slot);
    if taken {
        wake(running, peer);
    }
    taken
}

fn wake(running: &Running<'_>, peer: usize) {
    Bell::publish_fence();
    running.inner().bell(peer).ring_if_waited();
}

/// Waits for one peer. A deadline or cancellation leaves slot and group as they were, so the call can be
/// repeated; a death or abort ends the group.
fn wait_for<T>(running: &Running<'_>, peer: usize, poll: impl FnMut() -> Option<T>) -> Result<T> {
    let awaited = |rank: usize| rank == peer;
    running.wait(peer, awaited, poll).map_err(|interrupt| match interrupt {
        Interrupt::Watch(_) => running.fail(interrupt, &awaited),
        _ => running.interrupted(interrupt, vec![peer]),
    })
}

/// Copies `len` bytes from a peer's memory, looking at the group between chunks.
///
/// # Safety
/// `from` and `to` are valid for `len` bytes and do not overlap; nobody else accesses `to`.
pub(crate) unsafe fn copy_from_peer(
    running: &Running<'_>,
    from: *const u8,
    to: *mut u8,
    len: usize,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let chunk = COPY_CHUNK.min(len - done);
        // SAFETY: within the caller's ranges.
        unsafe { copy::read(from.add(done), to.add(done), chunk) };
        done += chunk;
        fault::point(Point::MidCopy);
        if let Some(verdict) = running.inner().verdict() {
            return Err(running.failed_by(verdict));
        }
    }
    CounterWords::add(&running.inner().own().counters.bytes, len as u64);
    Ok(())
}
