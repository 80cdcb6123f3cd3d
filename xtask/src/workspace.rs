//! Where things are, and how cargo is called.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The workspace this program belongs to.
pub(crate) struct Workspace {
    root: PathBuf,
    cargo: OsString,
    rustc: OsString,
}

impl Workspace {
    /// Finds the workspace: the folder above this crate.
    pub(crate) fn find() -> Result<Self> {
        // Cargo sets it when it runs us; a moved checkout must not use the path it was built with.
        let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().context("xtask must lie inside the workspace")?.to_owned();
        let tool = |variable, name: &str| env::var_os(variable).unwrap_or_else(|| name.into());
        Ok(Self { root, cargo: tool("CARGO", "cargo"), rustc: tool("RUSTC", "rustc") })
    }

    /// A path inside the workspace.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// A folder of build output: under `CARGO_TARGET_DIR` if that is set, else under `target`.
    pub(crate) fn target(&self, inside: &str) -> PathBuf {
        let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        self.root.join(target).join(inside)
    }

    /// A cargo command in the workspace.
    pub(crate) fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.program(&self.cargo);
        command.args(arguments);
        command
    }

    /// A rustc command in the workspace.
    pub(crate) fn rustc(&self) -> Command {
        self.program(&self.rustc)
    }

    /// Any other command in the workspace.
    pub(crate) fn program(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_root_holds_the_lock_file() {
        assert!(Workspace::find().expect("a workspace").path("Cargo.lock").is_file());
    }
}
