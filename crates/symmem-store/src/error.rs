//! The error of every store call.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::{Interrupt, Wait};

/// Keys named in an error message; a wait for a hundred thousand keys need not print them all.
const NAMED_KEYS: usize = 16;

/// The setting for the address to serve at, by its names.
const BIND: &str = "SYMMEM_STORE_BIND (bind= in Python, TcpStoreOptions::bind in Rust; * is every interface)";

/// Says that a store which is served at `addr`, a loopback address, is for this machine only, and what to do
/// about it.
pub fn served_on_loopback(addr: IpAddr) -> String {
    format!(
        "the store is served on {addr}, which no other machine reaches: for ranks elsewhere name the address to serve at in {BIND}"
    )
}

/// What to do about `source`: a process without descriptors says nothing about anybody else.
fn hint_for(source: &io::Error, otherwise: &'static str) -> &'static str {
    match is_out_of_descriptors(source) {
        true => "this process, or the system, has too many open files: raise ulimit -n",
        false => otherwise,
    }
}

/// Whether a call failed because the process or the system has no descriptor left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// A store call's result.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why a store call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The deadline passed.
    #[error("store {op} timed out after {elapsed:.1?}, keys: {}; did every rank start, and with the same store address?", keys.join(", "))]
    Timeout {
        /// The call.
        op: &'static str,
        /// What it waited for.
        keys: Vec<String>,
        /// How long it waited.
        elapsed: Duration,
    },
    /// The cancel token was cancelled.
    #[error("store {op} was cancelled")]
    Cancelled {
        /// The call.
        op: &'static str,
    },
    /// The watch ended the wait.
    #[error("store {op} was interrupted: {source}")]
    Interrupted {
        /// The call.
        op: &'static str,
        /// What the watch saw.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing answered at the address before the deadline.
    #[error(
        "no store answered at {addr} within {elapsed:.1?}; last failure: {source}; is the serving rank up, and the address right? Where that rank knows the address as another one (NAT, a container, 127.0.1.1 in /etc/hosts), it must name the one to serve at in {BIND}"
    )]
    Unreachable {
        /// The server.
        addr: String,
        /// How long it was tried.
        elapsed: Duration,
        /// Why the last attempt failed.
        source: io::Error,
    },
    /// A socket failed.
    #[error(
        "store {op} at {addr}: {source}; {}",
        hint_for(source, "is the process that serves the store alive and reachable?")
    )]
    Network {
        /// The call.
        op: &'static str,
        /// The server.
        addr: String,
        /// The system's error.
        source: io::Error,
    },
    /// The other side does not speak the protocol.
    #[error("store {op} at {addr}: {problem}; is this a TCPStore of a current PyTorch or symmem?")]
    Protocol {
        /// The call.
        op: &'static str,
        /// The server.
        addr: String,
        /// What was wrong.
        problem: String,
    },
    /// The port is taken.
    #[error("cannot serve a store on {addr}: the address is in use; choose another port, or 0 for any")]
    AddressInUse {
        /// The address.
        addr: String,
    },
    /// The address to serve at belongs to another machine, or to none.
    #[error(
        "cannot serve a store on {addr}: this machine has no such address; where the others reach it by another one (NAT, a container), name the address to serve at in {BIND}"
    )]
    AddressNotHere {
        /// The address.
        addr: String,
    },
    /// Fewer clients than expected joined in time.
    #[error("timed out after {elapsed:.1?} waiting for clients: {joined}/{expected} joined{}", loopback.map(|addr| format!("; {}", served_on_loopback(addr))).unwrap_or_default())]
    ClientsMissing {
        /// Clients seen.
        joined: i64,
        /// Clients wanted.
        expected: i64,
        /// How long it waited.
        elapsed: Duration,
        /// Where the store is served, if other machines do not reach it there.
        loopback: Option<IpAddr>,
    },
    /// A counter holds something that is not a number.
    #[error("the value of key {key:?} is not a decimal number, so nothing can be added to it")]
    NotNumeric {
        /// The key.
        key: String,
    },
    /// A non-blocking pop found nothing.
    #[error("queue {key:?} is empty")]
    QueueEmpty {
        /// The queue.
        key: String,
    },
    /// A key, value or request beyond the store's limits.
    #[error("{what} of {size} exceeds the store's limit of {limit}")]
    TooLarge {
        /// What was too large.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The file of a file store failed.
    #[error("file store {path:?}: {source}{}", match hint_for(source, "") { "" => String::new(), hint => format!("; {hint}") })]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file of a file store holds something else.
    #[error("file store {path:?} is damaged at byte {offset}: {problem}; remove the file and start again")]
    Damaged {
        /// The path.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What was wrong.
        problem: String,
    },
}

impl Interrupt {
    /// The error of the call `op` that waited for `keys`.
    pub(crate) fn error(self, op: &'static str, keys: &[&str], wait: &Wait<'_>) -> StoreError {
        match self {
            Interrupt::Cancelled => StoreError::Cancelled { op },
            Interrupt::Watch(source) => StoreError::Interrupted { op, source },
            Interrupt::Expired => {
                let mut names: Vec<String> =
                    keys.iter().take(NAMED_KEYS).map(|key| key.to_string()).collect();
                if keys.len() > NAMED_KEYS {
                    names.push(format!("and {} more", keys.len() - NAMED_KEYS));
                }
                StoreError::Timeout { op, keys: names, elapsed: wait.elapsed() }
            }
        }
    }
}

/// What ends a nap of a call that can also fail by itself.
#[derive(Debug)]
pub(crate) enum Fault {
    Interrupt(Interrupt),
    Error(StoreError),
}

impl Fault {
    /// The error of the call `op` that waited for `keys`.
    pub(crate) fn error(self, op: &'static str, keys: &[&str], wait: &Wait<'_>) -> StoreError {
        match self {
            Fault::Interrupt(interrupt) => interrupt.error(op, keys, wait),
            Fault::Error(error) => error,
        }
    }
}

impl Fault {
    /// Whether it is for want of a descriptor.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Self::Error(StoreError::Network { source, .. }) if is_out_of_descriptors(source))
    }

    /// Whether it is that the other side has closed the connection.
    pub(crate) fn is_hangup(&self) -> bool {
        matches!(self, Self::Error(StoreError::Network { source, .. }) if source.kind() == io::ErrorKind::UnexpectedEof)
    }
}

impl From<Interrupt> for Fault {
    fn from(interrupt: Interrupt) -> Self {
        Self::Interrupt(interrupt)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}
