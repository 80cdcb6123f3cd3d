//! What has arrived at an endpoint and nobody has asked for yet.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};

use super::message::{self, ChannelMessage, ReceivedMessage};
use super::peer::ChannelPeers;
use crate::error::{Error, Result};

/// Messages kept for later. Peers send a handful each; this only bounds what a broken one can pile up.
const MAX_KEPT: usize = 4096;
/// Connections that have not sent yet. A sender that finds its connection closed tries again.
const MAX_GUESTS: usize = 64;
/// How long a connection may take to send.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections taken per look, so that a flood cannot hold up the wait.
const MAX_ACCEPTS: usize = 256;

/// Connections and messages. Never blocks.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    guests: Vec<Guest>,
    /// Messages by (source, tag); `None` is one that arrived without its fds.
    kept: BTreeMap<(u32, u64), Option<ChannelMessage>>,
    /// Per source: the lowest tag that is still welcome.
    floors: HashMap<u32, u64>,
    /// Whether a thread sleeps on the sockets.
    pub(super) polled: bool,
}

/// A connection that has not sent its message yet. Shared with the thread that polls.
#[derive(Debug)]
struct Guest {
    socket: Arc<OwnedFd>,
    since: Instant,
}

impl Inbox {
    /// Takes in what has arrived from `peers`; true if there is a new message.
    pub(super) fn pump(
        &mut self,
        listener: BorrowedFd<'_>,
        token: &[u8; 16],
        peers: &ChannelPeers,
    ) -> Result<bool> {
        let before = self.kept.len();
        let mut guests = std::mem::take(&mut self.guests);
        guests.retain(|guest| self.hear(guest, token));
        self.guests = guests;
        for _ in 0..MAX_ACCEPTS {
            let Some(socket) = accept(listener)? else { break };
            let guest = Guest { socket: Arc::new(socket), since: Instant::now() };
            if peers.include(guest.socket.as_fd()).unwrap_or(false) && self.hear(&guest, token) {
                self.seat(guest, token);
            }
        }
        Ok(self.kept.len() > before)
    }

    /// Takes the message out and closes the door behind it: nothing as old from that source is welcome any
    /// more.
    pub(super) fn take(&mut self, tag: u64, source: u32) -> Result<Option<ChannelMessage>> {
        let Some(message) = self.kept.remove(&(source, tag)) else { return Ok(None) };
        self.floors.insert(source, tag.saturating_add(1));
        self.kept.retain(|(from, old), _| *from != source || *old > tag);
        const HINT: &str = "raise the limit on open files (ulimit -n)";
        message.ok_or_else(|| Error::sys_hint("receiving fds from a peer", Errno::MFILE, HINT)).map(Some)
    }

    /// Takes all messages out, but for those that arrived without their fds.
    pub(super) fn take_all(&mut self) -> Vec<ChannelMessage> {
        std::mem::take(&mut self.kept).into_values().flatten().collect()
    }

    /// Drops every message up to `tag`.
    pub(super) fn discard(&mut self, tag: u64) {
        self.kept.retain(|(_, old), _| *old > tag);
    }

    /// The sockets to poll beside the listener.
    pub(super) fn guests(&self) -> Vec<Arc<OwnedFd>> {
        self.guests.iter().map(|guest| guest.socket.clone()).collect()
    }

    /// Listens to one connection; true while it may still say something.
    fn hear(&mut self, guest: &Guest, token: &[u8; 16]) -> bool {
        match message::receive(guest.socket.as_fd(), token) {
            ReceivedMessage::Message { tag, source, message } => self.keep(tag, source, message),
            ReceivedMessage::Refused => tracing::debug!("fd channel: refused a message"),
            ReceivedMessage::Nothing if guest.since.elapsed() < PATIENCE => return true,
            ReceivedMessage::Nothing => self.dismiss(guest, token),
        }
        false
    }

    /// Gives a silent connection a place, the oldest one's if need be.
    fn seat(&mut self, guest: Guest, token: &[u8; 16]) {
        if self.guests.len() >= MAX_GUESTS {
            let oldest = self.guests.remove(0);
            self.dismiss(&oldest, token);
        }
        self.guests.push(guest);
    }

    /// Ends a silent connection. Closing the door before the last look makes sure that a sender either is
    /// heard or learns that it was not.
    fn dismiss(&mut self, guest: &Guest, token: &[u8; 16]) {
        let _ = shutdown(&guest.socket, Shutdown::Read);
        if let ReceivedMessage::Message { tag, source, message } =
            message::receive(guest.socket.as_fd(), token)
        {
            self.keep(tag, source, message);
        }
    }

    fn keep(&mut self, tag: u64, source: u32, message: Option<ChannelMessage>) {
        let late = self.floors.get(&source).is_some_and(|floor| tag < *floor);
        let full = self.kept.len() >= MAX_KEPT;
        if late || full || self.kept.contains_key(&(source, tag)) {
            tracing::debug!(tag, source, late, full, "fd channel: dropped a message");
            return;
        }
        self.kept.insert((source, tag), message);
    }
}

/// The next connection in the queue, if there is one.
fn accept(listener: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    loop {
        return match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(e) => Err(Error::sys_hint("accept on the fd channel", e, "check ulimit -n")),
        };
    }
}
