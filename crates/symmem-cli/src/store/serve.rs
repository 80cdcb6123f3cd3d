//! `symmem store serve`.

use anyhow::{Context, Result};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use symmem::store::{ServerLimits, TcpStoreServer};

use crate::args::ServeArgs;
use crate::screen;

/// Serves until SIGINT or SIGTERM.
pub(super) fn serve(args: &ServeArgs) -> Result<()> {
    // Before the address is printed: who reads it may send a signal at once.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("preparing for signals")?;
    let server = TcpStoreServer::bind(&args.host, args.port, ServerLimits::default())?;
    let address = server.local_addr();
    if args.json {
        let line = json!({"host": address.ip().to_string(), "port": address.port()});
        screen::print(line.to_string())?;
    } else {
        screen::print(address.to_string())?;
    }
    signals.wait();
    Ok(())
}
