//! Starts, limits and stops the server's thread.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, getrlimit};

use crate::tcp::event_loop::EventLoop;
use crate::tcp::protocol::{MAX_KEY_LEN, MAX_KEYS, MAX_VALUE_LEN};
use crate::{Result, StoreError};

/// Names every address of the machine.
const ANYWHERE: [&str; 2] = ["*", "::"];
/// Connections of one rank: each of its threads that wait needs one, and dozens may make subgroups at once.
const PER_RANK: usize = 64;
/// Connections of whoever else has business with the store: launchers, tools, somebody who comes back.
const OTHERS: usize = 64;
/// Connections that there must be room for beside one of every rank.
const LAUNCHERS: usize = 16;
/// Most connections of a server that does not know how many ranks there are.
const UNKNOWN_WORLD: usize = 16 << 10;

/// What a server lets its clients cost it. A client beyond a limit loses its connection and nothing else.
///
/// The first three are the reference's. Memory is bounded by `max_total_bytes + max_stored_bytes`, roughly: a
/// buffer that is being filled may have twice the room that it needs.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Most keys in one request; 131072.
    pub max_keys_per_request: u64,
    /// Longest key in bytes; 8192.
    pub max_key_len: u64,
    /// Longest value in bytes; 8 MiB.
    pub max_value_len: u64,
    /// Most bytes buffered for one connection, requests, waits and replies together; 64 MiB. It also bounds
    /// the largest reply.
    pub max_connection_bytes: usize,
    /// Most bytes buffered for all connections; 1 GiB. Beyond it the connection that holds most is closed.
    pub max_total_bytes: usize,
    /// Most bytes of keys, values and queues in the store; 4 GiB. Beyond it whoever stores more is
    /// disconnected.
    pub max_stored_bytes: usize,
    /// Most connections. Beyond it the server closes one for each that comes: the one that has asked for
    /// nothing yet and has been silent for longest, else the most silent one that waits for nothing, else the
    /// one that has waited for longest. The server shares its descriptors with the rest of its process, so
    /// this is half of what `ulimit -n` says, or less. Our clients open another connection; PyTorch's do not,
    /// so leave room for all of those.
    pub max_connections: usize,
    /// How long a connection may stay without having said VALIDATE; 30 s.
    pub validate_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            max_keys_per_request: MAX_KEYS,
            max_key_len: MAX_KEY_LEN,
            max_value_len: MAX_VALUE_LEN,
            max_connection_bytes: 64 << 20,
            max_total_bytes: 1 << 30,
            max_stored_bytes: usize::try_from(4u64 << 30).unwrap_or(usize::MAX),
            max_connections: UNKNOWN_WORLD.min(descriptors() / 2),
            validate_timeout: Duration::from_secs(30),
        }
    }
}

impl ServerLimits {
    /// The limits of a server for `world` ranks: 64 connections for each and 64 more, or half of the process'
    /// descriptors if that is less. Every rank has one as long as three quarters of the descriptors are
    /// enough for that.
    pub fn for_world(world: usize) -> Self {
        let wanted = world.saturating_mul(PER_RANK).saturating_add(OTHERS);
        let most = descriptors();
        let needed = world.saturating_add(LAUNCHERS).min(most - most / 4);
        Self { max_connections: wanted.min(needed.max(most / 2)), ..Self::default() }
    }
}

/// Descriptors that this process may have.
fn descriptors() -> usize {
    let most = getrlimit(Resource::Nofile).current.and_then(|most| usize::try_from(most).ok());
    most.unwrap_or(usize::MAX)
}

/// Serves a store to [`TcpStore`](crate::TcpStore)s and PyTorch's TCPStores from one thread of its own, until
/// dropped.
///
/// ```
/// use std::time::Duration;
/// use symmem_store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};
///
/// let wait = Wait::for_at_most(Duration::from_secs(5));
/// let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default())?;
/// let store = TcpStore::connect("127.0.0.1", server.port(), &wait)?;
/// store.set("colour", b"green", &wait)?;
/// assert_eq!(store.get("colour", &wait)?, b"green");
/// # Ok::<(), symmem_store::StoreError>(())
/// ```
#[derive(Debug)]
pub struct TcpStoreServer {
    addr: SocketAddr,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    pid: u32,
}

impl TcpStoreServer {
    /// Serves on `host` and `port`, and nowhere else. `*` or `::` is every address of the machine, IPv4 and
    /// IPv6 where there is IPv6; `0.0.0.0` is every IPv4 address; `127.0.0.1` is this machine only. Port 0 is
    /// any free one.
    pub fn bind(host: &str, port: u16, limits: ServerLimits) -> Result<Self> {
        let failed = |source: io::Error| failure(&format!("{host}:{port}"), source);
        let listener = if ANYWHERE.contains(&host) {
            listen((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|error| match error.kind() {
                ErrorKind::AddrInUse => Err(error),
                _ => listen((Ipv4Addr::UNSPECIFIED, port).into()),
            })
        } else {
            listen_on_name(host, port)
        };
        Self::from_listener(listener.map_err(failed)?, limits)
    }

    /// Serves on a listener that exists already (one a launcher handed down, say).
    pub fn from_listener(listener: TcpListener, limits: ServerLimits) -> Result<Self> {
        let failed = |source: io::Error| failure("a given listener", source);
        let addr = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = eventfd(0, flags).map_err(|errno| failed(errno.into()))?;
        let mut event_loop = EventLoop::new(listener, &stop, limits).map_err(failed)?;
        let thread = thread::Builder::new().name("symmem-store".into());
        let thread = thread.spawn(move || event_loop.run()).map_err(failed)?;
        Ok(Self { addr, stop, thread: Some(thread), pid: std::process::id() })
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The address at which this process reaches it: the one it listens on, or loopback if it listens on all.
    pub fn own_addr(&self) -> SocketAddr {
        match self.addr {
            SocketAddr::V4(addr) if addr.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, addr.port()).into(),
            // Such a socket takes IPv4 too, and a machine may have no IPv6 loopback.
            SocketAddr::V6(addr) if addr.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, addr.port()).into(),
            addr => addr,
        }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        // A forked child has no such thread, and its parent's server must go on.
        if self.pid != std::process::id() {
            std::mem::forget(self.thread.take());
            return;
        }
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn failure(addr: &str, source: io::Error) -> StoreError {
    match source.kind() {
        ErrorKind::AddrInUse => StoreError::AddressInUse { addr: addr.to_owned() },
        ErrorKind::AddrNotAvailable => StoreError::AddressNotHere { addr: addr.to_owned() },
        _ => StoreError::Network { op: "serve", addr: addr.to_owned(), source },
    }
}

fn listen_on_name(host: &str, port: u16) -> io::Result<TcpListener> {
    if host.is_empty() {
        let problem = "no address is named (127.0.0.1 is this machine only, * is every interface)";
        return Err(io::Error::new(ErrorKind::InvalidInput, problem));
    }
    let mut last = ErrorKind::AddrNotAvailable.into();
    for addr in (host, port).to_socket_addrs()? {
        match listen(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// As the standard library's bind, but with the longest backlog there is, and IPv4 on IPv6 sockets.
fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let family = if addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    rustix::net::bind(&socket, &addr)?;
    rustix::net::listen(&socket, i32::MAX)?;
    Ok(socket.into())
}
