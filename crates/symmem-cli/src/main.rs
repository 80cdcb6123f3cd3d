//! The program `symmem`: runs jobs, looks at them, records them, measures, and knows the machine.

mod args;
mod bench;
mod child;
mod config;
mod doctor;
mod inspect;
mod pages;
mod python;
mod run;
mod screen;
mod store;
mod trace;
mod units;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use symmem::cuda::bench_support;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, CompileArgs};

fn main() -> ExitCode {
    match run(&Cli::read().command) {
        Ok(code) => code,
        // Who reads the output has seen enough: `symmem config | head -1`.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

/// Runs `command`; how the program ends. Commands that only do or do not what they are for give `()`.
fn run(command: &Command) -> Result<ExitCode> {
    start_tracing()?;
    match command {
        Command::Run(args) => return run::run(args),
        Command::Store(args) => return store::run(args),
        Command::Bench(args) => return bench::run(args),
        Command::BenchRank(args) => bench::run_rank(args)?,
        Command::BenchLoad => bench::run_load()?,
        Command::BenchGpuRank => bench::run_gpu_rank()?,
        Command::CompileKernels(args) => compile_kernels(args)?,
        Command::Tune(args) => bench::run_tune(args)?,
        Command::Trace(args) => return trace::run(args),
        Command::Config(args) => config::run(args)?,
        Command::Inspect(args) => return inspect::run(args),
        Command::Completions(args) => pages::run_completions(args)?,
        Command::Man(args) => pages::run_man(args)?,
        Command::Doctor(args) => return doctor::run(args),
        Command::DoctorPart(args) => doctor::run_part(args.part)?,
    }
    Ok(ExitCode::SUCCESS)
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
    let filter = EnvFilter::try_new(&text).with_context(|| format!("{name}={text:?} is not a log filter"))?;
    let terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
    Ok(())
}
