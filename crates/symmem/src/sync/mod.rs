//! Words in shared memory and how to wait for them: the protocols, the control segment and the wait ladder.
//!
//! Called by `group` and `memory`; built on `sys` alone.

pub(crate) mod about;
pub(crate) mod control;
pub(crate) mod ladder;
pub(crate) mod protocol;
pub(crate) mod record;
pub(crate) mod waiting;
