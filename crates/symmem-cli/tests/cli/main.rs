//! The program as its users run it.

mod bench;
mod config;
mod program;
