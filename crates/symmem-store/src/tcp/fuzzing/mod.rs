//! Any bytes into the TCP store: its parser, what requests do, and its server.

pub(crate) mod parser;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod service;
