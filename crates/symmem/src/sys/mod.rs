//! The only place with raw system calls: memory files, the fd channel, futexes, process lives, limits.
//!
//! The rest of the crate calls these wrappers and never a system call. What they guarantee: no fd survives an
//! exec, no wait is longer than its terms say, nothing a peer sends is believed before it was checked, and
//! nothing is left behind when a process is killed.

pub(crate) mod channel;
pub(crate) mod clock;
pub(crate) mod copy;
pub(crate) mod cores;
pub(crate) mod cpu;
pub(crate) mod exec;
pub(crate) mod exit;
pub(crate) mod fault;
pub(crate) mod fd;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod ids;
pub(crate) mod life;
pub(crate) mod limits;
pub(crate) mod memfd;
pub(crate) mod pipe;
pub(crate) mod remote;
pub(crate) mod secret;
pub(crate) mod unwind;
pub(crate) mod user;

#[cfg(test)]
mod testing;
