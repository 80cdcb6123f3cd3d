//! How a rank reaches one memory of every rank: addresses by rank, and what keeps them valid.
//!
//! Made by `provider/share.rs`, kept by the tables of a rendezvous and by engines for their control blocks.
//! It knows neither providers nor elements: an address is a number until who works on it, on the host or on a
//! device, gives it a type.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Anything that must live as long as an address is used.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// How this rank reaches the memory of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By loads and stores, from this address on.
    Direct(NonZeroU64),
    /// Not by loads and stores.
    Unreachable,
    /// The rank brought no memory.
    Absent,
}

impl Reach {
    /// At `address`, or out of reach where that is 0.
    pub(crate) fn at(address: u64) -> Self {
        NonZeroU64::new(address).map_or(Self::Unreachable, Self::Direct)
    }

    /// The address; 0 where there is none.
    pub(crate) fn address(self) -> u64 {
        match self {
            Self::Direct(address) => address.get(),
            Self::Unreachable | Self::Absent => 0,
        }
    }
}

/// An address and bytes from there on; what is out of reach stays so.
pub(crate) fn moved((address, bytes): (u64, &usize)) -> u64 {
    if address == 0 { 0 } else { address + *bytes as u64 }
}

/// One memory of every rank, as this rank reaches it.
pub(crate) struct Column {
    /// By rank.
    pub(crate) reach: Vec<Reach>,
    /// Whether every rank reaches every other's: the same on all of them.
    pub(crate) reaches_all: bool,
    /// One address that reaches everybody's at once, which all ranks have or none; or why there is none.
    pub(crate) multicast: Result<u64, String>,
    /// Keeps `multicast` valid. Before the memory: drivers want it gone first.
    pub(crate) multicast_keep: Option<Keep>,
    /// What the provider's library knows the memory by. Only who works with that library looks into it.
    pub(crate) registration: Option<Keep>,
    /// Keeps the addresses valid.
    _keep: Vec<Keep>,
}

impl Column {
    /// Addresses that are valid as long as `keep` lives, before the ranks have agreed on anything.
    pub(crate) fn new(reach: Vec<Reach>, registration: Option<Keep>, keep: Vec<Keep>) -> Self {
        let multicast = Err("nobody has asked for it".to_owned());
        Self { reach, reaches_all: false, multicast, multicast_keep: None, registration, _keep: keep }
    }

    /// By rank; 0 for those that loads and stores do not reach.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.reach.iter().map(|reach| reach.address())
    }
}

/// Everybody's memory and pad, as this rank reaches them: what every rendezvous ends in, whatever the
/// provider.
#[derive(Debug)]
pub(crate) struct PeerTable {
    pub(crate) data: Column,
    pub(crate) pads: Column,
    /// Which rendezvous of the group this is, the same on every rank.
    pub(crate) number: u64,
}

impl fmt::Debug for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reach, reaches_all, multicast, .. } = self;
        f.debug_struct("Column")
            .field("reach", reach)
            .field("reaches_all", reaches_all)
            .field("multicast", multicast)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_reached_has_an_address() {
        assert_eq!(Reach::at(64).address(), 64);
        assert_eq!(Reach::at(0), Reach::Unreachable);
        assert_eq!((Reach::Unreachable.address(), Reach::Absent.address()), (0, 0));
    }
}
