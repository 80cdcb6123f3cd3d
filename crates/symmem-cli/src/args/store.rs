//! Options of `symmem store`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::address::{self, Address};
use super::examples;
use super::run::seconds;

/// Options of `symmem store`.
#[derive(Args)]
#[command(after_help = examples::STORE)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

/// What to do with a store.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Serve a store until Ctrl-C or SIGTERM; its address is printed.
    #[command(after_help = examples::STORE_SERVE)]
    Serve(ServeArgs),
    /// Print the value of a key; exit status 1 if there is none.
    #[command(after_help = examples::STORE_GET)]
    Get(GetArgs),
    /// Set a key to a value.
    #[command(after_help = examples::STORE_SET)]
    Set(SetArgs),
    /// Add a number to the one that a key holds, 0 if there is none, and print the sum.
    #[command(after_help = examples::STORE_ADD)]
    Add(AddArgs),
    /// Print the keys, and their values if asked for.
    #[command(after_help = examples::STORE_LIST)]
    List(ListArgs),
    /// Wait until all the keys are set.
    #[command(after_help = examples::STORE_WAIT)]
    Wait(WaitArgs),
    /// Delete keys; exit status 1 if one of them did not exist.
    #[command(after_help = examples::STORE_DELETE)]
    Delete(DeleteArgs),
}

/// Options of `symmem store serve`.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Address to serve at; "*" is every one of this machine. Whoever reaches it may read and write the
    /// store.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to serve at; 0 is any free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Print the address as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which store, and how long to wait for it.
#[derive(Args)]
pub(crate) struct Target {
    /// Address of the store [default: MASTER_ADDR and MASTER_PORT of the environment].
    #[arg(long, value_name = "HOST:PORT", value_parser = address::parse)]
    pub(crate) store: Option<Address>,
    /// Seconds to wait, for the store to answer and for keys.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How values are printed.
#[derive(Args)]
pub(crate) struct Form {
    /// Values as hexadecimal digits.
    #[arg(long, conflicts_with = "json")]
    pub(crate) hex: bool,
    /// Values byte for byte as they are, without an end of line.
    #[arg(long, conflicts_with_all = ["json", "hex"])]
    pub(crate) raw: bool,
}

/// Options of `symmem store get`.
#[derive(Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) form: Form,
    /// Wait until somebody sets the key.
    #[arg(long)]
    pub(crate) wait: bool,
    /// The key.
    pub(crate) key: String,
}

/// Options of `symmem store set`.
#[derive(Args)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The value is given as hexadecimal digits.
    #[arg(long)]
    pub(crate) hex: bool,
    /// The value is "-" itself, and not what stdin holds.
    #[arg(long)]
    pub(crate) raw: bool,
    /// The key.
    pub(crate) key: String,
    /// The value; "-" is what stdin holds, byte for byte.
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: OsString,
}

/// Options of `symmem store add`.
#[derive(Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The key.
    pub(crate) key: String,
    /// What to add.
    #[arg(allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) amount: i64,
}

/// Options of `symmem store list`.
#[derive(Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print the values too.
    #[arg(long)]
    pub(crate) values: bool,
    /// Only keys that begin with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
}

/// Options of `symmem store wait`.
#[derive(Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
}

/// Options of `symmem store delete`.
#[derive(Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
}
