//! Host shared memory: sealed memfds, mapped by every rank of the machine.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Result;
use crate::config::Config;
use crate::provider::{Memory, Peer, Provider};
use crate::sys::memfd::{Mapping, Segment};

/// The provider of host memory.
#[derive(Debug)]
pub(crate) struct Shm {
    huge_pages: bool,
    numa_node: Option<u32>,
}

impl Shm {
    pub(crate) fn new(config: &Config) -> Self {
        Self { huge_pages: config.get_huge_pages(), numa_node: config.get_numa_node() }
    }
}

impl Memory for Segment {
    fn address(&self) -> *mut u8 {
        self.mapping().ptr()
    }

    fn handle(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    fn populate(&self) -> Result<()> {
        self.mapping().populate()
    }
}

impl Provider for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        let segment = Segment::create("symmem:data", bytes)?;
        // Both are wishes: without huge pages or NUMA the memory works all the same.
        if self.huge_pages {
            segment.mapping().advise_huge();
        }
        if let Some(node) = self.numa_node {
            segment.mapping().prefer_node(node as usize);
        }
        Ok(Arc::new(segment))
    }

    fn import(&self, handle: OwnedFd, bytes: usize) -> Result<Peer> {
        let mapping = Mapping::import(handle, bytes)?;
        Ok(Peer::new(mapping.ptr(), Arc::new(mapping)))
    }

    fn has_multicast(&self) -> bool {
        false
    }
}
