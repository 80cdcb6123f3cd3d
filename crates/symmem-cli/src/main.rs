//! The program `symmem`: measures symmetric memory on this machine and shows the library's settings.

mod args;
mod bench;
mod config;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use symmem::cuda::bench_support;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, CompileArgs};

fn main() -> ExitCode {
    match run(&Cli::read().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<()> {
    start_tracing()?;
    match command {
        Command::Bench(args) => bench::run(args),
        Command::BenchRank(args) => bench::run_rank(args),
        Command::BenchLoad => bench::run_load(),
        Command::BenchGpuRank => bench::run_gpu_rank(),
        Command::CompileKernels(args) => compile_kernels(args),
        Command::Tune(args) => bench::run_tune(args),
        Command::Config(args) => config::run(args),
    }
}

fn compile_kernels(args: &CompileArgs) -> Result<()> {
    for capability in &args.capability {
        bench_support::compile_engine(&args.folder, *capability)?;
    }
    Ok(())
}

/// Sends what `SYMMEM_LOG`, else `RUST_LOG`, asks for to stderr; warnings if neither is set.
fn start_tracing() -> Result<()> {
    let set = |name| std::env::var(name).ok().map(|text| (name, text));
    let (name, text) = set("SYMMEM_LOG").or_else(|| set("RUST_LOG")).unwrap_or(("", "warn".to_owned()));
    let filter = EnvFilter::try_new(&text).with_context(|| format!("{name}={text:?} is no log filter"))?;
    let terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
    Ok(())
}
