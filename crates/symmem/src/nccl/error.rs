//! Failures of NCCL as errors of this crate: its own text for the code, and the last thing it had to say.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ffi::{CStr, c_char};

use super::bindings::{Code, RawComm, TIMEOUT};
use super::library::{NCCL, NcclLibrary};
use crate::Error;

/// The error that `code` of `call` stands for. `comm` may be null: then NCCL has no last message to offer of
/// it.
#[cold]
pub(crate) fn error(nccl: &NcclLibrary, call: &'static str, code: Code, comm: RawComm) -> Error {
    // SAFETY: takes any number.
    let text = text(unsafe { (nccl.functions.error_string)(code) });
    // SAFETY: a live communicator or null; the text is the library's own.
    let detail = self::text(unsafe { (nccl.functions.last_error)(comm) });
    Error::Library {
        library: NCCL.name,
        call,
        code,
        text: text.into(),
        detail: detail.into(),
        hint: hint(code),
    }
}

/// The error for a `call` that NCCL had not done at its deadline.
#[cold]
pub(super) fn too_late(call: &'static str, after: std::time::Duration) -> Error {
    let text = format!("not done after {after:.1?}");
    let hint = "do all ranks make this call? NCCL_DEBUG=INFO shows what NCCL waits for";
    Error::Library { library: NCCL.name, call, code: TIMEOUT, text: text.into(), detail: "".into(), hint }
}

/// A text of the library, in one line; empty where there is none.
fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a terminated string of the library.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// What to do about `code`; empty where there is nothing to say.
fn hint(code: Code) -> &'static str {
    match code {
        1 => "a CUDA call of NCCL failed; NCCL_DEBUG=WARN shows which",
        2 => {
            "a call to the system failed; look at ulimit -n, ulimit -l and /dev/shm, and set NCCL_DEBUG=WARN"
        }
        3 => "a fault in NCCL, or memory it was given that is gone; NCCL_DEBUG=WARN shows more",
        5 => {
            "ranks that share a GPU need NCCL 2.30.3 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1; else look at NCCL_DEBUG=WARN"
        }
        6 => "another rank has failed or is gone; look there first",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_one_line() {
        assert_eq!(text(c"one\n\n  two\n".as_ptr()), "one; two");
        assert_eq!(text(c"".as_ptr()), "");
        assert_eq!(text(std::ptr::null()), "");
    }

    #[test]
    fn a_late_call_says_for_how_long() {
        let text = too_late("ncclCommInitRank", std::time::Duration::from_secs(3)).to_string();
        assert!(
            text.contains("ncclCommInitRank") && text.contains("3.0s") && text.contains("Hint"),
            "{text}"
        );
    }
}
