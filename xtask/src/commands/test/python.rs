//! The Python package: its wheel is built and installed into an environment of its own, where pytest runs
//! everything.
//!
//! The tests check the types, the docstrings, the examples and the tutorial too, so a plain `pytest` there
//! does what this step does. Those that need torch use the one that `cargo xtask peers` sets up.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::commands::{listings, peers};
use crate::environment;
use crate::plan::{Job, Outcome};
use crate::wheel;
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "crates/symmem-python/requirements-dev.txt";
const TESTS: &str = "crates/symmem-python/tests";

/// The suite takes seven minutes; on a busy machine twice as long.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// Torch is a download of half a gigabyte.
const TORCH_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The oldest interpreter that the wheel is for.
const OLDEST: (u32, u32) = (3, 11);

/// Prints the version, if environments can be made.
const ASK_VERSION: &str = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])";
/// Prints where torch lies, if there is one.
const ASK_TORCH: &str = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))";
/// Prints where an environment keeps its packages.
const ASK_SITE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

pub(super) fn run(job: &Job) -> Result<Outcome> {
    if let Err(reason) = interpreter(job) {
        return Ok(Outcome::Skipped(format!("{reason:#}")));
    }
    let venv = job.workspace.target("python/venv");
    if let Err(error) = install_tools(job, &venv) {
        return Ok(Outcome::Skipped(format!("what the tests need cannot be had: {error:#}")));
    }
    let wheel = wheel::build(job, &venv, &job.workspace.target("python/wheels"), "--locked")?;
    install_wheel(job, &venv, &wheel)?;
    listings::check_size(job.workspace, &site(job, &venv)?)?;
    match find_torch(job).and_then(|packages| link(job, &venv, &packages)) {
        Ok(()) => {}
        Err(error) => println!("without torch, its tests are skipped: {error:#}"),
    }
    // Tests without a device load these.
    let fakes = ["build", "--package", "symmem-fakecuda", "--package", "symmem-fakenccl"];
    job.run(&mut job.workspace.cargo(fakes))?;
    job.within(LIMIT).run_tests(&mut pytest(job.workspace, &venv, &wheel))?;
    Ok(Outcome::Passed)
}

/// An error that says why this machine's Python will not do.
fn interpreter(job: &Job) -> Result<()> {
    let version = job
        .output(job.workspace.program("python3").args(["-c", ASK_VERSION]))
        .context("there is no python3 with its venv module")?;
    let found = parse(&version).with_context(|| format!("python3 says its version is {version:?}"))?;
    ensure!(found >= OLDEST, "python3 is {}, and the package needs 3.11", version.trim());
    Ok(())
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn install_tools(job: &Job, venv: &Path) -> Result<()> {
    let requirements = job.workspace.path(REQUIREMENTS);
    let recipe = fs::read_to_string(&requirements)
        .with_context(|| format!("{} cannot be read", requirements.display()))?;
    environment::once(venv, &recipe, || {
        println!("installing {REQUIREMENTS}");
        job.run(&mut environment::venv(job.workspace, venv))?;
        job.run(&mut environment::pip(job.workspace, venv, ["--requirement", REQUIREMENTS]))
    })
}

fn install_wheel(job: &Job, venv: &Path, wheel: &Path) -> Result<()> {
    let arguments = ["--no-deps", "--no-index", "--force-reinstall", &wheel.display().to_string()];
    job.run(&mut environment::pip(job.workspace, venv, arguments)).context("the wheel cannot be installed")
}

/// The folder of packages with torch: that of python3, or one that is set up for it.
fn find_torch(job: &Job) -> Result<PathBuf> {
    let ask = |python: &Path| job.output(job.workspace.program(python).args(["-c", ASK_TORCH]));
    if let Ok(folder) = ask(Path::new("python3")) {
        return Ok(folder.trim().into());
    }
    let venv = peers::torch_environment(job.workspace, Instant::now() + TORCH_LIMIT)?;
    let folder = ask(&venv.join("bin/python")).context("torch is installed, but cannot be imported")?;
    Ok(folder.trim().into())
}

/// Where an environment keeps its packages.
fn site(job: &Job, venv: &Path) -> Result<PathBuf> {
    let site = job.output(job.workspace.program(venv.join("bin/python")).args(["-c", ASK_SITE]))?;
    Ok(site.trim().into())
}

/// Lets the environment see the packages in `packages`, after its own.
fn link(job: &Job, venv: &Path, packages: &Path) -> Result<()> {
    let python = venv.join("bin/python");
    let link = site(job, venv)?.join("torch-from-elsewhere.pth");
    fs::write(&link, format!("{}\n", packages.display()))
        .with_context(|| format!("{} cannot be written", link.display()))?;
    let seen = job.run(job.workspace.program(&python).args(["-c", "import torch"]));
    if seen.is_err() {
        let _ = fs::remove_file(&link);
    }
    seen.context("it cannot be imported next to the wheel")
}

fn pytest(workspace: &Workspace, venv: &Path, wheel: &Path) -> Command {
    let mut pytest = workspace.program(venv.join("bin/python"));
    pytest.args(["-m", "pytest", "--quiet", "-rs", "--durations=5", "-p", "no:cacheprovider"]);
    // No files beside the sources; one thread a rank.
    pytest.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1").arg(TESTS);
    // For the test that installs it as a newcomer would.
    pytest.env("SYMMEM_TEST_WHEEL", wheel);
    pytest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse("3.11\n"), Some((3, 11)));
        assert!(parse("3.9").expect("a version") < OLDEST);
        assert!(parse("3.14").expect("a version") > OLDEST);
        assert_eq!(parse("three"), None);
    }

    /// Each crate of `package`'s tree with its features.
    fn crates(package: &str, more: &[&str]) -> BTreeSet<(String, String)> {
        let workspace = Workspace::find().expect("this workspace");
        let mut tree = workspace.cargo(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"]);
        let output =
            tree.args(["--no-dedupe", "--format", "{p}|{f}", "--package", package]).args(more).output();
        let text = String::from_utf8(output.expect("cargo runs").stdout).expect("UTF-8");
        text.lines()
            .filter_map(|line| line.split_once('|'))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect()
    }

    /// The wheel has both, and what they share is compiled once. If this fails, see the build-dependencies of
    /// symmem-cli.
    #[test]
    fn program_and_extension_have_their_crates_with_the_same_features() {
        let program = crates("symmem-cli", &[]);
        let extension = crates("symmem-python", &["--features", "extension-module"]);
        let has = |all: &BTreeSet<(String, String)>, name: &str| all.iter().any(|(other, _)| other == name);
        let differ = program.symmetric_difference(&extension);
        let shared: Vec<_> =
            differ.filter(|(name, _)| has(&program, name) && has(&extension, name)).collect();
        assert!(shared.is_empty(), "{shared:?}");
        assert!(program.len() > 20 && extension.len() > 20);
    }
}
