//! Where the ranks of one machine run: the processors that each is kept on, and how many threads its math
//! libraries take.
//!
//! Used by the launchers of this crate, by Python's, by `symmem run`, and by the bench. BLAS and OpenMP take
//! all cores of the machine in every process unless they are told; ranks that do that stand in each other's
//! way, which costs small products a factor of a hundred.

use std::sync::Once;

use crate::named::named;
use crate::sys::cores::{self, Core};
use crate::sys::limits;
use crate::{Error, Result};

/// What math libraries read at their start. All of them follow the first one where their own is not set.
const THREAD_VARIABLES: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
];

named! {
    /// How ranks are kept on cores.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Pin read as "pin" {
        /// Every one.
        ALL: {
            /// Each rank on its own part of the physical cores, as large as everybody's. Ranks that outnumber
            /// them take turns: the first on the first core, and so on.
            Cores = "cores",
            /// Each rank on all cores of one NUMA node; ranks that follow each other share one.
            Numa = "numa",
        }
    }
}

/// Where the ranks of this machine run.
///
/// ```
/// let placement = symmem::Placement::new(2, Some(symmem::Pin::Cores))?;
/// assert!(placement.threads() >= 1 && !placement.cpus(1).is_empty());
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Placement {
    /// Of each rank; empty where ranks are not kept anywhere.
    shares: Vec<Vec<Core>>,
    threads: usize,
}

impl Placement {
    /// For `ranks` ranks on the cores that this process may use.
    pub fn new(ranks: usize, pin: Option<Pin>) -> Result<Self> {
        let cores = cores::usable();
        if pin.is_some() && cores.is_empty() {
            return Err(Error::invalid("pin", "the system does not say which cores this process may use"));
        }
        // The cores may be more than a cgroup's quota lets them work.
        let usable = limits::usable_cores().min(cores.len().max(1));
        Ok(Self::of(&cores, usable, ranks.max(1), pin))
    }

    fn of(cores: &[Core], usable: usize, ranks: usize, pin: Option<Pin>) -> Self {
        let fair = (usable / ranks).max(1);
        let Some(pin) = pin else { return Self { shares: Vec::new(), threads: fair } };
        let shares: Vec<Vec<Core>> = (0..ranks).map(|rank| share(cores, pin, rank, ranks)).collect();
        let sharing = |share: &[Core]| shares.iter().filter(|other| other.as_slice() == share).count().max(1);
        let least = shares.iter().map(|share| share.len() / sharing(share)).min().unwrap_or(1);
        Self { threads: least.clamp(1, fair), shares }
    }

    /// How many threads each rank has cores for, at least 1.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The processors that `rank` is kept on; none where it is not.
    pub fn cpus(&self, rank: usize) -> Vec<usize> {
        self.share(rank).iter().flat_map(|core| core.cpus.iter().copied()).collect()
    }

    /// One processor of each physical core that `rank` is kept on; none where it is not.
    pub fn cores(&self, rank: usize) -> Vec<usize> {
        self.share(rank).iter().map(|core| core.cpus[0]).collect()
    }

    fn share(&self, rank: usize) -> &[Core] {
        self.shares.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Keeps the calling thread, and the threads it will start, where `rank` is to run.
    pub fn pin(&self, rank: usize) -> Result<()> {
        match self.share(rank) {
            [] => Ok(()),
            _ => cores::pin(&self.cpus(rank)),
        }
    }

    /// What to add to the environment of ranks that are processes, where `is_set` says which variables the
    /// user has set: the thread counts of math libraries (none, where the user has set OpenMP's, which the
    /// others follow), and for ranks that are kept on a part of the cores, how many all of them have.
    pub fn environment(&self, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
        let follows = is_set(THREAD_VARIABLES[0]);
        let counts = THREAD_VARIABLES.into_iter().filter(|variable| !follows && !is_set(variable));
        let mut found: Vec<_> = counts.map(|variable| (variable, self.threads.to_string())).collect();
        if !self.shares.is_empty() {
            found.push((limits::SPAWN_CORES, limits::tell_cores()));
        }
        found
    }

    /// Says once what ranks that are processes are told.
    pub(super) fn say(&self, ranks: usize) {
        static SAID: Once = Once::new();
        let threads = self.threads;
        // By force: a subscriber that panicked at it must not have every later call panic.
        SAID.call_once_force(|_| {
            tracing::info!(
                ranks,
                threads,
                "math libraries get {threads} threads in each rank; OMP_NUM_THREADS overrides"
            );
        });
    }
}

/// The cores of one rank.
fn share(cores: &[Core], pin: Pin, rank: usize, ranks: usize) -> Vec<Core> {
    match pin {
        Pin::Cores => match cores.len() / ranks {
            0 => vec![cores[rank % cores.len()].clone()],
            each => cores[rank * each..(rank + 1) * each].to_vec(),
        },
        Pin::Numa => {
            let mut nodes: Vec<usize> = cores.iter().map(|core| core.node).collect();
            nodes.dedup();
            let node = nodes[rank * nodes.len() / ranks];
            cores.iter().filter(|core| core.node == node).cloned().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of four cores with two threads each: 0 and 8, 1 and 9 ...
    fn machine() -> Vec<Core> {
        (0..8).map(|core| Core { cpus: vec![core, core + 8], node: core / 4 }).collect()
    }

    fn placed(ranks: usize, pin: Pin) -> Placement {
        Placement::of(&machine(), 8, ranks, Some(pin))
    }

    #[test]
    fn ranks_have_physical_cores_of_their_own() {
        let two = placed(2, Pin::Cores);
        assert_eq!(two.cpus(0), [0, 8, 1, 9, 2, 10, 3, 11]);
        assert_eq!((two.cores(1), two.threads()), (vec![4, 5, 6, 7], 4));
        // What does not divide evenly stays unused.
        let three = placed(3, Pin::Cores);
        assert_eq!((three.cores(2), three.threads()), (vec![4, 5], 2));
        let crowd = placed(9, Pin::Cores);
        assert_eq!((crowd.cores(7), crowd.cores(8), crowd.threads()), (vec![7], vec![0], 1));
    }

    #[test]
    fn ranks_share_a_node_with_their_neighbours() {
        let four = placed(4, Pin::Numa);
        assert_eq!((four.cores(1), four.cores(2)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        assert_eq!(four.threads(), 2);
        assert_eq!(placed(1, Pin::Numa).cores(0), [0, 1, 2, 3]);
        // The fuller node counts: ranks are to be alike.
        assert_eq!(placed(3, Pin::Numa).threads(), 2);
    }

    #[test]
    fn a_quota_counts() {
        assert_eq!(Placement::of(&machine(), 2, 2, Some(Pin::Cores)).threads(), 1);
        assert_eq!(Placement::of(&machine(), 8, 2, None).threads(), 4);
        assert_eq!(Placement::of(&machine(), 8, 100, None).threads(), 1);
        assert_eq!(Placement::of(&machine(), 8, 2, None).cpus(0), [0usize; 0]);
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let free = Placement::of(&machine(), 8, 4, None);
        let all = free.environment(|_| false);
        assert_eq!(all.len(), THREAD_VARIABLES.len());
        assert!(all.iter().all(|(_, value)| value == "2"));
        let some = free.environment(|variable| variable == "MKL_NUM_THREADS");
        assert!(
            some.len() == all.len() - 1 && some.iter().all(|(variable, _)| *variable != "MKL_NUM_THREADS")
        );
        assert_eq!(free.environment(|variable| variable == "OMP_NUM_THREADS"), []);
        let pinned = placed(4, Pin::Cores).environment(|variable| variable == "OMP_NUM_THREADS");
        assert_eq!(pinned, [(limits::SPAWN_CORES, limits::tell_cores())]);
    }

    #[test]
    fn names_are_read_back() {
        assert_eq!("numa".parse::<Pin>().unwrap(), Pin::Numa);
        assert_eq!(Pin::Cores.to_string().parse::<Pin>().unwrap(), Pin::Cores);
        assert!(matches!("sockets".parse::<Pin>(), Err(Error::Invalid { .. })));
    }
}
