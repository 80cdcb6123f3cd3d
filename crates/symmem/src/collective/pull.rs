//! The pull algorithm: meet, read the peers' private memory through the kernel, meet again.
//!
//! For large private memory that everybody gives to everybody: one copy less than through staging, for two
//! system calls per peer. The first meeting says where everybody's memory is; the second, in which a rank
//! stays until all others have read, that it is nobody's any more, and whether all could read. If somebody
//! could not, all ranks learn that, and the call goes on by another algorithm.
//!
//! # Why what was read is right
//! An owner leaves the call before the second meeting only if the group has failed, and convicts somebody
//! before it returns. A reader looks at the verdict, and for deaths, after its last read: if there is none,
//! every owner was in the call until then, and did not write. Ranks that are threads of one process read
//! through the kernel too: a plain copy would need an owner that cannot return, whatever happens.

use crate::Result;
use crate::group::Running;
use crate::operation::Signature;
use crate::sys::fault::{self, Point};

/// What all ranks said of their memory, for as long as the reads last.
pub(super) struct Sources<'a> {
    running: &'a Running<'a>,
    epoch: u64,
}

impl Sources<'_> {
    /// Reads the bytes from byte `start` of `rank`'s memory on. False if the kernel refuses.
    pub(super) fn read(&self, rank: usize, start: usize, out: &mut [u8]) -> bool {
        let address = self.running.note(rank, self.epoch).checked_add(start as u64);
        address.is_some_and(|address| self.running.read_memory(rank, address, out))
    }
}

/// Runs `read` between two meetings, with this rank's memory at `address`. False if a rank was refused, on
/// all ranks alike: nothing that was read counts then.
pub(super) fn run(
    running: &Running<'_>,
    signature: Signature,
    address: u64,
    read: impl FnOnce(&Sources<'_>) -> bool,
) -> Result<bool> {
    if !running.try_reading(signature)? {
        return Ok(false);
    }
    let epoch = running.meet_with(signature, address)?;
    fault::point(Point::PullEntered);
    let could = read(&Sources { running, epoch });
    running.look_after_reading(could)?;
    fault::point(Point::PullRead);
    running.agree_on_reading(signature, could)
}
