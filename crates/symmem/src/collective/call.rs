//! What a call of a collective is: what its ranks must agree on, and who needs to hear from whom.

use crate::DType;
use crate::group::signature;
use crate::numeric::ReduceOp;
use crate::op::Op;
use crate::sync::protocol::Signature;
use crate::tuning::{Algorithm, Collective};

/// One call of a collective.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) op: Op,
    pub(super) root: usize,
    pub(super) dtype: DType,
    pub(super) reduce: Option<ReduceOp>,
    /// Of each rank.
    pub(super) bytes: usize,
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Everywhere,
    FromRoot,
    ToRoot,
}

impl Call {
    /// What all ranks must say alike; `memory` is 0 for private memory.
    pub(super) fn signature(&self, algorithm: Algorithm, memory: u64) -> Signature {
        let reduce = self.reduce.map_or(0, |reduce| reduce as usize + 1);
        let memory = memory as usize & 0xf_ffff;
        let number = self.root
            | (self.dtype as usize) << 16
            | reduce << 24
            | (algorithm as usize) << 32
            | memory << 36;
        signature(self.op, number, self.bytes as u64)
    }

    /// The collective whose tuning counts.
    pub(super) fn collective(&self) -> Option<Collective> {
        Some(match self.op {
            Op::AllReduce => Collective::AllReduce,
            Op::AllReduceOut => Collective::AllReduceOut,
            Op::Reduce => Collective::Reduce,
            Op::ReduceScatter => Collective::ReduceScatter,
            Op::AllGatherMemory => Collective::AllGather,
            Op::BroadcastMemory => Collective::Broadcast,
            Op::AllToAll => Collective::AllToAll,
            _ => return None,
        })
    }

    fn flow(&self) -> Flow {
        match self.op {
            Op::BroadcastMemory | Op::PrivateBroadcast | Op::PrivateScatter => Flow::FromRoot,
            Op::Reduce | Op::PrivateGather => Flow::ToRoot,
            _ => Flow::Everywhere,
        }
    }

    /// Whether others need the bytes of `rank`.
    #[inline]
    pub(super) fn gives(&self, rank: usize) -> bool {
        match self.flow() {
            Flow::Everywhere => true,
            Flow::FromRoot => rank == self.root,
            Flow::ToRoot => rank != self.root,
        }
    }

    /// Whether `rank` needs the bytes of `peer`.
    #[inline]
    pub(super) fn hears(&self, rank: usize, peer: usize) -> bool {
        match self.flow() {
            // Those on private memory let no byte change before all ranks are known to agree.
            _ if self.op.is_private() => true,
            Flow::Everywhere => true,
            Flow::FromRoot => peer == self.root,
            Flow::ToRoot => rank == self.root,
        }
    }
}

/// What a signature's number says, for people.
pub(crate) fn describe(number: u64) -> String {
    let dtype = DType::ALL.iter().find(|dtype| **dtype as u64 == number >> 16 & 0xff);
    let reduce = ReduceOp::ALL.iter().find(|reduce| **reduce as u64 + 1 == number >> 24 & 0xff);
    let algorithm = Algorithm::ALL.iter().find(|algorithm| **algorithm as u64 == number >> 32 & 0xf);
    let name = |name: Option<String>| name.map(|name| format!("{name}, ")).unwrap_or_default();
    let (dtype, reduce) = (name(dtype.map(ToString::to_string)), name(reduce.map(ToString::to_string)));
    let algorithm = name(algorithm.map(ToString::to_string));
    format!("{reduce}{dtype}root {}, {algorithm}memory {}", number & 0xffff, number >> 36)
}
