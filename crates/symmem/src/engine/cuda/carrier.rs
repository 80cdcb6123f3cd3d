//! What carries the operations of a device: kernels of this crate, or a library's own collectives.
//!
//! `ops` (kernels), `carried.rs` (NCCL) and `recorder.rs` (for tests) implement it; only `route.rs` calls it.
//! What an implementation guarantees: the same answers on every rank, and work that is on its stream, or is
//! refused, when a call returns.

use std::fmt::Debug;

use super::launch_terms::LaunchTerms;
use super::ops::{AllReduce, DeviceRead, ProductToScatter, RowsToMultiply, RowsToNormalise};
use super::{Engine, Region};
use crate::Result;
use crate::cuda::Stream;
use crate::device::DeviceTable;
use crate::group::Running;
use crate::operation::Op;

/// Carries operations whose arguments and stream are checked.
pub(super) trait Carrier: Debug + Sync {
    /// Whether it can work; `all_reach_all` says that every rank reaches the memory of every other.
    fn works(&self, all_reach_all: bool) -> bool;

    /// Whether the device itself loads and stores peers' memory. Then nothing waits for them on the host, and
    /// offsets may differ.
    fn is_direct(&self) -> bool {
        true
    }

    /// Collective: prepares for work on the memory of `table`, whose offsets differ by rank.
    fn bind(&self, _engine: &Engine, _running: &Running<'_>, _table: &DeviceTable) -> Result<()> {
        Ok(())
    }

    fn all_reduce(&self, region: &Region, work: &AllReduce<'_>, stream: &Stream) -> Result<()>;

    /// An all-reduce, after which every rank adds a residual to the rows and normalises them.
    fn all_reduce_rms_norm(&self, region: &Region, work: &RowsToNormalise<'_>, stream: &Stream)
    -> Result<()>;

    /// Every rank gets everybody's rows, and multiplies them.
    fn all_gather_matmul(&self, region: &Region, work: &RowsToMultiply<'_>, stream: &Stream) -> Result<()>;

    /// Every rank makes a product, of whose reduction it gets its rows.
    fn matmul_reduce_scatter(
        &self,
        region: &Region,
        work: &ProductToScatter<'_>,
        stream: &Stream,
    ) -> Result<()>;

    /// Every rank reads what it is due from its peers.
    fn read(&self, region: &Region, reading: &DeviceRead<'_>, stream: &Stream) -> Result<()>;

    /// A signal to or from `rank`.
    fn signal(&self, region: &Region, op: Op, rank: usize, channel: usize, stream: &Stream) -> Result<()>;

    /// A meeting of all ranks, which moves nothing.
    fn meet(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()>;

    /// In place of an operation that this rank cannot launch: the others fail at once, where the carrier can
    /// tell them.
    fn refuse(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()>;
}
