//! The packages of the crates, each built from what it holds alone.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};

use super::facts::PUBLISHED;
use super::made::Made;
use crate::plan::Job;

/// Makes the packages in `folder`.
pub(super) fn make(job: &Job, folder: &Path, allow_dirty: bool) -> Result<Vec<Made>> {
    let dirty = if allow_dirty { &["--allow-dirty"][..] } else { &[] };
    // A place of its own, so that nothing lies there from before.
    let built = job.workspace.target("packages/build");
    let _ = fs::remove_dir_all(built.join("package"));
    let mut package = job.workspace.cargo(["package", "--locked", "--quiet"]);
    for name in PUBLISHED {
        package.args(["--package", name]);
    }
    package.args(dirty).arg("--target-dir").arg(&built);
    job.run(&mut package).context("the crates cannot be packed")?;
    // What only a registry would refuse. They were just built.
    let check = ["publish", "--workspace", "--dry-run", "--no-verify", "--locked", "--quiet"];
    let mut publish = job.workspace.cargo(check);
    publish.args(dirty).arg("--target-dir").arg(&built).stdout(Stdio::from(io::stderr()));
    job.run(&mut publish).context("the registry would refuse the crates")?;
    PUBLISHED.iter().map(|name| take(&built.join("package"), name, folder)).collect()
}

/// Copies the package of the crate `name`, of whatever version, to `folder`.
fn take(from: &Path, name: &str, folder: &Path) -> Result<Made> {
    let is_its = |file: &str| {
        let rest = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| {
            rest.starts_with(|first: char| first.is_ascii_digit()) && rest.ends_with(".crate")
        })
    };
    let entries = fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))?;
    let file = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|file| is_its(file))
        .with_context(|| format!("cargo made no package of {name}"))?;
    let path = folder.join(&file);
    fs::copy(from.join(&file), &path).with_context(|| format!("{} cannot be written", path.display()))?;
    Made::new(&path, "crate", format!("`cargo publish -p {name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_not_taken_for_one_whose_name_begins_with_its_own() {
        let folder = std::env::temp_dir().join(format!("xtask-crates-{}", std::process::id()));
        let out = folder.join("out");
        fs::create_dir_all(&out).expect("a new folder");
        fs::write(folder.join("a-cli-1.0.0.crate"), "cli").expect("a new file");
        let none = take(&folder, "a", &out);
        fs::write(folder.join("a-1.0.0.crate"), "a").expect("a new file");
        let one = take(&folder, "a", &out);
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert!(none.is_err_and(|error| error.to_string() == "cargo made no package of a"));
        assert_eq!(one.expect("a package").name, "a-1.0.0.crate");
    }
}
