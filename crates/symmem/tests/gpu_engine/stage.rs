//! What the tests share: ranks on one device, and one rank's engine and stream.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use symmem::cuda::{Device, Engine, Settings, Stream};
use symmem::{Config, Error, Group, Result};

use crate::common::{config, same_ranks_with};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How many queues the driver makes. Ranks that are threads need one for each stream; ranks that are
/// processes few, because a server of MPS has a limited number for all of them.
pub(crate) const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The device of all tests; `None`, with a printed reason, where there is none.
pub(crate) fn device() -> Option<Device> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(QUEUES).is_none() {
            // Before the driver is loaded: with fewer queues than streams, a kernel may wait behind one that
            // waits for it.
            // SAFETY: until then only Rust code reads the environment, under a lock.
            unsafe { std::env::set_var(QUEUES, "32") };
        }
    });
    match Device::new(0) {
        Ok(device) => Some(device),
        Err(error @ Error::NoCuda { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("there is a driver, but: {error}"),
    }
}

/// One test at a time: kernels that wait for each other must all fit on the device.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The environment's configuration, for ranks that share a device.
pub(crate) fn shared() -> Config {
    config().allow_overlapping_devices(true)
}

/// Settings with bounded waits.
pub(crate) fn settings() -> Settings {
    Settings { deadline: Some(PATIENCE), lanes: 2, ..Settings::default() }
}

/// One rank: its engine, and a stream of its own.
pub(crate) struct Rank {
    pub(crate) group: Group,
    pub(crate) device: Device,
    pub(crate) engine: Engine,
    pub(crate) stream: Stream,
}

impl Rank {
    /// Collective. An engine on the ranks of `group`, which are all on one device.
    pub(crate) fn new(group: &Group, settings: Settings) -> Result<Self> {
        let device = Device::new(0)?;
        let group = same_ranks_with(group, shared())?;
        let engine = Engine::with(&group, &device, settings)?;
        let stream = engine.stream()?;
        Ok(Self { group, device, engine, stream })
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Waits for this rank's work, and says whether the group is whole.
    pub(crate) fn sync(&self) -> Result<()> {
        self.engine.sync(&self.stream, PATIENCE)
    }

    /// Collective. Everybody has made what it needs: making memory or graphs may wait for the device, on
    /// which from here on kernels wait for each other.
    pub(crate) fn ready(&self) -> Result<()> {
        self.group.barrier()
    }

    /// Collective. Ends a test: memory is freed when no rank's kernel can be waiting, for freeing waits for
    /// the device.
    pub(crate) fn end(&self) -> Result<()> {
        self.sync()?;
        self.group.barrier()
    }
}

/// Runs `test` on `world` threads of this process.
pub(crate) fn on_threads<R: Send>(
    world: usize,
    settings: &Settings,
    test: impl Fn(&Rank) -> Result<R> + Sync,
) -> Vec<R> {
    let _alone = alone();
    let ranks = symmem::spawn(world, |group| {
        let rank = Rank::new(&group, settings.clone())?;
        test(&rank)
    });
    ranks.unwrap()
}
