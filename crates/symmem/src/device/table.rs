//! Everybody's memory and pad, as this rank's device reaches them: what a rendezvous of device memory makes,
//! and engines work on.
//!
//! Kept by the allocation, by its handles, and by graphs. What it guarantees: the addresses are valid as long
//! as it lives, and after that until the work that its engine was given is done.

use std::sync::atomic::AtomicU8;

use super::pointers::Pointers;
use super::{BounceBuffer, Fate};
use crate::cuda::deferred;
use crate::table::{Column, PeerTable};
use crate::{Error, Result};

/// One rendezvous of this rank's.
#[derive(Debug)]
pub struct DeviceTable {
    /// Where everybody's memory begins, and pad; 0 for ranks out of reach.
    pub(crate) data: Vec<u64>,
    pub(crate) pads: Vec<u64>,
    /// Bytes of each.
    pub(crate) bytes: usize,
    pub(crate) pad_bytes: usize,
    /// Which rendezvous of the group it is, the same on every rank.
    pub(crate) number: u64,
    /// Whether it is closed, which is the memory's business.
    pub(crate) state: AtomicU8,
    /// `None` only while it is dropped.
    mapped: Option<Mapped>,
    /// Of the engine that works on it.
    pub(crate) fate: Fate,
}

/// What keeps the addresses valid.
#[derive(Debug)]
struct Mapped {
    peers: PeerTable,
    pointers: Pointers,
    room: BounceBuffer,
}

impl Drop for DeviceTable {
    fn drop(&mut self) {
        // Kernels may still be at work on it: it goes when they are done, without anybody waiting for that.
        if let Some(mapped) = self.mapped.take() {
            let fate = self.fate.clone();
            deferred::drop_when(Box::new(move || fate.is_idle()), Box::new(mapped));
        }
    }
}

impl DeviceTable {
    /// Of so many bytes each, for the engine whose fate this is.
    pub(crate) fn new(
        peers: PeerTable,
        pointers: Pointers,
        (bytes, pad_bytes): (usize, usize),
        fate: &Fate,
    ) -> Self {
        Self {
            data: peers.data.addresses().collect(),
            pads: peers.pads.addresses().collect(),
            bytes,
            pad_bytes,
            number: peers.number,
            state: AtomicU8::new(0),
            mapped: Some(Mapped { peers, pointers, room: BounceBuffer::new(bytes) }),
            fate: fate.clone(),
        }
    }

    fn mapped(&self) -> &Mapped {
        self.mapped.as_ref().unwrap_or_else(|| unreachable!("nobody asks a table that is being dropped"))
    }

    /// Everybody's memory, as the provider made it.
    pub(crate) fn column(&self) -> &Column {
        &self.mapped().peers.data
    }

    /// The engine's own, for operations that NCCL carries.
    pub(crate) fn room(&self) -> &BounceBuffer {
        &self.mapped().room
    }

    /// The device address of a table of `addresses`.
    pub(crate) fn table_of(&self, addresses: &[u64]) -> Result<u64> {
        self.mapped().pointers.table_of(addresses)
    }

    /// The address that reaches everybody's memory at once.
    pub(crate) fn multicast(&self) -> Result<u64> {
        let none = |problem: &String| Error::NoMulticast { problem: problem.clone() };
        self.column().multicast.as_ref().copied().map_err(none)
    }
}
