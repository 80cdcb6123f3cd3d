//! Ranks for programs that nobody launched: as threads of this process, or as copies of this program.

mod launcher;
mod placement;
mod processes;
mod threads;

pub use self::launcher::{Launcher, Seat};
pub use self::placement::{Pin, Placement};
pub use self::processes::{ProcessSpawner, spawn_processes};
pub use self::threads::{ThreadSpawner, spawn};

use std::any::Any;

use crate::Error;

/// The words of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "with no message".to_owned()))
}

/// A rank's failure, as the launcher compares them.
#[derive(Debug)]
struct RankFailure {
    rank: usize,
    message: String,
    /// The failure is that another rank failed.
    secondary: bool,
}

/// The error to report: the first failure in time that does not just blame another rank, else the first one.
fn first_failure(failures: Vec<RankFailure>) -> Option<Error> {
    let at = failures.iter().position(|failure| !failure.secondary).unwrap_or(0);
    let failure = failures.into_iter().nth(at)?;
    Some(Error::Spawned { rank: failure.rank, message: failure.message })
}
