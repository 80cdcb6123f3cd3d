//! The names of collectives and of the algorithms that carry them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// How a collective moves its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Algorithm {
    /// The bytes travel in the cache lines of the announcement itself. For a few hundred bytes at most.
    Push,
    /// Each rank copies its bytes into its staging, meets the others once, and works on everybody's staging. No second
    /// meeting: staging has two halves.
    Staged,
    /// Meet, read the peers' memory where it is, meet again.
    Direct,
    /// Meet, reduce a slice that this rank alone owns and write the result into everybody's memory, meet again.
    TwoShot,
    /// Staged, piece by piece, each piece staying in the caches from its copy to its use. For private memory. In reductions each
    /// rank reduces a slice of every piece and hands the result back in place.
    Pipelined,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 5] = [Self::Push, Self::Staged, Self::Direct, Self::TwoShot, Self::Pipelined];

    /// Its name in tables, traces and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Staged => "staged",
            Self::Direct => "direct",
            Self::TwoShot => "two_shot",
            Self::Pipelined => "pipelined",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named(&Self::ALL, Self::name, text, "algorithm")
    }
}

/// A collective that the dispatcher chooses an algorithm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Collective {
    /// [`SymmetricMemory::all_reduce`](crate::SymmetricMemory::all_reduce).
    AllReduce,
    /// [`SymmetricMemory::all_reduce_out`](crate::SymmetricMemory::all_reduce_out).
    AllReduceOut,
    /// [`SymmetricMemory::reduce`](crate::SymmetricMemory::reduce).
    Reduce,
    /// [`SymmetricMemory::reduce_scatter`](crate::SymmetricMemory::reduce_scatter).
    ReduceScatter,
    /// [`SymmetricMemory::all_gather`](crate::SymmetricMemory::all_gather).
    AllGather,
    /// [`SymmetricMemory::broadcast`](crate::SymmetricMemory::broadcast).
    Broadcast,
    /// [`SymmetricMemory::all_to_all`](crate::SymmetricMemory::all_to_all).
    AllToAll,
    /// The collectives on private memory, like [`Group::all_reduce`](crate::Group::all_reduce).
    Private,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::AllReduceOut,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::Private,
    ];

    /// Its name in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllReduceOut => "all_reduce_out",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Private => "private",
        }
    }

    /// The algorithms that can carry it, by the size of messages they are for: the last one takes any size.
    pub const fn algorithms(self) -> [Algorithm; 3] {
        let last = match self {
            Self::AllReduce => Algorithm::TwoShot,
            Self::Private => Algorithm::Pipelined,
            _ => Algorithm::Direct,
        };
        [Algorithm::Push, Algorithm::Staged, last]
    }

    /// An error unless `algorithm` can carry it.
    pub(crate) fn check(self, algorithm: Algorithm) -> Result<()> {
        let possible = self.algorithms();
        if possible.contains(&algorithm) {
            return Ok(());
        }
        let names = possible.map(Algorithm::name).join(", ");
        let problem = format!("{algorithm} cannot carry {self}, which has {names}");
        Err(Error::invalid("algorithm", problem))
    }
}

/// Calls `force` for everything that `choice` says: `"staged"` for all collectives that it can carry, or
/// `"all_reduce=push,broadcast=direct"`.
pub(crate) fn each_forced(choice: &str, mut force: impl FnMut(Collective, Algorithm)) -> Result<()> {
    for forced in choice.split(',').filter(|part| !part.is_empty()) {
        match forced.split_once('=') {
            Some((collective, algorithm)) => {
                let (collective, algorithm): (Collective, _) = (collective.parse()?, algorithm.parse()?);
                collective.check(algorithm)?;
                force(collective, algorithm);
            }
            None => {
                let algorithm = forced.parse()?;
                let can = |collective: &Collective| collective.algorithms().contains(&algorithm);
                Collective::ALL.into_iter().filter(can).for_each(|collective| force(collective, algorithm));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        named(&Self::ALL, Self::name, text, "collective")
    }
}

/// The one of `all` that is called `text`.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, text: &str, what: &str) -> Result<T> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|one| name(*one)).collect();
        Error::invalid(what.to_owned(), format!("{text:?} is none of {}", known.join(", ")))
    })
}
