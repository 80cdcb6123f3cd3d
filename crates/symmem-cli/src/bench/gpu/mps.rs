//! NVIDIA's multi-process service: without it, processes of one GPU take turns instead of running at the same
//! time.
//!
//! One that runs already is used as it is. One that is started here is ended by a keeper, a small shell that
//! waits for the end of this process however it comes, so that nothing stays behind even after a kill.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const CONTROL: &str = "nvidia-cuda-mps-control";
const PIPES: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
const SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const START_WITHIN: Duration = Duration::from_secs(20);
const END_WITHIN: Duration = Duration::from_secs(20);

/// Waits for the end of its input, then ends the server. A server that does not end is killed by its number.
const KEEPER: &str = r#"
cat > /dev/null
pid=$(cat "$CUDA_MPS_PIPE_DIRECTORY/$1.pid" 2> /dev/null)
echo quit | timeout 10 "$1" > /dev/null 2>&1 || { [ -n "$pid" ] && kill -9 "$pid" 2> /dev/null; }
rm -rf "$2"
"#;

/// The server, or that there is none.
pub(super) struct Mps {
    env: Vec<(String, String)>,
    keeper: Option<Child>,
    words: String,
}

impl Mps {
    /// Uses the server that runs, else starts one with its folders in `parent`; goes on without where that
    /// fails.
    pub(super) fn start(parent: &Path) -> Self {
        if let Some(pipes) = std::env::var_os(PIPES) {
            let words = format!("the MPS server of {}", pipes.display());
            return Self { env: Vec::new(), keeper: None, words };
        }
        Self::launch(CONTROL, parent).unwrap_or_else(|error| {
            let words = format!("no MPS, ranks of one GPU take turns ({error:#})");
            Self { env: Vec::new(), keeper: None, words }
        })
    }

    /// What ranks must find in their environment, for a share of `percent` of the multiprocessors.
    pub(super) fn env(&self, percent: Option<u32>) -> Vec<(String, String)> {
        let share = percent.map(|percent| (SHARE.to_owned(), percent.to_string()));
        self.env.iter().cloned().chain(share).collect()
    }

    /// In a few words, what it is.
    pub(super) fn words(&self) -> &str {
        &self.words
    }

    fn launch(control: &str, parent: &Path) -> Result<Self> {
        let folder = parent.join("mps");
        let env = [(PIPES, folder.join("pipe")), (LOGS, folder.join("log"))];
        for (_, path) in &env {
            std::fs::create_dir_all(path).with_context(|| format!("{} cannot be made", path.display()))?;
        }
        let env = env.map(|(name, path)| (name.to_owned(), path.display().to_string())).to_vec();
        let started = run(Command::new(control).arg("-d").envs(env.clone()), START_WITHIN);
        started.with_context(|| format!("{control} could not be started"))?;
        let keeper = keep(control, &folder, &env)?;
        Ok(Self { env, keeper: Some(keeper), words: "an MPS server of this run's own".to_owned() })
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let Some(mut keeper) = self.keeper.take() else { return };
        // The end of its input is the sign.
        drop(keeper.stdin.take());
        let end = Instant::now() + END_WITHIN;
        while Instant::now() < end {
            if !matches!(keeper.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
}

fn keep(control: &str, folder: &PathBuf, env: &[(String, String)]) -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", KEEPER, "sh", control]).arg(folder).envs(env.iter().cloned());
    // Its own process group: a Ctrl-C that ends this process must not end the keeper first.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("the keeper of the MPS server could not be started")
}

/// Runs a command to its end, within `limit`.
fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let end = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("it ended with {status}"),
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("it had not answered after {} s", limit.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::gpu::scratch::ScratchFolder;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_server_is_started_and_ended() {
        let scratch = ScratchFolder::new("mps");
        let (control, log) = (scratch.0.join("control"), scratch.0.join("calls"));
        // In place of the real one: says what it is asked.
        let text = format!("#!/bin/sh\necho \"$* $CUDA_MPS_PIPE_DIRECTORY $(cat)\" >> {}\n", log.display());
        std::fs::write(&control, text).expect("a script");
        std::fs::set_permissions(&control, PermissionsExt::from_mode(0o755)).expect("a program");
        let mps = Mps::launch(control.to_str().expect("UTF-8"), &scratch.0).expect("it starts");
        let names: Vec<_> = mps.env(Some(25)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [PIPES, LOGS, SHARE]);
        drop(mps);
        let pipes = scratch.0.join("mps/pipe");
        let calls = std::fs::read_to_string(&log).expect("calls");
        assert_eq!(calls, format!("-d {0} \n {0} quit\n", pipes.display()));
        assert!(!pipes.exists(), "its folder is left");
    }

    #[test]
    fn where_there_is_none_the_reason_is_told() {
        let scratch = ScratchFolder::new("no-mps");
        let error = Mps::launch("/no/such/control", &scratch.0).err().expect("no program");
        assert!(format!("{error:#}").starts_with("/no/such/control could not be started: "), "{error:#}");
    }
}
