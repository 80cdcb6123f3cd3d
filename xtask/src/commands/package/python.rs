//! The wheel and the source package of Python, by tools in an environment of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::made::Made;
use crate::environment;
use crate::plan::Job;
use crate::wheel;

const REQUIREMENTS: &str = "crates/symmem-python/requirements-release.txt";

/// The oldest systems that a release is for: glibc 2.17 is of 2012, and Rust itself needs it.
pub(super) const TAG: &str = "manylinux_2_17";

/// A tag of systems as an option gives it.
pub(super) fn parse_tag(text: &str) -> Result<String> {
    ensure!(
        glibc(text).is_some_and(|minor| minor >= 17),
        "it is `manylinux_2_N`, where N is at least 17, as in {TAG}"
    );
    Ok(text.to_owned())
}

/// The N of `manylinux_2_N`, also where more comes after it.
fn glibc(tag: &str) -> Option<u32> {
    let rest = tag.strip_prefix("manylinux_2_")?;
    rest.split('_').next()?.parse().ok()
}

/// Builds the wheel into `folder`.
pub(super) fn wheel(job: &Job, folder: &Path, tag: &str) -> Result<Made> {
    let venv = tools(job)?;
    let arguments = format!("--locked --zig --compatibility {tag}");
    let built = wheel::build(job, &venv, &job.workspace.target("packages/wheels"), &arguments)?;
    let said = job.output(job.workspace.program(venv.join("bin/auditwheel")).arg("show").arg(&built))?;
    let deserved = deserved(&said).with_context(|| format!("auditwheel says of no tag: {said}"))?;
    ensure_as_old(&deserved, tag)?;
    let path = folder.join(built.file_name().context("a wheel has a name")?);
    fs::copy(&built, &path).with_context(|| format!("{} cannot be written", path.display()))?;
    Made::new(&path, "wheel", format!("auditwheel: {deserved}"))
}

/// Packs the sources into `folder`.
pub(super) fn sdist(job: &Job, folder: &Path) -> Result<Made> {
    let venv = tools(job)?;
    let packed = job.workspace.target("packages/sdist");
    let _ = fs::remove_dir_all(&packed);
    let mut maturin = job.workspace.program(venv.join("bin/maturin"));
    maturin.args(["sdist", "--out"]).arg(&packed).stdout(Stdio::from(io::stderr()));
    job.run(&mut maturin).context("the sources cannot be packed")?;
    let entries = fs::read_dir(&packed).with_context(|| format!("{} cannot be read", packed.display()))?;
    let found: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let [file] = found.as_slice() else { bail!("maturin made {} files instead of one", found.len()) };
    let path = folder.join(file.file_name().context("a file has a name")?);
    fs::copy(file, &path).with_context(|| format!("{} cannot be written", path.display()))?;
    Made::new(&path, "sdist", "builds with Rust, as a checkout does".to_owned())
}

/// The environment with the tools.
fn tools(job: &Job) -> Result<PathBuf> {
    let venv = job.workspace.target("packages/venv");
    let recipe = fs::read_to_string(job.workspace.path(REQUIREMENTS)).context(REQUIREMENTS)?;
    environment::once(&venv, &recipe, || {
        eprintln!("installing {REQUIREMENTS}");
        job.run(&mut environment::venv(job.workspace, &venv))?;
        job.run(&mut environment::pip(job.workspace, &venv, ["--requirement", REQUIREMENTS]))
    })
    .context("what builds wheels cannot be had")?;
    Ok(venv)
}

/// The tag in the verdict of auditwheel:
/// `... is consistent with the following platform tag: "manylinux_2_17_x86_64".`
fn deserved(said: &str) -> Option<String> {
    // Its lines are wrapped.
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) = words.split_once("following platform tag: \"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// An error if a wheel deserves only a newer tag than the one in its name.
fn ensure_as_old(deserved: &str, wanted: &str) -> Result<()> {
    let is_as_old = glibc(deserved).zip(glibc(wanted)).is_some_and(|(found, wanted)| found <= wanted);
    ensure!(is_as_old, "the wheel is called {wanted}, and auditwheel says that it is {deserved}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn tags_are_of_glibc_and_no_older_than_rust() {
        assert_eq!(parse_tag("manylinux_2_28").expect("a tag"), "manylinux_2_28");
        assert!(parse_tag(TAG).is_ok());
        for wrong in ["manylinux_2_12", "manylinux2014", "linux", "musllinux_1_2", ""] {
            let error = parse_tag(wrong).expect_err(wrong).to_string();
            assert!(error.starts_with("it is `manylinux_2_N`"), "{error}");
        }
    }

    #[test]
    fn the_verdict_of_auditwheel_is_read_and_counts() {
        let said = "\na.whl is consistent\nwith the following platform tag:\n\"manylinux_2_17_x86_64\".\n\nThe wheel references";
        assert_eq!(deserved(said).as_deref(), Some("manylinux_2_17_x86_64"));
        assert_eq!(deserved("nothing of the kind"), None);
        assert!(ensure_as_old("manylinux_2_17_x86_64", "manylinux_2_28").is_ok());
        assert!(ensure_as_old("manylinux_2_34_x86_64", "manylinux_2_28").is_err());
        assert!(ensure_as_old("linux_x86_64", "manylinux_2_28").is_err());
    }

    #[test]
    fn releases_and_tests_have_the_same_maturin() {
        let workspace = Workspace::find().expect("a workspace");
        let pin = |file: &str| {
            let text = fs::read_to_string(workspace.path(file)).expect(file);
            text.lines().find(|line| line.starts_with("maturin==")).expect("a version").to_owned()
        };
        assert_eq!(pin(REQUIREMENTS), pin("crates/symmem-python/requirements-dev.txt"));
    }
}
