//! The door to cuBLASLt: once per process it is found, checked and bound.
//!
//! Signatures are those of `cublasLt.h` of CUDA 13, which are those of every version since 12. Called by
//! `product.rs` only. What it guarantees: the library is at least [`OLDEST`], has every function of
//! [`CublasFunctions`], and is never unloaded.

#![allow(unsafe_code, reason = "calls of cuBLASLt")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use crate::cuda::driver_version;
use crate::cuda::library::{self as finder, WantedLibrary};
use crate::sys::fork;
use crate::{Error, Result};

/// Its name in errors, of which a variable is made, too.
const NAME: &str = "CUBLASLT";

/// The library of CUDA 13 starts on drivers of CUDA 13 only.
const OF_CUDA_13: WantedLibrary = WantedLibrary {
    name: NAME,
    variable: "SYMMEM_CUBLASLT_LIBRARY",
    sonames: &["libcublasLt.so.13", "libcublasLt.so.12"],
    companion: None,
};
const OF_CUDA_12: WantedLibrary = WantedLibrary { sonames: &["libcublasLt.so.12"], ..OF_CUDA_13 };

/// 12.0.0, as `cublasLtGetVersion` has it.
const OLDEST: usize = 120_000;

/// `cublasStatus_t`. A number, since a newer library may have codes that nobody here has heard of.
pub(super) type StatusCode = c_int;
/// A handle, or a description of the library's: `cublasLtHandle_t` and the like.
pub(super) type Opaque = *mut c_void;

/// `cublasLtMatmulAlgo_t`.
pub(super) type RawAlgorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawChoice {
    pub(super) algorithm: RawAlgorithm,
    pub(super) workspace: usize,
    pub(super) state: StatusCode,
    waves: f32,
    reserved: [c_int; 4],
}

/// One table of function pointers.
macro_rules! functions {
    ($($field:ident = $symbol:ident($($arg:ty),*) -> $result:ty;)*) => {
        /// The functions that are used.
        #[derive(Debug)]
        pub(super) struct CublasFunctions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl CublasFunctions {
            /// The functions of `library`, or the name of one that is missing.
            ///
            /// # Safety
            /// It is cuBLASLt, and stays loaded.
            unsafe fn load(library: &Library) -> Result<Self, &'static str> {
                // SAFETY: the types are those of the header, as the caller promises that it is cuBLASLt.
                unsafe {
                    Ok(Self { $($field: *library.get(stringify!($symbol)).map_err(|_| stringify!($symbol))?,)* })
                }
            }
        }
    };
}

functions! {
    create = cublasLtCreate(*mut Opaque) -> StatusCode;
    destroy = cublasLtDestroy(Opaque) -> StatusCode;
    status_string = cublasLtGetStatusString(StatusCode) -> *const c_char;
    product_create = cublasLtMatmulDescCreate(*mut Opaque, c_int, c_int) -> StatusCode;
    product_destroy = cublasLtMatmulDescDestroy(Opaque) -> StatusCode;
    layout_create = cublasLtMatrixLayoutCreate(*mut Opaque, c_int, u64, u64, i64) -> StatusCode;
    layout_destroy = cublasLtMatrixLayoutDestroy(Opaque) -> StatusCode;
    layout_set = cublasLtMatrixLayoutSetAttribute(Opaque, c_int, *const c_void, usize) -> StatusCode;
    preference_create = cublasLtMatmulPreferenceCreate(*mut Opaque) -> StatusCode;
    preference_destroy = cublasLtMatmulPreferenceDestroy(Opaque) -> StatusCode;
    preference_set = cublasLtMatmulPreferenceSetAttribute(Opaque, c_int, *const c_void, usize) -> StatusCode;
    choose = cublasLtMatmulAlgoGetHeuristic(
        Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut RawChoice, *mut c_int
    ) -> StatusCode;
    multiply = cublasLtMatmul(
        Opaque, Opaque, *const f32, u64, Opaque, u64, Opaque, *const f32, u64, Opaque, u64, Opaque,
        *const RawAlgorithm, u64, usize, Opaque
    ) -> StatusCode;
}

/// cuBLASLt, bound.
#[derive(Debug)]
pub(super) struct CublasLibrary {
    pub(super) functions: CublasFunctions,
    version: usize,
}

/// The version of the library that is in use.
pub(crate) fn version() -> Result<String> {
    Ok(spoken(cublas()?.version))
}

/// Why there is none to use.
#[derive(Debug)]
enum LibraryProblem {
    Missing(String),
    TooOld(usize, PathBuf),
}

impl LibraryProblem {
    fn error(&self) -> Error {
        match self {
            Self::Missing(problem) => Error::NoLibrary { library: NAME, problem: problem.clone() },
            Self::TooOld(found, path) => Error::LibraryTooOld {
                library: NAME,
                what: "a product on a device",
                needed: spoken(OLDEST).into(),
                found: spoken(*found).into(),
                path: path.clone(),
            },
        }
    }
}

/// `120304` as `12.3.4`.
fn spoken(version: usize) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// cuBLASLt; the first call finds and binds it.
pub(super) fn cublas() -> Result<&'static CublasLibrary> {
    static CUBLAS: OnceLock<Result<CublasLibrary, LibraryProblem>> = OnceLock::new();
    if fork::is_child() {
        return Err(Error::Forked { op: NAME });
    }
    let (major, _) = driver_version()?;
    let wanted = if major >= 13 { &OF_CUDA_13 } else { &OF_CUDA_12 };
    CUBLAS.get_or_init(|| open(wanted)).as_ref().map_err(LibraryProblem::error)
}

fn open(wanted: &WantedLibrary) -> Result<CublasLibrary, LibraryProblem> {
    let found = finder::find(wanted).map_err(LibraryProblem::Missing)?;
    // Never unloaded: kernels of it may be at work when its last user goes.
    let library = Box::leak(Box::new(found.library));
    let missing = |name| {
        let file = found.path.display();
        LibraryProblem::Missing(format!("{file} has no {name}. Hint: is it another library?"))
    };
    // SAFETY: the type is that of the header.
    let version = unsafe { library.get::<unsafe extern "C" fn() -> usize>("cublasLtGetVersion") };
    // SAFETY: takes nothing.
    let version = unsafe { version.map_err(|_| missing("cublasLtGetVersion"))?() };
    if version < OLDEST {
        return Err(LibraryProblem::TooOld(version, found.path));
    }
    // SAFETY: it tells its version as cuBLASLt does, and is leaked.
    let functions = unsafe { CublasFunctions::load(library) }.map_err(missing)?;
    tracing::debug!(path = %found.path.display(), version = spoken(version), "cuBLASLt");
    Ok(CublasLibrary { functions, version })
}

impl CublasLibrary {
    /// An error if `code` of `call` is one.
    pub(super) fn check(&self, call: &'static str, code: StatusCode) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// The error that `code` of `call` stands for.
    #[cold]
    pub(super) fn error(&self, call: &'static str, code: StatusCode) -> Error {
        // SAFETY: takes any number.
        let text = unsafe { (self.functions.status_string)(code) };
        let text = match text.is_null() {
            true => "unknown status".into(),
            // SAFETY: not null, so a constant string of the library.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        };
        Error::Library {
            library: NAME,
            call,
            code,
            text: text.into_owned().into(),
            detail: "".into(),
            hint: hint(code),
        }
    }
}

/// What to do about `code`; empty where there is nothing to say.
fn hint(code: StatusCode) -> &'static str {
    match code {
        1 => "the library does not start; is it for the CUDA version of the driver?",
        3 => "the device has too little free memory left; nvidia-smi shows who holds it",
        8 | 15 => "the device has no algorithm for such a product; other strides or another type may do",
        13 => "a kernel failed on this device; CUBLASLT_LOG_LEVEL=5 shows which",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_as_people_write_them() {
        assert_eq!(spoken(OLDEST), "12.0.0");
        assert_eq!(spoken(130_102), "13.1.2");
    }

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<RawAlgorithm>(), size_of::<RawChoice>()), (64, 96));
    }

    #[test]
    fn errors_name_the_variable_that_names_the_file() {
        let old = LibraryProblem::TooOld(110_800, "/x/libcublasLt.so.11".into()).error();
        let text = old.to_string();
        assert!(text.contains("11.8.0") && text.contains(OF_CUDA_13.variable), "{text}");
        let none = LibraryProblem::Missing("not found. Hint: install it".into()).error();
        assert!(none.to_string().starts_with("CUBLASLT cannot be used: not found"), "{none}");
    }
}
