//! A store over TCP that speaks PyTorch's TCPStore protocol, client and server.
//!
//! [`TcpStore`] joins a store that a PyTorch program or a [`TcpStoreServer`] serves; [`TcpStoreServer`]
//! serves either kind of client. The protocol has no framing: a byte for the kind of request, then its
//! fields, integers little-endian, strings as a u64 length and bytes. It is neither encrypted nor
//! authenticated; serve it on networks you trust.
//!
//! - `protocol`: the numbers both sides agree on, and how a request is written
//! - `link`: one client connection
//! - `client`: the store, a pool of links
//! - `parser`: requests out of a byte stream
//! - `peer`: the server's side of one connection
//! - `service`: what requests do, without sockets
//! - `event_loop`: the server's thread
//! - `server`: how it is started, limited and stopped

mod client;
mod event_loop;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod link;
mod parser;
mod peer;
mod protocol;
mod server;
mod service;

pub use client::{TcpStore, TcpStoreOptions};
pub use server::{ServerLimits, TcpStoreServer};
