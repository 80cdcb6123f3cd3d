//! Runs a command that cannot outlive its deadline.
//!
//! The command leads its own process group, and the whole group is killed when the leader ends, when the time
//! is up, or when the developer presses Ctrl-C: a hanging test never leaves ranks spinning in the background.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How often a wait looks for Ctrl-C. The end of the command itself is seen at once.
const TICK: Duration = Duration::from_millis(200);

/// How long output is waited for after the command has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs `command` to its end; an error if it does not exit with 0 before `deadline`.
pub(crate) fn run(command: &mut Command, deadline: Instant) -> Result<()> {
    finish(command, deadline).map(drop)
}

/// What `command` printed; for the few lines of a `--version`, not for more than a pipe holds.
pub(crate) fn output(command: &mut Command, deadline: Instant) -> Result<String> {
    let mut group = finish(command.stdout(Stdio::piped()).stderr(Stdio::null()), deadline)?;
    let mut text = String::new();
    if let Some(pipe) = &mut group.leader.stdout {
        pipe.read_to_string(&mut text).context("its output is not text")?;
    }
    Ok(text)
}

/// Runs `command` as [`run`] does; `show` gets every line that it prints, and says whether it is printed here
/// too.
pub(crate) fn run_watched(
    command: &mut Command,
    deadline: Instant,
    show: impl Fn(&str) -> bool + Send + 'static,
) -> Result<()> {
    let (reader, writer) = io::pipe().context("there is no pipe for the output")?;
    command.stdout(writer);
    let (told, all_read) = mpsc::channel();
    thread::spawn(move || {
        pass_on(BufReader::new(reader), show);
        // Nobody listens any more if it took too long.
        let _ = told.send(());
    });
    let result = run(command, deadline);
    // The command has the other end of the pipe until then.
    command.stdout(Stdio::null());
    // A process that left the command's group may keep the pipe open.
    let _ = all_read.recv_timeout(LAST_WORDS);
    result
}

/// Prints the lines that `show` lets through.
fn pass_on(mut lines: impl BufRead, show: impl Fn(&str) -> bool) {
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        if show(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])) {
            // Without anybody who reads it, the tests still count.
            let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
        }
        line.clear();
    }
}

/// Whether this program was asked to end.
pub(crate) fn is_interrupted() -> bool {
    interrupted().is_ok_and(|flag| flag.load(Ordering::Relaxed))
}

fn finish(command: &mut Command, deadline: Instant) -> Result<Group> {
    let shown = show(command);
    let started = Instant::now();
    let mut group = Group::start(command).with_context(|| format!("`{shown}` could not be started"))?;
    match group.wait(deadline).with_context(|| format!("`{shown}` could not be waited for"))? {
        End::Exited(status) if status.success() => Ok(group),
        End::Exited(status) => bail!("`{shown}` failed ({status})"),
        End::TimeIsUp => {
            bail!("`{shown}` was killed after {} s: its time was up", started.elapsed().as_secs())
        }
        End::Interrupted => bail!("`{shown}` was killed: interrupted"),
    }
}

/// How a command ended.
enum End {
    Exited(ExitStatus),
    TimeIsUp,
    Interrupted,
}

/// A running command and everything it started that stayed in its process group.
struct Group {
    leader: Child,
    reaped: bool,
}

impl Group {
    fn start(command: &mut Command) -> io::Result<Self> {
        // Before the child exists: a Ctrl-C in between must not leave it orphaned.
        interrupted()?;
        let leader = command.process_group(0).stdin(Stdio::null()).spawn()?;
        Ok(Self { leader, reaped: false })
    }

    fn wait(&mut self, deadline: Instant) -> io::Result<End> {
        let pidfd = pidfd_open(Pid::from_child(&self.leader), PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if readable(&pidfd, left.min(TICK))? {
                return Ok(End::Exited(self.kill_and_reap()?));
            }
            if interrupted()?.load(Ordering::Relaxed) {
                return Ok(End::Interrupted);
            }
            if left.is_zero() {
                return Ok(End::TimeIsUp);
            }
        }
    }

    /// Until the leader is reaped its group id cannot be given to anybody else: kill first.
    fn kill_and_reap(&mut self) -> io::Result<ExitStatus> {
        let killed = kill_process_group(Pid::from_child(&self.leader), Signal::KILL);
        let status = self.leader.wait()?;
        self.reaped = true;
        match killed {
            Ok(()) | Err(Errno::SRCH) => Ok(status),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.kill_and_reap();
        }
    }
}

fn readable(fd: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether this program was asked to end. The first call installs the handlers.
fn interrupted() -> io::Result<&'static AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag);
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(FLAG.get_or_init(|| flag))
}

/// The command as a person would type it.
fn show(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={:?}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    variables.chain([program]).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn within(limit: Duration) -> Instant {
        Instant::now() + limit
    }

    fn message(result: Result<()>) -> String {
        format!("{:#}", result.expect_err("the command must not succeed"))
    }

    /// Runs `script` (which gets a file name as `$0` and writes a pid into it); returns that pid and the
    /// result.
    fn pid_written_by(name: &str, script: &str, limit: Duration) -> (u32, Result<()>) {
        let file = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        let mut command = shell(script);
        command.arg(&file);
        let result = run(&mut command, within(limit));
        let pid = fs::read_to_string(&file).expect("the script wrote its child's pid");
        fs::remove_file(&file).expect("the file is ours");
        (pid.trim().parse().expect("a pid"), result)
    }

    /// A killed process may stay a zombie until init reaps it; a zombie runs no more.
    fn is_gone(pid: u32) -> bool {
        let limit = within(Duration::from_secs(10));
        while Instant::now() < limit {
            match fs::read_to_string(format!("/proc/{pid}/stat")) {
                Ok(stat) if !stat.contains(") Z ") => std::thread::sleep(Duration::from_millis(5)),
                _ => return true,
            }
        }
        false
    }

    #[test]
    fn a_command_that_exits_with_zero_passes() {
        run(&mut shell("exit 0"), within(Duration::from_secs(60))).expect("exit 0 passes");
    }

    #[test]
    fn the_output_of_a_command_is_returned() {
        let text = output(&mut shell("echo one; echo two >&2"), within(Duration::from_secs(60)));
        assert_eq!(text.expect("echo passes"), "one\n");
    }

    #[test]
    fn a_watched_command_shows_every_line_to_the_watcher_also_the_last_one_without_an_end() {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let lines = Arc::clone(&seen);
        let watch = move |line: &str| {
            lines.lock().expect("nobody panics").push(line.to_owned());
            false
        };
        let result =
            run_watched(&mut shell("echo one; printf two; exit 3"), within(Duration::from_secs(60)), watch);
        assert!(message(result).ends_with("failed (exit status: 3)"));
        assert_eq!(*seen.lock().expect("nobody panics"), ["one", "two"]);
    }

    #[test]
    fn a_watched_command_does_not_wait_for_a_daemon_that_keeps_its_output() {
        let started = Instant::now();
        let script = "setsid sleep 60 & echo $! > $0";
        let file = std::env::temp_dir().join(format!("xtask-daemon-{}", std::process::id()));
        let result = run_watched(shell(script).arg(&file), within(Duration::from_secs(60)), |_| false);
        let pid = fs::read_to_string(&file).expect("the script wrote its child's pid");
        fs::remove_file(&file).expect("the file is ours");
        let pid = Pid::from_raw(pid.trim().parse().expect("a pid")).expect("a pid");
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        result.expect("the leader exits with 0");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_failing_command_is_named_with_its_status() {
        let error = message(run(&mut shell("exit 3"), within(Duration::from_secs(60))));
        assert_eq!(error, "`sh -c exit 3` failed (exit status: 3)");
    }

    #[test]
    fn a_missing_program_is_a_clear_error() {
        let error = message(run(&mut Command::new("/no/such/program"), within(Duration::from_secs(60))));
        assert!(error.starts_with("`program` could not be started: "), "{error}");
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let script = "sleep 600 & echo $! > $0; wait";
        let (child, result) = pid_written_by("hang", script, Duration::from_secs(1));
        assert!(message(result).ends_with("its time was up"));
        assert!(is_gone(child), "process {child} still runs");
    }

    #[test]
    fn children_left_behind_by_a_command_that_passed_are_killed() {
        let script = "sleep 600 & echo $! > $0";
        let (child, result) = pid_written_by("left", script, Duration::from_secs(60));
        result.expect("the leader exits with 0");
        assert!(is_gone(child), "process {child} still runs");
    }

    #[test]
    fn a_deadline_in_the_past_kills_at_once() {
        let error = message(run(&mut shell("sleep 600"), Instant::now()));
        assert!(error.ends_with("was killed after 0 s: its time was up"), "{error}");
    }
}
