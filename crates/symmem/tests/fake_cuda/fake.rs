//! The fake driver: how a test comes to run on it, and what it tells.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use libloading::Library;

/// Says which test the process runs on the fake driver.
const TEST: &str = "SYMMEM_TEST_ON_FAKE_CUDA";
/// Names the file that says that the test has run.
const RAN: &str = "SYMMEM_TEST_RAN";
/// Longer than any test takes, whatever goes wrong: all waits in it end after [`WAIT`] seconds.
const LIMIT: Duration = Duration::from_secs(240);
const WAIT: &str = "20";

/// Runs `body` in a new process of the test `name`, whose CUDA driver is the fake one, with `vars` set.
pub(crate) fn run(name: &str, vars: &[(&str, &str)], body: impl FnOnce()) {
    // One test may run several times, with other variables.
    let mark = format!("{name} {vars:?}");
    match std::env::var(TEST) {
        Ok(running) if running == mark => {
            body();
            return std::fs::write(ran(), name).expect("a file for the parent");
        }
        // On the way to another run of the same test.
        Ok(_) => return,
        Err(_) => {}
    }
    let folder = Folder::new();
    let library = library();
    for link in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        symlink(&library, folder.0.join(link)).expect("a link to the fake driver");
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(TEST, mark)
        .env("LD_LIBRARY_PATH", &folder.0)
        .env("SYMMEM_NVRTC_LIBRARY", &library)
        .env("SYMMEM_CUBLASLT_LIBRARY", &library)
        .env("SYMMEM_CACHE_DIR", "off")
        .env("SYMMEM_TIMEOUT", WAIT)
        // Small, so that the many repetitions are quick.
        .env("FAKECUDA_GRANULARITY", "65536")
        .envs(vars.iter().copied())
        .stdin(Stdio::null());
    command.env(RAN, folder.0.join("ran"));
    wait(command.spawn().expect("the test program starts"), name);
    // A name of no test runs nothing, and ends well.
    assert!(folder.0.join("ran").exists(), "{name} did not run to its end");
}

/// The file that is there when the test has run.
fn ran() -> PathBuf {
    std::env::var_os(RAN).expect("the parent's variable").into()
}

fn wait(mut child: Child, name: &str) {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            assert!(status.success(), "{name} failed on the fake driver: {status}");
            return;
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name} hangs on the fake driver");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Where cargo has put the library: beside this program.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folder = program.parent().expect("a folder with programs");
    let library = folder.join("libsymmem_fakecuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// A folder that goes away with its owner.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos();
        let path = std::env::temp_dir().join(format!("symmem-fake-cuda-{}-{now}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}

/// The functions of the fake driver that the real one does not have.
struct Control {
    fail: extern "C" fn(u64),
    failed: extern "C" fn() -> *const c_char,
    live: extern "C" fn(u32) -> i64,
    launched: extern "C" fn() -> *const c_char,
    launched_word: extern "C" fn(u32) -> u64,
    calls: extern "C" fn() -> u64,
    hold: extern "C" fn(bool),
}

fn control() -> &'static Control {
    static CONTROL: OnceLock<Control> = OnceLock::new();
    CONTROL.get_or_init(|| {
        // SAFETY: the library is ours, and the types are those of its functions. It is never unloaded.
        unsafe {
            let library = Library::new("libcuda.so").expect("the fake driver");
            let control = Control {
                fail: *library.get(b"fakecuda_fail").expect("it is the fake driver"),
                failed: *library.get(b"fakecuda_failed").expect("it is the fake driver"),
                live: *library.get(b"fakecuda_live").expect("it is the fake driver"),
                launched: *library.get(b"fakecuda_launched").expect("it is the fake driver"),
                launched_word: *library.get(b"fakecuda_launched_word").expect("it is the fake driver"),
                calls: *library.get(b"fakecuda_calls").expect("it is the fake driver"),
                hold: *library.get(b"fakecuda_hold").expect("it is the fake driver"),
            };
            std::mem::forget(library);
            control
        }
    })
}

/// Makes the `n`-th driver call of this thread from now on fail; 0: none.
pub(crate) fn fail(n: u64) {
    (control().fail)(n);
}

/// How many driver calls this thread has made.
pub(crate) fn calls() -> u64 {
    (control().calls)()
}

/// Lets no work end that is given from now on; false: all of it has ended.
pub(crate) fn hold(hold: bool) {
    (control().hold)(hold);
}

/// The call that was made to fail since the last [`fail`].
pub(crate) fn failed() -> Option<String> {
    let name = (control().failed)();
    // SAFETY: null or a constant string.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The kernel that this thread launched last.
pub(crate) fn launched() -> String {
    // SAFETY: a string that stays until this thread's next launch.
    unsafe { CStr::from_ptr((control().launched)()) }.to_string_lossy().into_owned()
}

/// The `index`-th word of that kernel's parameter.
pub(crate) fn launched_word(index: u32) -> u64 {
    (control().launched_word)(index)
}

/// What is alive in this process, in the order of `control::Kind`.
#[derive(Clone)]
pub(crate) struct Live(Vec<i64>);

const KINDS: [&str; 12] = [
    "fds",
    "handles",
    "ranges",
    "mappings",
    "bindings",
    "allocations",
    "registered",
    "streams",
    "events",
    "modules",
    "graphs",
    "contexts",
];

/// How many of them, the first ones, are memory that is exchanged.
const MEMORY: usize = 5;

/// Calls that give something back, or that are made on the way to that.
const GIVING_BACK: [&str; 7] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
];

impl Live {
    pub(crate) fn now() -> Self {
        Self((0..KINDS.len() as u32).map(|kind| (control().live)(kind)).collect())
    }

    /// How many events there are.
    pub(crate) fn events(&self) -> i64 {
        self.0[8]
    }

    /// How much memory there is that is exchanged.
    pub(crate) fn memory(&self) -> i64 {
        self.0[..MEMORY].iter().sum()
    }

    /// Whether nothing is left that was not there `before`, but for what a `call` that gives back and failed
    /// left behind.
    pub(crate) fn is_as(&self, before: &Self, call: &str) -> bool {
        let left = |kinds: std::ops::Range<usize>| -> i64 {
            kinds.map(|kind| (self.0[kind] - before.0[kind]).abs()).sum()
        };
        let memory = match call {
            // A handle, and the descriptor behind it.
            "cuMemRelease" => left(0..2) == 2 && left(2..MEMORY) == 0,
            _ => left(0..MEMORY) == 0,
        };
        // Streams, events and so on that could not be given back, or whose context could not be made current
        // for it.
        memory && left(MEMORY..KINDS.len()) <= i64::from(GIVING_BACK.contains(&call))
    }

    /// Nothing of memory that is exchanged is left.
    pub(crate) fn has_no_memory(&self) -> bool {
        self.0[..MEMORY].iter().all(|count| *count == 0)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(KINDS.iter().zip(&self.0)).finish()
    }
}

/// Things done in an order that real drivers suffer from.
pub(crate) fn violations() -> i64 {
    (control().live)(13)
}

/// Uses, by replays of graphs, of what was given back since it was captured.
pub(crate) fn stale() -> i64 {
    (control().live)(18)
}

/// Imports of this process so far: by descriptor, by fabric handle.
pub(crate) fn imports() -> (i64, i64) {
    ((control().live)(15), (control().live)(14))
}

/// Physical memory that this process has made so far: without GPUDirect RDMA, with it.
pub(crate) fn made() -> (i64, i64) {
    ((control().live)(17), (control().live)(16))
}
