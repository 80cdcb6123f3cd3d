//! One launch: a command with a limit on its time, and nothing left of it afterwards.
//!
//! A launcher puts its ranks wherever it likes, in sessions of their own too. So this process adopts every
//! orphan below it, and ends anything that is left once the command has ended or its time is up. At that
//! moment it has no other children but the busy loops that run beside all launches.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, waitpid,
};

use super::job::{self, LaunchJob, Output};

/// How long killed processes may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// A folder of this process for jobs and results, removed in the end.
pub(super) struct JobFolder(PathBuf);

impl JobFolder {
    /// A new one. From here on orphans come to this process.
    pub(super) fn new() -> Result<Self> {
        set_child_subreaper(Some(getpid())).context("adopting orphans")?;
        let folder = std::env::temp_dir().join(format!("symmem-bench-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        Ok(Self(folder))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for JobFolder {
    fn drop(&mut self) {
        // What stays in the folder for temporary files does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How to start a system; the names of job and results are added to the command.
pub(super) struct Launch {
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// The folder it runs in.
    pub(super) root: PathBuf,
}

impl Launch {
    /// Runs it to its end, or ends it after `limit`, and everything it started but not `spared`. The error
    /// says in one line what went wrong.
    pub(super) fn run(
        &self,
        folder: &JobFolder,
        job: &LaunchJob,
        limit: Duration,
        spared: &[Pid],
    ) -> Result<Output> {
        let (job_file, out, log) = (folder.file("job.json"), folder.file("out.json"), folder.file("log"));
        job::write(&job_file, job)?;
        // Results of the launch before must not pass for those of this one.
        let _ = fs::remove_file(&out);
        let mut child = self.start(&job_file, &out, &log)?;
        let ended = wait(&mut child, limit);
        let cleaned = end_all_children(spared);
        let status = ended?;
        cleaned?;
        let Some(status) = status else {
            bail!("it had not ended after {} s and was killed", limit.as_secs());
        };
        if !status.success() {
            bail!("it {}{}", describe(status), last_words(&log));
        }
        job::read(&out).with_context(|| format!("it left no results{}", last_words(&log)))
    }

    fn start(&self, job: &Path, out: &Path, log: &Path) -> Result<Child> {
        let (program, args) = self.command.split_first().context("its launch command is empty")?;
        let log = File::create(log).context("its log cannot be made")?;
        // Relative to its folder, unless it is to be found on the path.
        let program = if program.contains('/') { self.root.join(program) } else { program.into() };
        let mut command = Command::new(&program);
        command.args(args).arg("--job").arg(job).arg("--out").arg(out);
        command.envs(&self.env).current_dir(&self.root).process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: runs between fork and exec and makes one system call, which is safe there.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        command.spawn().with_context(|| format!("{} cannot be started", program.display()))
    }
}

/// How `child` ended, or `None` if it has not within `limit`. Sleeps all the while: the ranks need the cores.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("watching it")?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec::try_from(left).context("its time")?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("watching it"),
        }
    }
}

/// Kills and collects children of this process until none are left but `spared`: those of a killed one come
/// to this process.
fn end_all_children(spared: &[Pid]) -> Result<()> {
    let end = Instant::now() + GONE_WITHIN;
    loop {
        let mut children = children();
        children.retain(|child| !spared.contains(child));
        if children.is_empty() {
            return Ok(());
        }
        for child in children {
            // One that is gone already is as good as killed.
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        if Instant::now() > end {
            bail!("some of its processes cannot be killed");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The processes whose parent is this one, the dead among them included.
fn children() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let own = std::process::id().to_string();
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // After the name, which may hold anything: state and parent.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent == Some(own.as_str())
    };
    numbers.filter(is_child).filter_map(Pid::from_raw).collect()
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("was killed by signal {signal}"),
        None => format!("ended with exit status {}", status.code().unwrap_or(-1)),
    }
}

/// The last line of what it printed.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map(|line| format!(": {}", line.chars().take(200).collect::<String>())).unwrap_or_default()
}
