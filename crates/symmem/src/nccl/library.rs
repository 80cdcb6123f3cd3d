//! The door to NCCL: once per process it is found, checked and bound.
//!
//! Public: [`library`] says which one was taken and why. What it guarantees: the library is at least
//! [`ANYTHING`], has every function of [`Functions`], and is never unloaded; where there is none, or it is
//! too old, every call gives the same one sentence. What a version lacks is asked for by
//! [`NcclLibrary::need`], whose error names the version that has it.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::bindings::{ANYTHING, Code, Functions, Gate, SUCCESS};
use super::version::{self, Version};
use crate::cuda::library::{self as finder, SearchReason, WantedLibrary};
use crate::sys::fork;
use crate::{Error, Result};

pub(super) const NCCL: WantedLibrary = WantedLibrary {
    name: "NCCL",
    variable: "SYMMEM_NCCL_LIBRARY",
    sonames: &["libnccl.so.2"],
    companion: None,
};

/// Why a library was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// `SYMMEM_NCCL_LIBRARY` names it.
    Variable,
    /// It was in the process already: PyTorch's, say.
    Loaded,
    /// The system's loader found it by its name.
    Loader,
    /// It is in a CUDA toolkit.
    Toolkit,
    /// It is in a package of a Python environment.
    Python,
}

impl From<SearchReason> for Why {
    fn from(how: SearchReason) -> Self {
        match how {
            SearchReason::Variable => Self::Variable,
            SearchReason::Loaded => Self::Loaded,
            SearchReason::Loader => Self::Loader,
            SearchReason::Toolkit => Self::Toolkit,
            SearchReason::Python => Self::Python,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable => "SYMMEM_NCCL_LIBRARY names it",
            Self::Loaded => "it was in the process already",
            Self::Loader => "the system's loader finds it by its name",
            Self::Toolkit => "it is in the CUDA toolkit",
            Self::Python => "it is in a package of the Python environment",
        })
    }
}

/// The library that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Its file; its bare name where the loader does not tell.
    pub path: PathBuf,
    /// Why this one.
    pub why: Why,
    /// Its version.
    pub version: Version,
}

impl Loaded {
    /// What stands behind the numbers of the version, as in `2.30.7rc1`: empty for a release. Reads the file.
    pub fn suffix(&self) -> String {
        version::suffix(&self.path, self.version).unwrap_or_default()
    }
}

/// Which NCCL is in use, and why. The first call finds it.
///
/// ```no_run
/// let nccl = symmem::nccl::library()?;
/// println!("NCCL {}{} from {}: {}", nccl.version, nccl.suffix(), nccl.path.display(), nccl.why);
/// # Ok::<(), symmem::Error>(())
/// ```
pub fn library() -> Result<&'static Loaded> {
    Ok(&nccl()?.loaded)
}

/// Whether NCCL can be used.
pub fn is_available() -> bool {
    nccl().is_ok()
}

/// The version of the NCCL that is in use.
pub fn version() -> Result<Version> {
    Ok(nccl()?.loaded.version)
}

/// NCCL, bound.
#[derive(Debug)]
pub(crate) struct NcclLibrary {
    pub(crate) loaded: Loaded,
    pub(crate) functions: Functions,
}

/// NCCL; the first call finds and binds it.
pub(crate) fn nccl() -> Result<&'static NcclLibrary> {
    static NCCL: OnceLock<Result<NcclLibrary, Problem>> = OnceLock::new();
    if fork::is_child() {
        return Err(Error::Forked { op: "NCCL" });
    }
    NCCL.get_or_init(open).as_ref().map_err(Problem::error)
}

/// Why there is no NCCL to use.
#[derive(Debug)]
enum Problem {
    Missing(String),
    TooOld(Loaded),
}

impl Problem {
    fn error(&self) -> Error {
        match self {
            Self::Missing(problem) => Error::NoLibrary { library: NCCL.name, problem: problem.clone() },
            Self::TooOld(loaded) => too_old(ANYTHING, loaded),
        }
    }
}

fn too_old(gate: Gate, loaded: &Loaded) -> Error {
    Error::LibraryTooOld {
        library: NCCL.name,
        what: gate.what,
        needed: gate.since.to_string().into(),
        found: loaded.version.to_string().into(),
        path: loaded.path.clone(),
    }
}

fn open() -> Result<NcclLibrary, Problem> {
    let missing = |problem| Problem::Missing(format!("version {} or newer is {problem}", ANYTHING.since));
    let found = finder::find(&NCCL).map_err(missing)?;
    // Never unloaded: its threads outlive every communicator.
    let library = Box::leak(Box::new(found.library));
    let file = |problem: &str| Problem::Missing(format!("{} {problem}", found.path.display()));
    // SAFETY: the type is that of the header.
    let get_version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> Code>("ncclGetVersion") };
    let get_version = *get_version.map_err(|_| file("is not NCCL: it has no ncclGetVersion"))?;
    let mut code = 0;
    // SAFETY: writes one integer.
    if unsafe { get_version(&mut code) } != SUCCESS {
        return Err(file("does not tell its version"));
    }
    let path = file_of(get_version as *const ()).unwrap_or_else(|| found.path.clone());
    let loaded = Loaded { path, why: found.how.into(), version: Version::from_code(code) };
    if loaded.version < ANYTHING.since {
        return Err(Problem::TooOld(loaded));
    }
    // SAFETY: it names itself NCCL, and is leaked.
    let functions = unsafe { Functions::load(library, loaded.version) };
    let functions = functions.map_err(|name| file(&format!("has no {name}")))?;
    let Loaded { path, why, version } = &loaded;
    tracing::debug!(path = %path.display(), %why, %version, "NCCL");
    Ok(NcclLibrary { loaded, functions })
}

/// The file that the function at `address` is in.
fn file_of(address: *const ()) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: fills the structure, whatever the address.
    let found = unsafe { libc::dladdr(address.cast(), &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: not null, so the loader's own constant string.
    let name = found.then(|| unsafe { CStr::from_ptr(info.dli_fname) })?;
    let path = Path::new(name.to_str().ok()?);
    Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

impl NcclLibrary {
    /// `function`, which comes with `gate`; or the error that names the version that has it.
    pub(crate) fn need<F: Copy>(&self, gate: Gate, function: Option<F>) -> Result<F> {
        function.ok_or_else(|| too_old(gate, &self.loaded))
    }

    /// An error unless the library is as new as `gate` says.
    pub(crate) fn check(&self, gate: Gate) -> Result<()> {
        self.need(gate, (self.loaded.version >= gate.since).then_some(()))
    }
}
