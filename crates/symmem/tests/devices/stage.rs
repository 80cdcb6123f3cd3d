//! What the behaviours share: the kinds of ranks, and one rank's group, engine and stream.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use symmem::cuda::{Buffer, Device, Engine, Provider, Settings, Stream, SymmetricMemory};
use symmem::nccl::{self, Version};
use symmem::{Element, Error, Group, Result};

use crate::{cuda, fake};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for ranks that come, short for those that wait in vain.
pub(crate) const SOON: Duration = Duration::from_millis(300);
/// More ranks than any test has, all of them out of reach.
pub(crate) const ALL_FAR: &[usize] = &[0, 1, 2, 3];
/// Since when NCCL lets ranks share a GPU.
const SHARING: Version = Version::new(2, 30, 3);

/// How ranks came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    Threads,
    Processes,
    /// Threads on the fake driver, each with a device of its own.
    Fake,
}

/// What a behaviour may need that not every kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Kernels of this crate run.
    Kernels,
    /// They also carry the operations: everybody reaches everybody.
    Direct,
    /// Work goes on beside the host: calls return before it is done.
    Streams,
    /// Captured work is not run, and can be replayed.
    Graphs,
    /// Every rank is a process.
    Processes,
    /// There are queues for several streams of every rank, so that none that waits holds up another's.
    Queues,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernels => "kernels that run",
            Self::Direct => "ranks that reach each other by kernels",
            Self::Streams => "streams that work beside the host",
            Self::Graphs => "graphs that are replayed",
            Self::Processes => "ranks that are processes",
            Self::Queues => "queues for several streams of every rank",
        })
    }
}

/// A kind of ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) provider: Provider,
    pub(crate) ranks: Ranks,
    /// Ranks of the world that count as out of reach.
    pub(crate) far: &'static [usize],
}

impl Kind {
    pub(crate) const VMM: Self = Self { provider: Provider::Vmm, ranks: Ranks::Processes, far: &[] };
    pub(crate) const NCCL: Self = Self { provider: Provider::Nccl, ..Self::VMM };
    pub(crate) const FAKE: Self = Self { ranks: Ranks::Fake, far: ALL_FAR, ..Self::NCCL };

    pub(crate) const fn on_threads(self) -> Self {
        Self { ranks: Ranks::Threads, ..self }
    }

    pub(crate) const fn without(self, far: &'static [usize]) -> Self {
        Self { far, ..self }
    }

    /// Whether `world` ranks of this kind lack `need`.
    pub(crate) fn lacks(self, need: Need, world: usize) -> bool {
        let is_fake = self.ranks == Ranks::Fake;
        match need {
            Need::Kernels | Need::Streams | Need::Graphs => is_fake,
            Need::Direct => !self.far.is_empty(),
            Need::Processes => self.ranks != Ranks::Processes,
            // The driver shares out what a process has, and more than two ranks have been seen to get in each other's way.
            Need::Queues => self.ranks == Ranks::Threads && world > 2,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = match self.ranks {
            Ranks::Threads => "threads",
            Ranks::Processes => "processes",
            Ranks::Fake => "threads of the fakes",
        };
        write!(f, "{} on {ranks}", self.provider)?;
        match self.far {
            [] => Ok(()),
            far => write!(f, ", out of reach: {far:?}"),
        }
    }
}

/// Whether ranks of this kind can be had on this machine; else says why not.
pub(crate) fn is_there(kind: Kind) -> bool {
    let device = Device::new(0);
    let version = match kind.provider {
        Provider::Nccl => device.and_then(|_| nccl::version()),
        _ => device.map(|_| SHARING),
    };
    match version {
        Ok(version) if version >= SHARING => true,
        Ok(version) => {
            println!("skipped: {kind} needs NCCL {SHARING}, and there is {version}");
            false
        }
        Err(error @ (Error::NoCuda { .. } | Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => {
            println!("skipped: {kind}: {error}");
            false
        }
        Err(error) => panic!("there is a driver, but: {error}"),
    }
}

/// One test at a time: kernels that wait for each other must all fit on the device.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

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

fn settings(kind: Kind, far: &[usize]) -> Settings {
    let deadline = Some(PATIENCE);
    let unreachable = far.to_vec();
    Settings { provider: Some(kind.provider), unreachable, deadline, lanes: 2, ..Settings::default() }
}

/// One rank: its group, its engine, and streams of its own.
pub(crate) struct Rank {
    pub(crate) kind: Kind,
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
    pub(crate) fn first(kind: Kind, world: &Group) -> Result<Self> {
        let device = Device::new(if kind.ranks == Ranks::Fake { world.rank() } else { 0 })?;
        let far: Vec<usize> = kind.far.iter().copied().filter(|rank| *rank < world.size()).collect();
        let group = world.try_clone()?;
        let engine = Engine::with(&group, &device, settings(kind, &far))?;
        // All streams that there will be, at one time: the driver sorts streams into queues by their turn, and work of one rank
        // that waits must not be in the queue of another's.
        group.barrier()?;
        let (stream, others) = (engine.stream()?, [engine.stream()?, engine.stream()?]);
        group.barrier()?;
        Ok(Self { kind, group, device, engine, stream, others, far })
    }

    /// Collective over `group`. A rank of it, on the same device and streams.
    fn make(&self, group: Group, far: Vec<usize>, change: impl FnOnce(Settings) -> Settings) -> Result<Self> {
        let engine = Engine::with(&group, &self.device, change(settings(self.kind, &far)))?;
        let (stream, others) = (self.stream.clone(), self.others.clone());
        Ok(Self { kind: self.kind, group, device: self.device.clone(), engine, stream, others, far })
    }

    /// Collective. The same ranks with a group and an engine of their own, which may be ruined.
    pub(crate) fn again(&self) -> Result<Self> {
        self.with(|settings| settings)
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

    /// Collective. Everybody has made what it needs: making memory or graphs may wait for the device, on which from here on
    /// kernels wait for each other.
    pub(crate) fn ready(&self) -> Result<()> {
        self.group.barrier()
    }

    /// Collective. Ends a part of a behaviour: memory is freed when no rank's kernel can be waiting, for freeing waits for the
    /// device.
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
