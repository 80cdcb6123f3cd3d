//! NVRTC: compiling kernels at run time.
//!
//! Called by the engine when it starts. The library is bound by hand: cudarc's layer gives PTX only, and
//! panics where the library is missing. What it guarantees: without NVRTC there is an error that says where
//! it was looked for, and a kernel that does not compile gives the compiler's own words.

#![allow(unsafe_code, reason = "calls of NVRTC")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix::Library;

use super::library::{self, SearchReason, WantedLibrary};
use crate::{Error, Result};

const WANTED: WantedLibrary = WantedLibrary {
    name: "NVRTC",
    variable: "SYMMEM_NVRTC_LIBRARY",
    sonames: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    companion: Some("libnvrtc-builtins.so"),
};

/// `nvrtcResult` of success.
const SUCCESS: c_int = 0;

/// `nvrtcProgram`.
type Raw = *mut std::ffi::c_void;

type Create = unsafe extern "C" fn(
    *mut Raw,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Raw, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Raw, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Raw, *mut c_char) -> c_int;

/// The functions that are used. The library is never unloaded.
#[derive(Debug)]
struct Nvrtc {
    version: (i32, i32),
    create: Create,
    destroy: unsafe extern "C" fn(*mut Raw) -> c_int,
    compile: Compile,
    cubin_size: Size,
    cubin: Get,
    ptx_size: Size,
    ptx: Get,
    log_size: Size,
    log: Get,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// What the compiler made.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// A cubin if the options name a real architecture (`sm_90a`), else PTX, which ends in a zero.
    pub(crate) image: Vec<u8>,
    /// Warnings; empty if there are none.
    pub(crate) log: String,
}

/// The compiler's version: major, minor.
pub(crate) fn version() -> Result<(i32, i32)> {
    nvrtc().map(|nvrtc| nvrtc.version)
}

/// Compiles `source`, called `name` in messages. `headers` are what it can include: name and text.
pub(crate) fn compile(
    name: &str,
    source: &str,
    headers: &[(&str, &str)],
    options: &[String],
) -> Result<Compiled> {
    let program = Program::new(nvrtc()?, name, source, headers)?;
    program.compile(name, options)?;
    Ok(Compiled { image: program.image()?, log: program.log() })
}

fn nvrtc() -> Result<&'static Nvrtc> {
    // The words instead of the error, which cannot be handed out twice.
    static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    let missing = |problem: &String| Error::NoLibrary { library: WANTED.name, problem: problem.clone() };
    NVRTC.get_or_init(open).as_ref().map_err(missing)
}

fn open() -> Result<Nvrtc, String> {
    let found = library::find(&WANTED)?;
    let library = &found.library;
    // SAFETY: the types are those of nvrtc.h, where the result is an int and a program a pointer.
    let nvrtc = unsafe {
        let version = version_of(library)?;
        Nvrtc {
            version,
            create: symbol(library, "nvrtcCreateProgram")?,
            destroy: symbol(library, "nvrtcDestroyProgram")?,
            compile: symbol(library, "nvrtcCompileProgram")?,
            cubin_size: symbol(library, "nvrtcGetCUBINSize")?,
            cubin: symbol(library, "nvrtcGetCUBIN")?,
            ptx_size: symbol(library, "nvrtcGetPTXSize")?,
            ptx: symbol(library, "nvrtcGetPTX")?,
            log_size: symbol(library, "nvrtcGetProgramLogSize")?,
            log: symbol(library, "nvrtcGetProgramLog")?,
            error_string: symbol(library, "nvrtcGetErrorString")?,
        }
    };
    let (major, minor) = nvrtc.version;
    tracing::debug!(path = %found.path.display(), how = ?found.how, major, minor, "NVRTC");
    if found.how == SearchReason::Variable && major < 12 {
        tracing::warn!(major, minor, "this NVRTC is older than any that was tried");
    }
    std::mem::forget(found.library);
    Ok(nvrtc)
}

/// # Safety
/// `T` is the function's type.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: as promised by the caller.
    let found = unsafe { library.get::<T>(name) };
    found.map(|symbol| *symbol).map_err(|_| format!("the library has no {name}"))
}

/// # Safety
/// The library is NVRTC.
unsafe fn version_of(library: &Library) -> Result<(i32, i32), String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the type is that of nvrtc.h; writes two integers.
    let code = unsafe {
        let function: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
            symbol(library, "nvrtcVersion")?;
        function(&mut major, &mut minor)
    };
    if code != SUCCESS {
        return Err(format!("nvrtcVersion gives error {code}"));
    }
    Ok((major, minor))
}

impl Nvrtc {
    fn check(&self, call: &'static str, code: c_int, more: &str) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a constant string.
        let text = unsafe { (self.error_string)(code) };
        let mut name = match text.is_null() {
            true => "unknown error".to_owned(),
            // SAFETY: not null, so a constant string of the library.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        if !more.is_empty() {
            name = format!("{name}: {more}");
        }
        let hint = match code {
            7 => "the library beside it, libnvrtc-builtins, was not found; install the whole package",
            _ => "",
        };
        Err(Error::Cuda { call, code, name, hint })
    }
}

/// A program that is being compiled.
struct Program {
    nvrtc: &'static Nvrtc,
    raw: Raw,
}

impl Program {
    fn new(nvrtc: &'static Nvrtc, name: &str, source: &str, headers: &[(&str, &str)]) -> Result<Self> {
        let file = c_string(name)?;
        let text = c_string(source)?;
        let names = headers.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<_>>>()?;
        let texts = headers.iter().map(|(_, text)| c_string(text)).collect::<Result<Vec<_>>>()?;
        let (names, texts) = (pointers(&names), pointers(&texts));
        let mut raw = ptr::null_mut();
        // SAFETY: terminated strings, which the library copies; writes one handle.
        let code = unsafe {
            (nvrtc.create)(
                &mut raw,
                text.as_ptr(),
                file.as_ptr(),
                headers.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", code, name)?;
        Ok(Self { nvrtc, raw })
    }

    fn compile(&self, name: &str, options: &[String]) -> Result<()> {
        let options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>>>()?;
        let pointers = pointers(&options);
        // SAFETY: a live program and terminated strings.
        let code = unsafe { (self.nvrtc.compile)(self.raw, pointers.len() as c_int, pointers.as_ptr()) };
        if code == SUCCESS {
            return Ok(());
        }
        self.nvrtc.check("nvrtcCompileProgram", code, &format!("{name}: {}", self.log()))
    }

    /// The cubin; without one, the PTX.
    fn image(&self) -> Result<Vec<u8>> {
        let cubin = self.bytes("nvrtcGetCUBIN", self.nvrtc.cubin_size, self.nvrtc.cubin)?;
        if !cubin.is_empty() {
            return Ok(cubin);
        }
        self.bytes("nvrtcGetPTX", self.nvrtc.ptx_size, self.nvrtc.ptx)
    }

    fn log(&self) -> String {
        let log = self.bytes("nvrtcGetProgramLog", self.nvrtc.log_size, self.nvrtc.log).unwrap_or_default();
        String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned()
    }

    fn bytes(&self, call: &'static str, size: Size, get: Get) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a live program; writes one number.
        self.nvrtc.check(call, unsafe { size(self.raw, &mut bytes) }, "")?;
        let mut image = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: room for as many bytes as the library said.
            self.nvrtc.check(call, unsafe { get(self.raw, image.as_mut_ptr().cast()) }, "")?;
        }
        Ok(image)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made here.
        let code = unsafe { (self.nvrtc.destroy)(&mut self.raw) };
        if code != SUCCESS {
            tracing::debug!(code, "nvrtcDestroyProgram");
        }
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("kernel source", "a text with a zero byte"))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = r#"
        #include "twice.h"
        extern "C" __global__ void twice(float *x) { x[threadIdx.x] = TWICE(x[threadIdx.x]); }
    "#;

    fn options(architecture: &str) -> Vec<String> {
        vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()]
    }

    #[test]
    fn kernels_compile_to_cubins_and_ptx_where_nvrtc_is() {
        let Ok((major, _)) = version() else {
            println!("skipped: {}", version().unwrap_err());
            return;
        };
        assert!(major >= 12);
        let headers = [("twice.h", "#define TWICE(x) ((x) + (x))")];
        let cubin = compile("twice.cu", KERNEL, &headers, &options("sm_90")).unwrap();
        assert!(cubin.image.starts_with(b"\x7fELF") && cubin.log.is_empty(), "{}", cubin.log);
        let ptx = compile("twice.cu", KERNEL, &headers, &options("compute_80")).unwrap();
        assert!(String::from_utf8_lossy(&ptx.image).contains(".visible .entry twice"));
    }

    #[test]
    fn what_does_not_compile_says_where() {
        if version().is_err() {
            println!("skipped: {}", version().unwrap_err());
            return;
        }
        let error =
            compile("bad.cu", "__global__ void f() { nonsense; }", &[], &options("sm_90")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("bad.cu") && text.contains("nonsense"), "{text}");
    }

    #[test]
    fn without_nvrtc_the_error_says_how_to_get_it() {
        match version() {
            Ok(version) => println!("skipped: NVRTC {version:?}"),
            Err(error) => assert!(error.to_string().contains("SYMMEM_NVRTC_LIBRARY"), "{error}"),
        }
    }

    #[test]
    fn a_zero_in_a_source_is_an_error() {
        assert!(c_string("a\0b").is_err());
    }
}
