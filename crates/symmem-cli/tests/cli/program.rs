//! Runs the built program and waits for it, but not for ever.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

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
    Running::start(args, env).end()
}

/// The same under what a shell can set before it becomes the program: `ulimit -n 64`.
pub(crate) fn symmem_after(setup: &str, args: &[&str], env: &[(&str, &str)]) -> Outcome {
    let script = format!("{setup} && exec \"$0\" \"$@\"");
    finish(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_symmem")]).args(args), env)
}

/// Runs `command` to its end.
pub(crate) fn finish(command: &mut Command, env: &[(&str, &str)]) -> Outcome {
    Running::of(command, env).end()
}

/// The program while it runs. It is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Text,
    stderr: Text,
}

impl Running {
    /// Starts `symmem` with `args` and these environment variables.
    pub(crate) fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::of(Command::new(env!("CARGO_BIN_EXE_symmem")).args(args), env)
    }

    /// Starts `command` with these environment variables.
    fn of(command: &mut Command, env: &[(&str, &str)]) -> Self {
        let mut child = command
            .env("RUST_BACKTRACE", "1")
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take();
        let stdout = Text::of(child.stdout.take().expect("piped"));
        let stderr = Text::of(child.stderr.take().expect("piped"));
        Self { child, stdin, stdout, stderr }
    }

    /// Writes to its stdin.
    pub(crate) fn say(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        stdin.write_all(text.as_bytes()).expect("the program reads");
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program runs");
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// What it has printed so far.
    pub(crate) fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// Closes its stdin and waits for its end.
    pub(crate) fn end(mut self) -> Outcome {
        drop(self.stdin.take());
        Outcome { code: wait(&mut self.child), stdout: self.stdout.all(), stderr: self.stderr.all() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its exit code, once it has ended by itself; none if a signal ended it.
pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status.code();
        }
        assert!(start.elapsed() < LIMIT, "the program did not end within {LIMIT:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What comes out of a pipe.
struct Text {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Text {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                kept.lock().expect("nobody panics").extend_from_slice(&chunk[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8(self.bytes.lock().expect("nobody panics").clone()).expect("UTF-8")
    }

    fn all(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("bytes");
        }
        self.so_far()
    }
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
