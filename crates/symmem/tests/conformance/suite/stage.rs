//! The stages: which memory, whose work, what ranks. And what a stage lacks, with the reason.

use symmem::cuda::{Device, Provider};
use symmem::nccl::{self, Version};
use symmem::{Error, Result};

/// More ranks than any stage has, all of them out of reach.
const ALL_FAR: &[usize] = &[0, 1, 2, 3];
/// Since when NCCL lets ranks share a GPU.
const SHARING: Version = Version::new(2, 30, 3);

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// Devices of the fake driver, one for each rank; NCCL is a fake too.
    Fakes,
    /// One GPU, which all ranks share.
    Gpu,
}

/// How ranks come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranks {
    Threads,
    /// This program, started again by itself.
    Processes,
    /// The same by a launcher, against a store that still holds the keys of earlier attempts.
    Launched,
}

/// What a behaviour may need that not every stage has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Operations are carried out, by whomever.
    Work,
    /// Those of any subgroup, too.
    Parts,
    /// Kernels of this crate run.
    Kernels,
    /// They also carry the operations: everybody reaches everybody.
    Direct,
    /// Somebody is out of reach.
    Far,
    /// Work goes on beside the caller: calls return before it is done.
    Streams,
    /// Captured work is not run, and can be replayed.
    Graphs,
    /// Every rank is a process.
    Processes,
    /// And may be killed.
    Mortals,
    /// There are queues for several streams of every rank, so that none that waits holds up another's.
    Queues,
    /// Calls below the provider can be made to fail.
    Failures,
    /// Gigabytes for a rank that is alone.
    Room,
}

/// Provider, engine and ranks.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) place: Place,
    /// By name: those for tests are there with the feature `faults` alone.
    pub(crate) provider: &'static str,
    pub(crate) ranks: Ranks,
    /// Ranks of the world that count as out of reach.
    pub(crate) far: &'static [usize],
    /// How many ranks there are, one world after the other.
    pub(crate) worlds: &'static [usize],
    /// Whether the groups' epochs begin just below the end of 32 bits.
    pub(crate) is_late: bool,
}

/// What the stages have unless they say otherwise.
const SHM: Stage = Stage {
    name: "",
    place: Place::Host,
    provider: "shm",
    ranks: Ranks::Threads,
    far: &[],
    worlds: &[1, 2, 3, 4],
    is_late: false,
};
const FAKES: Stage = Stage { place: Place::Fakes, provider: "vmm", ..SHM };
const GPU: Stage = Stage { place: Place::Gpu, provider: "vmm", ..SHM };

macro_rules! stages {
    ($($name:ident: $base:ident { $($field:ident: $value:expr),* },)*) => {
        $(#[allow(non_upper_case_globals, dead_code, reason = "named as the module of its tests; a program has some of them")]
        pub(crate) static $name: Stage = Stage { name: stringify!($name), $($field: $value,)* ..$base };)*

        /// Every stage.
        pub(crate) static ALL: &[&Stage] = &[$(&$name),*];
    };
}

stages! {
    shm_on_threads: SHM { worlds: &[1, 2, 3, 4, 5] },
    shm_on_processes: SHM { ranks: Ranks::Processes },
    shm_launched: SHM { ranks: Ranks::Launched },
    shm_past_32_bits_on_threads: SHM { is_late: true, worlds: &[3] },
    shm_past_32_bits_on_processes: SHM { is_late: true, ranks: Ranks::Processes, worlds: &[2] },
    heap_on_threads: SHM { provider: "heap", worlds: &[2, 3] },
    vmm_of_fakes_on_threads: FAKES { worlds: &[1, 2, 3] },
    vmm_of_fakes_on_processes: FAKES { ranks: Ranks::Processes, worlds: &[3] },
    slab_of_fakes_on_threads: FAKES { provider: "slab", worlds: &[2, 3] },
    nccl_of_fakes_in_reach: FAKES { provider: "nccl", worlds: &[2] },
    nccl_of_fakes_without_rank_0: FAKES { provider: "nccl", far: &[0], worlds: &[2] },
    nccl_of_fakes_without_rank_1: FAKES { provider: "nccl", far: &[1], worlds: &[3] },
    nccl_of_fakes_without_any: FAKES { provider: "nccl", far: ALL_FAR },
    vmm_on_threads: GPU {},
    vmm_on_processes: GPU { ranks: Ranks::Processes, worlds: &[1, 2, 4] },
    nccl_on_threads: GPU { provider: "nccl", worlds: &[2, 4] },
    nccl_on_processes: GPU { provider: "nccl", ranks: Ranks::Processes, worlds: &[2, 4] },
    nccl_without_rank_0: GPU { provider: "nccl", ranks: Ranks::Processes, far: &[0], worlds: &[2, 4] },
    nccl_without_rank_1: GPU { provider: "nccl", ranks: Ranks::Processes, far: &[1], worlds: &[2, 4] },
    nccl_without_any: GPU { provider: "nccl", ranks: Ranks::Processes, far: ALL_FAR, worlds: &[2, 4] },
}

impl Stage {
    /// Why `world` ranks of this stage lack `need`.
    pub(crate) fn lacks(&self, need: Need, world: usize) -> Option<&'static str> {
        let (is_host, is_fake) = (self.place == Place::Host, self.place == Place::Fakes);
        let (is_lacking, why) = match need {
            Need::Work => (is_fake && self.far.is_empty(), "the fake driver runs no kernels"),
            Need::Parts => (
                is_fake && self.far(world).len() < world,
                "the fake driver runs no kernels, so not for a part in reach",
            ),
            Need::Kernels if is_host => (true, "the processor runs no kernels"),
            Need::Kernels => (is_fake, "the fake driver runs no kernels"),
            Need::Direct if is_fake && self.far.is_empty() => (true, "the fake driver runs no kernels"),
            Need::Direct => (!self.far.is_empty(), "NCCL carries what ranks out of reach do"),
            Need::Far => (self.far.is_empty(), "everybody is in reach"),
            Need::Streams => (is_fake, "calls of the fakes return when the work is done"),
            Need::Graphs => (is_fake, "the fake driver runs what is captured at once"),
            Need::Processes => (self.ranks == Ranks::Threads, "its ranks are threads"),
            Need::Mortals if self.place == Place::Gpu => {
                (true, "a server of MPS does not survive it; `gpu_kill` states it without one")
            }
            Need::Mortals => (self.ranks == Ranks::Threads, "threads cannot be killed"),
            // The driver shares out what a process has, and more than two ranks have been seen to get in each
            // other's way.
            Need::Queues => {
                let too_many = self.place == Place::Gpu && self.ranks == Ranks::Threads && world > 2;
                (too_many, "queues of a process are too few for several streams of all its ranks")
            }
            Need::Failures if self.provider == "heap" => (true, "the heap makes no call that could fail"),
            Need::Failures if is_host => (!cfg!(feature = "faults"), "the feature `faults` is off"),
            Need::Failures if self.provider == "nccl" => {
                (true, "a window that cannot be registered ends NCCL's communicator, and the group with it")
            }
            Need::Failures => (self.place == Place::Gpu, "a real driver does not fail on demand"),
            Need::Room => (self.name != "shm_on_threads" || world != 1, "gigabytes once are enough"),
        };
        is_lacking.then_some(why)
    }

    /// Why this machine has no such ranks.
    pub(crate) fn is_absent(&self) -> Option<String> {
        if self.is_late && !cfg!(feature = "faults") {
            return Some("epochs begin elsewhere only with the feature `faults`".to_owned());
        }
        if let Err(error) = self.provider.parse::<Provider>() {
            return Some(format!("{error}; those for tests come with the feature `faults`"));
        }
        if self.place != Place::Gpu {
            return None;
        }
        match self.version() {
            Ok(version) if version >= SHARING => None,
            Ok(version) => Some(format!("needs NCCL {SHARING}, and there is {version}")),
            Err(error @ (Error::NoCuda { .. } | Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => {
                Some(error.to_string())
            }
            Err(error) => panic!("there is a driver, but: {error}"),
        }
    }

    fn version(&self) -> Result<Version> {
        Device::new(0)?;
        match self.provider {
            "nccl" => nccl::version(),
            _ => Ok(SHARING),
        }
    }

    /// Where its memory comes from.
    pub(crate) fn provider(&self) -> Provider {
        self.provider.parse().expect("a provider that is there")
    }

    /// The ranks of a world of `world` that are out of reach.
    pub(crate) fn far(&self, world: usize) -> Vec<usize> {
        self.far.iter().copied().filter(|rank| *rank < world).collect()
    }
}
