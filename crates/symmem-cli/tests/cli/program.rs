//! Runs the built program and waits for it, but not for ever.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// How a run of the program ended.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// The outcome of a run that must have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// The complaint of a run that must have failed: a sentence, and not a word about the program's insides.
    pub(crate) fn complaint(self) -> String {
        assert!(self.code.is_some_and(|code| code != 0), "code {:?}", self.code);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked") && !self.stderr.contains("backtrace"), "{}", self.stderr);
        self.stderr
    }
}

/// Runs `symmem` with `args` and these environment variables.
pub(crate) fn symmem(args: &[&str], env: &[(&str, &str)]) -> Outcome {
    finish(Command::new(env!("CARGO_BIN_EXE_symmem")).args(args), env)
}

/// The same under what a shell can set before it becomes the program: `ulimit -n 64`.
pub(crate) fn symmem_after(setup: &str, args: &[&str], env: &[(&str, &str)]) -> Outcome {
    let script = format!("{setup} && exec \"$0\" \"$@\"");
    finish(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_symmem")]).args(args), env)
}

/// Runs `command` to its end.
pub(crate) fn finish(command: &mut Command, env: &[(&str, &str)]) -> Outcome {
    let mut child = command
        .env("RUST_BACKTRACE", "1")
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let stdout = drain(child.stdout.take().expect("piped"));
    let stderr = drain(child.stderr.take().expect("piped"));
    let code = wait(&mut child);
    Outcome { code, stdout: stdout.join().expect("text"), stderr: stderr.join().expect("text") }
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("UTF-8");
        text
    })
}

fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("a running child can be killed");
    panic!("the program did not end within {LIMIT:?}");
}

/// A file of this test's own, removed at its end.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl TempFile {
    /// A name nobody else uses; there is no such file yet.
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("symmem-cli-{}-{name}", std::process::id())))
    }

    /// The name as an argument.
    pub(crate) fn arg(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

/// A folder of this test's own, removed at its end.
pub(crate) struct TempFolder(pub(crate) PathBuf);

impl TempFolder {
    /// An empty one.
    pub(crate) fn new(name: &str) -> Self {
        let TempFile(path) = &TempFile::new(name);
        std::fs::create_dir_all(path).expect("a new folder");
        Self(path.clone())
    }

    /// The name as an argument.
    pub(crate) fn arg(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("a new file");
    }

    /// The text of a file in it, empty if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // A test that failed early has made none.
        let _ = std::fs::remove_file(&self.0);
    }
}
