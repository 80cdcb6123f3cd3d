//! Which providers there are: the only place that knows them by name.
//!
//! Adding one is a file, a row here, and its name in `config/provider.rs`.

use std::sync::Arc;

use crate::config::{Config, PlaceKind, Provider as Name};
use crate::cuda::Device;
use crate::nccl::Communicator;
use crate::provider::MemoryProvider;
#[cfg(feature = "faults")]
use crate::provider::heap::Heap;
use crate::provider::nccl::{self, NcclProvider};
use crate::provider::shm::Shm;
#[cfg(feature = "faults")]
use crate::provider::slab::Slabs;
use crate::provider::vmm::Vmm;
use crate::{Error, Result};

/// The provider of host memory that `config` names.
pub(crate) fn on_host(config: &Config) -> Arc<dyn MemoryProvider> {
    match config.provider.or_default_of(PlaceKind::Host) {
        Name::Shm => Arc::new(Shm::new(config)),
        #[cfg(feature = "faults")]
        Name::Heap => Arc::new(Heap),
        // The configuration gives names of the host's alone.
        name => unreachable!("{name} has no memory of the host"),
    }
}

/// The provider `name` of memory on `device`.
pub(crate) fn on_device(name: Name, device: &Device) -> Result<Arc<dyn MemoryProvider>> {
    Ok(match name {
        Name::Vmm => Arc::new(Vmm::new(device)),
        Name::Nccl => Arc::new(NcclProvider::new(device, Arc::new(Vmm::apart(device)))),
        #[cfg(feature = "faults")]
        Name::Slab => Arc::new(Slabs::new(device, Arc::new(Vmm::new(device)))),
        name => return Err(Error::invalid("provider", format!("{name} has no memory of devices"))),
    })
}

/// What stands in the way of `ranks` ranks on this machine that would have memory of `name`, if something
/// does.
pub(crate) fn obstacle(name: Name, ranks: usize) -> Result<Option<String>> {
    match name {
        Name::Nccl => nccl::obstacle(ranks),
        _ => Ok(None),
    }
}

/// NCCL's memory by a communicator that is there already.
pub(crate) fn on_communicator(communicator: &Communicator) -> Arc<dyn MemoryProvider> {
    let pads = Arc::new(Vmm::apart(communicator.device()));
    Arc::new(NcclProvider::adopt(communicator, pads))
}
