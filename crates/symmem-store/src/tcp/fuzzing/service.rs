//! What requests do, without sockets: several connections, each with its parser, on one service.
//!
//! Checked: no reply beyond the limit of a connection, nobody is woken who does not wait, the table stays
//! within its bound, and nothing is accounted for once everything was taken out.

use std::collections::HashSet;

use super::script::{CONNECTIONS, Step, greeting, steps, tight};
use crate::tcp::parser::{Parser, Request, RequestError};
use crate::tcp::protocol::Query;
use crate::tcp::server::ServerLimits;
use crate::tcp::service::{Service, Token};

/// The connection that looks at the service from within.
const INSPECTOR: Token = 1000;

pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new();
    for step in steps(bytes) {
        match step {
            Step::Send(who, bytes) => world.send(who, bytes),
            Step::Greet(who, bytes) => world.send(who, &[&greeting(), bytes].concat()),
            Step::HalfClose(who) => world.service.forget(who as Token),
            Step::Close(who) => world.close(who),
        }
    }
    world.take_everything_out();
}

struct World {
    service: Service,
    limits: ServerLimits,
    parsers: [Parser; CONNECTIONS],
    /// Every key that a request named.
    keys: HashSet<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let (service, parsers, keys) = (Service::default(), Default::default(), HashSet::new());
        Self { service, limits: tight(), parsers, keys }
    }

    fn send(&mut self, who: usize, mut input: &[u8]) {
        loop {
            match self.parsers[who].next(&mut input, &self.limits) {
                Ok(Some(request)) => {
                    if self.handle(who as Token, request).is_err() {
                        return self.close(who);
                    }
                }
                Ok(None) => return,
                Err(_) => return self.close(who),
            }
        }
    }

    fn handle(&mut self, token: Token, request: Request) -> Result<Vec<u8>, RequestError> {
        self.keys.extend(request.parts.iter().cloned());
        let mut out = Vec::new();
        let handled = self.service.handle(token, request, &mut out, &self.limits);
        // The bytes of numbers and counts are beside the limit.
        assert!(out.len() <= self.limits.max_connection_bytes + 64, "a reply of {} bytes", out.len());
        for woken in handled? {
            assert!(woken < CONNECTIONS as Token, "{woken} was woken and is nobody");
            assert_eq!(self.service.held(woken), 0, "{woken} was woken and waits");
        }
        Ok(out)
    }

    fn close(&mut self, who: usize) {
        self.service.forget(who as Token);
        self.parsers[who] = Parser::default();
        assert_eq!(self.service.held(who as Token), 0);
    }

    /// Empties the store as any client can, and asks it how much it holds.
    fn take_everything_out(mut self) {
        for who in 0..CONNECTIONS {
            self.close(who);
        }
        let keys: Vec<Vec<u8>> = self.keys.drain().collect();
        for key in keys {
            let mut ask = |query| {
                let request = Request { query, parts: vec![key.clone()], number: 0 };
                let (mut out, limits) = (Vec::new(), ServerLimits::default());
                let asked = self.service.handle(INSPECTOR, request, &mut out, &limits);
                assert_eq!(asked, Ok(Vec::new()), "{query:?}");
                out
            };
            ask(Query::Delete);
            while ask(Query::QueueLen) != [0; 8] {
                ask(Query::QueuePop);
            }
        }
        assert_eq!(self.service.stored(), 0, "an empty store holds something");
    }
}
