//! Developer commands: `cargo xtask test`, `cargo xtask lint` and `cargo xtask peers`.

mod bounded;
mod commands;
mod component;
mod plan;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of symmem.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every test: build, tests, loom models, ThreadSanitizer, examples, a short bench.
    Test(plan::Options),
    /// Check format, clippy, docs, licences and dependency sources.
    Lint(plan::Options),
    /// Set up the systems that `symmem bench --peers` compares symmem with.
    Peers(commands::peers::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(options) => commands::test::run(&options),
        Command::Lint(options) => commands::lint::run(&options),
        Command::Peers(options) => commands::peers::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
