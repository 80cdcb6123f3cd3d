//! What fuzzers feed: for each place that reads bytes of strangers, a function that takes any bytes and
//! panics when a promise is broken.
//!
//! Called by the targets in `fuzz/` and by `tests/fuzz`, which runs every target for a moment on stable. A
//! new target is a row here, a file in `fuzz/fuzz_targets`, and a test in `tests/fuzz`; one without the other
//! fails there.

mod files;
mod join;
mod tampering;

use std::sync::atomic::{AtomicU64, Ordering};

pub use symmem_store::fuzzing::Target;

/// The targets of this crate; [`targets`] has those of the store too.
const OWN: &[Target] = &[
    Target {
        name: "channel_message",
        run: crate::sys::channel::fuzzing::message,
        seeds: crate::sys::channel::fuzzing::message_seeds,
    },
    Target {
        name: "channel_endpoint",
        run: crate::sys::channel::fuzzing::endpoint,
        seeds: crate::sys::channel::fuzzing::endpoint_seeds,
    },
    Target { name: "join_values", run: join::values, seeds: join::values_seeds },
    Target { name: "join_store", run: join::store, seeds: join::store_seeds },
    Target { name: "tuning", run: files::tuning, seeds: files::tuning_seeds },
    Target { name: "kernel_cache", run: files::kernel_cache, seeds: files::kernel_cache_seeds },
];

/// Every target.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    symmem_store::fuzzing::TARGETS.iter().chain(OWN)
}

/// The target called `name`.
pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

/// Inputs and bytes that this process has fed.
static FED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Feeds `bytes` to the target called `name`, and counts them.
///
/// # Panics
/// If the target finds a broken promise, or if there is no such target.
pub fn feed(name: &str, bytes: &[u8]) {
    FED[0].fetch_add(1, Ordering::Relaxed);
    FED[1].fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let Some(target) = target(name) else { panic!("no target is called {name}") };
    (target.run)(bytes);
}

/// Inputs and bytes that were fed so far.
pub fn fed() -> [u64; 2] {
    FED.each_ref().map(|count| count.load(Ordering::Relaxed))
}
