//! NCCL without GPUs: finding it, its versions, communicators, collectives and windows, on a fake NCCL beside
//! the fake CUDA driver, where ranks are threads and any call can be made to fail.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fake_cuda/fake.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../nccl_cases/mod.rs"]
mod nccl_cases;

mod captures;
mod collectives;
mod communicator;
mod failures;
mod fake;
mod foreign;
mod library;
mod provider;

use symmem::cuda::Device;
use symmem::nccl::Communicator;
use symmem::{Group, Result};

/// As many devices as any test has ranks.
const DEVICES: (&str, &str) = ("FAKECUDA_UUIDS", "gpu-a,gpu-b,gpu-c,gpu-d");

/// Collective. A communicator on a device of this rank's own.
fn communicator(group: &Group) -> Result<Communicator> {
    Communicator::new(group, &Device::new(group.rank())?)
}
