//! The direct algorithm: meet, work straight on the peers' memory, meet again.
//!
//! The first meeting says that everybody's memory is ready, and where in it each rank's elements start; the
//! second that nobody works on it any more. Two-shot reduction is the same frame with other work in it.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::peers::Peers;
use crate::group::Running;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Signature;
use crate::sys::fault::{self, Point};
use crate::{Error, Result};

/// Runs `work` on everybody's first `len` elements, between two meetings: the same `len` on all ranks,
/// whatever their handles hold. A failure after the first may leave anybody's memory half written,
/// whatever the error is.
pub(super) fn run<T: Element>(
    memory: &SymmetricMemory<T>,
    len: usize,
    running: &Running<'_>,
    signature: Signature,
    work: impl FnOnce(&Peers<'_, T>),
) -> Result<()> {
    let peers = memory.sealed_by_meeting(enter(memory, len, running, signature))?;
    fault::point(Point::DirectEntered);
    work(&peers);
    fault::point(Point::DirectWorked);
    let left = running.meet(signature);
    if let Err(error) = &left {
        memory.parts.poison(error);
    }
    left.map(drop)
}

fn enter<'a, T: Element>(
    memory: &SymmetricMemory<T>,
    len: usize,
    running: &Running<'a>,
    signature: Signature,
) -> Result<Peers<'a, T>> {
    let epoch = running.meet_with(signature, memory.offset() as u64)?;
    let me = memory.rank();
    let address = |rank: usize| {
        let start = if rank == me { memory.offset() } else { running.note(rank, epoch) as usize };
        memory.element_address(rank, start, len).ok_or(start)
    };
    for rank in 0..memory.world_size() {
        address(rank).map_err(|start| {
            Error::invalid("offset", format!("rank {rank} starts at element {start}, beyond its memory"))
        })?;
    }
    // SAFETY: all addresses were just found good, and stay mapped while `memory` lives; every rank is between
    // the two meetings of this collective, or waits for the others there.
    Ok(unsafe { Peers::new(running.inner(), len, true, |rank| address(rank).unwrap_or_default()) })
}
