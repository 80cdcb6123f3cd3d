//! Runs a model, as it is or with one place of the protocols weakened.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::protocol::Bell;
use crate::protocol::atomic::{Site, remove};

/// What loom explores: `run` is one execution.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) run: fn(),
    /// How often a schedule may take the processor from a thread that could go on; `None` for no bound. What
    /// an access sees is explored in full either way.
    pub(crate) preemptions: Option<usize>,
}

/// The ways in which a model can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A wake-up was lost: everybody sleeps.
    Deadlock,
    /// Nothing orders two accesses to plain data, or a value came too early or too late.
    Disorder,
}

/// The site to remove is a setting of the process, so one exploration runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Explores `model`, and panics if any execution fails.
pub(crate) fn holds(model: Model) {
    let _lock = lock();
    explore(model);
}

/// Explores `model` with nothing removed, and says how it fails.
pub(crate) fn failure_of(model: Model) -> Option<Failure> {
    let _lock = lock();
    failure(model)
}

/// Explores `model` without `site`, and says how it fails.
pub(crate) fn failure_without(site: Site, model: Model) -> Option<Failure> {
    let _lock = lock();
    remove(Some(site));
    let failure = failure(model);
    remove(None);
    failure
}

fn explore(model: Model) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(model.preemptions);
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        (model.run)();
    });
    println!("explored {} executions", executions.load(Ordering::Relaxed));
}

fn failure(model: Model) -> Option<Failure> {
    let panic = catch_unwind(AssertUnwindSafe(|| explore(model))).err()?;
    Some(kind(&*panic))
}

fn kind(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    if text.contains("deadlock") {
        return Failure::Deadlock;
    }
    // Anything else is a defect of the model: it must not pass for a mutant that was caught.
    let ours = text.contains("Causality violation") || text.contains("assertion");
    assert!(ours, "the model broke: {text}");
    Failure::Disorder
}

/// The wait ladder without its time limit, so that a wake-up that is lost is a deadlock: a look that no fence
/// precedes, then the bell.
pub(crate) fn sleep_until<T>(bell: &Bell, mut poll: impl FnMut() -> Option<T>) -> T {
    let mut found = poll();
    loop {
        if let Some(value) = found.take() {
            return value;
        }
        bell.sleep(Duration::ZERO, || {
            found = poll();
            found.is_some()
        });
    }
}

/// The ladder's first rungs alone.
pub(crate) fn spin_until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(value) = poll() {
            return value;
        }
        loom::thread::yield_now();
    }
}
