//! What setting up any peer needs: Python environments, the C compiler, commands that cannot hang.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::manifest::Entry;
use crate::workspace::Workspace;
use crate::{bounded, environment};

/// What verifying a peer may take, with time to spare for a busy machine.
const CHECK_LIMIT: Duration = Duration::from_secs(120);

/// The setting up of one peer.
pub(super) struct Setup<'a> {
    pub(super) workspace: &'a Workspace,
    folder: &'a Path,
    name: &'static str,
    deadline: Instant,
}

impl<'a> Setup<'a> {
    pub(super) fn new(
        workspace: &'a Workspace,
        folder: &'a Path,
        name: &'static str,
        deadline: Instant,
    ) -> Self {
        Self { workspace, folder, name, deadline }
    }

    /// Tells what happens next.
    pub(super) fn say(&self, what: &str) {
        println!("{}: {what}", self.name);
    }

    /// A path inside `.peers`.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside)
    }

    /// A file of this peer's own; its folder is made.
    pub(super) fn own(&self, file: &str) -> Result<PathBuf> {
        let folder = self.path(self.name);
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        Ok(folder.join(file))
    }

    pub(super) fn run(&self, command: &mut Command) -> Result<()> {
        bounded::run(command, self.deadline)
    }

    /// What a short command printed.
    pub(super) fn output(&self, command: &mut Command) -> Result<String> {
        bounded::output(command, self.deadline)
    }

    /// Runs the command that verifies this peer.
    pub(super) fn check(&self, command: &mut Command) -> Result<()> {
        bounded::run(command, self.deadline.min(Instant::now() + CHECK_LIMIT))
    }

    /// The command of `entry` for `ranks` ranks, with its environment.
    pub(super) fn launch(&self, entry: &Entry, ranks: usize) -> Command {
        let words: Vec<_> =
            entry.launch.iter().map(|word| word.replace("{ranks}", &ranks.to_string())).collect();
        let (program, arguments) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
        let mut command = self.workspace.program(program);
        command.args(arguments).envs(entry.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Makes what a recipe stands for, unless that was done before with the same recipe.
    ///
    /// `make` finds `folder` absent. If it fails the folder is not trusted by the next run.
    pub(super) fn once(&self, folder: &Path, recipe: &str, make: impl FnOnce() -> Result<()>) -> Result<()> {
        environment::once(folder, recipe, make)
    }

    /// Makes a Python environment in `folder`.
    pub(super) fn venv(&self, folder: &Path) -> Result<()> {
        self.run(&mut environment::venv(self.workspace, folder))
            .context("no Python environment could be made (python3 with its venv module is needed)")
    }

    /// Installs packages into the Python environment in `folder`.
    pub(super) fn pip<'p>(&self, folder: &Path, arguments: impl IntoIterator<Item = &'p str>) -> Result<()> {
        self.run(&mut environment::pip(self.workspace, folder, arguments))
    }

    /// The C compiler.
    pub(super) fn cc(&self) -> Command {
        let mut compiler = self.workspace.program("cc");
        compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra"]);
        compiler
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Kind;
    use super::*;
    use anyhow::bail;

    fn with_setup(name: &str, test: impl FnOnce(&Setup, &Path)) {
        let workspace = Workspace::find().expect("a workspace");
        let folder = std::env::temp_dir().join(format!("xtask-setup-{}-{name}", std::process::id()));
        let setup = Setup::new(&workspace, &folder, "x", Instant::now() + Duration::from_secs(60));
        test(&setup, &folder);
        let _ = fs::remove_dir_all(&folder);
    }

    /// Whether `once` called its function.
    fn makes(setup: &Setup, folder: &Path, recipe: &str) -> bool {
        let mut made = false;
        let make = || {
            made = true;
            assert!(!folder.exists(), "the function must find nothing");
            fs::create_dir_all(folder)?;
            Ok(())
        };
        setup.once(folder, recipe, make).expect("a writable folder");
        made
    }

    #[test]
    fn a_recipe_is_followed_once_and_again_when_it_changes() {
        with_setup("once", |setup, folder| {
            assert!(makes(setup, folder, "one"));
            assert!(!makes(setup, folder, "one"));
            assert!(makes(setup, folder, "two"));
        });
    }

    #[test]
    fn a_recipe_that_failed_is_tried_again() {
        with_setup("failed", |setup, folder| {
            let fail = || {
                fs::create_dir_all(folder)?;
                bail!("no network")
            };
            assert!(setup.once(folder, "one", fail).is_err());
            assert!(makes(setup, folder, "one"));
        });
    }

    #[test]
    fn the_number_of_ranks_is_filled_in() {
        with_setup("launch", |setup, _| {
            let entry = Entry { kind: Kind::Script, ..Entry::example() };
            let command = setup.launch(&entry, 3);
            assert_eq!(command.get_program(), "mpiexec");
            assert_eq!(command.get_args().collect::<Vec<_>>(), ["-n", "3"]);
            assert_eq!(command.get_envs().collect::<Vec<_>>(), [("A".as_ref(), Some("1".as_ref()))]);
        });
    }
}
