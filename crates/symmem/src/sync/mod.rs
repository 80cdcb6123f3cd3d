//! Words in shared memory and how to wait for them: the protocols, the control segment and the wait ladder;
//! and the threads that share a rank's work.
//!
//! Called by `group` and what is above it; built on `sys`, the settings and the names of operations.

pub(crate) mod about;
pub(crate) mod control;
pub(crate) mod ladder;
pub(crate) mod protocol;
pub(crate) mod record;
pub(crate) mod team;
pub(crate) mod waiting;
