//! One rank on a device: its group, engine and streams.

use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Device, Engine, Settings, Stream, SymmetricMemory};
use symmem::{Element, Group, Result};

use crate::suite::run::patience;
use crate::suite::stage::{Place, Stage};
use crate::{cuda, fake};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for ranks that come, short for those that wait in vain.
pub(crate) const SOON: Duration = Duration::from_millis(300);

/// Of the fakes: everything was given back, in the right order.
pub(crate) fn nothing_is_left() {
    // An abort after a failure has a thread of its own.
    let start = Instant::now();
    while fake::live() != [0; 3] && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((fake::live(), fake::violations(), cuda::violations()), ([0; 3], 0, 0));
    assert!(cuda::Live::now().has_no_memory(), "{:?}", cuda::Live::now());
}

fn settings(stage: &Stage, far: &[usize]) -> Settings {
    let deadline = Some(patience());
    let unreachable = far.to_vec();
    Settings { provider: Some(stage.provider()), unreachable, deadline, lanes: 2, ..Settings::default() }
}

/// One rank: its group, its engine, and streams of its own.
pub(crate) struct Rank {
    pub(crate) stage: &'static Stage,
    pub(crate) group: Group,
    pub(crate) device: Device,
    pub(crate) engine: Engine,
    pub(crate) stream: Stream,
    /// Two more, for what is about several.
    pub(crate) others: [Stream; 2],
    /// The ranks of `group` that are out of reach.
    far: Vec<usize>,
}

impl Rank {
    /// Collective over the world.
    pub(crate) fn first(stage: &'static Stage, world: &Group) -> Result<Self> {
        let device = Device::new(if stage.place == Place::Fakes { world.rank() } else { 0 })?;
        let far = stage.far(world.size());
        let group = world.try_clone()?;
        let engine = Engine::with(&group, &device, settings(stage, &far))?;
        // All streams that there will be, at one time: the driver sorts streams into queues by their turn,
        // and work of one rank that waits must not be in the queue of another's.
        group.barrier()?;
        let (stream, others) = (engine.stream()?, [engine.stream()?, engine.stream()?]);
        group.barrier()?;
        Ok(Self { stage, group, device, engine, stream, others, far })
    }

    /// Collective over `group`. A rank of it, on the same device and streams.
    fn make(&self, group: Group, far: Vec<usize>, change: impl FnOnce(Settings) -> Settings) -> Result<Self> {
        let engine = Engine::with(&group, &self.device, change(settings(self.stage, &far)))?;
        let (stream, others) = (self.stream.clone(), self.others.clone());
        Ok(Self { stage: self.stage, group, device: self.device.clone(), engine, stream, others, far })
    }

    /// Collective. The same ranks with a group and an engine of their own, which may be ruined.
    pub(crate) fn again(&self) -> Result<Self> {
        self.with(|settings| settings)
    }

    /// Collective. [`Rank::again`] whose waits end after `deadline`.
    pub(crate) fn by(&self, deadline: Duration) -> Result<Self> {
        let change = |settings| Settings { deadline: Some(deadline), ..settings };
        self.make(self.group.try_clone()?.within(deadline), self.far.clone(), change)
    }

    /// Collective. [`Rank::again`] with other settings.
    pub(crate) fn with(&self, change: impl FnOnce(Settings) -> Settings) -> Result<Self> {
        self.make(self.group.try_clone()?, self.far.clone(), change)
    }

    /// Collective over `group`, whose ranks are these of this one.
    pub(crate) fn among(&self, group: Group, members: &[usize]) -> Result<Self> {
        let far = (0..members.len()).filter(|at| self.far.contains(&members[*at])).collect();
        self.make(group, far, |settings| settings)
    }

    /// The most elements that are worth their time: the fakes are slow, and have nothing that changes with
    /// the size.
    pub(crate) fn most(&self) -> usize {
        if self.stage.place == Place::Fakes { 1100 } else { usize::MAX }
    }

    pub(crate) fn rank(&self) -> usize {
        self.group.rank()
    }

    pub(crate) fn world(&self) -> usize {
        self.group.size()
    }

    /// Whether loads and stores reach the memory of `peer`.
    pub(crate) fn reaches(&self, peer: usize) -> bool {
        peer == self.rank() || !(self.far.contains(&peer) || self.far.contains(&self.rank()))
    }

    /// Whether kernels of this crate do the work.
    pub(crate) fn is_direct(&self) -> bool {
        self.far.is_empty()
    }

    /// Collective. Symmetric memory of `len` zeros.
    pub(crate) fn memory<T: Element>(&self, len: usize) -> Result<SymmetricMemory<T>> {
        self.engine.alloc(len)?.rendezvous(&self.engine)
    }

    /// Private memory of `len` elements.
    pub(crate) fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        Buffer::new(&self.device, len)
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

    /// Collective. Ends a part of a behaviour: memory is freed when no rank's kernel can be waiting, for
    /// freeing waits for the device.
    pub(crate) fn end(&self) -> Result<()> {
        self.sync()?;
        self.group.barrier()
    }

    /// The same for work on all streams.
    pub(crate) fn end_all(&self) -> Result<()> {
        for stream in &self.others {
            self.engine.sync(stream, PATIENCE)?;
        }
        self.end()
    }
}
