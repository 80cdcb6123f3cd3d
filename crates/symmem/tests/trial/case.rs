//! One call of a collective, the same on all ranks.

use symmem::tuning::{Algorithm, Collective};
use symmem::{DType, ReduceOp};

use super::Random;
use super::number::operations;

/// The collectives: those on symmetric memory, then those on private memory in all their forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    AllReduceOut,
    Reduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    AllToAll,
    Scan,
    ExclusiveScan,
    AllGatherV,
    GatherV,
    ScatterV,
    Private,
    PrivateOut,
    PrivateStrided,
    PrivateReduce,
    PrivateReduceOut,
    PrivateReduceScatter,
    PrivateAllGather,
    PrivateBroadcast,
    PrivateAllToAll,
    PrivateAllToAllV,
    PrivateGather,
    PrivateScatter,
    PrivateScan,
    PrivateExclusiveScan,
    PrivateAllGatherV,
    PrivateGatherV,
    PrivateScatterV,
}

impl Kind {
    pub(crate) const ALL: [Self; 29] = [
        Self::AllReduce,
        Self::AllReduceOut,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::Scan,
        Self::ExclusiveScan,
        Self::AllGatherV,
        Self::GatherV,
        Self::ScatterV,
        Self::Private,
        Self::PrivateOut,
        Self::PrivateStrided,
        Self::PrivateReduce,
        Self::PrivateReduceOut,
        Self::PrivateReduceScatter,
        Self::PrivateAllGather,
        Self::PrivateBroadcast,
        Self::PrivateAllToAll,
        Self::PrivateAllToAllV,
        Self::PrivateGather,
        Self::PrivateScatter,
        Self::PrivateScan,
        Self::PrivateExclusiveScan,
        Self::PrivateAllGatherV,
        Self::PrivateGatherV,
        Self::PrivateScatterV,
    ];

    /// The collective that the dispatcher knows.
    pub(crate) fn collective(self) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::AllReduceOut => Collective::AllReduceOut,
            Self::Reduce => Collective::Reduce,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllGather => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast,
            Self::AllToAll => Collective::AllToAll,
            Self::Scan => Collective::Scan,
            Self::ExclusiveScan => Collective::ExclusiveScan,
            Self::AllGatherV => Collective::AllGatherV,
            Self::GatherV => Collective::GatherV,
            Self::ScatterV => Collective::ScatterV,
            _ => Collective::Private,
        }
    }

    /// Whether it is on private memory.
    pub(crate) fn is_private(self) -> bool {
        self as usize >= Self::Private as usize
    }

    /// Whether it gives a rank something of those up to it only; there is no average of them.
    fn is_scan(self) -> bool {
        use Kind::*;
        matches!(self, Scan | ExclusiveScan | PrivateScan | PrivateExclusiveScan)
    }

    /// Whether its elements are one chunk per rank.
    fn is_chunked(self) -> bool {
        use Kind::*;
        matches!(self, ReduceScatter | AllToAll | PrivateReduceScatter | PrivateAllToAll | PrivateScatter)
    }
}

/// Bytes that a parcel and a rank's staging hold: where algorithms give way to each other.
const PARCEL: usize = 536;
const STAGING: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) root: usize,
    pub(crate) len: usize,
    /// What the handle forces; private memory has what its group forces.
    pub(crate) algorithm: Option<Algorithm>,
    /// Which of the handles, each with offsets of its own.
    pub(crate) handle: usize,
    /// What the data are made of.
    pub(crate) seed: u64,
}

impl Case {
    /// Any call by `world` ranks on at most `most` bytes each.
    pub(crate) fn random(random: &mut Random, world: usize, most: usize) -> Self {
        let kind = Kind::ALL[random.below(Kind::ALL.len())];
        let dtype = DType::ALL[random.below(DType::ALL.len())];
        let algorithms = kind.collective().algorithms();
        let algorithm = algorithms.get(random.below(algorithms.len() + 1)).copied();
        Self::of(kind, dtype, algorithm, random, world, most)
    }

    /// A call whose operation, root, length and data are left to chance.
    pub(crate) fn of(
        kind: Kind,
        dtype: DType,
        algorithm: Option<Algorithm>,
        random: &mut Random,
        world: usize,
        most: usize,
    ) -> Self {
        let mut operations = operations(dtype).to_vec();
        operations.retain(|op| !(kind.is_scan() && *op == ReduceOp::Avg));
        let op = operations[random.below(operations.len())];
        let mut len = length(random, dtype.size(), most / dtype.size());
        // What is forced is mostly something that can be had; else the call must be refused.
        let had = most_of(algorithm) / dtype.size();
        if len > had && !kind.is_private() && random.below(4) > 0 {
            len = random.below(had + 1);
        }
        if kind.is_chunked() {
            len -= len % world;
        }
        let (root, handle) = (random.below(world), random.below(2));
        Self { kind, dtype, op, root, len, algorithm, handle, seed: random.next() }
    }

    /// The same call on other data.
    pub(crate) fn again(self, random: &mut Random) -> Self {
        Self { seed: random.next(), ..self }
    }
}

/// Most bytes of a rank that `algorithm` carries.
fn most_of(algorithm: Option<Algorithm>) -> usize {
    match algorithm {
        Some(Algorithm::Push) => PARCEL,
        Some(Algorithm::Staged) => STAGING,
        _ => usize::MAX,
    }
}

/// Any number of elements up to `most`: mostly few, often where something changes.
fn length(random: &mut Random, size: usize, most: usize) -> usize {
    let near = |random: &mut Random, bytes: usize| (bytes / size + random.below(5)).saturating_sub(2);
    let len = match random.below(16) {
        0 => random.below(2),
        1..4 => random.below(130),
        4..6 => near(random, PARCEL),
        6..10 => random.below(4096) / size,
        10..13 => random.below(20_000),
        13 => near(random, STAGING),
        14 => random.below(STAGING) / size,
        _ => random.below(most + 1),
    };
    len.min(most)
}
