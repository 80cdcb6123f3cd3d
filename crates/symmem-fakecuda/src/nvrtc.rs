//! The run-time compiler, in the same library: it takes any program, and gives an image that the fake driver
//! loads.

use std::ffi::{c_char, c_int, c_void};

use crate::result::{self, Out};

const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;

/// What every program is compiled to, and what the compiler has to say about it; both end in a zero.
const IMAGE: &[u8] = b"// nothing\0";
const LOG: &[u8] = b"\0";

/// Writes `value`, unless there is no place for it.
fn put<T>(to: Out<'_, T>, value: T) -> c_int {
    result::put(to, value).map_or(INVALID_INPUT, |()| SUCCESS)
}

/// Copies `text` out.
unsafe fn copy(to: *mut c_char, text: &[u8]) -> c_int {
    if to.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller asked for the size, and has room for it.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcVersion(major: Out<'_, c_int>, minor: Out<'_, c_int>) -> c_int {
    put(major, 13) | put(minor, 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    program: Out<'_, *mut c_void>,
    _source: *const c_char,
    _name: *const c_char,
    _count: c_int,
    _headers: *const *const c_char,
    _names: *const *const c_char,
) -> c_int {
    put(program, std::ptr::dangling_mut::<u64>().cast())
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcDestroyProgram(program: Out<'_, *mut c_void>) -> c_int {
    put(program, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    _program: *mut c_void,
    _count: c_int,
    _options: *const *const c_char,
) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBINSize(_program: *mut c_void, size: Out<'_, usize>) -> c_int {
    put(size, IMAGE.len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBIN(_program: *mut c_void, image: *mut c_char) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe { copy(image, IMAGE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTXSize(_program: *mut c_void, size: Out<'_, usize>) -> c_int {
    put(size, IMAGE.len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetPTX(_program: *mut c_void, image: *mut c_char) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe { copy(image, IMAGE) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(_program: *mut c_void, size: Out<'_, usize>) -> c_int {
    put(size, LOG.len())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(_program: *mut c_void, log: *mut c_char) -> c_int {
    // SAFETY: the caller's buffer.
    unsafe { copy(log, LOG) }
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(_code: c_int) -> *const c_char {
    c"an error of the fake compiler".as_ptr()
}
