//! An engine for tests: it records what it is asked to do, and does nothing.
//!
//! Taken by `route.rs` for the engines of a thread that called [`record_operations`], before any other. What
//! it guarantees: nothing is launched, so a test of what the handle's methods ask for needs no kernels.

use std::cell::RefCell;

use super::carrier::Carrier;
use super::launch_terms::LaunchTerms;
use super::ops::{AllReduce, DeviceRead, ProductToScatter, RowsToMultiply, RowsToNormalise};
use super::{Engine, Region};
use crate::Result;
use crate::cuda::Stream;
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;

thread_local! {
    static RECORDED: RefCell<Option<Vec<RecordedOperation>>> = const { RefCell::new(None) };
}

/// What an engine was asked to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedOperation {
    /// Its name.
    pub op: &'static str,
    /// What its elements are, where they count.
    pub dtype: Option<DType>,
    /// How they become one.
    pub reduction: Option<ReduceOp>,
    /// The root, or the other rank of a signal.
    pub rank: Option<usize>,
    /// Of a signal or a barrier.
    pub channel: Option<usize>,
    /// What each rank gives or reads, of every peer.
    pub bytes: usize,
    /// Whether this rank gets anything.
    pub gets: bool,
}

/// From here on engines that this thread makes record what they are asked to do.
pub fn record_operations() {
    RECORDED.set(Some(Vec::new()));
}

/// What the engines of this thread were asked to do since the last call.
pub fn recorded_operations() -> Vec<RecordedOperation> {
    RECORDED.with_borrow_mut(|recorded| recorded.as_mut().map(std::mem::take).unwrap_or_default())
}

#[derive(Debug)]
pub(super) struct RecordingCarrier;

impl RecordingCarrier {
    fn record(operation: RecordedOperation) -> Result<()> {
        RECORDED.with_borrow_mut(|recorded| recorded.get_or_insert_default().push(operation));
        Ok(())
    }
}

impl Carrier for RecordingCarrier {
    fn works(&self, _all_reach_all: bool) -> bool {
        RECORDED.with_borrow(Option::is_some)
    }

    fn all_reduce(&self, region: &Region, work: &AllReduce<'_>, _: &Stream) -> Result<()> {
        let AllReduce { form, reduce, dtype, .. } = *work;
        let (dtype, reduction) = (Some(dtype), Some(reduce));
        let op = form.op().name();
        let bytes = region.bytes;
        Self::record(RecordedOperation { op, dtype, reduction, bytes, gets: true, ..Default::default() })
    }

    fn all_reduce_rms_norm(&self, region: &Region, work: &RowsToNormalise<'_>, _: &Stream) -> Result<()> {
        let (dtype, reduction) = (Some(work.dtype), Some(work.reduce));
        let (op, bytes) = (Op::AllReduceRmsNorm.name(), region.bytes);
        Self::record(RecordedOperation { op, dtype, reduction, bytes, gets: true, ..Default::default() })
    }

    fn all_gather_matmul(&self, region: &Region, work: &RowsToMultiply<'_>, _: &Stream) -> Result<()> {
        let (op, dtype, bytes) = (Op::AllGatherMatmul.name(), Some(work.dtype), region.bytes);
        Self::record(RecordedOperation { op, dtype, bytes, gets: true, ..Default::default() })
    }

    fn matmul_reduce_scatter(&self, _: &Region, work: &ProductToScatter<'_>, _: &Stream) -> Result<()> {
        let (op, dtype) = (Op::MatmulReduceScatter.name(), Some(work.dtype));
        let (reduction, bytes) = (Some(work.reduce), work.bytes());
        Self::record(RecordedOperation { op, dtype, reduction, bytes, gets: true, ..Default::default() })
    }

    fn read(&self, _: &Region, reading: &DeviceRead<'_>, _: &Stream) -> Result<()> {
        let DeviceRead { op, dtype, reduction, root, bytes, rows, reads, .. } = *reading;
        Self::record(RecordedOperation {
            op: op.name(),
            dtype: Some(dtype),
            reduction,
            rank: root,
            channel: None,
            bytes: bytes * rows,
            gets: reads,
        })
    }

    fn signal(&self, _: &Region, op: Op, rank: usize, channel: usize, _: &Stream) -> Result<()> {
        let (op, rank, channel) = (op.name(), Some(rank), Some(channel));
        Self::record(RecordedOperation { op, rank, channel, ..Default::default() })
    }

    fn meet(&self, _: &Engine, statement: LaunchTerms, _: &Stream) -> Result<()> {
        let (op, channel) = (statement.op.name(), statement.channel);
        Self::record(RecordedOperation { op, channel, ..Default::default() })
    }

    fn refuse(&self, engine: &Engine, statement: LaunchTerms, stream: &Stream) -> Result<()> {
        self.meet(engine, statement, stream)
    }
}
