//! Builds the wheel of the Python package, as `pip install .` does, with the tools of an environment that has
//! them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::plan::Job;

/// Builds the wheel into `folder`, which is emptied first. `arguments` are maturin's; what is printed goes to
/// stderr.
pub(crate) fn build(job: &Job, venv: &Path, folder: &Path, arguments: &str) -> Result<PathBuf> {
    // A wheel of another version or platform must not be taken for this one.
    let _ = fs::remove_dir_all(folder);
    let mut pip = job.workspace.program(venv.join("bin/python"));
    pip.args(["-m", "pip", "wheel", "--verbose", "--no-input", "--disable-pip-version-check"]);
    pip.args(["--no-deps", "--no-index", "--no-build-isolation", "--config-settings"]);
    pip.arg(format!("build-args={arguments}")).arg("--wheel-dir").arg(folder).arg(".");
    // The backend calls maturin by its name.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = [venv.join("bin")].into_iter().chain(std::env::split_paths(&path));
    pip.env("PATH", std::env::join_paths(folders)?).stdout(Stdio::from(io::stderr()));
    // With zig, program and extension are linked by a script of whoever builds them, cargo-zigbuild or
    // maturin, and cargo builds all that they share again for another linker. By this both have one script.
    pip.env("CARGO_BIN_EXE_cargo-zigbuild", venv.join("bin/cargo-zigbuild"));
    job.run(&mut pip).context("the wheel cannot be built")?;
    only(folder)
}

fn only(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut found: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "whl"))
        .collect();
    ensure!(found.len() == 1, "there are {} wheels instead of one", found.len());
    Ok(found.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_wheel_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-wheels-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        fs::write(folder.join("a.whl"), "").expect("a new file");
        let one = only(&folder);
        fs::write(folder.join("b.whl"), "").expect("a new file");
        let two = only(&folder);
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert!(one.expect("one wheel").ends_with("a.whl"));
        assert!(two.is_err());
    }
}
