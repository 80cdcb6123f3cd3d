//! Descriptors of files that others made.
//!
//! Whoever gets a descriptor from elsewhere than `std` calls this; those that the library makes itself are
//! close-on-exec from the start.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};

/// Keeps programs that this process starts from inheriting it.
pub(crate) fn close_on_exec(fd: impl AsFd) -> std::io::Result<()> {
    Ok(fcntl_setfd(fd, FdFlags::CLOEXEC)?)
}

/// A descriptor that stands for the file at `path` without opening it, which does nothing to the file,
/// whatever it is.
pub(crate) fn look_at(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}
