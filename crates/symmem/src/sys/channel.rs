//! The fd channel: how ranks hand each other file descriptors.
//!
//! Called when groups form and when memory is exchanged, never during an operation. Every rank listens on an
//! [`Endpoint`] whose address travels through the store; a message is one connection with one packet (a
//! header, up to [`MAX_PAYLOAD`] bytes, up to [`MAX_FDS`] fds). Messages are matched by (tag, source), so
//! they may arrive in any order and before anybody asks for them.
//!
//! What it guarantees: both ends are of this process' user, or processes it knows where uids prove nothing
//! (`peer.rs`); a message without the job's token, a forged, broken, late or second one is dropped and its
//! fds are closed; strangers cannot make a wait longer than its terms.

mod address;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod inbox;
mod message;
mod offer;
mod peer;
mod ring;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use symmem_store::Wait;

use self::address::ChannelAddress;
use self::inbox::Inbox;
use self::message::MessageHeader;
pub(crate) use self::message::{ChannelMessage, MAX_FDS, MAX_PAYLOAD};
pub(crate) use self::offer::{Offer, OfferTicket, ask, source_here};
pub(crate) use self::peer::ChannelPeers;
use crate::error::{Error, Halt, Result};
use crate::sys::fault::{self, FailingCall};
use crate::sys::{fork, ids};

/// Connections that may queue before anybody looks; the kernel may allow fewer, and senders then try again.
const BACKLOG: i32 = 4096;
/// Pause before another attempt to send.
const RETRY: Duration = Duration::from_millis(1);

/// A rank's end of the channel: receives from everybody, sends to anybody. Threads may share it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: OwnedFd,
    peers: ChannelPeers,
    token: [u8; 16],
    address: String,
    /// The socket file, if there is one.
    file: Option<PathBuf>,
    inbox: Mutex<Inbox>,
    /// Told when a thread put messages of others into the inbox.
    arrived: Condvar,
}

impl Endpoint {
    /// Listens on a random name: an abstract one, or a socket file in `dir` (for ranks in separate network
    /// namespaces). Only messages of `peers` that carry `token` will be received, and only `peers` sent to.
    pub(crate) fn bind(token: [u8; 16], dir: Option<&Path>, peers: ChannelPeers) -> Result<Self> {
        let address = ChannelAddress::random(dir)?;
        let listener = socket()?;
        // A socket file gets the socket's mode: nobody else may connect, from its first moment on.
        rustix::fs::fchmod(&listener, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::sys("fchmod of a socket", e))?;
        rustix::net::bind(&listener, &address.to_socket()?).map_err(|e| {
            Error::sys_hint(
                "bind of the fd channel's socket",
                e,
                "does the socket folder exist and can you write to it?",
            )
        })?;
        // From here on drop removes the file.
        let endpoint = Self {
            listener,
            peers,
            token,
            address: address.to_string(),
            file: address.into_file(),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
        };
        rustix::net::listen(&endpoint.listener, BACKLOG)
            .map_err(|e| Error::sys("listen on the fd channel", e))?;
        Ok(endpoint)
    }

    /// Where peers reach this endpoint, for the store.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends one message to the endpoint at `address`. Returns once the kernel has it: the peer need not be
    /// listening at the moment, only exist. `peer` is its rank, for errors; `source` is what the peer matches
    /// by.
    #[expect(clippy::too_many_arguments, reason = "a message has that many parts")]
    pub(crate) fn send(
        &self,
        peer: usize,
        address: &str,
        tag: u64,
        source: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
        wait: &Wait<'_>,
    ) -> Result<(), Halt> {
        let failed = |problem: String| Error::Channel { rank: peer, address: address.to_owned(), problem };
        fault::fail(FailingCall::Socket).map_err(|e| failed(e.to_string()))?;
        if payload.len() > MAX_PAYLOAD || fds.len() > MAX_FDS {
            return Err(Error::invalid("message", "too many bytes or fds for the fd channel").into());
        }
        let target = ChannelAddress::parse(address)
            .ok_or_else(|| failed("not an address of the fd channel".into()))?;
        let to = target.to_socket()?;
        let header = MessageHeader { token: self.token, tag, source, fds: fds.len() };
        wait.until(|slice| {
            let connection = socket()?;
            match rustix::net::connect(&connection, &to) {
                Ok(()) => {}
                // Their queue is full: they will get to it.
                Err(Errno::AGAIN | Errno::INTR) => return pause(slice),
                Err(error) => return Err(failed(target.explain(error, ids::net_ns())).into()),
            }
            if !self.peers.include(connection.as_fd())? {
                return Err(failed(self.peers.stranger().into()).into());
            }
            match message::send(connection.as_fd(), &header, payload, fds) {
                Ok(()) => Ok(Some(())),
                // Full buffers; too many fds of this user in flight; or they lost patience before we had
                // sent.
                Err(
                    Errno::AGAIN
                    | Errno::INTR
                    | Errno::NOBUFS
                    | Errno::TOOMANYREFS
                    | Errno::PIPE
                    | Errno::CONNRESET,
                ) => pause(slice),
                Err(error) => Err(failed(error.to_string()).into()),
            }
        })
    }

    /// Receives the message that `source` sent under `tag`. Every (tag, source) is received once, and a
    /// source's tags in rising order: what is older than the last one received is dropped.
    pub(crate) fn recv(&self, tag: u64, source: u32, wait: &Wait<'_>) -> Result<ChannelMessage, Halt> {
        wait.until(|slice| {
            let mut inbox = self.pump()?;
            if let Some(message) = inbox.take(tag, source)? {
                return Ok(Some(message));
            }
            if slice.is_zero() {
                return Ok(None);
            }
            if inbox.polled {
                // Another thread sleeps on the sockets and will tell.
                let (mut inbox, _) =
                    self.arrived.wait_timeout(inbox, slice).unwrap_or_else(PoisonError::into_inner);
                return Ok(inbox.take(tag, source)?);
            }
            self.poll(inbox, slice);
            Ok(self.pump()?.take(tag, source)?)
        })
    }

    /// Everything that has arrived and nobody has asked for, in no order. Never blocks.
    pub(crate) fn drain(&self) -> Result<Vec<ChannelMessage>> {
        Ok(self.pump()?.take_all())
    }

    /// Drops all messages up to `tag` that have arrived and that nobody will ask for, and so closes their
    /// fds. What cannot be taken in now goes with the next message that is received.
    pub(crate) fn discard(&self, tag: u64) {
        if let Ok(mut inbox) = self.pump() {
            inbox.discard(tag);
        }
    }

    /// Puts everything that has arrived into the inbox, without blocking.
    fn pump(&self) -> Result<MutexGuard<'_, Inbox>> {
        let mut inbox = self.lock();
        if inbox.pump(self.listener.as_fd(), &self.token, &self.peers)? {
            self.arrived.notify_all();
        }
        Ok(inbox)
    }

    /// Sleeps, without the lock, until something arrives or `slice` is over.
    fn poll(&self, mut inbox: MutexGuard<'_, Inbox>, slice: Duration) {
        inbox.polled = true;
        let guests = inbox.guests();
        drop(inbox);
        let sockets = guests.iter().map(AsFd::as_fd).chain([self.listener.as_fd()]);
        let mut fds: Vec<_> = sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // The slice is at most a tick, so it fits. EINTR: the caller looks again anyway.
        if let Ok(slice) = Timespec::try_from(slice) {
            let _ = poll(&mut fds, Some(&slice));
        }
        self.lock().polled = false;
        // Whoever waits for a message takes over the polling.
        self.arrived.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // A panic elsewhere leaves the inbox whole: every change is a single push, insert or remove.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A forked child must not take the rank's socket file away.
        if let Some(file) = &self.file
            && !fork::is_child()
        {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::sys_hint("socket for the fd channel", e, "check ulimit -n"))
}

fn pause<T>(slice: Duration) -> Result<Option<T>, Halt> {
    std::thread::sleep(slice.min(RETRY));
    Ok(None)
}
