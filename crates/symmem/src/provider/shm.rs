//! Host shared memory: sealed memfds, mapped by every rank of the machine.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::config::Config;
use crate::group::Running;
use crate::provider::{Export, Joined, LocalMemory, MemoryProvider, own};
use crate::sys::memfd::{Mapping, Segment};
use crate::table::Keep;
use crate::{Error, Result};

/// The provider of host memory. There is nothing to join: a memory file is all that a peer needs.
#[derive(Clone, Debug)]
pub(super) struct Shm {
    huge_pages: bool,
    numa_node: Option<u32>,
}

impl Shm {
    pub(super) fn new(config: &Config) -> Self {
        Self { huge_pages: *config.huge_pages, numa_node: *config.numa_node }
    }
}

/// A memory file of this rank, mapped.
#[derive(Debug)]
struct SharedFile {
    segment: Segment,
    /// Bytes that were asked for.
    bytes: usize,
}

impl LocalMemory for SharedFile {
    fn address(&self) -> u64 {
        address(self.segment.mapping())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn mapped_bytes(&self) -> usize {
        self.segment.mapping().len()
    }

    fn populate(&self) -> Result<()> {
        self.segment.mapping().populate()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.segment.fd())
    }
}

/// The first byte as a number, which who works on the memory makes a pointer of again.
fn address(mapping: &Mapping) -> u64 {
    mapping.ptr().expose_provenance() as u64
}

impl MemoryProvider for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn alloc(&self, bytes: usize) -> Result<Arc<dyn LocalMemory>> {
        let segment = Segment::create("symmem:data", bytes)?;
        // Both are wishes: without huge pages or NUMA the memory works all the same.
        if self.huge_pages {
            segment.mapping().advise_huge();
        }
        if let Some(node) = self.numa_node {
            segment.mapping().prefer_node(node as usize);
        }
        Ok(Arc::new(SharedFile { segment, bytes }))
    }

    fn join(&self, _: &Running<'_>) -> Result<Arc<dyn Joined>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Joined for Shm {
    fn provider(&self) -> &dyn MemoryProvider {
        self
    }

    fn export(&self, local: &dyn LocalMemory) -> Result<Export> {
        let file = own::<SharedFile>(local)?;
        let fd = file.segment.fd().try_clone_to_owned();
        let fd = fd.map_err(|error| Error::sys("fcntl of a segment", error))?;
        Ok(Export { bytes: file.bytes, note: Vec::new(), fds: vec![fd] })
    }

    fn import(&self, rank: usize, export: Export, _: Option<&Keep>) -> Result<Option<(u64, Keep)>> {
        let Some(fd) = export.fds.into_iter().next() else {
            return Err(Error::invalid(format!("handles of rank {rank}"), "some are missing"));
        };
        let mapping = Mapping::import(fd, export.bytes)?;
        Ok(Some((address(&mapping), Arc::new(mapping))))
    }
}
