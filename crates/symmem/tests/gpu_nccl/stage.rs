//! What the tests share: ranks that are processes on one device, and whether there can be any.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use symmem::cuda::{Device, Engine, Provider, Settings, Stream};
use symmem::nccl::{self, Version};
use symmem::{Error, Group, ProcessSpawner, Result};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Since when ranks may share a GPU.
const SHARING: Version = Version::new(2, 30, 3);

/// Whether there is a device, and an NCCL of at least this version; else says why not.
fn is_there(oldest: Version) -> bool {
    let there = Device::new(0).and_then(|_| nccl::version());
    match there {
        Ok(version) if version >= oldest => true,
        Ok(version) => {
            println!("skipped: this needs NCCL {oldest}, and there is {version}");
            false
        }
        Err(error @ (Error::NoCuda { .. } | Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("there is a driver, but: {error}"),
    }
}

/// Whether ranks can share the device; else says why not.
pub(crate) fn can_share() -> bool {
    is_there(SHARING)
}

/// One test at a time: kernels that wait for each other must all fit on the device.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `world` processes for the call `name`, each with its share of the device.
pub(crate) fn ranks(name: &str, world: usize) -> ProcessSpawner {
    ProcessSpawner::new(name, world)
        .env("NCCL_MULTI_RANK_GPU_ENABLE", 1)
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100 / world)
        .env("CUDA_DEVICE_MAX_CONNECTIONS", 4)
        .env("SYMMEM_ALLOW_OVERLAPPING_DEVICES", 1)
        .env("SYMMEM_TIMEOUT", PATIENCE.as_secs())
}

/// One rank: its engine, whose memory is NCCL's, and a stream.
pub(crate) struct Rank {
    pub(crate) engine: Engine,
    pub(crate) stream: Stream,
}

impl Rank {
    /// Collective.
    pub(crate) fn new(group: &Group, settings: Settings) -> Result<Self> {
        let settings = Settings { provider: Some(Provider::Nccl), deadline: Some(PATIENCE), ..settings };
        let engine = Engine::with(group, &Device::new(0)?, settings)?;
        let stream = engine.stream()?;
        Ok(Self { engine, stream })
    }

    /// Waits for this rank's work, and says whether the group is whole.
    pub(crate) fn sync(&self) -> Result<()> {
        self.engine.sync(&self.stream, PATIENCE)
    }
}
