//! What tests call besides NCCL's functions: the calls so far, counts of what is alive, and failures to
//! order.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `ncclResult_t`.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const SYSTEM_ERROR: Code = 2;
pub(crate) const INTERNAL_ERROR: Code = 3;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;
pub(crate) const REMOTE_ERROR: Code = 6;
pub(crate) const IN_PROGRESS: Code = 7;

thread_local! {
    /// The call of this thread that is to fail: 1 is the next one, 0 none.
    static FAIL_IN: Cell<u64> = const { Cell::new(0) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Communicators.
    Communicators = 0,
    /// Windows.
    Windows = 1,
    /// Allocations.
    Memory = 2,
    /// Things done in an order that NCCL suffers from.
    Violations = 3,
}

static COUNTS: [AtomicI64; 4] = [const { AtomicI64::new(0) }; 4];
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LAST: Mutex<Option<CString>> = Mutex::new(None);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts one more or less of `kind`.
pub(crate) fn count(kind: Kind, change: i64) {
    COUNTS[kind as usize].fetch_add(change, Ordering::Relaxed);
}

/// Something was done that NCCL suffers from.
pub(crate) fn violation(what: &str) -> Code {
    count(Kind::Violations, 1);
    failure(INVALID_USAGE, what)
}

/// `code`, with words for `ncclGetLastError`.
pub(crate) fn failure(code: Code, words: &str) -> Code {
    *lock(&LAST) = CString::new(words).ok();
    code
}

/// A call: written down, and made to fail if that was asked for.
pub(crate) fn call(name: &str, body: impl FnOnce() -> Result<Code, Code>) -> Code {
    lock(&LOG).push(name.to_owned());
    let left = FAIL_IN.get();
    FAIL_IN.set(left.saturating_sub(1));
    if left == 1 {
        FAILED.set(true);
        return failure(INTERNAL_ERROR, &format!("{name} was made to fail"));
    }
    body().unwrap_or_else(|code| code)
}

/// Makes the `n`-th call of this thread from now on fail, once; 1 is the next one, 0 none.
#[unsafe(no_mangle)]
pub extern "C" fn fakenccl_fail(n: u64) {
    FAIL_IN.set(n);
    FAILED.set(false);
}

/// Whether a call has failed since the last [`fakenccl_fail`] of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn fakenccl_failed() -> bool {
    FAILED.get()
}

/// How many of a [`Kind`] there are; -1 for a kind that there is not.
#[unsafe(no_mangle)]
pub extern "C" fn fakenccl_live(kind: u32) -> i64 {
    COUNTS.get(kind as usize).map_or(-1, |count| count.load(Ordering::Relaxed))
}

/// The calls since the last time this was asked, one a line. For ever the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn fakenccl_log() -> *const c_char {
    let lines = std::mem::take(&mut *lock(&LOG)).join("\n");
    CString::new(lines).map_or(std::ptr::null(), |text| text.into_raw().cast_const())
}

/// The number in `variable`, else `default`.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Whether `variable` is exactly "1".
pub(crate) fn is_on(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|text| text == "1")
}

/// The version as a code.
pub(crate) fn version() -> c_int {
    let text = std::env::var("FAKENCCL_VERSION").unwrap_or_else(|_| "2.30.7".to_owned());
    let parts: Vec<c_int> = text.split('.').map(|part| part.parse().unwrap_or(0)).collect();
    let [major, minor, patch] = [0, 1, 2].map(|at| parts.get(at).copied().unwrap_or(0));
    major * 10_000 + minor * 100 + patch
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(out: *mut c_int) -> Code {
    // SAFETY: the caller's place for one integer.
    unsafe { out.write(version()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        SYSTEM_ERROR => c"unhandled system error",
        INTERNAL_ERROR => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_comm: *mut std::ffi::c_void) -> *const c_char {
    let words = lock(&LAST).clone().unwrap_or_default();
    words.into_raw()
}
