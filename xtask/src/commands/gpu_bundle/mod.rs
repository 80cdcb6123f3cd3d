//! `cargo xtask gpu-bundle`: a folder for any machine with a GPU and without Rust.
//!
//! In it are the program, the GPU tests, the Python package with its own GPU tests, the kernels as sources
//! and compiled, and a script that runs them. Everything is built in a folder of its own, without debug
//! information, so that neither the developer's builds nor a tool for stripping are needed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::kernels::Nvrtc;
use crate::bounded;
use crate::checkout::Checkout;
use crate::plan::Job;
use crate::workspace::Workspace;

/// Ignored by git.
const FOLDER: &str = ".gpu-bundle";
const SCRIPT: &str = include_str!("run.sh");
const KERNELS: &str = "crates/symmem/kernels";
const TESTS: &str = "crates/symmem/tests";
/// What the names of test targets for GPUs begin with.
const PREFIX: &str = "gpu_";
/// More test targets that are worth running on a GPU: the conformance suite of device memory, whose kinds on
/// fakes stay behind.
const MORE_TESTS: [&str; 1] = ["devices"];
/// Test targets that kill processes with work on the GPU, which MPS does not survive.
const NO_MPS_TESTS: [&str; 1] = ["gpu_kill"];
/// The Python packages as they are imported, and their tests on devices.
const PACKAGES: &str = "crates/symmem-python/python";
const PYTHON_TESTS: &str = "crates/symmem-python/tests/gpu";
/// Files of the package: sources and types.
const PYTHON_FILES: [&str; 3] = ["py", "pyi", "typed"];
/// Devices that kernels are compiled for: A100, H100 and H200, B200.
const CAPABILITIES: &str = "8.0,9.0,10.0";
/// Where `run.sh` keeps them.
const CACHE: &str = "cache";
/// The old program, where `run.sh` looks for it.
const OLD: &str = "symmem-old";
/// The folder as one file, beside it and ignored as well.
const PACKED: &str = ".gpu-bundle.tar.xz";
/// What a machine that lends a GPU may be given, packed.
const MOST: u64 = 50 << 20;

/// What goes into the bundle, and how long the build may take.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also put in the program of this revision, for `run.sh compare`.
    #[arg(long, value_name = "REV")]
    old: Option<String>,
    /// Minutes after which the build is killed.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let build =
        Build { workspace: &workspace, deadline: Instant::now() + Duration::from_secs(options.limit * 60) };
    let folder = workspace.path(FOLDER);
    clear(&folder)?;
    copy(&build.program()?, &folder.join("symmem"))?;
    if let Some(revision) = &options.old {
        copy(&build.old_program(revision)?, &folder.join(OLD))?;
    }
    build.kernels(&folder)?;
    for (name, path) in build.tests()? {
        copy(&path, &folder.join("tests").join(name))?;
    }
    copy_kernels(&workspace.path(KERNELS), &folder.join("kernels"))?;
    copy(&build.module()?, &folder.join("python/symmem/_symmem.abi3.so"))?;
    copy_python(&workspace.path(PACKAGES), &folder.join("python"))?;
    copy_python(&workspace.path(PYTHON_TESTS), &folder.join("python-tests"))?;
    write_script(&folder.join("run.sh"))?;
    let all = sizes(&folder)?;
    for (name, bytes) in &all {
        println!("{:>10.2} MiB  {name}", *bytes as f64 / f64::from(1 << 20));
    }
    let total: u64 = all.iter().map(|(_, bytes)| bytes).sum();
    println!("{:>10.2} MiB  in all, in {FOLDER}", total as f64 / f64::from(1 << 20));
    let packed = build.pack()?;
    println!("{:>10.2} MiB  packed, in {PACKED}", packed as f64 / f64::from(1 << 20));
    ensure!(packed <= MOST, "the bundle is larger than {} MiB", MOST >> 20);
    Ok(())
}

/// Builds what is in the bundle.
struct Build<'a> {
    workspace: &'a Workspace,
    deadline: Instant,
}

impl Build<'_> {
    fn program(&self) -> Result<PathBuf> {
        self.program_in(&self.workspace.path(""))
    }

    /// The program of another revision.
    fn old_program(&self, revision: &str) -> Result<PathBuf> {
        let folder = self.workspace.target("gpu-bundle/old");
        let copy = Checkout::new(self.workspace, &folder, revision, self.deadline)?;
        self.program_in(&copy.path(""))
    }

    fn program_in(&self, root: &Path) -> Result<PathBuf> {
        let messages = self.cargo_in(root, &["build", "-p", "symmem-cli", "--bin", "symmem"])?;
        let program = programs(&messages).into_iter().find(|(name, _)| name == "symmem");
        program.map(|(_, path)| path).context("cargo built no symmem")
    }

    /// Compiled kernels for the devices of [`CAPABILITIES`], where the script has its cache. Others compile
    /// them when they are first used.
    fn kernels(&self, folder: &Path) -> Result<()> {
        let job = Job::new(self.workspace, self.deadline.saturating_duration_since(Instant::now()));
        let nvrtc = match Nvrtc::set_up(&job) {
            Ok(nvrtc) => nvrtc,
            Err(error) => {
                println!("without compiled kernels, for NVRTC cannot be had: {error:#}");
                return Ok(());
            }
        };
        let mut program = self.workspace.program(folder.join("symmem"));
        program.arg("compile-kernels").args(["--capability", CAPABILITIES]).arg(folder.join(CACHE));
        bounded::run(program.env("VIRTUAL_ENV", nvrtc.folder()), self.deadline)
    }

    /// The extension module, as maturin would build it: for every Python from the oldest on.
    fn module(&self) -> Result<PathBuf> {
        let messages = self.cargo(&[
            "build",
            "-p",
            "symmem-python",
            "--lib",
            "--features",
            "symmem-python/extension-module",
        ])?;
        library(&messages, "_symmem").context("cargo built no extension module")
    }

    /// Names and paths of the test binaries.
    fn tests(&self) -> Result<Vec<(String, PathBuf)>> {
        let names = test_names(&self.workspace.path(TESTS))?;
        if names.is_empty() {
            println!("there are no tests for GPUs in {TESTS}");
            return Ok(Vec::new());
        }
        let mut arguments = vec!["test", "--no-run", "-p", "symmem", "--features", "symmem/faults"];
        arguments.extend(names.iter().flat_map(|name| ["--test", name]));
        let built = programs(&self.cargo(&arguments)?);
        let missing = names.iter().find(|name| !built.iter().any(|(built, _)| built == *name));
        ensure!(missing.is_none(), "cargo built no {}", missing.map_or("", String::as_str));
        Ok(built)
    }

    /// Packs the folder; the bytes of the file. Fast, since programs get hardly smaller with more effort.
    fn pack(&self) -> Result<u64> {
        let path = self.workspace.path(PACKED);
        let mut tar = self.workspace.program("tar");
        tar.args(["--create", "--use-compress-program=xz -2 -T0", "--file"]).arg(&path).arg(FOLDER);
        bounded::run(&mut tar, self.deadline)
            .context("the bundle cannot be packed; is there tar with xz?")?;
        Ok(fs::metadata(&path).with_context(|| format!("{} cannot be read", path.display()))?.len())
    }

    /// Runs cargo, and returns what it says it made.
    fn cargo(&self, arguments: &[&str]) -> Result<String> {
        self.cargo_in(&self.workspace.path(""), arguments)
    }

    /// The same in a copy of the workspace. Crates of a copy are other crates for cargo, so all share a
    /// folder.
    fn cargo_in(&self, root: &Path, arguments: &[&str]) -> Result<String> {
        let target = self.workspace.target("gpu-bundle");
        fs::create_dir_all(&target).with_context(|| format!("{} cannot be made", target.display()))?;
        let messages = target.join(format!("messages-{}", std::process::id()));
        let file =
            File::create(&messages).with_context(|| format!("{} cannot be made", messages.display()))?;
        let mut cargo = self.workspace.cargo(arguments.iter().copied());
        cargo
            .current_dir(root)
            .args(["--release", "--message-format=json-render-diagnostics", "--target-dir"])
            .arg(&target);
        cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        let result = bounded::run(cargo.stdout(file), self.deadline);
        let text = fs::read_to_string(&messages).unwrap_or_default();
        // The messages are of no use to anybody else.
        let _ = fs::remove_file(&messages);
        result.map(|()| text)
    }
}

/// The programs that cargo says it made: name of the target, and path.
fn programs(messages: &str) -> Vec<(String, PathBuf)> {
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?.to_owned();
        Some((name, PathBuf::from(message["executable"].as_str()?)))
    };
    messages.lines().filter_map(program).collect()
}

/// The shared library that cargo says it made of the target `name`.
fn library(messages: &str, name: &str) -> Option<PathBuf> {
    let files = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"].as_str() == Some(name);
        is_it.then(|| message["filenames"].as_array().cloned()).flatten()
    };
    let files = messages.lines().filter_map(files).flatten();
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    paths.rfind(|path| path.extension().is_some_and(|end| end == "so"))
}

/// The test targets for GPUs in a folder of tests: files, and folders with a `main.rs`.
fn test_names(folder: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = MORE_TESTS.map(str::to_owned).to_vec();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        let is_target = path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").is_file();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_target && name.starts_with(PREFIX) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be removed", folder.display()))?;
    }
    for inside in ["tests", "kernels", "python/symmem", "python-tests"] {
        let path = folder.join(inside);
        fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let result = fs::copy(from, to);
    result.with_context(|| format!("{} cannot be copied to {}", from.display(), to.display())).map(drop)
}

/// Copies the sources of the kernels.
fn copy_kernels(from: &Path, to: &Path) -> Result<()> {
    let is_source = |path: &Path| path.extension().is_some_and(|end| end == "cu" || end == "cuh");
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (is_source(&path), path.file_name()) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// Copies the files of a Python package, and of those below it.
fn copy_python(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{} cannot be made", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let is_python = path.extension().is_some_and(|end| PYTHON_FILES.iter().any(|known| end == *known));
        if path.is_dir() && name != "__pycache__" {
            copy_python(&path, &to.join(name))?;
        } else if is_python {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn write_script(path: &Path) -> Result<()> {
    let text = SCRIPT.replace("@NO_MPS_TESTS@", &NO_MPS_TESTS.join(" "));
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path, permissions)
        .with_context(|| format!("{} cannot be made a program", path.display()))
}

/// The files below `folder` with their bytes, by name.
fn sizes(folder: &Path) -> Result<Vec<(String, u64)>> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("{} cannot be read", next.display()))? {
            let entry = entry?;
            let (path, status) = (entry.path(), entry.metadata()?);
            if status.is_dir() {
                folders.push(path);
                continue;
            }
            let Ok(name) = path.strip_prefix(folder) else { bail!("{} is elsewhere", path.display()) };
            all.push((name.display().to_string(), status.len()));
        }
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-bundle-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a new folder");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn test_targets_for_gpus_are_files_and_folders_of_that_name() {
        let folder = Folder::new("names");
        for name in ["gpu_b.rs", "gpu_a.rs", "kill.rs", "gpu_notes.md"] {
            fs::write(folder.0.join(name), "").expect("a new file");
        }
        for name in ["gpu_c", "gpu_common"] {
            fs::create_dir(folder.0.join(name)).expect("a new folder");
        }
        fs::write(folder.0.join("gpu_c/main.rs"), "").expect("a new file");
        assert_eq!(test_names(&folder.0).expect("a readable folder"), ["devices", "gpu_a", "gpu_b", "gpu_c"]);
    }

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"symmem"},"executable":null}
            {"reason":"compiler-artifact","target":{"name":"gpu_a"},"executable":"/t/gpu_a-123"}
            warning: not JSON
            {"reason":"build-finished","success":true}"#;
        assert_eq!(programs(messages), [("gpu_a".to_owned(), PathBuf::from("/t/gpu_a-123"))]);
    }

    #[test]
    fn the_module_is_the_shared_library_of_its_target() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"pyo3"},"filenames":["/t/libpyo3.so"]}
            {"reason":"compiler-artifact","target":{"name":"_symmem"},"filenames":["/t/lib_symmem.so","/t/lib_symmem.rlib"]}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(library(messages, "_symmem"), Some(PathBuf::from("/t/lib_symmem.so")));
        assert_eq!(library(messages, "numpy"), None);
    }

    #[test]
    fn a_python_package_is_copied_with_those_below_it() {
        let folder = Folder::new("package");
        let inside = folder.0.join("from/torch/__pycache__");
        fs::create_dir_all(&inside).expect("new folders");
        for name in ["from/__init__.py", "from/py.typed", "from/notes.md", "from/torch/ops.pyi"] {
            fs::write(folder.0.join(name), "").expect("a new file");
        }
        fs::write(inside.join("ops.py"), "").expect("a new file");
        copy_python(&folder.0.join("from"), &folder.0.join("to")).expect("a copy");
        let names: Vec<_> = sizes(&folder.0.join("to")).expect("a readable folder");
        let names: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["__init__.py", "py.typed", "torch/ops.pyi"]);
    }

    #[test]
    fn sizes_are_of_all_files_below() {
        let folder = Folder::new("sizes");
        fs::create_dir(folder.0.join("tests")).expect("a new folder");
        fs::write(folder.0.join("symmem"), "12345").expect("a new file");
        fs::write(folder.0.join("tests/gpu_a"), "123").expect("a new file");
        let expected = [("symmem".to_owned(), 5), ("tests/gpu_a".to_owned(), 3)];
        assert_eq!(sizes(&folder.0).expect("a readable folder"), expected);
    }

    /// The script with test binaries that are scripts themselves.
    fn run_script(folder: &Folder, arguments: &str, env: &[(&str, &str)]) -> (bool, String) {
        write_script(&folder.0.join("run.sh")).expect("a script");
        let log = folder.0.join("output");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &format!("./run.sh {arguments} > output 2>&1")]).current_dir(&folder.0);
        command.env("NO_MPS", "1").envs(env.iter().copied());
        let result = bounded::run(&mut command, Instant::now() + Duration::from_secs(60));
        (result.is_ok(), fs::read_to_string(log).expect("its output"))
    }

    fn binary(folder: &Folder, name: &str, text: &str) {
        let path = folder.0.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a new file");
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, permissions).expect("a program");
    }

    #[test]
    fn the_script_runs_every_test_and_names_those_that_failed() {
        let folder = Folder::new("script");
        fs::create_dir(folder.0.join("tests")).expect("a new folder");
        binary(&folder, "tests/devices", "echo devices: $*");
        binary(&folder, "tests/gpu_a", "echo a is fine");
        binary(&folder, "tests/gpu_b", "exit 3");
        binary(&folder, "tests/gpu_kill", "echo killed");
        let (passed, output) = run_script(&folder, "tests", &[]);
        assert!(!passed && output.ends_with("FAILED: gpu_b (exit 3)\n"), "{output}");
        assert!(output.contains("a is fine") && output.starts_with("==> gpu_kill\n"), "{output}");
        assert!(output.contains("devices: --test-threads=1 --nocapture --skip on_fakes\n"), "{output}");
        binary(&folder, "tests/gpu_b", "sleep 100");
        let (passed, output) = run_script(&folder, "tests", &[("LIMIT", "1")]);
        assert!(!passed && output.contains("FAILED: gpu_b (exit 124)"), "{output}");
        fs::remove_file(folder.0.join("tests/gpu_b")).expect("it is there");
        assert!(run_script(&folder, "tests", &[]).0);
    }

    #[test]
    fn the_script_passes_options_on_to_the_bench() {
        let folder = Folder::new("bench");
        binary(&folder, "symmem", "echo $*; exit 4");
        let (passed, output) = run_script(&folder, "bench --ranks 2", &[]);
        assert_eq!((passed, output.as_str()), (false, "bench --provider vmm --ranks 2\n"));
        let (passed, output) = run_script(&folder, "dance", &[]);
        assert!(!passed && output.contains("./run.sh tests"), "{output}");
    }

    #[test]
    fn the_script_benches_the_old_and_the_new_program_in_turns() {
        let folder = Folder::new("compare");
        let (passed, output) = run_script(&folder, "compare 2", &[]);
        assert!(!passed && output.contains("gpu-bundle --old"), "{output}");
        for name in ["symmem", "symmem-old"] {
            let script =
                format!("echo {name} >> order; while [ $1 != --json ]; do shift; done; echo {name} > $2");
            binary(&folder, name, &script);
        }
        let (passed, output) = run_script(&folder, "compare 2 --ranks 2", &[]);
        assert!(passed, "{output}");
        let names = |turn: &str| {
            let read =
                |build: &str| fs::read_to_string(folder.0.join(format!("compare/{turn}-{build}.json")));
            ["old", "again", "new"].map(|build| read(build).expect("a result"))
        };
        assert_eq!(names("001"), ["symmem-old\n", "symmem-old\n", "symmem\n"]);
        assert_eq!(names("002"), names("001"));
        let order = fs::read_to_string(folder.0.join("order")).expect("both ran");
        assert_eq!(
            order.lines().collect::<Vec<_>>(),
            ["symmem-old", "symmem-old", "symmem", "symmem-old", "symmem", "symmem-old"]
        );
    }

    #[test]
    fn the_script_runs_the_python_tests_with_the_package_in_reach() {
        let folder = Folder::new("python");
        fs::create_dir(folder.0.join("python-tests")).expect("a new folder");
        for name in ["test_a.py", "test_fake_a.py", "eager.py", "cases.py"] {
            fs::write(folder.0.join("python-tests").join(name), "").expect("a new file");
        }
        binary(&folder, "interpreter", "echo $PYTHONPATH $*; test \"$1\" != python-tests/test_a.py");
        let python = folder.0.join("interpreter").display().to_string();
        let (passed, output) = run_script(&folder, "python", &[("PYTHON", &python)]);
        let package = folder.0.join("python").display().to_string();
        assert!(!passed && output.contains("FAILED: test_a.py (exit 1)"), "{output}");
        assert!(output.contains(&format!("{package} python-tests/test_a.py")), "{output}");
        assert!(output.contains(&format!("{package} python-tests/eager.py")), "{output}");
        assert!(!output.contains("fake") && !output.contains("cases"), "{output}");
        let (_, output) = run_script(&folder, "eager --ranks 2", &[("PYTHON", &python)]);
        assert!(output.contains("python-tests/eager.py --ranks 2"), "{output}");
    }
}
