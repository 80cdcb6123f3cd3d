//! Ranks as scoped threads of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use symmem_store::{CancelToken, HashStore, Store};

use super::{Pin, Placement, RankFailure, first_failure, panic_message};
use crate::group::join::Join;
use crate::group::{Group, RankContext};
use crate::{Error, Result};

/// Runs `f` on `n` ranks, each a thread of this process, and returns their results in rank order.
///
/// The threads may borrow from the caller. If ranks fail, the error is [`Error::Spawned`] with the first one
/// that failed by itself; a panic counts as a failure, and ends the others' waits.
///
/// ```
/// let words = ["a", "b"];
/// let got = symmem::spawn(2, |group| Ok(words[group.next()]))?;
/// assert_eq!(got, ["b", "a"]);
/// # Ok::<(), symmem::Error>(())
/// ```
pub fn spawn<R, F>(n: usize, f: F) -> Result<Vec<R>>
where
    R: Send,
    F: Fn(Group) -> Result<R> + Sync,
{
    ThreadSpawner::new(n).run(f)
}

/// [`spawn`] with more to set.
///
/// ```
/// let sums = symmem::ThreadSpawner::new(2).pin(symmem::Pin::Cores).run(|group| Ok(group.rank()))?;
/// assert_eq!(sums, [0, 1]);
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ThreadSpawner {
    ranks: usize,
    pin: Option<Pin>,
}

impl ThreadSpawner {
    /// `ranks` threads.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, pin: None }
    }

    /// Keeps each rank, and the threads it starts, on cores of its own.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Runs `f` on every rank; the first failure is the error.
    pub fn run<R, F>(&self, f: F) -> Result<Vec<R>>
    where
        R: Send,
        F: Fn(Group) -> Result<R> + Sync,
    {
        let Some(pin) = self.pin else { return run(self.ranks, f) };
        let placement = Placement::new(self.ranks, Some(pin))?;
        run(self.ranks, |group| {
            placement.pin(group.rank())?;
            f(group)
        })
    }
}

fn run<R, F>(n: usize, f: F) -> Result<Vec<R>>
where
    R: Send,
    F: Fn(Group) -> Result<R> + Sync,
{
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let failures = Mutex::new(Vec::new());
    let given_up = CancelToken::new();
    let run = |rank: usize| {
        let outcome = catch_unwind(AssertUnwindSafe(|| f(join(&store, rank, n, &given_up)?)));
        let failure = match outcome {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(error)) => {
                RankFailure { rank, secondary: is_secondary(&error, rank), message: error.to_string() }
            }
            Err(panic) => RankFailure { rank, secondary: false, message: panic_message(&*panic) },
        };
        failures.lock().unwrap_or_else(|poison| poison.into_inner()).push(failure);
        None
    };
    let results: Vec<Option<R>> = thread::scope(|scope| {
        let named = |rank: usize| thread::Builder::new().name(format!("rank {rank}"));
        let run = &run;
        let threads: Vec<_> = (0..n).map(|rank| named(rank).spawn_scoped(scope, move || run(rank))).collect();
        if threads.iter().any(std::result::Result::is_err) {
            // The ranks that did start must not wait for those that never will.
            given_up.cancel();
        }
        threads
            .into_iter()
            .map(|thread| thread.ok().and_then(|thread| thread.join().ok().flatten()))
            .collect()
    });
    let failures = failures.into_inner().unwrap_or_else(|poison| poison.into_inner());
    if let Some(error) = first_failure(failures) {
        return Err(error);
    }
    let results: Option<Vec<R>> = results.into_iter().collect();
    results.ok_or_else(|| Error::sys("starting a rank's thread", std::io::Error::last_os_error()))
}

fn join(store: &Arc<dyn Store>, rank: usize, world: usize, given_up: &CancelToken) -> Result<Group> {
    let context = RankContext::from_env()?;
    let mut join = Join::new(&context, Arc::clone(store), rank, world, "world", "symmem/spawn".to_owned());
    join.fresh = true;
    join.terms.cancel = Some(given_up.clone());
    join.run()
}

/// Whether `error` of `rank` only says that another rank failed.
pub(super) fn is_secondary(error: &Error, rank: usize) -> bool {
    error.culprit().is_some_and(|culprit| culprit != rank)
}
