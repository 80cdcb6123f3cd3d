//! The program as its users run it.

mod bench;
mod collectives;
mod config;
mod peers;
mod program;
