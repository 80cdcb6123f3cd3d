//! A command with a limit on its time, and everything that it said.
//!
//! `symmem doctor` runs what may hang or crash this way. What it guarantees: it returns soon after the limit;
//! the command and its process group are killed by then, and the command also if this process dies.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

/// How often the child is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// How long the rest of its output is waited for, which a process that left its group may keep open.
const REST: Duration = Duration::from_millis(200);

/// What became of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How it ended; none if its time was up.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Whether it ended in time and well.
    pub(crate) fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, in words that follow "it".
    pub(crate) fn words(&self, limit: Duration) -> String {
        match self.status.map(|status| (status.signal(), status.code())) {
            None => format!("had not ended after {} s and was killed", limit.as_secs()),
            Some((Some(signal), _)) => format!("was killed by signal {signal}"),
            Some((None, code)) => format!("ended with exit status {}", code.unwrap_or(-1)),
        }
    }

    /// The last line that it wrote to stderr, or none.
    pub(crate) fn last_words(&self) -> Option<&str> {
        self.stderr.lines().rev().map(str::trim).find(|line| !line.is_empty())
    }
}

/// Runs `command` to its end, or kills it after `limit`. An error only if it cannot be started.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: runs between fork and exec and makes one system call, which is safe there.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
    let mut child = command.spawn()?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, limit)?;
    if status.is_none() {
        // Before the child is collected: its number is that of the group, and nobody else's until then.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
    let end = Instant::now() + REST;
    Ok(Ended { status, stdout: collect(&stdout, end), stderr: collect(&stderr, end) })
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > end {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// Sends what comes out of `pipe`, piece by piece, until its end.
fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut piece) {
            if sender.send(piece[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

fn collect(pipe: &Receiver<Vec<u8>>, end: Instant) -> String {
    let mut bytes = Vec::new();
    while let Ok(piece) = pipe.recv_timeout(end.saturating_duration_since(Instant::now())) {
        bytes.extend(piece);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), limit).expect("a shell")
    }

    #[test]
    fn output_and_status_come_back() {
        let ended = shell("echo out; echo one >&2; echo two >&2; exit 3", LONG);
        assert_eq!((ended.stdout.as_str(), ended.last_words()), ("out\n", Some("two")));
        assert!(!ended.is_good());
        assert_eq!(ended.words(LONG), "ended with exit status 3");
        assert_eq!(shell("kill -9 $$", LONG).words(LONG), "was killed by signal 9");
    }

    #[test]
    fn much_output_does_not_stop_it() {
        assert_eq!(shell("head -c 1000000 /dev/zero", LONG).stdout.len(), 1_000_000);
    }

    #[test]
    fn what_hangs_is_killed_with_what_it_started() {
        let start = Instant::now();
        let limit = Duration::from_millis(300);
        let ended = shell("echo here; sleep 1000 & echo $! >&2; wait", limit);
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!((ended.status, ended.stdout.as_str()), (None, "here\n"));
        let pid = ended.last_words().expect("a number").to_owned();
        let end = Instant::now() + Duration::from_secs(30);
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while is_running() {
            assert!(Instant::now() < end, "it is still there");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(run(&mut Command::new("/no/such/program"), LONG).is_err());
    }
}
