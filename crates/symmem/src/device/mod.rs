//! What a group has on a device, whoever works there: lanes, status words, control blocks, and until when
//! memory is in use.
//!
//! No kernels, and no operations: those are of engines, which are above. What it guarantees: nothing here
//! makes a launch of its own, and what it keeps for kernels stays until they are done.
//!
//! | file | what it is |
//! |---|---|
//! | `control.rs` | what kernels and host have in common: control block, parameters, words of failure |
//! | `lane.rs` | order of launches across streams and captures |
//! | `status.rs` | failures, between device and host |
//! | `fate.rs` | what memory must know of its engine |
//! | `table.rs` | everybody's memory, as a rendezvous made it; `pointers.rs` the tables of it in device memory |
//! | `bounce.rs` | private memory that goes with a table, for what NCCL carries |
//! | `host_block.rs` | host memory that kernels write |

mod bounce;
pub(crate) mod control;
mod fate;
mod host_block;
pub(crate) mod lane;
mod pointers;
pub(crate) mod status;
mod table;

use std::time::Duration;

pub(crate) use self::bounce::BounceBuffer;
pub(crate) use self::fate::Fate;
pub(crate) use self::host_block::HostBlock;
pub(crate) use self::pointers::Pointers;
pub(crate) use self::table::DeviceTable;

/// How the name of an engine's memory file begins, by which who looks on from outside finds it.
pub(crate) const DEVICE_PREFIX: &str = "symmem-device:";

/// Most lanes of an engine.
pub(crate) const MAX_LANES: u32 = 16;

/// Nanoseconds for kernels, which take 0 for "for ever".
pub(crate) fn nanoseconds(deadline: Option<Duration>) -> u64 {
    deadline.map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_no_zero() {
        assert_eq!(nanoseconds(None), 0);
        assert_eq!(nanoseconds(Some(Duration::ZERO)), 1);
        assert_eq!(nanoseconds(Some(Duration::from_secs(1))), 1_000_000_000);
        assert_eq!(nanoseconds(Some(Duration::MAX)), u64::MAX);
    }
}
