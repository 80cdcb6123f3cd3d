//! The server's thread: one epoll, all connections non-blocking.
//!
//! Each turn serves each ready connection one bounded chunk, so nobody waits behind a greedy neighbour. A
//! connection that does not read its replies is not read from either, and whatever a connection does wrong
//! ends that connection only.
//!
//! The server lives in a rank's process and shares its descriptors, so connections are limited, and each one
//! that comes beyond the limit costs another its place (`make_room`). Strangers that ask for nothing go
//! first, however many they are: a client of ours asks for something as soon as it is let in, and a quarter
//! of the places is left to those that were let in last. Then go those that have been idle for longest and
//! wait for nothing: a client's pool notices and opens another. Who waits goes last, and asks again. Who has
//! only just been heard from does not go yet: those who come stay in the backlog meanwhile. So a crowd costs
//! our clients time. It costs them a call only where a connection is closed under a call that changes
//! something (a barrier, say), and so cannot be repeated.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use crate::tcp::peer::{CHUNK, Gone, Peer};
use crate::tcp::protocol::STOP_WAITING;
use crate::tcp::server::ServerLimits;
use crate::tcp::service::{Service, Token};

const LISTENER: Token = 0;
const STOP: Token = 1;
const FIRST_PEER: Token = 2;

/// Connections accepted per turn, so that a flood of them does not starve those who are in.
const ACCEPTS_PER_TURN: usize = 64;
/// What part of its connections a server accepts in one turn at most, so that it reads from those before
/// others come.
const TURN_SHARE: usize = 4;
/// How long a connection keeps its place when all are taken and somebody wants in: one that waits, if all
/// others wait too, so that they take turns; and one that waits for nothing, because its next request may be
/// on its way.
const WAITERS_TURN: Duration = Duration::from_secs(1);
const IDLERS_TURN: Duration = Duration::from_millis(100);
/// How long accepting rests when the process is out of descriptors or memory.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What a connection is good for, in the order in which connections are closed when there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It has asked for nothing yet.
    Silent,
    /// It has asked for something, and waits for nothing.
    Idle,
    /// It waits for a key or a barrier.
    Waiting,
}

/// A connection that may have to go. The least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Victim {
    standing: Standing,
    /// When it last sent something.
    active: Instant,
    token: Token,
}

#[derive(Debug)]
pub(crate) struct EventLoop {
    epoll: OwnedFd,
    listener: TcpListener,
    limits: ServerLimits,
    service: Service,
    peers: HashMap<Token, Peer>,
    next_token: Token,
    /// What all peers hold together.
    total: usize,
    /// When each new connection must have said VALIDATE, oldest first.
    unvalidated: VecDeque<(Instant, Token)>,
    /// Accepting rests until then.
    accept_again: Option<Instant>,
    /// It last rested because all connections were taken.
    rested: bool,
    /// Connections with requests left over from an earlier chunk.
    backlog: HashSet<Token>,
    chunk: Vec<u8>,
}

impl EventLoop {
    /// The loop ends when `stop` becomes readable.
    pub(crate) fn new(listener: TcpListener, stop: &OwnedFd, limits: ServerLimits) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        Ok(Self {
            epoll,
            listener,
            limits,
            service: Service::default(),
            peers: HashMap::new(),
            next_token: FIRST_PEER,
            total: 0,
            unvalidated: VecDeque::new(),
            accept_again: None,
            rested: false,
            backlog: HashSet::new(),
            chunk: vec![0; CHUNK],
        })
    }

    /// Serves until told to stop.
    pub(crate) fn run(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            events.clear();
            let timeout = self.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "the store's server stops: epoll failed"),
            }
            let backlog = std::mem::take(&mut self.backlog);
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => self.accept(),
                    token => self.ready(token, event.flags),
                }
            }
            backlog.into_iter().for_each(|token| self.serve(token));
            self.keep_time();
        }
    }

    /// How long the next epoll may sleep.
    fn timeout(&self) -> Option<Duration> {
        if !self.backlog.is_empty() {
            return Some(Duration::ZERO);
        }
        let validate = self.unvalidated.front().map(|(deadline, _)| *deadline);
        let next = [self.accept_again, validate].into_iter().flatten().min()?;
        // A millisecond more: epoll may round down, and waking too early is waking twice.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Drops connections that never said VALIDATE, and accepts again after a rest.
    fn keep_time(&mut self) {
        let now = Instant::now();
        while let Some(&(deadline, token)) = self.unvalidated.front() {
            let waits = self.peers.get(&token).is_some_and(|peer| !peer.validated());
            if waits && deadline > now {
                break;
            }
            self.unvalidated.pop_front();
            if waits {
                self.close(token, "no VALIDATE in time");
            }
        }
        if self.accept_again.is_some_and(|at| at <= now) {
            self.accept_again = None;
            self.listen(EventFlags::IN);
        }
    }

    fn listen(&self, flags: EventFlags) {
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags) {
            tracing::warn!(%error, "the store's server cannot watch its listener");
        }
    }

    fn accept(&mut self) {
        for _ in 0..self.newcomers() {
            if let Some(until) = self.full_until() {
                return self.rest_until(until);
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client gave up before we came to it.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    // Out of descriptors, most likely: the listener stays readable, so look away for a while.
                    tracing::warn!(%error, "the store's server cannot accept");
                    return self.rest_until(Instant::now() + ACCEPT_REST);
                }
            }
        }
    }

    /// Accepts nobody until then.
    fn rest_until(&mut self, until: Instant) {
        self.accept_again = Some(until);
        self.listen(EventFlags::empty());
    }

    fn admit(&mut self, stream: TcpStream) {
        let token = self.next_token;
        self.next_token += 1;
        let peer = Peer::new(stream).and_then(|peer| {
            epoll::add(&self.epoll, peer.socket(), EventData::new_u64(token), peer.interest())?;
            Ok(peer)
        });
        let peer = match peer {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%error, "the store's server cannot watch a connection"),
        };
        // A timeout too long for the clock is none.
        if let Some(deadline) = Instant::now().checked_add(self.limits.validate_timeout) {
            self.unvalidated.push_back((deadline, token));
        }
        self.peers.insert(token, peer);
        self.make_room();
    }

    /// Closes what is beyond the limit on connections, those who need theirs least first.
    fn make_room(&mut self) {
        while self.peers.len() > self.limits.max_connections.max(1) {
            let Some(victim) = self.least_needed() else { return };
            self.close(victim.token, "one too many");
        }
    }

    /// The connection whose loss costs least.
    fn least_needed(&self) -> Option<Victim> {
        let mut idlest: [Option<Victim>; 3] = [None; 3];
        let mut silent = 0;
        for (&token, peer) in &self.peers {
            let standing = match (peer.has_asked(), self.service.waits(token)) {
                (false, _) => Standing::Silent,
                (true, false) => Standing::Idle,
                (true, true) => Standing::Waiting,
            };
            silent += usize::from(standing == Standing::Silent);
            let this = Victim { standing, active: peer.active(), token };
            let found = &mut idlest[standing as usize];
            *found = Some(found.map_or(this, |other| other.min(this)));
        }
        let [stranger, idle, waiting] = idlest;
        // The last few silent ones may just not have been read from.
        let many = stranger.filter(|_| silent > self.newcomers());
        many.or(idle).or(waiting).or(stranger)
    }

    /// Until when nobody is let in: all connections are taken, and whoever would have to go has only just
    /// been heard from.
    fn full_until(&mut self) -> Option<Instant> {
        // Once per rest, so that somebody is let in however lively all the others are.
        if std::mem::take(&mut self.rested) || self.peers.len() < self.limits.max_connections {
            return None;
        }
        let victim = self.least_needed()?;
        let turn = match victim.standing {
            Standing::Silent => return None,
            Standing::Idle => IDLERS_TURN,
            Standing::Waiting => WAITERS_TURN,
        };
        let until = victim.active + turn;
        self.rested = until > Instant::now();
        self.rested.then_some(until)
    }

    /// Connections that the server accepts in one turn, and that may be without a request.
    fn newcomers(&self) -> usize {
        (self.limits.max_connections / TURN_SHARE).clamp(1, ACCEPTS_PER_TURN)
    }

    /// Epoll reported `token`.
    fn ready(&mut self, token: Token, flags: EventFlags) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            return self.close(token, "hung up");
        }
        if flags.contains(EventFlags::IN) {
            match peer.read(&mut self.chunk) {
                Ok(()) => {}
                Err(Gone::Failed) => return self.close(token, "failed"),
                // Half-closed: it may still want its replies, but a wait of its own can only be a dead
                // client's.
                Err(Gone::Eof) => self.service.forget(token),
            }
        }
        self.serve(token);
    }

    /// Carries out what `token` has asked for, as far as its replies leave room, and sends what there is to
    /// send.
    fn serve(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let mut woken = Vec::new();
        let served = peer.handle_requests(
            |request, out| {
                woken.extend(self.service.handle(token, request, out, &self.limits)?);
                Ok(())
            },
            &self.limits,
        );
        // Even a request that costs its sender the connection may have ended others' waits before.
        for waiter in woken {
            if let Some(peer) = self.peers.get_mut(&waiter) {
                peer.push(STOP_WAITING);
            }
            self.settle(waiter);
        }
        match served {
            Ok(()) => self.settle(token),
            Err(refusal) => self.close(token, &refusal.to_string()),
        }
    }

    /// Sends what `token` is owed, then watches it for what it needs next and accounts for what it holds.
    fn settle(&mut self, token: Token) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        if peer.flush().is_err() {
            return self.close(token, "failed");
        }
        if peer.finished() {
            return self.close(token, "done");
        }
        let held = peer.held() + self.service.held(token);
        if held > self.limits.max_connection_bytes {
            return self.close(token, "holds too much");
        }
        self.total = self.total - peer.counted + held;
        peer.counted = held;
        if peer.has_backlog() {
            self.backlog.insert(token);
        }
        if let Some(flags) = peer.changed_interest() {
            let data = EventData::new_u64(token);
            if epoll::modify(&self.epoll, peer.socket(), data, flags).is_err() {
                return self.close(token, "cannot be watched");
            }
        }
        while self.total > self.limits.max_total_bytes {
            let Some((&largest, _)) = self.peers.iter().max_by_key(|(_, peer)| peer.counted) else { return };
            self.close(largest, "holds most of too much");
        }
    }

    fn close(&mut self, token: Token, why: &str) {
        let Some(mut peer) = self.peers.remove(&token) else { return };
        // What it was owed before it went wrong, if the socket takes it at once.
        let _ = peer.flush();
        tracing::debug!(token, why, "the store's server closes a connection");
        self.total -= peer.counted;
        self.service.forget(token);
        // Explicitly: a forked child may hold the socket too, and closing ours would not end the watch.
        let _ = epoll::delete(&self.epoll, peer.socket());
    }
}
