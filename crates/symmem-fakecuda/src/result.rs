//! Result codes, and what every call goes through.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

use crate::control;
use crate::state::{DriverState, state};

/// `CUresult`.
pub(crate) type Code = c_int;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NOT_INITIALIZED: Code = 3;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const NOT_PERMITTED: Code = 800;
pub(crate) const NOT_SUPPORTED: Code = 801;
/// What an injected failure gives.
pub(crate) const UNKNOWN: Code = 999;

/// What a call comes to.
pub(crate) type Outcome = Result<(), Code>;

/// A call of the driver: counted, made to fail if that was asked for, and done under the one lock.
pub(crate) fn call(name: &'static CStr, body: impl FnOnce(&mut DriverState) -> Outcome) -> Code {
    if control::must_fail(name) {
        return UNKNOWN;
    }
    match body(&mut state()) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// The caller's place for a result; a null pointer is `None`.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Stores a result where the caller wants it.
pub(crate) fn put<T>(to: Out<'_, T>, value: T) -> Outcome {
    to.ok_or(INVALID_VALUE)?.write(value);
    Ok(())
}

/// [`put`] at an address that is used for something else, too.
///
/// # Safety
/// `to` can be written, or is null.
pub(crate) unsafe fn put_at<T>(to: *mut T, value: T) -> Outcome {
    // SAFETY: as promised by the caller.
    put(unsafe { to.cast::<MaybeUninit<T>>().as_mut() }, value)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, name: Out<'_, *const c_char>) -> Code {
    let text: &CStr = match code {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        ILLEGAL_STATE => c"CUDA_ERROR_ILLEGAL_STATE",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        NOT_PERMITTED => c"CUDA_ERROR_NOT_PERMITTED",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        UNKNOWN => c"CUDA_ERROR_UNKNOWN",
        _ => return INVALID_VALUE,
    };
    match put(name, text.as_ptr()) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}
