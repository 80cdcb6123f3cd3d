//! Providers: where memory comes from, and how peers map it.
//!
//! A provider makes local memory, and from everybody's exported handles a table of peer addresses with what keeps
//! them alive. It never works on the memory; that is an engine's part.

#![allow(unsafe_code, reason = "addresses of mapped memory")]

pub(crate) mod device;
pub(crate) mod nccl;
mod shm;
pub(crate) mod vmm;

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

pub(crate) use self::shm::Shm;
use crate::Result;

/// Memory of this rank, not yet known to anybody else.
pub(crate) trait Memory: Debug + Send + Sync {
    /// First byte.
    fn address(&self) -> *mut u8;
    /// What a peer needs to map it.
    fn handle(&self) -> BorrowedFd<'_>;
    /// Touches all pages, so that no operation pays for the first touch.
    fn populate(&self) -> Result<()>;
}

/// One rank's memory as this rank reaches it.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// First byte in this rank's address space.
    pub(crate) address: *mut u8,
    /// Keeps the address valid.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the address is only a number here; whoever dereferences it argues for itself. `_keep` is Send and Sync.
unsafe impl Send for Peer {}
// SAFETY: as above.
unsafe impl Sync for Peer {}

impl Peer {
    /// `address`, valid for as long as `keep` lives.
    pub(crate) fn new(address: *mut u8, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { address, _keep: keep }
    }
}

/// A source of symmetric memory.
pub(crate) trait Provider: Debug + Send + Sync {
    /// The provider's name.
    fn name(&self) -> &'static str;
    /// Local: makes `bytes` zeroed bytes, at least one page, page-aligned.
    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>>;
    /// Maps what a peer's `handle` stands for, after checking that it holds `bytes`.
    fn import(&self, handle: OwnedFd, bytes: usize) -> Result<Peer>;
    /// Whether one address can reach all ranks at once.
    fn has_multicast(&self) -> bool;
}
