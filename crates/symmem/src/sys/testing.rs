//! What the tests of this module share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything a test waits for when all is well.
pub(super) const LONG: Duration = Duration::from_secs(20);

const ALONE: &str = "SYMMEM_TEST_ALONE";

/// Runs `body` in a process of its own, for tests that count fds, fork, or change the process. `name` is the
/// full name of the calling test. Returns what the process said, or `None` inside of it.
pub(super) fn alone(name: &str, body: impl FnOnce()) -> Option<Output> {
    alone_with(name, &[], body)
}

/// [`alone`], with environment variables.
pub(super) fn alone_with(name: &str, vars: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var(ALONE).as_deref() == Ok(name) {
        body();
        return None;
    }
    let mut command = rerun(name);
    command.env(ALONE, name).envs(vars.iter().copied());
    Some(finish(command, LONG * 3))
}

/// As [`alone`], and the body must succeed there.
pub(super) fn succeeds_alone(name: &str, body: impl FnOnce()) {
    let Some(out) = alone(name, body) else { return };
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && said.contains("1 passed"), "{name}:\n{said}");
    print!("{said}");
}

/// This program, running only the test `name`.
pub(super) fn rerun(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs `command` to its end, or kills it after `limit`.
pub(super) fn finish(mut command: Command, limit: Duration) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > limit {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// Open fds of this process.
pub(super) fn fd_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until `condition` holds.
pub(super) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A folder that goes away with its owner.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let id = super::ids::hex(&super::ids::random::<8>().unwrap());
        let path = std::env::temp_dir().join(format!("symmem-test-{id}"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file below the folder.
    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
