//! Which providers there are: the only place that knows them by name.
//!
//! Adding one is a file, a row here, and its name in `config/provider.rs`.

use std::sync::Arc;

use crate::config::{self, Config};
use crate::cuda::Device;
use crate::nccl::Communicator;
use crate::provider::Provider;
use crate::provider::nccl::Nccl;
use crate::provider::shm::Shm;
use crate::provider::vmm::Vmm;

/// The provider of host memory.
pub(crate) fn on_host(config: &Config) -> Arc<dyn Provider> {
    Arc::new(Shm::new(config))
}

/// The provider `name` of memory on `device`.
pub(crate) fn on_device(name: config::Provider, device: &Device) -> Arc<dyn Provider> {
    match name {
        config::Provider::Vmm => Arc::new(Vmm::new(device)),
        config::Provider::Nccl => Arc::new(Nccl::new(device, Arc::new(Vmm::apart(device)))),
    }
}

/// NCCL's memory by a communicator that is there already.
pub(crate) fn on_communicator(communicator: &Communicator) -> Arc<dyn Provider> {
    let pads = Arc::new(Vmm::apart(communicator.device()));
    Arc::new(Nccl::adopt(communicator, pads))
}
