//! Developer commands: `cargo xtask test`, `lint`, `layers`, `fences`, `listings`, `compare`, `kernels`,
//! `peers`, `gpu-bundle`, `book`, `package` and `newcomer`.

mod bounded;
mod checkout;
mod commands;
mod component;
mod environment;
mod plan;
mod skips;
mod source;
mod wheel;
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
    /// Check format, clippy, docs, licences, dependency sources, and what is listed of the code.
    Lint(plan::Options),
    /// Compare the public interface and the lines with `unsafe` with the files that list them.
    Listings(commands::listings::Options),
    /// Show which room of the library imports from which, and keep the list of those that should not.
    Layers(commands::layers::Options),
    /// Show where `unsafe` code is, and keep the lists of files with `unsafe` code, system calls and waits.
    Fences(commands::fences::Options),
    /// Bench two builds in turns, count their instructions, and say what differs by more than chance.
    Compare(commands::compare::Options),
    /// Compile the CUDA kernels, check their PTX, and compare the PTX in the repository with it.
    Kernels(commands::kernels::Options),
    /// Set up the systems that `symmem bench --peers` compares symmem with.
    Peers(commands::peers::Options),
    /// Make a folder of program, GPU tests and a script, for machines with a GPU and without Rust.
    GpuBundle(commands::gpu_bundle::Options),
    /// Build the book of `docs/` with mdBook.
    Book(commands::book::Options),
    /// Make what a release uploads: the crates, the wheel and the source package of Python.
    Package(commands::package::Options),
    /// Do what a newcomer does, in a folder of its own, and say how long each step took.
    Newcomer(commands::newcomer::Options),
    /// Feed every fuzz target by what it covers (libFuzzer), and count the bytes.
    Fuzz(commands::endurance::Fuzz),
    /// Kill ranks at random moments of random work, thousands of times.
    Survey(commands::endurance::Survey),
    /// Run random operations of random groups for a long time.
    Soak(commands::endurance::Soak),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(options) => commands::test::run(&options),
        Command::Lint(options) => commands::lint::run(&options),
        Command::Listings(options) => commands::listings::run(&options),
        Command::Layers(options) => commands::layers::run(&options),
        Command::Fences(options) => commands::fences::run(&options),
        Command::Compare(options) => commands::compare::run(&options),
        Command::Kernels(options) => commands::kernels::run(&options),
        Command::Peers(options) => commands::peers::run(&options),
        Command::GpuBundle(options) => commands::gpu_bundle::run(&options),
        Command::Book(options) => commands::book::run(&options),
        Command::Package(options) => commands::package::run(&options),
        Command::Newcomer(options) => commands::newcomer::run(&options),
        Command::Fuzz(options) => commands::endurance::fuzz(&options),
        Command::Survey(options) => commands::endurance::survey(&options),
        Command::Soak(options) => commands::endurance::soak(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
