//! The names of the operations, as they travel in signatures and appear in errors, traces and `inspect`.

/// An operation of a group or handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
// As wide as a word: a byte in `Running` would leave it with padding, and copying that stalls the processor.
#[repr(u64)]
pub(crate) enum Op {
    Join = 1,
    Barrier = 2,
    AllGather = 3,
    Broadcast = 4,
    Rendezvous = 5,
    Vote = 6,
    PutSignal = 7,
    WaitSignal = 8,
    Close = 9,
    Copy = 10,
    Survivors = 11,
    Subgroup = 12,
    MemoryBarrier = 13,
    AllGatherFds = 14,
    BroadcastFds = 15,
    AllReduce = 16,
    AllReduceOut = 17,
    Reduce = 18,
    ReduceScatter = 19,
    AllGatherMemory = 20,
    BroadcastMemory = 21,
    AllToAll = 22,
    AllToAllV = 23,
    AllToAll2d = 24,
    AllToAll2dOffset = 25,
    Gather = 26,
    Scatter = 27,
    ReduceScatterColumns = 28,
    LowContentionAllGather = 29,
    LowContentionReduceScatter = 30,
    Put = 31,
    PutWithSignal = 32,
    WaitForSignal = 33,
    PrivateAllReduce = 34,
    CudaEngine = 35,
    StreamSync = 36,
    PrivateReduce = 37,
    PrivateReduceScatter = 38,
    PrivateAllGather = 39,
    PrivateBroadcast = 40,
    PrivateAllToAll = 41,
    PrivateAllToAllV = 42,
    PrivateGather = 43,
    PrivateScatter = 44,
    Send = 45,
    Receive = 46,
    NcclInit = 47,
}

impl Op {
    const ALL: [Op; 47] = [
        Op::Join,
        Op::Barrier,
        Op::AllGather,
        Op::Broadcast,
        Op::Rendezvous,
        Op::Vote,
        Op::PutSignal,
        Op::WaitSignal,
        Op::Close,
        Op::Copy,
        Op::Survivors,
        Op::Subgroup,
        Op::MemoryBarrier,
        Op::AllGatherFds,
        Op::BroadcastFds,
        Op::AllReduce,
        Op::AllReduceOut,
        Op::Reduce,
        Op::ReduceScatter,
        Op::AllGatherMemory,
        Op::BroadcastMemory,
        Op::AllToAll,
        Op::AllToAllV,
        Op::AllToAll2d,
        Op::AllToAll2dOffset,
        Op::Gather,
        Op::Scatter,
        Op::ReduceScatterColumns,
        Op::LowContentionAllGather,
        Op::LowContentionReduceScatter,
        Op::Put,
        Op::PutWithSignal,
        Op::WaitForSignal,
        Op::PrivateAllReduce,
        Op::CudaEngine,
        Op::StreamSync,
        Op::PrivateReduce,
        Op::PrivateReduceScatter,
        Op::PrivateAllGather,
        Op::PrivateBroadcast,
        Op::PrivateAllToAll,
        Op::PrivateAllToAllV,
        Op::PrivateGather,
        Op::PrivateScatter,
        Op::Send,
        Op::Receive,
        Op::NcclInit,
    ];

    /// The name in errors and traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Join => "join",
            Op::Barrier => "group barrier",
            Op::AllGather => "all_gather",
            Op::Broadcast => "broadcast",
            Op::Rendezvous => "rendezvous",
            Op::Vote => "vote",
            Op::PutSignal => "put_signal",
            Op::WaitSignal => "wait_signal",
            Op::Close => "close",
            Op::Copy => "copy",
            Op::Survivors => "survivors",
            Op::Subgroup => "subgroup",
            Op::MemoryBarrier => "barrier",
            Op::AllGatherFds => "all_gather_fds",
            Op::BroadcastFds => "broadcast_fds",
            Op::AllReduce => "all_reduce",
            Op::AllReduceOut => "all_reduce_out",
            Op::Reduce => "reduce",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllGatherMemory => "all_gather of memory",
            Op::BroadcastMemory => "broadcast of memory",
            Op::AllToAll => "all_to_all",
            Op::AllToAllV => "all_to_all_v",
            Op::AllToAll2d => "all_to_all_2d",
            Op::AllToAll2dOffset => "all_to_all_2d_offset",
            Op::Gather => "gather",
            Op::Scatter => "scatter",
            Op::ReduceScatterColumns => "reduce_scatter_columns",
            Op::LowContentionAllGather => "low_contention_all_gather",
            Op::LowContentionReduceScatter => "low_contention_reduce_scatter",
            Op::Put => "put",
            Op::PutWithSignal => "put_with_signal",
            Op::WaitForSignal => "wait_for_signal",
            Op::PrivateAllReduce => "all_reduce of private memory",
            Op::CudaEngine => "making of an engine",
            Op::StreamSync => "sync of a stream",
            Op::PrivateReduce => "reduce of private memory",
            Op::PrivateReduceScatter => "reduce_scatter of private memory",
            Op::PrivateAllGather => "all_gather of private memory",
            Op::PrivateBroadcast => "broadcast of private memory",
            Op::PrivateAllToAll => "all_to_all of private memory",
            Op::PrivateAllToAllV => "all_to_all_v of private memory",
            Op::PrivateGather => "gather of private memory",
            Op::PrivateScatter => "scatter of private memory",
            Op::Send => "send",
            Op::Receive => "receive",
            Op::NcclInit => "making of an NCCL communicator",
        }
    }

    /// Whether it is a collective on private memory.
    pub(crate) fn is_private(self) -> bool {
        self == Op::PrivateAllReduce || self >= Op::PrivateReduce && self <= Op::PrivateScatter
    }

    /// Whether its signature is that of a collective on memory.
    pub(crate) fn is_collective(self) -> bool {
        self >= Op::AllReduce && self < Op::CudaEngine || self.is_private()
    }

    /// The op with this number, if there is one.
    pub(crate) fn from_u8(number: u8) -> Option<Op> {
        Self::ALL.into_iter().find(|op| *op as u8 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_is_found_by_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::from_u8(op as u8), Some(op));
        }
        assert_eq!(Op::from_u8(0), None);
    }
}
