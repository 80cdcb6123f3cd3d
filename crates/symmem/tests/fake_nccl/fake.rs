//! The fake NCCL: how a test comes to run on it, and what it tells.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

use crate::cuda;

/// Runs `body` in a new process of the test `name`, whose CUDA driver and NCCL are the fake ones, with `vars`
/// set.
pub(crate) fn run(name: &str, vars: &[(&str, &str)], body: impl FnOnce()) {
    let library = path();
    let library = library.to_str().expect("a path that is text");
    let mut all = vec![("SYMMEM_NCCL_LIBRARY", library)];
    all.extend(vars);
    cuda::run(name, &all, body);
}

/// Where cargo has put a library: beside this program.
pub(crate) fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let library = program.parent().expect("a folder with programs").join(name);
    assert!(library.exists(), "{} is not there", library.display());
    library
}

/// The fake NCCL.
pub(crate) fn path() -> PathBuf {
    beside("libsymmem_fakenccl.so")
}

/// The functions of the fake NCCL that the real one does not have.
struct Control {
    fail: extern "C" fn(u64),
    failed: extern "C" fn() -> bool,
    live: extern "C" fn(u32) -> i64,
    log: extern "C" fn() -> *const c_char,
    make_fail: extern "C" fn(*mut c_void),
}

fn control() -> &'static Control {
    static CONTROL: OnceLock<Control> = OnceLock::new();
    CONTROL.get_or_init(|| {
        // SAFETY: the library is ours, and the types are those of its functions. It is never unloaded.
        unsafe {
            let library = Library::new(path()).expect("the fake NCCL");
            let control = Control {
                fail: *library.get(b"fakenccl_fail").expect("it is the fake NCCL"),
                failed: *library.get(b"fakenccl_failed").expect("it is the fake NCCL"),
                live: *library.get(b"fakenccl_live").expect("it is the fake NCCL"),
                log: *library.get(b"fakenccl_log").expect("it is the fake NCCL"),
                make_fail: *library.get(b"fakenccl_break").expect("it is the fake NCCL"),
            };
            std::mem::forget(library);
            control
        }
    })
}

/// Makes the `n`-th call of this thread from now on fail; 0: none.
pub(crate) fn fail(n: u64) {
    (control().fail)(n);
}

/// Lets the communicator with this handle fail beside its calls, as when another rank is gone.
pub(crate) fn make_fail(raw: *mut c_void) {
    (control().make_fail)(raw);
}

/// Whether a call was made to fail since the last [`fail`].
pub(crate) fn failed() -> bool {
    (control().failed)()
}

/// Communicators, windows and allocations that are alive.
pub(crate) fn live() -> [i64; 3] {
    [0, 1, 2].map(|kind| (control().live)(kind))
}

/// Things done in an order that NCCL suffers from.
pub(crate) fn violations() -> i64 {
    (control().live)(3)
}

/// The calls of all threads since this was last asked.
pub(crate) fn log() -> Vec<String> {
    let text = (control().log)();
    assert!(!text.is_null());
    // SAFETY: a terminated string that is never freed.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.lines().map(str::to_owned).collect()
}

/// Where in the log a call is.
pub(crate) fn place(log: &[String], call: &str) -> usize {
    log.iter().position(|line| line == call).unwrap_or_else(|| panic!("no {call} in {log:?}"))
}
