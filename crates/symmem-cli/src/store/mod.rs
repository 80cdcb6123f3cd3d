//! `symmem store`: serves a store, and reads and changes any TCPStore, PyTorch's included.
//!
//! - `serve`: the server
//! - `client`: everything else
//! - `value`: values as people and programs read them

mod client;
mod serve;
mod value;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{StoreArgs, StoreCommand};

/// Runs one of the commands.
pub(crate) fn run(args: &StoreArgs) -> Result<ExitCode> {
    match &args.command {
        StoreCommand::Serve(args) => serve::serve(args)?,
        StoreCommand::Get(args) => client::get(args)?,
        StoreCommand::Set(args) => client::set(args)?,
        StoreCommand::Add(args) => client::add(args)?,
        StoreCommand::List(args) => client::list(args)?,
        StoreCommand::Wait(args) => client::wait(args)?,
        StoreCommand::Delete(args) => client::delete(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
