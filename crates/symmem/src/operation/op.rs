//! The one table of operations: their numbers and names, as they travel in signatures and appear in errors,
//! traces and `inspect`; and what each collective on memory is, from which the dispatcher, the bench,
//! Python's checks and the matrices of README.md and docs/collectives.md follow.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Algorithm;
use crate::named::named;

/// What kind of operation one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// A collective on symmetric memory.
    Symmetric(Flow),
    /// A collective on private memory.
    Private(Flow),
    /// A collective on symmetric memory and what is computed with it.
    Fused,
    /// Another call that all ranks make together.
    Meeting,
    /// A step of a call, a call that fewer ranks make, or one that finds its ranks in another way.
    Other,
}

/// Whose bytes whom reach, in the first meeting of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Everybody's everybody.
    Everywhere,
    /// The root's the others.
    FromRoot,
    /// The others' the root.
    ToRoot,
}

/// What a rank gets out of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Its own memory holds the result.
    InPlace,
    /// As many elements as it put in.
    Same,
    /// Its part of as many.
    Share,
    /// As many from each rank.
    Whole,
    /// As many as ranks tell each other.
    Varies,
}

/// One collective on memory: what it is, and where it can be done.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveRow {
    /// What callers call, on symmetric memory of the host.
    pub name: &'static str,
    /// What a rank gets out of it.
    pub output: Output,
    /// The algorithms that the dispatcher chooses from, where it does.
    pub tuned: Option<Collective>,
    /// Its method in Python, where there is one.
    pub python: Option<&'static str>,
    /// Whether one rank is the root.
    pub root: bool,
    /// Whether elements become one.
    pub reduces: bool,
    /// Whether input or output is one part per rank.
    pub parts: bool,
    /// Whether a rank gets something of the ranks up to its own only.
    pub prefix: bool,
    /// Whether its own is not among them.
    pub exclusive: bool,
    /// Whether these are as long as counts say, which all ranks give alike.
    pub counts: bool,
    /// Whether there is one on private memory.
    pub private: bool,
    /// Whether there is a started form.
    pub started: bool,
    /// Whether the kernels of devices do it.
    pub devices: bool,
    /// Whether NCCL does it where ranks are out of reach.
    pub carried: bool,
}

impl CollectiveRow {
    /// Whether only the root gets something out of it.
    pub const fn is_to_root(&self) -> bool {
        self.root && matches!(self.output, Output::Same | Output::Whole)
    }

    /// Whose elements make up what `rank` of `world` gets, if it gets something.
    pub const fn givers(&self, rank: usize, root: usize, world: usize) -> Range<usize> {
        match self.root && !self.is_to_root() {
            true => root..root + 1,
            false if self.prefix => 0..rank + !self.exclusive as usize,
            false => 0..world,
        }
    }
}

macro_rules! ops {
    (
        calls: {$($op:ident = $number:literal, $called:literal $(as $label:literal)?, $kind:ident;)*}
        collectives: {$(
            $name:literal $({$($is:ident),*})? gives $output:ident $(, python ($python:expr))?:
                $memory:ident = $memory_number:literal $(($flow:ident))? $(as $memory_label:literal)?
                $(, $private:ident = $private_number:literal $(($private_flow:ident))?)?
                $(=> $tuned:ident $(by [$($algorithm:ident),*])?)?;
        )*}
    ) => {
        /// An operation of a group or handle.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        // As wide as a word: a byte in `Running` would leave it with padding, and copying that stalls the
        // processor.
        #[repr(u64)]
        pub(crate) enum Op {
            $($op = $number,)*
            $($memory = $memory_number, $($private = $private_number,)?)*
        }

        impl Op {
            const ALL: &[Self] = &[$(Self::$op,)* $(Self::$memory, $(Self::$private,)?)*];

            /// The op with this number, if there is one.
            pub(crate) fn from_u8(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|op| *op as u8 == number)
            }

            /// What the caller called, in errors and traces.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $called,)*
                    $(Self::$memory $(| Self::$private)? => $name,)*
                }
            }

            /// Its name among all others, some of which callers call alike.
            pub(crate) const fn label(self) -> &'static str {
                match self {
                    $(Self::$op => const { last(&[$called, $($label)?]) },)*
                    $(
                        Self::$memory => const { last(&[$name, $($memory_label)?]) },
                        $(Self::$private => concat!($name, " of private memory"),)?
                    )*
                }
            }

            #[inline]
            pub(crate) const fn kind(self) -> OpKind {
                match self {
                    $(Self::$op => OpKind::$kind,)*
                    $(
                        Self::$memory => const { OpKind::Symmetric(last(&[Flow::Everywhere, $(Flow::$flow)?])) },
                        $(Self::$private => const { OpKind::Private(last(&[Flow::Everywhere, $(Flow::$private_flow)?])) },)?
                    )*
                }
            }

            /// The collective that it is, if it is one.
            #[inline]
            pub(crate) const fn row(self) -> Option<&'static CollectiveRow> {
                match self {
                    $(Self::$op => None,)*
                    $(Self::$memory $(| Self::$private)? => Some(const { &CollectiveRow {
                        $(private: { let _ = Self::$private; true },)?
                        $(tuned: Some(Collective::$tuned),)?
                        $(python: $python,)?
                        $($($is: true,)*)?
                        ..CollectiveRow {
                            name: $name, output: Output::$output, tuned: None, python: Some($name), root: false, reduces: false,
                            parts: false, prefix: false, exclusive: false, counts: false, private: false, started: false, devices: false, carried: false,
                        }
                    } }),)*
                }
            }
        }

        /// The collectives on memory.
        pub const ROWS: &[&CollectiveRow] = &[$(match Op::$memory.row() { Some(row) => row, None => unreachable!() }),*];

        named! {
            /// A collective that the dispatcher chooses an algorithm for.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
            #[serde(rename_all = "snake_case")]
            #[non_exhaustive]
            pub enum Collective read as "collective" {
                /// Every collective.
                ALL: {
                    $($(
                        #[doc = concat!("[`SymmetricMemory::", $name, "`](crate::SymmetricMemory::", $name, ").")]
                        $tuned = $name,
                    )?)*
                    /// The collectives on private memory, like
                    /// [`Group::all_reduce`](crate::Group::all_reduce).
                    Private = "private",
                }
            }
        }

        impl Collective {
            /// The algorithms that can carry it, by the size of messages they are for: the third one and
            /// those after it take any size.
            pub const fn algorithms(self) -> &'static [Algorithm] {
                use Algorithm::*;
                match self {
                    $($(Self::$tuned => const { last(&[&[Push, Staged, Direct], $(&[$($algorithm),*])?]) },)?)*
                    Self::Private => &[Push, Staged, Pipelined, Pull],
                }
            }
        }
    };
}

/// The last one of `all`: what a row says, else what comes before it.
const fn last<T: Copy>(all: &[T]) -> T {
    all[all.len() - 1]
}

ops! {
    // Number, name, label where it is another, and kind of each.
    calls: {
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
        Put = 31, "put", Other;
        PutWithFlag = 32, "put_with_flag", Other;
        WaitFlag = 33, "wait_flag", Other;
        CudaEngine = 35, "engine set-up", Other;
        StreamSync = 36, "stream sync", Other;
        Send = 45, "send", Other;
        Receive = 46, "receive", Other;
        NcclInit = 47, "communicator set-up", Other;
        Refusal = 48, "refusal", Other;
        Probe = 49, "probe", Other;
        Atomics = 60, "atomics", Meeting;
        PoolAlloc = 61, "pool.alloc", Meeting;
        AllGatherMatmul = 62, "all_gather_matmul", Fused;
        AllGatherColumnsMatmul = 63, "all_gather_columns_matmul", Fused;
        MatmulReduceScatter = 64, "matmul_reduce_scatter", Fused;
        MatmulReduceScatterColumns = 65, "matmul_reduce_scatter_columns", Fused;
        AllReduceRmsNorm = 66, "all_reduce_rms_norm", Fused;
    }
    // Name, what holds of it (see `CollectiveRow`), what a rank gets, Python's method where that has another
    // name or is not there; operation, number and flow (everywhere unless it says so) on symmetric memory,
    // the same on private memory where that is an operation of its own; and where there is a choice, the name
    // that it is tuned by, and among which algorithms unless by push, staged and direct.
    collectives: {
        "all_reduce" {reduces, started, devices, carried} gives InPlace: AllReduce = 16, PrivateAllReduce = 34 => AllReduce by [Push, Staged, TwoShot];
        "all_reduce_out" {reduces, private, started, devices, carried} gives Same, python (Some("all_reduce")): AllReduceOut = 17 => AllReduceOut;
        "reduce" {root, reduces, started, devices, carried} gives Same: Reduce = 18 (ToRoot), PrivateReduce = 37 => Reduce;
        "reduce_scatter" {reduces, parts, started, devices, carried} gives Share: ReduceScatter = 19, PrivateReduceScatter = 38 => ReduceScatter;
        "all_gather" {parts, started, devices, carried} gives Whole: AllGatherMemory = 20 as "all_gather of memory", PrivateAllGather = 39 => AllGather;
        "broadcast" {root, started, devices, carried} gives InPlace:
            BroadcastMemory = 21 (FromRoot) as "broadcast of memory", PrivateBroadcast = 40 (FromRoot) => Broadcast;
        "all_to_all" {parts, started, devices, carried} gives Same: AllToAll = 22, PrivateAllToAll = 41 => AllToAll;
        "scan" {reduces, prefix, started} gives Same: Scan = 50, PrivateScan = 51 => Scan;
        "exclusive_scan" {reduces, prefix, exclusive, started} gives Same: ExclusiveScan = 52, PrivateExclusiveScan = 53 => ExclusiveScan;
        "all_gather_v" {parts, counts, started} gives Whole: AllGatherV = 54, PrivateAllGatherV = 55 => AllGatherV;
        "gather_v" {root, parts, counts, started} gives Whole: GatherV = 56, PrivateGatherV = 57 (ToRoot) => GatherV;
        "scatter_v" {root, parts, counts, started} gives Share: ScatterV = 58, PrivateScatterV = 59 (FromRoot) => ScatterV;
        "all_to_all_v" {parts} gives Varies: AllToAllV = 23, PrivateAllToAllV = 42;
        "all_to_all_2d" {parts} gives Varies, python (None): AllToAll2d = 24;
        "all_to_all_2d_offset" {parts} gives Varies, python (None): AllToAll2dOffset = 25;
        "gather" {root, parts, devices, carried} gives Whole: Gather = 26, PrivateGather = 43 (ToRoot);
        "scatter" {root, parts, devices, carried} gives Share: Scatter = 27, PrivateScatter = 44 (FromRoot);
        "reduce_scatter_columns" {reduces, parts, devices} gives Share, python (Some("reduce_scatter")): ReduceScatterColumns = 28;
        "low_contention_all_gather" {parts} gives Whole, python (None): LowContentionAllGather = 29;
        "low_contention_reduce_scatter" {reduces, parts} gives Share, python (None): LowContentionReduceScatter = 30;
    }
}

/// The names of all calls that all ranks of a group make together, for the test that has a row for each.
#[cfg(feature = "faults")]
pub fn calls_of_all() -> Vec<&'static str> {
    Op::ALL.iter().filter(|op| op.kind() != OpKind::Other).map(|op| op.label()).collect()
}
