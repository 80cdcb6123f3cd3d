//! What ranks of one communicator have in common: a place where everybody lays down its part of a step.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::control::{Code, SYSTEM_ERROR, failure, lock, number};

/// A rank's part of a step.
pub(crate) type Part = Arc<Vec<u8>>;

/// The ranks of a communicator.
#[derive(Default)]
pub(crate) struct Clique {
    pub(crate) world: usize,
    state: Mutex<CliqueState>,
    changed: Condvar,
}

#[derive(Default)]
struct CliqueState {
    /// By the number of the step.
    steps: HashMap<u64, Vec<Option<Part>>>,
    /// By sender and receiver.
    mail: HashMap<(usize, usize), VecDeque<Part>>,
    signals: HashMap<(usize, usize), i32>,
    /// Communicators that came of a split, by step and colour.
    children: HashMap<(u64, i32), Arc<Clique>>,
}

/// The clique of the ranks with this id.
pub(crate) fn with_id(id: [u8; 128], world: usize) -> Arc<Clique> {
    static CLIQUES: OnceLock<Mutex<HashMap<[u8; 128], Arc<Clique>>>> = OnceLock::new();
    let mut cliques = lock(CLIQUES.get_or_init(Mutex::default));
    Arc::clone(cliques.entry(id).or_insert_with(|| Clique::new(world)))
}

fn patience() -> Duration {
    Duration::from_millis(number("FAKENCCL_PATIENCE_MS", 10_000))
}

impl Clique {
    pub(crate) fn new(world: usize) -> Arc<Self> {
        Arc::new(Self { world, ..Self::default() })
    }

    /// Lays down the part of `rank`.
    pub(crate) fn post(&self, step: u64, rank: usize, part: Vec<u8>) {
        let mut state = lock(&self.state);
        state.steps.entry(step).or_insert_with(|| vec![None; self.world])[rank] = Some(Arc::new(part));
        self.changed.notify_all();
    }

    /// Everybody's part, if all are there.
    pub(crate) fn parts(&self, step: u64) -> Option<Vec<Part>> {
        let state = lock(&self.state);
        state.steps.get(&step)?.iter().cloned().collect()
    }

    /// Waits for what `take` finds.
    fn wait<T>(&self, mut take: impl FnMut(&mut CliqueState) -> Option<T>) -> Result<T, Code> {
        let end = Instant::now() + patience();
        let mut state = lock(&self.state);
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(found);
            }
            if Instant::now() > end {
                return Err(failure(SYSTEM_ERROR, "a rank did not come"));
            }
            let waited = self.changed.wait_timeout(state, Duration::from_millis(50));
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Everybody's part, once all are there.
    pub(crate) fn all(&self, step: u64) -> Result<Vec<Part>, Code> {
        self.wait(|state| state.steps.get(&step)?.iter().cloned().collect())
    }

    pub(crate) fn send(&self, from: usize, to: usize, part: Vec<u8>) {
        lock(&self.state).mail.entry((from, to)).or_default().push_back(Arc::new(part));
        self.changed.notify_all();
    }

    pub(crate) fn receive(&self, from: usize, to: usize) -> Result<Part, Code> {
        self.wait(|state| state.mail.get_mut(&(from, to))?.pop_front())
    }

    pub(crate) fn signal(&self, from: usize, to: usize) {
        *lock(&self.state).signals.entry((from, to)).or_default() += 1;
        self.changed.notify_all();
    }

    /// Consumes `count` signals.
    pub(crate) fn wait_signals(&self, from: usize, to: usize, count: i32) -> Result<(), Code> {
        self.wait(|state| {
            let there = state.signals.get_mut(&(from, to)).filter(|there| **there >= count)?;
            *there -= count;
            Some(())
        })
    }

    /// The clique of `world` ranks that chose `colour` in a step.
    pub(crate) fn child(&self, step: u64, colour: i32, world: usize) -> Arc<Self> {
        let mut state = lock(&self.state);
        Arc::clone(state.children.entry((step, colour)).or_insert_with(|| Self::new(world)))
    }
}
