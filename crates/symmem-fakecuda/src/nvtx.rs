//! A profiler that listens by NVTX: this file named in `NVTX_INJECTION64_PATH` writes what it hears to the
//! file that `FAKECUDA_NVTX` names, a line `push TEXT` or `pop` each.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::Write;

const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *const *mut *const c_void, *mut c_uint) -> c_int,
}

fn note(line: &str) {
    let Some(path) = std::env::var_os("FAKECUDA_NVTX") else { return };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let _ = file.and_then(|mut file| writeln!(file, "{line}"));
}

unsafe extern "C" fn push(text: *const c_char) -> c_int {
    // SAFETY: callers give terminated strings.
    note(&format!("push {}", unsafe { CStr::from_ptr(text) }.to_string_lossy()));
    0
}

extern "C" fn pop() -> c_int {
    note("pop");
    0
}

/// Takes the places of two functions, as a tool does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn InitializeInjectionNvtx2(
    export: unsafe extern "C" fn(u32) -> *const c_void,
) -> c_int {
    // SAFETY: as NVTX has it: exports, then the table of the core's functions, whose entries point at where
    // to put ours.
    unsafe {
        let callbacks = export(1).cast::<Callbacks>();
        if callbacks.is_null() || (*callbacks).size < size_of::<Callbacks>() {
            return 0;
        }
        let (mut table, mut size) = (std::ptr::null(), 0);
        if ((*callbacks).table)(1, &mut table, &mut size) == 0 || (size as usize) < RANGE_POP {
            return 0;
        }
        table.add(RANGE_PUSH).read().write(push as *const c_void);
        table.add(RANGE_POP).read().write(pop as *const c_void);
    }
    1
}
