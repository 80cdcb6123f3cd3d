//! `symmem trace`: starts a job and writes what its ranks did to a file that Perfetto opens.
//!
//! The ranks may be started by any launcher below the program: they find the tracer by their environment. The trace is written
//! however the job ends; the exit status is the job's.

mod perfetto;
mod summary;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use symmem::trace::Tracer;

use crate::args::TraceArgs;
use crate::screen;

/// How long ranks may write before the tracer looks again: a fraction of what a ring holds of the quickest operations.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs the job, and writes its trace.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    let path = args.out.display();
    let file = OpenOptions::new().create(true).append(true).open(&args.out);
    file.with_context(|| format!("{path} cannot be written"))?;
    let mut tracer = Tracer::listen()?;
    let status = follow(args, &mut tracer)?;
    let trace = tracer.finish()?;
    let written = File::create(&args.out).map(BufWriter::new).and_then(|mut file| {
        perfetto::write(&trace, &mut file)?;
        file.flush()
    });
    written.with_context(|| format!("{path} cannot be written"))?;
    summary::print(&trace, args)?;
    Ok(exit_code(status))
}

/// Runs the program to its end, and reads meanwhile.
fn follow(args: &TraceArgs, tracer: &mut Tracer) -> Result<ExitStatus> {
    let (program, arguments) = args.program.split_first().context("there is no program to run")?;
    // Ctrl-C reaches the job too, which has the same terminal; the tracer stays to write what there was.
    let (interrupted, ended_by) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    signal_hook::flag::register(SIGINT, interrupted)?;
    signal_hook::flag::register(SIGTERM, Arc::clone(&ended_by))?;
    let (variable, value) = tracer.environment();
    let job = Command::new(program).args(arguments).env(variable, value).spawn();
    let mut job = job.with_context(|| format!("{program} cannot be started"))?;
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    loop {
        let ended = job.try_wait()?;
        if ended_by.swap(false, Ordering::Relaxed)
            && let Some(pid) = Pid::from_raw(job.id() as i32)
        {
            // It may have ended by itself in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
        tracer.poll()?;
        let (operations, ranks) = tracer.progress();
        bar.set_message(format!("{operations} operations of {ranks} ranks"));
        bar.tick();
        if let Some(status) = ended {
            bar.finish_and_clear();
            return Ok(status);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The job's exit status as this program's: 128 and the signal for one that was killed, as a shell says it.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(code.clamp(0, 255) as u8)
}

/// `ns` nanoseconds, for people.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Says a line on stderr.
fn say(text: &str) {
    eprintln!("{}", screen::paint(screen::Tone::Quiet, text));
}
