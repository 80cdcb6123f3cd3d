//! Descriptors that this process hands to whoever of this user knows their secret, as long as the offer
//! lives.
//!
//! Called when memory is shared outside of groups, and where it is opened. While there are offers, the
//! process has one listener, on a random abstract name, and one thread that answers; both go with the last
//! offer. A question is one packet with the secret, and the answer one with the descriptor and what goes with
//! it.
//!
//! What it guarantees: both ends are of this user (`peer.rs`), and the secret is right, before anything is
//! sent; strangers and silent connections cost nobody else anything; who asks a process that has ended, or no
//! longer offers, is told at once, and waits for one that is silent no longer than its terms say. A forked
//! child has none of its parent's offers: it asks for them as any process does, and can make offers of its
//! own.

#![allow(unsafe_code, reason = "a list that a forked child replaces")]

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use symmem_store::{Interrupt, Wait};

use super::address::ChannelAddress;
use super::message::{self, ChannelMessage, MessageHeader, ReceivedMessage};
use super::peer::ChannelPeers;
use super::{BACKLOG, pause, socket};
use crate::error::{Error, Halt, Result};
use crate::sys::life::{ProcessId, ProcessLife};
use crate::sys::{ids, user};

/// Connections that have not asked yet; the oldest goes when there are more.
const MAX_GUESTS: usize = 64;
/// How long a connection may take to ask.
const PATIENCE: Duration = Duration::from_secs(1);

type OfferSecret = [u8; 16];

/// Where to ask for an offer, and with what. Travels as text; who has it and is of this user gets the
/// descriptor.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OfferTicket {
    process: ProcessId,
    address: String,
    token: OfferSecret,
    secret: OfferSecret,
}

impl OfferTicket {
    /// The process that made the offer.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid
    }
}

impl fmt::Debug for OfferTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the secret.
        f.debug_struct("OfferTicket").field("process", &self.process).finish_non_exhaustive()
    }
}

impl fmt::Display for OfferTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessId { pid, start_time, pid_ns } = self.process;
        let (token, secret) = (ids::hex(&self.token), ids::hex(&self.secret));
        write!(f, "{token}:{secret}:{pid}:{start_time}:{pid_ns}:{}", self.address)
    }
}

impl FromStr for OfferTicket {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| Error::invalid("share handle", "this text is none"))
    }
}

fn parse(text: &str) -> Option<OfferTicket> {
    let mut parts = text.splitn(6, ':');
    let mut secret = || ids::unhex(parts.next()?)?.try_into().ok();
    let (token, secret) = (secret()?, secret()?);
    let process = ProcessId {
        pid: parts.next()?.parse().ok()?,
        start_time: parts.next()?.parse().ok()?,
        pid_ns: parts.next()?.parse().ok()?,
    };
    let address = parts.next().filter(|address| ChannelAddress::parse(address).is_some())?;
    Some(OfferTicket { process, address: address.to_owned(), token, secret })
}

/// A descriptor on offer, until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    ticket: OfferTicket,
}

/// What is on offer.
struct OfferedFd {
    fd: OwnedFd,
    /// What goes with it.
    payload: Vec<u8>,
    /// What it is of, for those who ask in this process.
    source: Weak<dyn Any + Send + Sync>,
}

/// The offers of one process.
struct OfferList {
    process: ProcessId,
    state: Mutex<OfferState>,
}

#[derive(Default)]
struct OfferState {
    offers: HashMap<OfferSecret, OfferedFd>,
    /// There while there are offers.
    listener: Option<Arc<Listener>>,
}

struct Listener {
    socket: OwnedFd,
    address: String,
    token: OfferSecret,
    closed: AtomicBool,
}

/// The offers of this process; after a fork still that of the parent, until the child needs one. Lists are
/// never freed.
static OFFERS: AtomicPtr<OfferList> = AtomicPtr::new(ptr::null_mut());

/// The offers of this process, which a forked child makes again: a thread that is not there may have held the
/// parent's lock.
fn offers() -> &'static OfferList {
    let process = ProcessId::own();
    let current = OFFERS.load(Ordering::Acquire);
    // SAFETY: null, or a list that is never freed.
    if let Some(list) = unsafe { current.as_ref() }
        && list.process == process
    {
        return list;
    }
    let made = Box::into_raw(Box::new(OfferList { process, state: Mutex::default() }));
    match OFFERS.compare_exchange(current, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: never freed from here on.
        Ok(_) => unsafe { &*made },
        Err(others) => {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: not null, since another thread of this process has just put it there; never freed.
            unsafe { &*others }
        }
    }
}

impl Offer {
    /// Offers a duplicate of `fd`, with `payload`, to whoever has the ticket; in this process, `source`
    /// itself.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        payload: Vec<u8>,
        source: Weak<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let duplicate = fd.try_clone_to_owned();
        let fd = duplicate.map_err(|e| Error::sys_hint("duplicating an fd", e, "check ulimit -n"))?;
        let list = offers();
        let mut state = list.lock();
        let listener = match &state.listener {
            Some(listener) => Arc::clone(listener),
            None => Arc::clone(state.listener.insert(list.listen()?)),
        };
        let secret = ids::random()?;
        state.offers.insert(secret, OfferedFd { fd, payload, source });
        let (address, token) = (listener.address.clone(), listener.token);
        Ok(Self { ticket: OfferTicket { process: list.process, address, token, secret } })
    }

    pub(crate) fn ticket(&self) -> &OfferTicket {
        &self.ticket
    }

    /// Whether this process made it, and not one that it was forked from.
    pub(crate) fn is_own(&self) -> bool {
        self.ticket.process == ProcessId::own()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        let mut state = offers().lock();
        let offered = state.offers.remove(&self.ticket.secret);
        let listener = if state.offers.is_empty() { state.listener.take() } else { None };
        drop(state);
        drop(offered);
        if let Some(listener) = listener {
            listener.close();
        }
    }
}

impl OfferList {
    fn lock(&self) -> MutexGuard<'_, OfferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new listener, with its thread.
    fn listen(&'static self) -> Result<Arc<Listener>> {
        let address = ChannelAddress::random(None)?;
        let socket = socket()?;
        rustix::net::bind(&socket, &address.to_socket()?)
            .map_err(|e| Error::sys("bind of the socket for shared memory", e))?;
        rustix::net::listen(&socket, BACKLOG)
            .map_err(|e| Error::sys("listen on the socket for shared memory", e))?;
        let (address, token) = (address.to_string(), ids::random()?);
        let listener = Arc::new(Listener { socket, address, token, closed: AtomicBool::new(false) });
        let served = Arc::clone(&listener);
        let thread =
            thread::Builder::new().name("symmem share".to_owned()).spawn(move || self.serve(&served));
        let hint = "is there a limit on threads?";
        thread.map_err(|e| Error::sys_hint("starting a thread for shared memory", e, hint))?;
        Ok(listener)
    }

    /// Answers until the listener is closed.
    fn serve(&self, listener: &Listener) {
        let mut guests: Vec<(OwnedFd, Instant)> = Vec::new();
        while listener.wait(&guests) {
            while let Some(socket) = listener.accept() {
                if ChannelPeers::OfThisUser.include(socket.as_fd()).unwrap_or(false) {
                    guests.push((socket, Instant::now()));
                }
            }
            guests.retain(|(socket, since)| {
                let asked = self.answer(listener, socket.as_fd());
                !asked && since.elapsed() < PATIENCE
            });
            let surplus = guests.len().saturating_sub(MAX_GUESTS);
            guests.drain(..surplus);
        }
    }

    /// Answers a connection, if it has asked; false if it may still do so.
    fn answer(&self, listener: &Listener, socket: BorrowedFd<'_>) -> bool {
        let message = match message::receive(socket, &listener.token) {
            ReceivedMessage::Nothing => return false,
            ReceivedMessage::Message { message: Some(message), .. } => message,
            _ => return true,
        };
        let state = self.lock();
        let secret = OfferSecret::try_from(&message.payload[..]).ok();
        let offered = secret.and_then(|secret| state.offers.get(&secret));
        let (payload, fds) = match offered {
            Some(offered) => (&offered.payload[..], vec![offered.fd.as_fd()]),
            None => (&[][..], Vec::new()),
        };
        let header = MessageHeader { token: listener.token, tag: 0, source: 0, fds: fds.len() };
        // It is the first packet on its connection, so there is room; too many descriptors in flight are the
        // one reason to fail. Who asked sees the connection end without an answer, and asks again.
        let _ = message::send(socket, &header, payload, &fds);
        true
    }
}

impl Listener {
    /// Sleeps until somebody comes or asks; false once closed.
    fn wait(&self, guests: &[(OwnedFd, Instant)]) -> bool {
        let sockets = guests.iter().map(|(socket, _)| socket.as_fd()).chain([self.socket.as_fd()]);
        let mut fds: Vec<_> = sockets.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let patience = Timespec::try_from(PATIENCE).ok().filter(|_| !guests.is_empty());
        // EINTR: the caller looks again anyway.
        let _ = poll(&mut fds, patience.as_ref());
        !self.closed.load(Ordering::Acquire)
    }

    fn accept(&self) -> Option<OwnedFd> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Some(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => None,
            Err(_) => {
                // Out of descriptors, most likely: the connection stays in the queue, and poll would return
                // at once.
                thread::sleep(Duration::from_millis(10));
                None
            }
        }
    }

    /// Ends the thread. A forked child may have the socket open still, and so it is shut: who connects is
    /// refused.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// What an offer of this process is of: `None` if the ticket is another process'.
pub(crate) fn source_here(ticket: &OfferTicket) -> Option<Result<Arc<dyn Any + Send + Sync>>> {
    if ticket.process != ProcessId::own() {
        return None;
    }
    let source = offers().lock().offers.get(&ticket.secret).and_then(|offered| offered.source.upgrade());
    Some(source.ok_or_else(|| ticket.withdrawn()))
}

/// Asks the process that made the offer, for as long as `wait` says: the descriptor, and what goes with it.
pub(crate) fn ask(ticket: &OfferTicket, wait: &Wait<'_>) -> Result<(OwnedFd, Vec<u8>)> {
    let mut question = Question { ticket, peers: ticket.peers(), connection: None };
    let life = ProcessLife::from_proc(ticket.process);
    let answered: Result<ChannelMessage, Halt> = wait.until(|slice| match question.step(slice)? {
        // A child that it forked may keep its socket open, so that the connection alone does not tell.
        None if life.is_dead() => Err(ticket.ended().into()),
        other => Ok(other),
    });
    let mut message = answered.map_err(|halt| match halt {
        Halt::Failed(error) if life.is_dead() && matches!(error, Error::NotShared { .. }) => ticket.ended(),
        Halt::Failed(error) => error,
        Halt::Interrupted(Interrupt::Cancelled) => not_shared("opening it was cancelled".to_owned()),
        Halt::Interrupted(_) => not_shared(format!(
            "process {}, which shares it, has not answered for {:.1?}. Hint: is it stopped? SYMMEM_TIMEOUT sets how long to wait",
            ticket.pid(),
            wait.elapsed()
        )),
    })?;
    match message.fds.pop() {
        Some(fd) => Ok((fd, message.payload)),
        None => Err(ticket.withdrawn()),
    }
}

/// A question that is under way.
struct Question<'a> {
    ticket: &'a OfferTicket,
    peers: ChannelPeers,
    connection: Option<OwnedFd>,
}

impl Question<'_> {
    /// Connects and asks, if that is still to be done, and waits `slice` for the answer.
    fn step(&mut self, slice: Duration) -> Result<Option<ChannelMessage>, Halt> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => match self.connect()? {
                Some(connection) => self.connection.insert(connection),
                None => return pause(slice),
            },
        };
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        if let Ok(slice) = Timespec::try_from(slice) {
            let _ = poll(&mut fds, Some(&slice));
        }
        match message::receive(connection.as_fd(), &self.ticket.token) {
            ReceivedMessage::Nothing => Ok(None),
            ReceivedMessage::Message { message: Some(message), .. } => Ok(Some(message)),
            ReceivedMessage::Message { message: None, .. } => {
                const HINT: &str = "raise the limit on open files (ulimit -n)";
                Err(Error::sys_hint("receiving a shared array's descriptor", Errno::MFILE, HINT).into())
            }
            // It ended without an answer.
            ReceivedMessage::Refused => {
                self.connection = None;
                pause(slice)
            }
        }
    }

    /// A connection that has asked; `None` to try again.
    fn connect(&self) -> Result<Option<OwnedFd>> {
        let Some(address) = ChannelAddress::parse(&self.ticket.address) else {
            return Err(self.ticket.withdrawn());
        };
        let connection = socket()?;
        match rustix::net::connect(&connection, &address.to_socket()?) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNREFUSED) if address.is_elsewhere() => {
                let problem =
                    "the process that shares it is in another network namespace. Hint: both must be in one";
                return Err(not_shared(problem.to_owned()));
            }
            Err(Errno::CONNREFUSED) => return Err(self.ticket.withdrawn()),
            Err(error) => return Err(Error::sys("connect to the process that shares the memory", error)),
        }
        if !self.peers.include(connection.as_fd())? {
            return Err(not_shared(self.peers.stranger().to_owned()));
        }
        let header = MessageHeader { token: self.ticket.token, tag: 0, source: 0, fds: 0 };
        // A failure: they have closed the connection already.
        let sent = message::send(connection.as_fd(), &header, &self.ticket.secret, &[]);
        Ok(sent.is_ok().then_some(connection))
    }
}

fn not_shared(problem: String) -> Error {
    Error::NotShared { problem }
}

impl OfferTicket {
    /// Whom to ask. Where uids prove nothing, whoever gave out the ticket is known by its number.
    fn peers(&self) -> ChannelPeers {
        match user::uid_is_proof() {
            true => ChannelPeers::OfThisUser,
            false => ChannelPeers::Known(vec![self.process]),
        }
    }

    fn withdrawn(&self) -> Error {
        let pid = self.pid();
        not_shared(format!(
            "process {pid} no longer shares it. Hint: keep the array, or its handle, in that process until all have opened it"
        ))
    }

    fn ended(&self) -> Error {
        let pid = self.pid();
        not_shared(format!(
            "process {pid}, which shared it, has ended. Hint: keep that process until all have opened it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{eventually, fd_count, succeeds_alone};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    fn file() -> File {
        File::open("/dev/null").unwrap()
    }

    fn nothing() -> Weak<dyn Any + Send + Sync> {
        Weak::<()>::new()
    }

    fn ask_soon(ticket: &OfferTicket) -> Result<(OwnedFd, Vec<u8>)> {
        ask(ticket, &Wait::for_at_most(Duration::from_secs(20)))
    }

    fn problem<R: fmt::Debug>(asked: Result<R>) -> String {
        match asked {
            Err(Error::NotShared { problem }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tickets_travel_as_text_and_do_not_show_their_secret() {
        let offer = Offer::new(file().as_fd(), Vec::new(), nothing()).unwrap();
        let text = offer.ticket().to_string();
        assert_eq!(&text.parse::<OfferTicket>().unwrap(), offer.ticket());
        let shown = format!("{:?}", offer.ticket());
        assert!(!shown.contains(&ids::hex(&offer.ticket().secret)), "{shown}");
        for bad in ["", "::::::", &text[1..], &text[..text.len() - 1], &text.replacen(':', ";", 1)] {
            assert!(bad.parse::<OfferTicket>().is_err(), "{bad}");
        }
    }

    #[test]
    fn who_has_the_ticket_gets_the_descriptor_until_the_offer_ends() {
        let offer = Offer::new(file().as_fd(), b"hello".to_vec(), nothing()).unwrap();
        let ticket = offer.ticket().clone();
        for _ in 0..3 {
            let (fd, payload) = ask_soon(&ticket).unwrap();
            assert_eq!(payload, b"hello");
            assert_eq!(File::from(fd).metadata().unwrap().rdev(), file().metadata().unwrap().rdev());
        }
        let other = Offer::new(file().as_fd(), Vec::new(), nothing()).unwrap();
        drop(offer);
        assert!(problem(ask_soon(&ticket)).contains("no longer shares it"));
        ask_soon(other.ticket()).unwrap();
        let last = other.ticket().clone();
        drop(other);
        assert!(problem(ask_soon(&last)).contains("no longer shares it"));
    }

    #[test]
    fn a_wrong_secret_gets_nothing() {
        let offer = Offer::new(file().as_fd(), Vec::new(), nothing()).unwrap();
        let mut ticket = offer.ticket().clone();
        ticket.secret[3] ^= 1;
        assert!(problem(ask_soon(&ticket)).contains("no longer shares it"));
        let mut ticket = offer.ticket().clone();
        ticket.token[3] ^= 1;
        let soon = Wait::for_at_most(Duration::from_millis(100));
        assert!(problem(ask(&ticket, &soon)).contains("has not answered"));
        ask_soon(offer.ticket()).unwrap();
    }

    #[test]
    fn silent_and_broken_connections_keep_nobody_waiting() {
        let offer = Offer::new(file().as_fd(), Vec::new(), nothing()).unwrap();
        let to = ChannelAddress::parse(&offer.ticket().address).unwrap().to_socket().unwrap();
        let silent: Vec<OwnedFd> = (0..2 * MAX_GUESTS)
            .map(|i| {
                let socket = socket().unwrap();
                rustix::net::connect(&socket, &to).unwrap();
                if i % 3 == 0 {
                    let _ = rustix::net::send(&socket, b"nonsense", rustix::net::SendFlags::NOSIGNAL);
                }
                socket
            })
            .collect();
        ask_soon(offer.ticket()).unwrap();
        // All of them are let go, at the latest when their time is over.
        eventually("silent connections are closed", || {
            silent.iter().all(|socket| {
                matches!(message::receive(socket.as_fd(), &offer.ticket().token), ReceivedMessage::Refused)
            })
        });
        ask_soon(offer.ticket()).unwrap();
    }

    #[test]
    fn nothing_is_left_of_the_last_offer() {
        succeeds_alone("sys::channel::offer::tests::nothing_is_left_of_the_last_offer", || {
            let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
            let before = (fd_count(), threads());
            let offers = [0; 3].map(|_| Offer::new(file().as_fd(), Vec::new(), nothing()).unwrap());
            assert_eq!((fd_count(), threads()), (before.0 + 4, before.1 + 1));
            drop(offers);
            eventually("thread and sockets are gone", || (fd_count(), threads()) == before);
        });
    }

    #[test]
    fn in_the_same_process_the_source_itself_is_found() {
        let source: Arc<dyn Any + Send + Sync> = Arc::new(7u8);
        let offer = Offer::new(file().as_fd(), Vec::new(), Arc::downgrade(&source)).unwrap();
        assert!(Arc::ptr_eq(&source_here(offer.ticket()).unwrap().unwrap(), &source));
        let mut foreign = offer.ticket().clone();
        foreign.process.start_time ^= 1;
        assert!(source_here(&foreign).is_none());
        let ticket = offer.ticket().clone();
        drop(offer);
        assert!(problem(source_here(&ticket).unwrap()).contains("no longer shares it"));
    }
}
