//! What a step installs outside of cargo: folders that a recipe fills once, and Python environments in them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Makes what a recipe stands for, unless that was done before with the same recipe.
///
/// `make` finds `folder` absent. If it fails the folder is not trusted by the next run.
pub(crate) fn once(folder: &Path, recipe: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
    let mark = folder.join("recipe");
    if fs::read_to_string(&mark).is_ok_and(|found| found == recipe) {
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("{} cannot be emptied", folder.display()))?;
    }
    make()?;
    fs::write(&mark, recipe).with_context(|| format!("{} cannot be written", mark.display()))
}

/// The command that makes a Python environment in `folder`.
pub(crate) fn venv(workspace: &Workspace, folder: &Path) -> Command {
    let mut python = workspace.program("python3");
    python.args(["-m", "venv"]).arg(folder);
    python
}

/// The command that installs packages into the Python environment in `folder`.
pub(crate) fn pip<'a>(
    workspace: &Workspace,
    folder: &Path,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Command {
    let mut pip = workspace.program(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    pip.args(arguments);
    pip
}
