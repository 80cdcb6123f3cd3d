//! The names of the operations, as they travel in signatures and appear in errors, traces and `inspect`.

/// What kind of operation one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A collective on symmetric memory.
    Symmetric,
    /// A collective on private memory.
    Private,
    /// Another call that all ranks make together.
    Meeting,
    /// A step of a call, a call that fewer ranks make, or one that finds its ranks in another way.
    Other,
}

macro_rules! ops {
    ($($op:ident = $number:literal, $name:literal $(as $label:literal)?, $kind:ident;)*) => {
        /// An operation of a group or handle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        // As wide as a word: a byte in `Running` would leave it with padding, and copying that stalls the processor.
        #[repr(u64)]
        pub(crate) enum Op {
            $($op = $number,)*
        }

        impl Op {
            const ALL: &[Self] = &[$(Self::$op),*];

            /// What the caller called, in errors and traces.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)*
                }
            }

            /// Its name among all others, some of which callers call alike.
            pub(crate) fn label(self) -> &'static str {
                match self {
                    $(Self::$op => last(&[$name, $($label)?]),)*
                }
            }

            pub(crate) fn kind(self) -> Kind {
                match self {
                    $(Self::$op => Kind::$kind,)*
                }
            }
        }
    };
}

/// The last one of `names`.
const fn last(names: &[&'static str]) -> &'static str {
    names[names.len() - 1]
}

// Number, name, label where it is another, and kind of each.
ops! {
    Join = 1, "join", Other;
    Barrier = 2, "barrier" as "group barrier", Meeting;
    AllGather = 3, "all_gather", Meeting;
    Broadcast = 4, "broadcast", Meeting;
    Rendezvous = 5, "rendezvous", Meeting;
    Vote = 6, "vote", Other;
    PutSignal = 7, "put_signal", Other;
    WaitSignal = 8, "wait_signal", Other;
    Close = 9, "close", Meeting;
    Copy = 10, "copy", Other;
    Survivors = 11, "survivors", Other;
    Subgroup = 12, "subgroup", Other;
    MemoryBarrier = 13, "barrier", Meeting;
    AllGatherFds = 14, "all_gather_fds", Meeting;
    BroadcastFds = 15, "broadcast_fds", Meeting;
    AllReduce = 16, "all_reduce", Symmetric;
    AllReduceOut = 17, "all_reduce_out", Symmetric;
    Reduce = 18, "reduce", Symmetric;
    ReduceScatter = 19, "reduce_scatter", Symmetric;
    AllGatherMemory = 20, "all_gather" as "all_gather of memory", Symmetric;
    BroadcastMemory = 21, "broadcast" as "broadcast of memory", Symmetric;
    AllToAll = 22, "all_to_all", Symmetric;
    AllToAllV = 23, "all_to_all_v", Symmetric;
    AllToAll2d = 24, "all_to_all_2d", Symmetric;
    AllToAll2dOffset = 25, "all_to_all_2d_offset", Symmetric;
    Gather = 26, "gather", Symmetric;
    Scatter = 27, "scatter", Symmetric;
    ReduceScatterColumns = 28, "reduce_scatter_columns", Symmetric;
    LowContentionAllGather = 29, "low_contention_all_gather", Symmetric;
    LowContentionReduceScatter = 30, "low_contention_reduce_scatter", Symmetric;
    Put = 31, "put", Other;
    PutWithSignal = 32, "put_with_signal", Other;
    WaitForSignal = 33, "wait_for_signal", Other;
    PrivateAllReduce = 34, "all_reduce" as "all_reduce of private memory", Private;
    CudaEngine = 35, "making of an engine", Other;
    StreamSync = 36, "sync of a stream", Other;
    PrivateReduce = 37, "reduce" as "reduce of private memory", Private;
    PrivateReduceScatter = 38, "reduce_scatter" as "reduce_scatter of private memory", Private;
    PrivateAllGather = 39, "all_gather" as "all_gather of private memory", Private;
    PrivateBroadcast = 40, "broadcast" as "broadcast of private memory", Private;
    PrivateAllToAll = 41, "all_to_all" as "all_to_all of private memory", Private;
    PrivateAllToAllV = 42, "all_to_all_v" as "all_to_all_v of private memory", Private;
    PrivateGather = 43, "gather" as "gather of private memory", Private;
    PrivateScatter = 44, "scatter" as "scatter of private memory", Private;
    Send = 45, "send", Other;
    Receive = 46, "receive", Other;
    NcclInit = 47, "making of an NCCL communicator", Other;
    Refusal = 48, "refusal", Other;
    Probe = 49, "probe", Other;
}

impl Op {
    /// Whether its root is something that ranks agree on.
    pub(crate) fn has_root(self) -> bool {
        use Op::*;
        matches!(
            self,
            Reduce
                | BroadcastMemory
                | Gather
                | Scatter
                | PrivateReduce
                | PrivateBroadcast
                | PrivateGather
                | PrivateScatter
        )
    }

    /// Whether it is a collective on private memory.
    #[inline]
    pub(crate) fn is_private(self) -> bool {
        self.kind() == Kind::Private
    }

    /// Whether its signature is that of a collective on memory.
    pub(crate) fn is_collective(self) -> bool {
        matches!(self.kind(), Kind::Symmetric | Kind::Private)
    }

    /// The op with this number, if there is one.
    pub(crate) fn from_u8(number: u8) -> Option<Op> {
        Self::ALL.iter().copied().find(|op| *op as u8 == number)
    }
}

/// The names of all calls that all ranks of a group make together, for the test that has a row for each.
#[cfg(feature = "faults")]
pub fn calls_of_all() -> Vec<&'static str> {
    Op::ALL.iter().filter(|op| op.kind() != Kind::Other).map(|op| op.label()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::SHAPED;

    #[test]
    fn every_op_is_found_by_its_number() {
        for op in Op::ALL {
            assert_eq!(Op::from_u8(*op as u8), Some(*op));
            assert_eq!(*op as u64 & SHAPED, 0, "the bit is for shapes");
        }
        assert_eq!(Op::from_u8(0), None);
    }
}
