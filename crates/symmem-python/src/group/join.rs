//! Joining a group, interruptibly.
//!
//! A join waits for ranks that may not have been started yet, in the store and elsewhere, where no token
//! reaches. So it runs on a thread of its own, and the calling one looks at Python's signals meanwhile. A
//! join that was interrupted goes on; if it succeeds, the rank leaves the group at once, and its peers learn
//! that.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use symmem::store::Store;
use symmem::{Error, Group, RankContext, Result};

use crate::error::{invalid, raise};

/// What a group is called that nobody named.
pub(super) const DEFAULT_NAME: &str = "default";

/// The longest time between two looks at Python's signals.
const TICK: Duration = Duration::from_millis(20);

/// Where a rank makes its groups: the context as it is, or, with a timeout, one with that in its
/// configuration.
pub(super) fn with_timeout(context: &RankContext, timeout: Option<f64>) -> PyResult<RankContext> {
    let Some(timeout) = timeout else { return Ok(context.clone()) };
    Ok(context.with_config(context.config().clone().timeout(seconds(timeout)?)))
}

/// How long calls on groups of this context wait; `None` is as long as it takes.
pub(crate) fn default_timeout(context: &RankContext) -> Option<Duration> {
    let rows = context.config().rows();
    let row = rows.iter().find(|row| row.variable == "SYMMEM_TIMEOUT")?;
    row.value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// Seconds as Python counts them.
pub(super) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| invalid("timeout", format!("{seconds} is not a number of seconds from 0 on")))
}

/// Joins in `store`.
pub(super) fn in_store(
    py: Python<'_>,
    context: RankContext,
    store: Arc<dyn Store>,
    place: (usize, usize),
    name: &str,
) -> PyResult<Group> {
    let name = name.to_owned();
    join(py, move || Group::from_store_in(&context, store, place.0, place.1, &name))
}

/// Joins the group that the environment describes; under a `name`, a second group of its ranks.
pub(super) fn from_env(py: Python<'_>, context: RankContext, name: Option<String>) -> PyResult<Group> {
    join(py, move || {
        let world = Group::from_env_as(&context, DEFAULT_NAME)?;
        match name {
            None => Ok(world),
            Some(name) => world.subgroup(&(0..world.size()).collect::<Vec<_>>(), &name),
        }
    })
}

fn join(py: Python<'_>, work: impl FnOnce() -> Result<Group> + Send + 'static) -> PyResult<Group> {
    let (sender, receiver) = sync_channel(1);
    // Nobody listens after an interruption: the group is dropped then, which leaves it.
    let thread = thread::Builder::new().name("symmem join".to_owned()).spawn(move || {
        let _ = sender.send(work());
    });
    let hint = "is there a limit on threads?";
    thread.map_err(|source| raise(Error::Sys { call: "starting a thread to join a group", source, hint }))?;
    // A receiver may not be shared; the mutex is never contended.
    let receiver = std::sync::Mutex::new(receiver);
    loop {
        let joined = py
            .detach(|| receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).recv_timeout(TICK));
        match joined {
            Ok(joined) => return joined.map_err(raise),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(invalid("join", "its thread panicked")),
        }
    }
}
