//! `symmem trace`: writes what the ranks of a job did to a file that Perfetto opens.
//!
//! Of a program that it starts, whose ranks may be started by any launcher below it: they find the tracer by
//! their environment. Or of a job that runs already, which goes on after it. The trace is written however the
//! job ends; the exit status is the job's, if it was started here.

mod perfetto;
mod rows;
mod summary;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use symmem::inspect;
use symmem::trace::Tracer;

use crate::args::TraceArgs;
use crate::inspect::{not_found, of_job};
use crate::run::How;
use crate::screen;

/// How long ranks may write before the tracer looks again: a fraction of what a ring holds of the quickest
/// operations.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs the job, and writes its trace.
pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    let path = args.out.display();
    let file = OpenOptions::new().create(true).append(true).open(&args.out);
    file.with_context(|| format!("{path} cannot be written"))?;
    // Ctrl-C reaches a job that was started here too, which has the same terminal; the tracer stays to write
    // what there was.
    let signals = Signals { interrupt: flag_of(SIGINT)?, end: flag_of(SIGTERM)? };
    let (tracer, code) = match args.program.is_empty() {
        true => (watch(args, &signals)?, ExitCode::SUCCESS),
        false => follow(args, &signals)?,
    };
    let trace = tracer.finish()?;
    let written = File::create(&args.out).map(BufWriter::new).and_then(|mut file| {
        perfetto::write(&trace, &mut file)?;
        file.flush()
    });
    written.with_context(|| format!("{path} cannot be written"))?;
    summary::print(&trace, args)?;
    Ok(code)
}

/// Whether somebody wants this program to end.
struct Signals {
    interrupt: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
}

fn flag_of(signal: i32) -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal, Arc::clone(&flag))?;
    Ok(flag)
}

/// Reads what the groups that run here, or those of the job, do, until they end or it is enough.
fn watch(args: &TraceArgs, signals: &Signals) -> Result<Tracer> {
    let groups = inspect::groups()?;
    let chosen: Vec<_> = of_job(&groups, args.job.as_deref()).into_iter().cloned().collect();
    if chosen.is_empty() {
        return Err(match &args.job {
            Some(job) => not_found(&groups, job),
            None => anyhow!("no group of this user runs here. Hint: `symmem trace -- program` starts one"),
        });
    }
    let mut tracer = Tracer::attach(&chosen)?;
    let (line, start) = (Line::new()?, Instant::now());
    while tracer.is_alive() && args.seconds.is_none_or(|seconds| start.elapsed() < seconds) {
        if signals.interrupt.load(Ordering::Relaxed) || signals.end.load(Ordering::Relaxed) {
            break;
        }
        line.read(&mut tracer)?;
        std::thread::sleep(PAUSE);
    }
    Ok(tracer)
}

/// Runs the program to its end, and reads meanwhile.
fn follow(args: &TraceArgs, signals: &Signals) -> Result<(Tracer, ExitCode)> {
    let (program, arguments) = args.program.split_first().context("there is no program to run")?;
    let mut tracer = Tracer::listen()?;
    let (variable, value) = tracer.environment();
    let job = Command::new(program).args(arguments).env(variable, value).spawn();
    let mut job = job.with_context(|| format!("{program} cannot be started"))?;
    let line = Line::new()?;
    loop {
        let ended = job.try_wait()?;
        if signals.end.swap(false, Ordering::Relaxed)
            && let Some(pid) = Pid::from_raw(job.id() as i32)
        {
            // It may have ended by itself in this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
        line.read(&mut tracer)?;
        if let Some(status) = ended {
            return Ok((tracer, How::from(status).status().into()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// A line on the terminal that says how much there is.
struct Line(ProgressBar);

impl Line {
    fn new() -> Result<Self> {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
        Ok(Self(bar))
    }

    /// Takes what has been recorded.
    fn read(&self, tracer: &mut Tracer) -> Result<()> {
        tracer.poll()?;
        let (operations, ranks) = tracer.progress();
        self.0.set_message(format!("{operations} operations of {ranks} ranks"));
        self.0.tick();
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Says a line on stderr.
fn say(text: &str) {
    eprintln!("{}", screen::paint(screen::Tone::Quiet, text));
}
