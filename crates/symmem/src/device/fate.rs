//! What memory must know of the engine that works on it: whether its work is done, and whether its group has
//! failed.
//!
//! Used by tables of device memory, which may outlive engine and group. What it guarantees: it keeps neither
//! of them, makes no rank stay in its group, and says the same after the engine has gone as at its end.

use std::sync::{Arc, OnceLock, Weak};

use super::status::{Status, Watched};
use crate::cuda::activity::Activity;

/// Of one engine. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Fate {
    activity: Arc<Activity>,
    watched: Weak<Watched>,
    /// How the group had failed when the engine went.
    at_the_end: Arc<OnceLock<String>>,
}

impl Fate {
    pub(crate) fn new(activity: &Arc<Activity>, watched: &Arc<Watched>) -> Self {
        Self { activity: Arc::clone(activity), watched: Arc::downgrade(watched), at_the_end: Arc::default() }
    }

    /// Whether all work that the engine was given is done.
    pub(crate) fn is_idle(&self) -> bool {
        self.activity.is_idle()
    }

    /// Whether the engine is gone.
    pub(crate) fn is_over(&self) -> bool {
        self.watched.strong_count() == 0
    }

    /// How the engine's group failed, if it has. Never waits.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.watched.upgrade() {
            Some(watched) => failure_of(&watched),
            None => self.at_the_end.get().cloned(),
        }
    }

    /// Keeps how the group had failed, if it had, when the engine goes.
    pub(crate) fn end(&self, watched: &Watched) {
        if let Some(failure) = failure_of(watched) {
            let _ = self.at_the_end.set(failure);
        }
    }
}

fn failure_of(watched: &Watched) -> Option<String> {
    let Status::Failed { culprit, cause, detail } = watched.status() else { return None };
    let group = &watched.group.name;
    let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
    Some(format!("the group {group} failed because rank {culprit} {cause}{detail}"))
}
