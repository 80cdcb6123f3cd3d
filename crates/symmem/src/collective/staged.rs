//! The staged algorithm: copy into one's own staging, meet once, work on everybody's staging.
//!
//! # Why no second meeting
//! Staging has two halves, by the parity of the epoch. A rank writes the half of epoch e again for e+2, and
//! [`Running::next_epoch`] lets it know e+2 only when it has heard everybody's e+1, which a rank announces
//! after it has consumed everybody's e. Where a rank does not need to hear from all (a broadcast, a reduction
//! to a root), it goes on at once, and its next operation does that waiting: it is one operation ahead at
//! most.

use super::call::CollectiveCall;
use crate::Result;
use crate::group::Running;
use crate::operation::Signature;
use crate::sys::fault::{self, Point};

/// Lays this rank's bytes out and returns the epoch once those of all ranks that it hears from can be read.
/// `fill` writes `call.bytes` bytes into the staging, which are at most what fits.
///
/// The staging of this epoch is readable until this rank announces the next one.
#[inline]
pub(super) fn exchange(
    running: &Running<'_>,
    call: &CollectiveCall,
    signature: Signature,
    fill: impl FnOnce(u64, *mut u8),
) -> Result<u64> {
    let inner = running.inner();
    let epoch = running.next_epoch()?;
    if call.gives(inner.rank) {
        fill(epoch, inner.map(inner.rank).staging(epoch));
    }
    fault::point(Point::StagingFilled);
    running.announce(epoch, signature, 0, &[]);
    running.hear(epoch, signature, |peer| call.hears(inner.rank, peer))?;
    fault::point(Point::StagingHeard);
    Ok(epoch)
}
