//! The client: a [`Store`] over a small pool of links.
//!
//! Any thread may call at any time. Each call takes an idle link or opens one, so that a thread that waits
//! for a key does not keep another from setting it. Links go back to the pool only after a complete exchange.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Fault;
use crate::tcp::link::Link;
use crate::tcp::protocol::{INIT_KEY, Message, NOT_READY, Query, READY};
use crate::tcp::server::{ServerLimits, TcpStoreServer};
use crate::{Result, Store, StoreError, Wait};

/// Idle links kept; more are opened when many threads wait at once, and closed afterwards. A server reckons
/// with 64 connections of a rank.
const MAX_IDLE: usize = 8;
/// How often a new connection is tried, in a row, when the server closed the one before.
const REPEATS: u32 = 8;
/// One attempt to connect: a name may have an address that swallows packets and another that works.
const ATTEMPT: Duration = Duration::from_secs(2);
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// How often a master counts its clients.
const COUNT_POLL: Duration = Duration::from_millis(10);

/// How [`TcpStore::open`] joins, as the arguments of PyTorch's TCPStore say it.
///
/// ```
/// use symmem_store::TcpStoreOptions;
/// let options = TcpStoreOptions { world_size: Some(4), is_master: true, ..TcpStoreOptions::default() };
/// assert!(options.wait_for_workers);
/// ```
#[derive(Clone, Debug)]
pub struct TcpStoreOptions {
    /// How many clients there will be; with it, and `wait_for_workers`, clients count themselves under
    /// `init/`.
    pub world_size: Option<usize>,
    /// Serve the store too, on the host and port given (port 0 for any).
    pub is_master: bool,
    /// Where a master serves, if that is not the host: the host is what the others connect to, and the master
    /// may know the machine by another address (NAT, a container). `*` is every interface.
    pub bind: Option<String>,
    /// Whether clients count themselves, and the master waits until all `world_size` have; on by default.
    pub wait_for_workers: bool,
    /// The limits of the server a master starts; `None` is what fits `world_size`.
    pub limits: Option<ServerLimits>,
}

impl Default for TcpStoreOptions {
    fn default() -> Self {
        Self { world_size: None, is_master: false, bind: None, wait_for_workers: true, limits: None }
    }
}

impl TcpStoreOptions {
    /// The master's server.
    fn serve(&self, host: &str, port: u16) -> Result<TcpStoreServer> {
        let fitting = || self.world_size.map_or_else(ServerLimits::default, ServerLimits::for_world);
        let limits = self.limits.clone().unwrap_or_else(fitting);
        TcpStoreServer::bind(self.bind.as_deref().unwrap_or(host), port, limits)
    }
}

/// A store that a [`TcpStoreServer`] or a PyTorch program serves. Clones share one pool of connections.
///
/// A call that returns has been carried out by the server, [`Store::set`] included. A server may close a
/// connection to make room for others. A call that only reads or waits then asks again over a new connection;
/// any other call fails, because nobody knows whether it was carried out, and the next one opens another.
///
/// ```
/// use std::time::Duration;
/// use symmem_store::{Store, TcpStore, TcpStoreOptions, Wait};
///
/// let wait = Wait::for_at_most(Duration::from_secs(5));
/// let options = TcpStoreOptions { is_master: true, ..TcpStoreOptions::default() };
/// let master = TcpStore::open("127.0.0.1", 0, &options, &wait)?;
/// let client = TcpStore::connect("127.0.0.1", master.port(), &wait)?;
/// client.set("colour", b"green", &wait)?;
/// assert_eq!(master.get("colour", &wait)?, b"green");
/// # Ok::<(), symmem_store::StoreError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TcpStore(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    /// Where a link was made first; later ones go there directly.
    addr: SocketAddr,
    idle: Mutex<Vec<Link>>,
    server: Option<Arc<TcpStoreServer>>,
}

impl TcpStore {
    /// Joins the store at `host` and `port`, trying again until it answers or the wait ends.
    pub fn connect(host: &str, port: u16, wait: &Wait<'_>) -> Result<Self> {
        Self::open(host, port, &TcpStoreOptions::default(), wait)
    }

    /// Joins, and serves if master, as PyTorch's constructor does.
    pub fn open(host: &str, port: u16, options: &TcpStoreOptions, wait: &Wait<'_>) -> Result<Self> {
        let server = options.is_master.then(|| options.serve(host, port)).transpose()?.map(Arc::new);
        // The master's own connection must not depend on how others reach this machine.
        let own = server.as_ref().map(|server| server.own_addr());
        let (addr, link) = match own {
            Some(addr) => connect_any(&addr.ip().to_string(), addr.port(), wait)?,
            None => connect_any(host, port, wait)?,
        };
        let store = Self(Arc::new(Pool { addr, idle: Mutex::new(vec![link]), server }));
        if let (true, Some(world)) = (options.wait_for_workers, options.world_size) {
            store.join(world, wait)?;
        }
        Ok(store)
    }

    /// The port of the server: the one given, or the one a master found for port 0.
    pub fn port(&self) -> u16 {
        self.0.addr.port()
    }

    /// Counts this client; a master waits for the others.
    fn join(&self, world: usize, wait: &Wait<'_>) -> Result<()> {
        let mut joined = self.call("join", &[], wait, |link| {
            link.send(&Message::new(Query::Add).bytes(INIT_KEY).i64(1), wait)?;
            link.i64(wait)
        })?;
        let expected = world as i64;
        let Some(server) = &self.0.server else { return Ok(()) };
        let served_at = server.local_addr().ip();
        let counted = wait.until(|slice| {
            thread::sleep(slice.min(COUNT_POLL));
            joined = joined.max(self.joined(wait)?);
            Ok((joined >= expected).then_some(()))
        });
        counted.map_err(|fault: Fault| match fault.error("join", &[], wait) {
            StoreError::Timeout { elapsed, .. } => {
                let loopback = served_at.is_loopback().then_some(served_at);
                StoreError::ClientsMissing { joined, expected, elapsed, loopback }
            }
            error => error,
        })
    }

    fn joined(&self, wait: &Wait<'_>) -> Result<i64> {
        let text = self.call("join", &[], wait, |link| {
            link.send(&Message::new(Query::Get).bytes(INIT_KEY), wait)?;
            link.bytes(wait)
        })?;
        Ok(String::from_utf8_lossy(&text).parse().unwrap_or(0))
    }

    /// One exchange over a link of its own.
    fn call<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        exchange: impl FnOnce(&mut Link) -> Result<T, Fault>,
    ) -> Result<T> {
        let mut link = self.link(op, wait).map_err(|fault| fault.error(op, keys, wait))?;
        let result = exchange(&mut link);
        if result.is_ok() {
            link.settle();
        }
        // A wait that was taken back properly leaves the link good, too.
        if link.in_step() {
            let mut idle = self.idle();
            if idle.len() < MAX_IDLE {
                idle.push(link);
            }
        }
        result.map_err(|fault| fault.error(op, keys, wait))
    }

    /// [`TcpStore::call`] for an `exchange` that changes nothing, and so can be repeated: if the server
    /// closed the link it is asked again over a new one. A server that is gone lets nobody in, and that is
    /// the error then.
    fn ask<T>(
        &self,
        op: &'static str,
        keys: &[&str],
        wait: &Wait<'_>,
        exchange: impl Fn(&mut Link) -> Result<T, Fault>,
    ) -> Result<T> {
        let mut closings = 0;
        loop {
            let (mut closed, start) = (false, Instant::now());
            let result = self.call(op, keys, wait, |link| {
                let result = exchange(link);
                closed = link.hung_up();
                result
            });
            // A connection that lasted for a while was not closed because of what it asked for.
            closings = if start.elapsed() > ATTEMPT { 0 } else { closings };
            if !closed || closings == REPEATS || pause(FIRST_BACKOFF * (1 << closings), wait).is_err() {
                return result;
            }
            closings += 1;
        }
    }

    /// An idle link that is still good, or a new one.
    fn link(&self, op: &'static str, wait: &Wait<'_>) -> Result<Link, Fault> {
        loop {
            let Some(mut link) = self.idle().pop() else { break };
            if link.reusable(op) {
                return Ok(link);
            }
        }
        let mut closings = 0;
        loop {
            match Link::open(self.0.addr, op, wait) {
                // A crowded server may close it before it has heard from us: nothing has been asked yet.
                Err(fault) if fault.is_hangup() && closings < REPEATS => {
                    pause(FIRST_BACKOFF * (1 << closings), wait)?;
                    closings += 1;
                }
                opened => return opened,
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Link>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request without a reply.
    fn tell(&self, op: &'static str, key: &[&str], message: Message, wait: &Wait<'_>) -> Result<()> {
        self.call(op, key, wait, |link| link.send_confirmed(message, wait))
    }
}

/// Sends WAIT and waits for its end.
fn wait_for(link: &mut Link, keys: &[&str], wait: &Wait<'_>) -> Result<(), Fault> {
    link.send(&Message::new(Query::Wait).keys(keys)?, wait)?;
    link.stop_waiting(wait)
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.tell("set", &[key], Message::new(Query::Set).key(key)?.value(value)?, wait)
    }

    fn get(&self, key: &str, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.ask("get", &[key], wait, |link| {
            wait_for(link, &[key], wait)?;
            link.send(&Message::new(Query::Get).key(key)?, wait)?;
            link.bytes(wait)
        })
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])], wait: &Wait<'_>) -> Result<()> {
        let mut message = Message::new(Query::MultiSet).count(pairs.len())?;
        for (key, value) in pairs {
            message = message.key(key)?.value(value)?;
        }
        self.tell("multi_set", &[], message, wait)
    }

    fn multi_get(&self, keys: &[&str], wait: &Wait<'_>) -> Result<Vec<Vec<u8>>> {
        self.ask("multi_get", keys, wait, |link| {
            wait_for(link, keys, wait)?;
            link.send(&Message::new(Query::MultiGet).keys(keys)?, wait)?;
            keys.iter().map(|_| link.bytes(wait)).collect()
        })
    }

    fn add(&self, key: &str, delta: i64, wait: &Wait<'_>) -> Result<i64> {
        self.call("add", &[key], wait, |link| {
            link.send(&Message::new(Query::Add).key(key)?.i64(delta), wait)?;
            link.i64(wait)
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8], wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.call("compare_set", &[key], wait, |link| {
            let message = Message::new(Query::CompareSet).key(key)?.value(expected)?.value(desired)?;
            link.send(&message, wait)?;
            link.bytes(wait)
        })
    }

    fn append(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.tell("append", &[key], Message::new(Query::Append).key(key)?.value(value)?, wait)
    }

    fn delete(&self, key: &str, wait: &Wait<'_>) -> Result<bool> {
        self.call("delete", &[key], wait, |link| {
            link.send(&Message::new(Query::Delete).key(key)?, wait)?;
            Ok(link.i64(wait)? > 0)
        })
    }

    fn check(&self, keys: &[&str], wait: &Wait<'_>) -> Result<bool> {
        self.ask("check", keys, wait, |link| {
            link.send(&Message::new(Query::Check).keys(keys)?, wait)?;
            match link.byte(wait)? {
                READY => Ok(true),
                NOT_READY => Ok(false),
                other => Err(link.protocol(format!("CHECK was answered with {other}"))),
            }
        })
    }

    fn wait(&self, keys: &[&str], wait: &Wait<'_>) -> Result<()> {
        self.ask("wait", keys, wait, |link| wait_for(link, keys, wait))
    }

    fn num_keys(&self, wait: &Wait<'_>) -> Result<i64> {
        self.ask("num_keys", &[], wait, |link| {
            link.send(&Message::new(Query::NumKeys), wait)?;
            link.i64(wait)
        })
    }

    fn list_keys(&self, wait: &Wait<'_>) -> Result<Vec<String>> {
        self.call("list_keys", &[], wait, |link| {
            link.send(&Message::new(Query::ListKeys), wait)?;
            let count = link.i64(wait)?;
            (0..count).map(|_| Ok(String::from_utf8_lossy(&link.bytes(wait)?).into_owned())).collect()
        })
    }

    fn queue_push(&self, key: &str, value: &[u8], wait: &Wait<'_>) -> Result<()> {
        self.tell("queue_push", &[key], Message::new(Query::QueuePush).key(key)?.value(value)?, wait)
    }

    fn queue_pop(&self, key: &str, block: bool, wait: &Wait<'_>) -> Result<Vec<u8>> {
        self.call("queue_pop", &[key], wait, |link| {
            loop {
                if block {
                    wait_for(link, &[key], wait)?;
                }
                link.send(&Message::new(Query::QueuePop).key(key)?, wait)?;
                if link.i64(wait)? > 0 {
                    return link.bytes(wait);
                }
                // Somebody else may have popped between our WAIT and our POP.
                if !block {
                    link.settle();
                    return Err(StoreError::QueueEmpty { key: key.to_owned() }.into());
                }
            }
        })
    }

    fn queue_len(&self, key: &str, wait: &Wait<'_>) -> Result<i64> {
        self.call("queue_len", &[key], wait, |link| {
            link.send(&Message::new(Query::QueueLen).key(key)?, wait)?;
            link.i64(wait)
        })
    }

    fn barrier(&self, key: &str, world: usize, wait: &Wait<'_>) -> Result<()> {
        self.call("barrier", &[key], wait, |link| {
            link.send(&Message::new(Query::Barrier).key(key)?.i64(world as i64), wait)?;
            link.stop_waiting(wait)
        })
    }

    fn try_clone(&self) -> Result<Arc<dyn Store>> {
        let Pool { addr, server, .. } = &*self.0;
        Ok(Arc::new(Self(Arc::new(Pool { addr: *addr, idle: Mutex::default(), server: server.clone() }))))
    }
}

/// Tries every address of `host` in turn, with growing pauses, until one answers.
fn connect_any(host: &str, port: u16, wait: &Wait<'_>) -> Result<(SocketAddr, Link)> {
    let addrs = resolve(host, port, wait)?;
    let mut backoff = FIRST_BACKOFF;
    let mut last = ErrorKind::TimedOut.into();
    loop {
        for &addr in &addrs {
            match Link::open(addr, "connect", &wait.within(ATTEMPT)) {
                Ok(link) => return Ok((addr, link)),
                // That is about this process: it does not pass by waiting for the server.
                Err(fault @ Fault::Error(StoreError::Network { .. })) if fault.is_out_of_descriptors() => {
                    return Err(fault.error("connect", &[], wait));
                }
                Err(Fault::Error(StoreError::Network { source, .. })) => last = source,
                // Either this attempt took too long, or the whole wait is over: the pause below knows.
                Err(Fault::Interrupt(_)) => {}
                Err(fault) => return Err(fault.error("connect", &[], wait)),
            }
        }
        // Jitter, so that a thousand ranks do not come back at the same moment.
        let jitter = RandomState::new().hash_one(port) % 1000;
        if let Err(interrupt) = pause(backoff.mul_f64(0.5 + jitter as f64 / 1000.0), wait) {
            return Err(match interrupt.error("connect", &[], wait) {
                StoreError::Timeout { elapsed, .. } => {
                    StoreError::Unreachable { addr: format!("{host}:{port}"), elapsed, source: last }
                }
                error => error,
            });
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

fn pause(time: Duration, wait: &Wait<'_>) -> Result<(), crate::Interrupt> {
    let end = Instant::now() + time;
    wait.until(|slice| {
        let left = end.saturating_duration_since(Instant::now());
        thread::sleep(slice.min(left));
        Ok(left.is_zero().then_some(()))
    })
}

/// The addresses of `host`. Names are looked up in a thread: a name server may take longer than the wait.
fn resolve(host: &str, port: u16, wait: &Wait<'_>) -> Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let network = |source| StoreError::Network { op: "connect", addr: format!("{host}:{port}"), source };
    let (sender, receiver) = mpsc::channel();
    let name = host.to_owned();
    let look_up = move || sender.send((name, port).to_socket_addrs().map(Vec::from_iter));
    thread::Builder::new().spawn(look_up).map_err(network)?;
    let found = wait.until(|slice| match receiver.recv_timeout(slice) {
        Ok(found) => Ok(Some(found)),
        Err(mpsc::RecvTimeoutError::Timeout) => Ok(None),
        Err(mpsc::RecvTimeoutError::Disconnected) => Ok(Some(Err(ErrorKind::Other.into()))),
    });
    let found = found.map_err(|interrupt: crate::Interrupt| interrupt.error("connect", &[host], wait))?;
    match found.map_err(network)? {
        addrs if addrs.is_empty() => Err(network(ErrorKind::AddrNotAvailable.into())),
        addrs => Ok(addrs),
    }
}
