//! Finding shared libraries at run time: where users have them, without running anything.
//!
//! Called by anything that binds a library of NVIDIA's by hand. The order: what a variable names, what is
//! loaded already, what the loader finds, `CUDA_HOME` and `/usr/local/cuda`, then the packages of the Python
//! environments at hand. What it guarantees: a variable that is set is believed, and never fallen back from;
//! the error lists what was tried.

#![allow(unsafe_code, reason = "calls of the loader")]

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// What to look for.
#[derive(Debug)]
pub(crate) struct WantedLibrary {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The variable that names the file, or the soname.
    pub(crate) variable: &'static str,
    /// The names the loader knows it by, the preferred one first.
    pub(crate) sonames: &'static [&'static str],
    /// Beginning of the name of a library beside it that must be loaded first.
    pub(crate) companion: Option<&'static str>,
}

/// A library, and where it came from.
#[derive(Debug)]
pub(crate) struct FoundLibrary {
    pub(crate) library: Library,
    /// The file, or the soname where the loader chose.
    pub(crate) path: PathBuf,
    /// Why this one.
    pub(crate) how: SearchReason,
}

/// Why a place is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SearchReason {
    /// A variable names it.
    Variable,
    /// It is in the process already.
    Loaded,
    /// The loader finds it by name.
    Loader,
    /// It is in a CUDA toolkit.
    Toolkit,
    /// It is in a package of a Python environment.
    Python,
}

/// The values of environment variables.
type Variables = Box<dyn Fn(&str) -> Option<OsString>>;

/// What the search depends on.
struct Surroundings {
    variable: Variables,
    /// Files that are mapped into this process.
    mapped: Vec<PathBuf>,
    /// Where a toolkit is by custom.
    toolkit: PathBuf,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let variable = Box::new(|name: &str| std::env::var_os(name));
        Self { variable, mapped: mapped_files(), toolkit: "/usr/local/cuda".into() }
    }

    /// The folder that a variable names, if it is absolute.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        (self.variable)(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

/// Finds and loads `what`; else what to say of it after its name.
pub(crate) fn find(what: &WantedLibrary) -> Result<FoundLibrary, String> {
    let places = places(what, &Surroundings::of_this_process());
    let mut tried = Vec::new();
    for (how, path) in places {
        match load(what, how, &path) {
            Ok(library) => {
                tracing::debug!(library = what.name, path = %path.display(), ?how, "found");
                return Ok(FoundLibrary { library, path, how });
            }
            Err(_) if how == SearchReason::Loaded => {}
            // The loader's words about a bare name say no more than the name.
            Err(_) if how == SearchReason::Loader => tried.push(path.display().to_string()),
            Err(problem) => tried.push(format!("{} ({problem})", path.display())),
        }
    }
    Err(format!(
        "not found; tried {}. Hint: install it, or set {} to the file {}",
        tried.join(", "),
        what.variable,
        what.sonames[0]
    ))
}

/// Where `what` may be, in the order of the search. Files that do not exist are left out.
fn places(what: &WantedLibrary, around: &Surroundings) -> Vec<(SearchReason, PathBuf)> {
    if let Some(named) = (around.variable)(what.variable).filter(|named| !named.is_empty()) {
        return vec![(SearchReason::Variable, named.into())];
    }
    let mut places = Vec::new();
    for how in [SearchReason::Loaded, SearchReason::Loader] {
        places.extend(what.sonames.iter().map(|soname| (how, PathBuf::from(soname))));
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| around.folder(name));
    for toolkit in toolkits.chain([around.toolkit.clone()]) {
        for folder in ["lib64", "targets/x86_64-linux/lib", "lib"] {
            places.extend(in_folder(what, &toolkit.join(folder)).map(|path| (SearchReason::Toolkit, path)));
        }
    }
    for packages in site_packages(around) {
        for package in sorted(&packages.join("nvidia")) {
            places.extend(in_folder(what, &package.join("lib")).map(|path| (SearchReason::Python, path)));
        }
    }
    let mut seen = HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    places
}

/// The best name of `what` that is a file in `folder`.
fn in_folder(what: &WantedLibrary, folder: &Path) -> Option<PathBuf> {
    what.sonames.iter().map(|soname| folder.join(soname)).find(|path| path.is_file())
}

/// The folders with Python packages that this process has to do with: of the active environment, and those
/// from which something is loaded (PyTorch, say).
fn site_packages(around: &Surroundings) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| around.folder(name)) {
        for python in sorted(&environment.join("lib")) {
            let is_python =
                python.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
            let packages = python.join("site-packages");
            if is_python && packages.is_dir() {
                found.push(packages);
            }
        }
    }
    for file in &around.mapped {
        let is_packages = |folder: &&Path| {
            folder.file_name().is_some_and(|name| name == "site-packages" || name == "dist-packages")
        };
        if let Some(packages) = file.ancestors().find(is_packages)
            && !found.iter().any(|known| known == packages)
        {
            found.push(packages.to_owned());
        }
    }
    found
}

/// What is in `folder`, newest version first where names end in one; empty if it cannot be read.
fn sorted(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_by(|one, other| other.cmp(one));
    paths
}

/// The files that are mapped into this process, each once.
fn mapped_files() -> Vec<PathBuf> {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return Vec::new() };
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        if let Some(at) = line.find('/')
            && files.last().is_none_or(|last| last.as_os_str() != &line[at..])
        {
            files.push(line[at..].into());
        }
    }
    files
}

fn load(what: &WantedLibrary, how: SearchReason, path: &Path) -> std::result::Result<Library, String> {
    let flags = match how {
        SearchReason::Loaded => libc::RTLD_NOLOAD | RTLD_NOW,
        _ => RTLD_NOW | RTLD_LOCAL,
    };
    if let (Some(companion), true) = (what.companion, path.is_absolute()) {
        load_companion(companion, path);
    }
    // SAFETY: the libraries that are looked for have initialisers that any program may run.
    unsafe { Library::open(Some(path), flags) }.map_err(|error| in_short(&error))
}

/// Loads the library beside `path` whose name begins with `companion`, and keeps it: the other one asks the
/// loader for it by its bare name, and it has no run path of its own. Where that fails the caller finds out
/// by itself.
fn load_companion(companion: &str, path: &Path) {
    let beside = path.parent().map(sorted).unwrap_or_default();
    let is_companion =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(companion));
    for file in beside.iter().filter(is_companion) {
        // SAFETY: as in `load`.
        match unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => {
                std::mem::forget(library);
                return;
            }
            Err(error) => tracing::debug!(file = %file.display(), %error, "not loaded"),
        }
    }
}

/// The loader's own words, in one line.
pub(super) fn in_short(error: &libloading::Error) -> String {
    use std::error::Error as _;
    let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    words.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    const NVRTC: WantedLibrary = WantedLibrary {
        name: "NVRTC",
        variable: "SYMMEM_TEST_NO_SUCH_VARIABLE",
        sonames: &["libnvrtc.so.13", "libnvrtc.so.12"],
        companion: Some("libnvrtc-builtins.so"),
    };

    fn around(mapped: &[&Path], toolkit: &Path) -> Surroundings {
        let mapped = mapped.iter().map(|path| path.to_path_buf()).collect();
        Surroundings { variable: Box::new(|_| None), mapped, toolkit: toolkit.into() }
    }

    /// The files among the places, without the bare names that the loader is asked for.
    fn files(places: Vec<(SearchReason, PathBuf)>) -> Vec<(SearchReason, PathBuf)> {
        places.into_iter().filter(|(_, path)| path.is_absolute()).collect()
    }

    #[test]
    fn a_variable_is_believed_and_nothing_else_is_tried() {
        let variable = Box::new(|_: &str| Some("/x/libnvrtc.so".into()));
        let named = Surroundings { variable, ..around(&[], Path::new("/none")) };
        assert_eq!(places(&NVRTC, &named), [(SearchReason::Variable, PathBuf::from("/x/libnvrtc.so"))]);
    }

    #[test]
    fn what_is_loaded_comes_first_then_the_loader() {
        let places = places(&NVRTC, &around(&[], Path::new("/none")));
        let hows: Vec<_> = places.iter().map(|(how, _)| *how).collect();
        assert_eq!(
            hows,
            [SearchReason::Loaded, SearchReason::Loaded, SearchReason::Loader, SearchReason::Loader]
        );
    }

    #[test]
    fn toolkits_come_before_python_packages_and_newer_names_before_older() {
        let tree = Folder::new();
        let toolkit = tree.touch("cuda/lib64/libnvrtc.so.12");
        let old = tree.touch("env/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        let new = tree.touch("env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        tree.touch("env/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.12");
        let torch = tree.touch("env/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so");
        let around = around(&[&torch, &torch], &tree.path().join("cuda"));
        let found = files(places(&NVRTC, &around));
        assert_eq!(found[0], (SearchReason::Toolkit, toolkit));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found.contains(&(SearchReason::Python, new)) && found.contains(&(SearchReason::Python, old)),
            "{found:?}"
        );
    }

    #[test]
    fn the_active_environment_is_searched() {
        let tree = Folder::new();
        let file = tree.touch("lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        tree.touch("lib/pkgconfig/libnvrtc.so.13");
        let environment = tree.path().to_path_buf();
        let variable =
            move |name: &str| (name == "VIRTUAL_ENV").then(|| environment.clone().into_os_string());
        let around = Surroundings { variable: Box::new(variable), ..around(&[], Path::new("/none")) };
        assert_eq!(files(places(&NVRTC, &around)), [(SearchReason::Python, file)]);
    }

    #[test]
    fn a_library_of_the_system_is_found_loaded_or_by_the_loader() {
        const MATH: WantedLibrary = WantedLibrary {
            name: "libm",
            variable: "SYMMEM_TEST_NO_SUCH_VARIABLE",
            sonames: &["libm.so.6"],
            companion: None,
        };
        let found = find(&MATH).unwrap();
        assert!(matches!(found.how, SearchReason::Loaded | SearchReason::Loader), "{found:?}");
        assert_eq!(found.path, Path::new("libm.so.6"));
        // SAFETY: the type of cos.
        let cos = unsafe { found.library.get::<unsafe extern "C" fn(f64) -> f64>("cos") }.unwrap();
        // SAFETY: pure.
        assert_eq!(unsafe { cos(0.0) }, 1.0);
    }

    #[test]
    fn what_cannot_be_found_says_where_it_was_looked_for() {
        const NOTHING: WantedLibrary = WantedLibrary {
            name: "libnothing",
            variable: "SYMMEM_TEST_NO_SUCH_VARIABLE",
            sonames: &["libsymmem-nothing.so.1"],
            companion: None,
        };
        let text = find(&NOTHING).unwrap_err();
        for word in ["libsymmem-nothing.so.1", "SYMMEM_TEST_NO_SUCH_VARIABLE"] {
            assert!(text.contains(word), "{text}");
        }
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_passed_over() {
        let tree = Folder::new();
        let file = tree.touch("lib/libnvrtc.so.13");
        tree.touch("lib/libnvrtc-builtins.so.13.0");
        let problem = load(&NVRTC, SearchReason::Python, &file).unwrap_err();
        assert!(!problem.is_empty() && !problem.contains('\n'), "{problem}");
    }
}
