//! One client connection: connect, handshake, and bounded reads and writes.
//!
//! A link is used by one call at a time. All waiting goes through [`Wait::until`]; a call that ended in the
//! middle of an exchange leaves the link out of step, and the pool drops it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::Fault;
use crate::tcp::protocol::{MAGIC, Message, Query, STOP_WAITING, WAIT_CANCELED};
use crate::{StoreError, Wait};

/// Bytes asked of the socket at a time.
const CHUNK: usize = 16 << 10;
/// The longest string a server may answer with; appended values can be longer than any one value may be.
const MAX_REPLY: u64 = 1 << 30;
/// How long a server may take to confirm that a wait is cancelled; after that the link is dropped, which
/// cancels it too.
const CANCEL_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    addr: String,
    /// The call that uses the link, for errors.
    op: &'static str,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are consumed.
    used: usize,
    /// No answer is outstanding, so another call may use the link.
    in_step: bool,
    /// The server has closed it.
    hung_up: bool,
    pid: u32,
}

impl Link {
    /// Connects to `addr` and shakes hands.
    pub(crate) fn open(addr: SocketAddr, op: &'static str, wait: &Wait<'_>) -> Result<Self, Fault> {
        let network = |source| StoreError::Network { op, addr: addr.to_string(), source };
        let stream = dial(addr, wait, &network)?;
        let pid = std::process::id();
        let (buffer, used) = (Vec::new(), 0);
        let addr = addr.to_string();
        let mut link = Self { stream, addr, op, buffer, used, in_step: false, hung_up: false, pid };
        // One write, VALIDATE's five bytes first: PyTorch's server wants them in one read.
        let hello = Message::new(Query::Validate).u32(MAGIC).then(ping(pid));
        let greeted = link.send(&hello, wait).and_then(|()| link.pong(wait));
        if greeted.is_err() && link.hung_up {
            return Err(network(ErrorKind::UnexpectedEof.into()).into());
        }
        greeted?;
        link.in_step = true;
        Ok(link)
    }

    /// Ready for the call `op`: nobody is owed an answer, and no other process holds the same socket.
    pub(crate) fn reusable(&mut self, op: &'static str) -> bool {
        self.op = op;
        // Readable while idle means closed by the server, or out of step.
        self.in_step && self.pid == std::process::id() && matches!(self.ready(PollFlags::IN, None), Ok(false))
    }

    /// The exchange is complete.
    pub(crate) fn settle(&mut self) {
        self.in_step = self.used == self.buffer.len();
    }

    pub(crate) fn in_step(&self) -> bool {
        self.in_step
    }

    /// Whether a call found that the server has closed the link.
    pub(crate) fn hung_up(&self) -> bool {
        self.hung_up
    }

    pub(crate) fn send(&mut self, message: &Message, wait: &Wait<'_>) -> Result<(), Fault> {
        self.in_step = false;
        let mut rest = message.as_bytes();
        while !rest.is_empty() {
            let sent = self.attempt(PollFlags::OUT, wait, |link| link.stream.write(rest))?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Sends a request that has no reply, and a PING behind it. Its echo proves that the server has carried
    /// the request out: without it a later call over another link could overtake, and a refusal would go
    /// unnoticed.
    pub(crate) fn send_confirmed(&mut self, message: Message, wait: &Wait<'_>) -> Result<(), Fault> {
        self.send(&message.then(ping(self.pid)), wait)?;
        self.pong(wait)
    }

    fn pong(&mut self, wait: &Wait<'_>) -> Result<(), Fault> {
        match u32::from_le_bytes(self.array(wait)?) {
            nonce if nonce == self.pid => Ok(()),
            other => Err(self.protocol(format!("PING was answered with {other:#x}"))),
        }
    }

    pub(crate) fn byte(&mut self, wait: &Wait<'_>) -> Result<u8, Fault> {
        self.array(wait).map(|[byte]| byte)
    }

    pub(crate) fn i64(&mut self, wait: &Wait<'_>) -> Result<i64, Fault> {
        self.array(wait).map(i64::from_le_bytes)
    }

    /// A length and so many bytes; memory grows with what arrives, not with what is announced.
    pub(crate) fn bytes(&mut self, wait: &Wait<'_>) -> Result<Vec<u8>, Fault> {
        let len = u64::from_le_bytes(self.array(wait)?);
        if len > MAX_REPLY {
            return Err(self.protocol(format!("a reply of {len} bytes was announced")));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let unread = self.fill(wait)?;
            let now = unread.len().min(len as usize - bytes.len());
            bytes.extend_from_slice(&unread[..now]);
            self.used += now;
        }
        Ok(bytes)
    }

    /// Waits for the answer to a WAIT or BARRIER; if the wait ends first, takes it back.
    pub(crate) fn stop_waiting(&mut self, wait: &Wait<'_>) -> Result<(), Fault> {
        match self.byte(wait) {
            Ok(STOP_WAITING) => Ok(()),
            Ok(other) => Err(self.protocol(format!("a wait was answered with {other}"))),
            Err(Fault::Interrupt(interrupt)) => match self.cancel_wait() {
                // It ended just before it was taken back: then it ended well.
                Ok(true) => Ok(()),
                // A failure to cancel costs the link; what ended the wait is the better error.
                Ok(false) | Err(_) => Err(interrupt.into()),
            },
            Err(fault) => Err(fault),
        }
    }

    /// Takes the outstanding wait back; true if its answer had been sent already.
    fn cancel_wait(&mut self) -> Result<bool, Fault> {
        let wait = Wait::for_at_most(CANCEL_PATIENCE);
        self.send(&Message::new(Query::CancelWait), &wait)?;
        let first = self.byte(&wait)?;
        let last = if first == STOP_WAITING { self.byte(&wait)? } else { first };
        if last != WAIT_CANCELED {
            return Err(self.protocol(format!("CANCEL_WAIT was answered with {last}")));
        }
        self.settle();
        Ok(first == STOP_WAITING)
    }

    fn array<const N: usize>(&mut self, wait: &Wait<'_>) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        let mut have = 0;
        while have < N {
            let unread = self.fill(wait)?;
            let now = unread.len().min(N - have);
            array[have..have + now].copy_from_slice(&unread[..now]);
            have += now;
            self.used += now;
        }
        Ok(array)
    }

    /// What has arrived and is not consumed; waits until that is something.
    fn fill(&mut self, wait: &Wait<'_>) -> Result<&[u8], Fault> {
        if self.used == self.buffer.len() {
            self.buffer.resize(CHUNK, 0);
            let read = self.attempt(PollFlags::IN, wait, |link| link.stream.read(&mut link.buffer));
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            self.used = 0;
            if read? == 0 {
                return Err(self.closed());
            }
        }
        Ok(&self.buffer[self.used..])
    }

    /// Tries `io` until the socket lets it through.
    fn attempt<T>(
        &mut self,
        flags: PollFlags,
        wait: &Wait<'_>,
        mut io: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> Result<T, Fault> {
        wait.until(|slice| {
            if !slice.is_zero() {
                self.ready(flags, Some(slice)).map_err(|source| self.network(source))?;
            }
            match io(self) {
                Ok(value) => Ok(Some(value)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    Ok(None)
                }
                Err(error) if is_hangup(&error) => Err(self.closed()),
                Err(error) => Err(self.network(error)),
            }
        })
    }

    fn ready(&self, flags: PollFlags, slice: Option<Duration>) -> io::Result<bool> {
        ready(&self.stream, flags, slice.unwrap_or_default())
    }

    fn network(&self, source: io::Error) -> Fault {
        StoreError::Network { op: self.op, addr: self.addr.clone(), source }.into()
    }

    pub(crate) fn protocol(&self, problem: String) -> Fault {
        StoreError::Protocol { op: self.op, addr: self.addr.clone(), problem }.into()
    }

    /// The server hung up. For some requests there is a likely reason.
    fn closed(&mut self) -> Fault {
        self.hung_up = true;
        let hint = match self.op {
            "add" => "the value may not be a decimal number",
            "barrier" | "list_keys" | "queue_push" | "queue_pop" | "queue_len" => {
                "the server may be too old to know it"
            }
            "multi_get" | "multi_set" => "it may be beyond the server's limits",
            _ => return self.network(ErrorKind::UnexpectedEof.into()),
        };
        self.protocol(format!("the connection was closed in answer to the request ({hint}, or it stopped)"))
    }
}

fn ping(pid: u32) -> Message {
    Message::new(Query::Ping).u32(pid)
}

fn is_hangup(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}

fn ready(fd: impl AsFd, flags: PollFlags, slice: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(slice).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    match poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A connected non-blocking socket.
fn dial(
    addr: SocketAddr,
    wait: &Wait<'_>,
    network: &impl Fn(io::Error) -> StoreError,
) -> Result<TcpStream, Fault> {
    let failed = |errno: Errno| network(errno.into());
    let family = if addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    match rustix::net::connect(&socket, &addr) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            wait.until(|slice| match ready(&socket, PollFlags::OUT, slice) {
                Ok(connected) => Ok::<_, Fault>(connected.then_some(())),
                Err(error) => Err(network(error).into()),
            })?;
            sockopt::socket_error(&socket).and_then(|result| result).map_err(failed)?;
        }
        Err(errno) => return Err(failed(errno).into()),
    }
    sockopt::set_tcp_nodelay(&socket, true).map_err(failed)?;
    let stream = TcpStream::from(socket);
    // A connect to a free port of this machine can meet itself; nobody serves there.
    if stream.local_addr().is_ok_and(|local| local == addr) {
        return Err(network(ErrorKind::ConnectionRefused.into()).into());
    }
    Ok(stream)
}
