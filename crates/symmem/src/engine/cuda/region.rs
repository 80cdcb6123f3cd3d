//! What operations work on: the bytes of every rank that a handle of symmetric memory covers, whatever their
//! elements.
//!
//! Handles hold one; `ops` and `carried.rs` work on it. What it guarantees: whoever holds it keeps the
//! addresses valid.

use std::sync::Arc;

use super::Engine;
use super::carrier::Carrier;
use crate::cuda::owner::{OwnedAddress, Owner};
use crate::device::DeviceTable;
use crate::table::moved;
use crate::{Error, Result};

/// The same part of every rank's memory. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Who works on it, on which lane.
    pub(crate) engine: Engine,
    /// Who carries what is done with it.
    pub(super) carrier: &'static dyn Carrier,
    /// Everybody's first byte; 0 for a rank out of reach.
    pub(crate) data: Arc<Vec<u64>>,
    /// Of each rank.
    pub(crate) bytes: usize,
    /// Bytes from the start of this rank's memory to the first one here.
    pub(crate) offset: usize,
    /// Whether the ranks differ in it.
    pub(super) offsets_differ: bool,
    /// Keeps the addresses valid.
    pub(crate) table: Arc<DeviceTable>,
}

impl Region {
    /// `bytes` of each rank's memory, from everybody's own offset on.
    pub(crate) fn new(engine: &Engine, table: Arc<DeviceTable>, offsets: &[usize], bytes: usize) -> Self {
        let offset = offsets[engine.group().rank()];
        Self {
            engine: engine.clone(),
            carrier: engine.carrier_on(&table),
            data: Arc::new(table.data.iter().copied().zip(offsets).map(moved).collect()),
            bytes,
            offset,
            offsets_differ: offsets.iter().any(|theirs| *theirs != offset),
            table,
        }
    }

    /// The same for another lane of the engine, or another algorithm.
    pub(crate) fn on(&self, engine: Engine) -> Self {
        Self { engine, ..self.clone() }
    }

    /// `bytes` bytes from byte `start` on.
    pub(crate) fn part(&self, start: usize, bytes: usize) -> Self {
        let moved =
            |data: &Vec<u64>| Arc::new(data.iter().map(|address| moved((*address, &start))).collect());
        let data = if start == 0 { Arc::clone(&self.data) } else { moved(&self.data) };
        Self { data, bytes, offset: self.offset + start, ..self.clone() }
    }

    /// This rank in the group.
    #[inline]
    pub(crate) fn rank(&self) -> usize {
        self.engine.group().rank()
    }

    /// Where this rank's bytes are.
    #[inline]
    pub(crate) fn own_address(&self) -> u64 {
        self.data[self.rank()]
    }

    /// The same for an operation, which keeps the owner in any case.
    #[inline]
    pub(crate) fn own_place(&self) -> OwnedAddress<'static> {
        OwnedAddress::bare(self.own_address())
    }

    /// What keeps the addresses valid, for graphs.
    #[inline]
    pub(super) fn owner(&self) -> Option<&dyn Owner> {
        Some(&self.table)
    }

    /// Which memory this is, for signatures: the number of its rendezvous, and where it begins in the memory
    /// of rank 0, which is the same on every rank, whatever its own offset.
    #[inline]
    pub(crate) fn statement(&self) -> (u64, u64) {
        (self.table.number, self.data[0] - self.table.data[0])
    }

    /// The address that reaches everybody's first byte at once, or why there is none.
    pub(crate) fn multicast(&self) -> Result<u64> {
        match self.table.multicast()? {
            _ if self.offsets_differ => {
                Err(Error::NoMulticast { problem: "the offsets of the ranks differ".to_owned() })
            }
            base => Ok(base + self.offset as u64),
        }
    }

    /// The error for loads and stores between this rank and `peer`, who do not reach each other.
    #[cold]
    pub(crate) fn out_of_reach(&self, peer: usize) -> Error {
        Error::NoPeerAccess {
            rank: self.rank(),
            peer,
            problem:
                "they are not in one load and store domain; collectives, barrier and signals go through NCCL"
                    .to_owned(),
        }
    }
}
