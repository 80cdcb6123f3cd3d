//! What a call of a collective is: what its ranks must agree on, and who needs to hear from whom.

use crate::numeric::{DType, ReduceOp};
use crate::operation::{AgreedCall, Algorithm, Flow, MAX_BYTES, Op, OpKind, Shape, Signature};
use crate::{Error, Result};

/// One call of a collective.
#[derive(Clone, Copy)]
pub(super) struct CollectiveCall {
    pub(super) op: Op,
    pub(super) root: usize,
    pub(super) dtype: DType,
    pub(super) reduce: Option<ReduceOp>,
    /// Of each rank.
    pub(super) bytes: usize,
    pub(super) shape: Shape,
}

impl CollectiveCall {
    /// What all ranks must say alike; `memory` is 0 for private memory.
    #[inline]
    pub(super) fn signature(&self, algorithm: Algorithm, memory: u64) -> Signature {
        let agreed = AgreedCall {
            root: self.root as u64,
            dtype: self.dtype as u64,
            reduce: self.reduce.map_or(0, |reduce| reduce as u64 + 1),
            algorithm: algorithm as u64,
            memory,
            bytes: self.bytes as u64,
            shape: self.shape,
        };
        agreed.signature(self.op)
    }

    /// An error for more bytes than ranks can agree on.
    #[inline]
    pub(super) fn check_bytes(&self) -> Result<()> {
        if self.bytes as u64 <= MAX_BYTES {
            return Ok(());
        }
        let problem = format!("{} bytes of a rank are more than {MAX_BYTES}", self.bytes);
        Err(Error::invalid(self.op.name(), problem))
    }

    /// Whether [`Algorithm::Pull`] can carry it: everybody gives private memory to everybody. Where only one
    /// gives, or only one takes, the others would be idle meanwhile, and the pipeline is faster.
    pub(super) fn can_be_pulled(&self) -> bool {
        matches!(self.op.kind(), OpKind::Private(_))
            && self.op.row().is_some_and(|row| !row.root && !row.reduces)
    }

    /// Whether others need the bytes of `rank`.
    #[inline]
    pub(super) fn gives(&self, rank: usize) -> bool {
        match self.op.kind() {
            OpKind::Symmetric(Flow::FromRoot) | OpKind::Private(Flow::FromRoot) => rank == self.root,
            OpKind::Symmetric(Flow::ToRoot) | OpKind::Private(Flow::ToRoot) => rank != self.root,
            _ => true,
        }
    }

    /// Whether `rank` needs the bytes of `peer`.
    #[inline]
    pub(super) fn hears(&self, rank: usize, peer: usize) -> bool {
        match self.op.kind() {
            OpKind::Symmetric(Flow::FromRoot) => peer == self.root,
            OpKind::Symmetric(Flow::ToRoot) => rank == self.root,
            // Those on private memory let no byte change before all ranks are known to agree.
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_than_ranks_can_agree_on_are_refused() {
        let call = |bytes| CollectiveCall {
            op: Op::PrivateScatter,
            root: 0,
            dtype: DType::U8,
            reduce: None,
            bytes,
            shape: Shape::ANY,
        };
        assert!(call(MAX_BYTES as usize).check_bytes().is_ok());
        assert!(call(MAX_BYTES as usize + 1).check_bytes().is_err());
        assert!(call(usize::MAX).check_bytes().is_err());
    }

    #[test]
    fn everything_that_is_agreed_on_fits_its_field() {
        assert!(DType::ALL.iter().all(|dtype| (*dtype as u64) < 1 << 8));
        assert!(ReduceOp::ALL.iter().all(|reduce| (*reduce as u64) < (1 << 8) - 1));
        assert!(Algorithm::ALL.iter().all(|algorithm| (*algorithm as u64) < 1 << 4));
    }
}
