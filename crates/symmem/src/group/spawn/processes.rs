//! Ranks as processes: this program, started again `n` times.
//!
//! The launcher serves the store and sets the environment as `torchrun` does, plus the name of the call. A
//! child runs the program from its start until it comes to the call of that name, is a rank there, sends its
//! result through a pipe (`sys/pipe.rs`), and exits: nothing after the call runs in it. Children die with
//! their launcher (`PR_SET_PDEATHSIG`).

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use symmem_store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};

use super::launcher::ATTEMPT;
use super::threads::is_secondary;
use super::{Launcher, Pin, Placement, RankFailure, Seat, first_failure, panic_message};
use crate::config::{Config, SPAWN_NAME as NAME};
use crate::group::Group;
use crate::group::env::world_boot;
use crate::group::join::{GONE, Gone};
use crate::sys::pipe::{self, LauncherPipe, Writing};
use crate::{Error, Result};

const RESULT_FD: &str = "SYMMEM_SPAWN_RESULT_FD";
/// How many launchers there are above a rank, and how many there may be.
const DEPTH: &str = "SYMMEM_SPAWN_DEPTH";
const MOST_DEPTH: usize = 3;

/// What a child sends back.
#[derive(Serialize, Deserialize)]
enum Report<R> {
    Done(R),
    Failed { message: String, secondary: bool },
}

/// Runs `f` on `n` ranks, each a new process that runs this program again, and returns their results in rank
/// order.
///
/// The program must come to this call again when it is started with the same arguments, before it does
/// anything that must not happen `n` more times. Inside `cargo test`, `name` must be the test's full name
/// (optionally followed by `#` and a word, to tell several calls of one test apart); the child then runs that
/// test only, up to this call.
///
/// `f` is the child's own: what it captures is what the child computed on its way here. Use
/// [`ProcessSpawner::env`] to hand something over.
///
/// The ranks' math libraries are told to take their share of the cores ([`Placement`]), unless the
/// environment already says how many threads they take.
///
/// ```no_run
/// let pids = symmem::spawn_processes("pids", 4, |_group| Ok(std::process::id()))?;
/// assert_eq!(pids.len(), 4);
/// # Ok::<(), symmem::Error>(())
/// ```
pub fn spawn_processes<R, F>(name: &str, n: usize, f: F) -> Result<Vec<R>>
where
    R: Serialize + DeserializeOwned,
    F: FnOnce(Group) -> Result<R>,
{
    ProcessSpawner::new(name, n).run(f)
}

/// [`spawn_processes`] with more to set.
#[derive(Clone, Debug)]
pub struct ProcessSpawner {
    name: String,
    ranks: usize,
    env: Vec<(String, String)>,
    pin: Option<Pin>,
}

impl ProcessSpawner {
    /// `ranks` processes for the call `name`.
    pub fn new(name: &str, ranks: usize) -> Self {
        Self { name: name.to_owned(), ranks, env: Vec::new(), pin: None }
    }

    /// Sets an environment variable of the ranks.
    pub fn env(mut self, variable: &str, value: impl ToString) -> Self {
        self.env.push((variable.to_owned(), value.to_string()));
        self
    }

    /// Keeps each rank on cores of its own.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Runs `f` on every rank; the first failure is the error. In a rank's process this does not return.
    pub fn run<R, F>(&self, f: F) -> Result<Vec<R>>
    where
        R: Serialize + DeserializeOwned,
        F: FnOnce(Group) -> Result<R>,
    {
        self.run_each(f).and_then(|results| {
            let mut failures = Vec::new();
            let mut done = Vec::new();
            for (rank, result) in results {
                match result {
                    Ok(result) => done.push((rank, result)),
                    Err(failure) => failures.push(failure),
                }
            }
            done.sort_by_key(|(rank, _)| *rank);
            match first_failure(failures) {
                Some(error) => Err(error),
                None => Ok(done.into_iter().map(|(_, result)| result).collect()),
            }
        })
    }

    /// Runs `f` on every rank and returns each rank's own outcome, in rank order: for tests that expect some
    /// to die.
    pub fn run_all<R, F>(&self, f: F) -> Result<Vec<Result<R>>>
    where
        R: Serialize + DeserializeOwned,
        F: FnOnce(Group) -> Result<R>,
    {
        let mut results = self.run_each(f)?;
        results.sort_by_key(|(rank, _)| *rank);
        let outcome = |result: Result<R, RankFailure>| {
            result.map_err(|failure| Error::Spawned { rank: failure.rank, message: failure.message })
        };
        Ok(results.into_iter().map(|(_, result)| outcome(result)).collect())
    }

    /// Every rank's outcome, in the order in which they ended.
    fn run_each<R, F>(&self, f: F) -> Result<Vec<(usize, Result<R, RankFailure>)>>
    where
        R: Serialize + DeserializeOwned,
        F: FnOnce(Group) -> Result<R>,
    {
        if let Some(pipe) = self.pipe_of_a_rank()? {
            run_as_rank(pipe, f);
        }
        let depth = self.depth()?;
        let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::for_world(self.ranks))?;
        let placement = Placement::new(self.ranks, self.pin)?;
        placement.say(self.ranks);
        let launcher = Launcher::new("127.0.0.1", server.port(), placement)?;
        // Warns of misspelt settings, once for all ranks. Settings that are wrong are the ranks' errors.
        let _ = Config::from_env();
        // All start before any is waited for; if one cannot, dropping the others' `RankProcess` kills them.
        let ranks: Result<Vec<RankProcess>> =
            (0..self.ranks).map(|rank| self.start(rank, depth, &launcher)).collect();
        let ended = Mutex::new(Vec::new());
        let (run, port) = (launcher.run_id(), server.port());
        thread::scope(|scope| {
            for rank in ranks? {
                let ended = &ended;
                // Only raw bytes cross threads, so that `R` need not be `Send`.
                scope.spawn(move || {
                    let pid = rank.child.id();
                    let outcome = rank.wait();
                    if outcome.1.is_empty() {
                        tell_the_others(port, run, Gone { rank: outcome.0, pid });
                    }
                    ended.lock().unwrap_or_else(|poison| poison.into_inner()).push(outcome);
                });
            }
            Ok::<(), Error>(())
        })?;
        let ended = ended.into_inner().unwrap_or_else(|poison| poison.into_inner());
        Ok(ended
            .into_iter()
            .map(|(rank, report, status)| (rank, read_report(rank, &report, &status)))
            .collect())
    }

    /// The report's pipe, if this process is a rank of this call. A process that a rank has started has the
    /// rank's environment, but not its pipe: it is no rank.
    fn pipe_of_a_rank(&self) -> Result<Option<Writing>> {
        if std::env::var(NAME).ok().as_deref() != Some(&*self.name) {
            return Ok(None);
        }
        match std::env::var(RESULT_FD) {
            Ok(name) => Writing::inherited(&name),
            Err(_) => Ok(None),
        }
    }

    /// How many launchers there are above the ranks of this call, itself included. A program whose ranks
    /// never come to their own call, but to another one first, would start ranks without end: it is stopped
    /// here.
    fn depth(&self) -> Result<usize> {
        let depth = std::env::var(DEPTH).ok().and_then(|depth| depth.parse::<usize>().ok()).unwrap_or(0) + 1;
        if depth <= MOST_DEPTH {
            return Ok(depth);
        }
        let problem = format!(
            "ranks that start ranks, {MOST_DEPTH} times over. Hint: a rank runs this program again and must come to the call \
             {:?} before any other; in a test, make it on the thread of the test, which bears its name",
            self.name
        );
        Err(Error::invalid("spawn", problem))
    }

    fn start(&self, rank: usize, depth: usize, launcher: &Launcher) -> Result<RankProcess> {
        let program = std::env::current_exe().map_err(|error| Error::sys("finding this program", error))?;
        let (reader, writer) = pipe::new()?;
        let mut command = Command::new(program);
        command
            .env(NAME, &self.name)
            .env(RESULT_FD, writer.name()?)
            .env(DEPTH, depth.to_string())
            .envs(self.env.iter().map(|(variable, value)| (variable, value)))
            .stdin(Stdio::null());
        match self.test_name() {
            Some(test) => {
                command.args([test, "--exact", "--nocapture", "--test-threads=1"]).stdout(Stdio::null())
            }
            None => command.args(std::env::args_os().skip(1)),
        };
        let ranks = self.ranks;
        launcher.prepare(&mut command, Seat { rank, world: ranks, local_rank: rank, local_world: ranks });
        writer.hand_down(&mut command);
        let child = command.spawn().map_err(|error| Error::sys("starting a rank's process", error))?;
        Ok(RankProcess { rank, child, reader })
    }

    /// The test this call is part of, when the program is a test harness.
    fn test_name(&self) -> Option<&str> {
        let test = self.name.split('#').next().unwrap_or(&self.name);
        let one_thread = std::env::var("RUST_TEST_THREADS").is_ok_and(|threads| threads == "1")
            || std::env::args().any(|argument| argument == "--test-threads=1");
        let in_harness = thread::current().name() == Some(test) || (one_thread && test.contains("::"));
        in_harness.then_some(test)
    }
}

/// Tells ranks that are still joining that they wait in vain. Best effort: without it they time out.
fn tell_the_others(port: u16, run: &str, gone: Gone) {
    let wait = Wait::for_at_most(Duration::from_secs(1));
    let key = format!("{}/{GONE}", world_boot(run, ATTEMPT));
    if let (Ok(store), Ok(value)) = (TcpStore::connect("127.0.0.1", port, &wait), serde_json::to_vec(&gone)) {
        // The first death is the cause.
        let _ = store.compare_set(&key, b"", &value, &wait);
    }
}

/// A started process. Dropping it kills what still runs.
struct RankProcess {
    rank: usize,
    child: Child,
    reader: LauncherPipe,
}

impl RankProcess {
    /// Its report and how it ended.
    fn wait(mut self) -> (usize, Vec<u8>, String) {
        let report = self.reader.until_it_ends(&mut self.child);
        let status = match self.child.wait() {
            Ok(status) => match status.signal() {
                Some(signal) => format!("killed by signal {signal}"),
                None => format!("exited with {} without a result", status.code().unwrap_or(-1)),
            },
            Err(error) => format!("lost: {error}"),
        };
        (self.rank, report, status)
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_report<R: DeserializeOwned>(rank: usize, report: &[u8], status: &str) -> Result<R, RankFailure> {
    match serde_json::from_slice(report) {
        Ok(Report::Done(result)) => Ok(result),
        Ok(Report::Failed { message, secondary }) => Err(RankFailure { rank, message, secondary }),
        Err(_) => Err(RankFailure { rank, message: status.to_owned(), secondary: false }),
    }
}

/// The child's part: be a rank, report, and end.
fn run_as_rank<R, F>(mut pipe: Writing, f: F) -> !
where
    R: Serialize,
    F: FnOnce(Group) -> Result<R>,
{
    let rank = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| f(Group::from_env()?)));
    let report = match outcome {
        Ok(Ok(result)) => Report::Done(result),
        Ok(Err(error)) => {
            Report::Failed { secondary: is_secondary(&error, rank), message: error.to_string() }
        }
        Err(panic) => Report::Failed { message: panic_message(&*panic), secondary: false },
    };
    let failed = !matches!(report, Report::Done(_));
    let sent =
        serde_json::to_vec(&report).map_err(std::io::Error::other).and_then(|bytes| pipe.write_all(&bytes));
    drop(pipe);
    std::process::exit(i32::from(failed || sent.is_err()))
}
