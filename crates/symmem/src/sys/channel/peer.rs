//! Who is at the other end of a connection, as the kernel says.
//!
//! Both ends ask before anything is sent or believed. Usually the uid decides. Where the uid proves nothing
//! (`sys::user`), the process at the other end must be one that is known by other means, which is what the
//! job secret is for: hellos that it sealed name the ranks' processes, and no stranger has the process number
//! of a process that lives.

#![allow(unsafe_code, reason = "system calls")]

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Result};
use crate::sys::life::ProcessId;

/// Whom a rank talks to.
#[derive(Clone, Debug)]
pub(crate) enum ChannelPeers {
    /// Every process of this user.
    OfThisUser,
    /// These processes, in this pid namespace.
    Known(Vec<ProcessId>),
}

impl ChannelPeers {
    /// Whether the other end of a connection is one of them.
    pub(super) fn include(&self, socket: BorrowedFd<'_>) -> Result<bool> {
        let peer = credentials(socket)?;
        let same_user = peer.uid == rustix::process::geteuid().as_raw();
        Ok(same_user
            && match self {
                Self::OfThisUser => true,
                // The kernel gives the number in our namespace, or 0. Whoever has the number of a known
                // process, which still runs, is that process.
                Self::Known(known) => known
                    .iter()
                    .any(|process| i64::from(process.pid) == i64::from(peer.pid) && process.is_running()),
            })
    }

    /// What a listener is that is none of them.
    pub(super) fn stranger(&self) -> &'static str {
        match self {
            Self::OfThisUser => "the listener there belongs to another user",
            Self::Known(_) => {
                "the listener there is not a process that a rank's hello names. Hint: uids prove nothing in this user \
                 namespace, so all ranks must be in one pid namespace and see it in /proc"
            }
        }
    }
}

/// The process that opened the other end: its pid, uid and gid then.
///
/// Not rustix' `socket_peercred`: it takes the peer's pid for non-zero, and it is zero across pid namespaces.
fn credentials(socket: BorrowedFd<'_>) -> Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `peer`, which any bytes are valid for.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(Error::sys("getsockopt SO_PEERCRED", std::io::Error::last_os_error()));
    }
    Ok(peer)
}
