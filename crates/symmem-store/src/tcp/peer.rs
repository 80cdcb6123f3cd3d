//! The server's side of one connection: its socket, parser and buffers.
//!
//! Only the event loop calls it. Nothing here blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;

use crate::tcp::parser::{Parser, Request, RequestError};
use crate::tcp::protocol::Query;
use crate::tcp::server::ServerLimits;

/// Bytes read per turn.
pub(crate) const CHUNK: usize = 16 << 10;
/// With more than this to send, no further request is read or carried out.
const HIGH_WATER: usize = 256 << 10;

/// Why nothing was read.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The peer will send nothing more.
    Eof,
    /// The socket failed.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    parser: Parser,
    /// What was read and not yet parsed; at most a chunk.
    inbox: Vec<u8>,
    out: Vec<u8>,
    /// Bytes of `out` that are sent.
    sent: usize,
    eof: bool,
    /// It has asked for something beside being let in.
    asked: bool,
    /// When it last sent something.
    active: Instant,
    /// What epoll watches for now.
    interest: EventFlags,
    /// What the event loop has counted for this peer.
    pub(crate) counted: usize,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A client's machine may vanish without a word; its connection must not stay for ever.
        sockopt::set_socket_keepalive(&stream, true)?;
        Ok(Self {
            stream,
            parser: Parser::default(),
            inbox: Vec::new(),
            out: Vec::new(),
            sent: 0,
            eof: false,
            asked: false,
            active: Instant::now(),
            interest: EventFlags::IN,
            counted: 0,
        })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn interest(&self) -> EventFlags {
        self.interest
    }

    pub(crate) fn validated(&self) -> bool {
        self.parser.validated()
    }

    /// Whether it has asked for something beside being let in.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked
    }

    /// When it last sent something.
    pub(crate) fn active(&self) -> Instant {
        self.active
    }

    /// Reads at most one chunk; the event loop only asks when the inbox is empty.
    pub(crate) fn read(&mut self, chunk: &mut [u8]) -> Result<(), Gone> {
        match self.stream.read(chunk) {
            Ok(0) => {
                self.eof = true;
                Err(Gone::Eof)
            }
            Ok(count) => {
                self.active = Instant::now();
                self.inbox.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) if is_transient(&error) => Ok(()),
            Err(_) => Err(Gone::Failed),
        }
    }

    /// Hands whole requests to `handle` until the inbox is empty or enough replies wait to be sent.
    pub(crate) fn handle_requests(
        &mut self,
        mut handle: impl FnMut(Request, &mut Vec<u8>) -> Result<(), RequestError>,
        limits: &ServerLimits,
    ) -> Result<(), RequestError> {
        let mut input = self.inbox.as_slice();
        while self.out.len() < HIGH_WATER {
            let Some(request) = self.parser.next(&mut input, limits)? else { break };
            self.asked |= request.query != Query::Validate;
            handle(request, &mut self.out)?;
        }
        let parsed = self.inbox.len() - input.len();
        self.inbox.drain(..parsed);
        if self.inbox.is_empty() {
            // Most connections are idle most of the time: they should cost nothing then.
            self.inbox = Vec::new();
        }
        Ok(())
    }

    pub(crate) fn push(&mut self, byte: u8) {
        self.out.push(byte);
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_transient(&error) => break,
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.out.len() {
            (self.out, self.sent) = (Vec::new(), 0);
        } else if self.sent > self.out.len() / 2 {
            // Moving less than was sent keeps the cost of moving below the cost of sending.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// There is room for another reply.
    fn has_room(&self) -> bool {
        self.out.len() < HIGH_WATER
    }

    /// Nothing will come and nothing is left to send.
    pub(crate) fn finished(&self) -> bool {
        self.eof && self.inbox.is_empty() && self.out.is_empty()
    }

    /// Requests are left over, and there is room for their replies.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.inbox.is_empty() && self.has_room()
    }

    /// Bytes buffered.
    pub(crate) fn held(&self) -> usize {
        self.parser.held() + self.inbox.len() + self.out.len()
    }

    /// What epoll should watch for, if that is new.
    pub(crate) fn changed_interest(&mut self) -> Option<EventFlags> {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, !self.eof && self.inbox.is_empty() && self.has_room());
        wanted.set(EventFlags::OUT, !self.out.is_empty());
        (std::mem::replace(&mut self.interest, wanted) != wanted).then_some(wanted)
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
