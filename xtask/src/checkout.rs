//! Copies of the repository at any revision, to build it beside the developer's own files.
//!
//! A copy has an index of its own, so the developer's index, branch and files stay as they are. Another
//! revision in the same copy changes only the files that differ, so that cargo builds only those again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::bounded;
use crate::workspace::Workspace;

/// The name of no revision: the files as they lie in the workspace, tracked or not, unless they are ignored.
pub(crate) const WORKTREE: &str = "worktree";

/// A folder with the files of one revision.
pub(crate) struct Checkout {
    /// What was copied, in a few words.
    pub(crate) name: String,
    root: PathBuf,
}

impl Checkout {
    /// Makes `folder` hold the files of `revision`.
    pub(crate) fn new(
        workspace: &Workspace,
        folder: &Path,
        revision: &str,
        deadline: Instant,
    ) -> Result<Self> {
        let root = folder.join("tree");
        fs::create_dir_all(&root).with_context(|| format!("{} cannot be made", root.display()))?;
        let git = Git { workspace, deadline };
        let (tree, name) = match revision {
            WORKTREE => (git.worktree(folder)?, WORKTREE.to_owned()),
            _ => git.revision(revision)?,
        };
        let mut read = git.command(&["read-tree", "--reset", "-u", &tree]);
        read.env("GIT_INDEX_FILE", folder.join("index")).env("GIT_DIR", git.folder()?);
        read.env("GIT_WORK_TREE", &root).current_dir(&root);
        bounded::run(&mut read, deadline)?;
        Ok(Self { name, root })
    }

    /// A path inside the copy.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// Writes a file that the revision does not have. One that is the same is not touched, for cargo looks at
    /// its time.
    pub(crate) fn add(&self, inside: &str, text: &str) -> Result<()> {
        let path = self.path(inside);
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let folder = path.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Git in the workspace.
struct Git<'a> {
    workspace: &'a Workspace,
    deadline: Instant,
}

impl Git<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut git = self.workspace.program("git");
        git.args(arguments);
        git
    }

    fn line(&self, command: &mut Command) -> Result<String> {
        Ok(bounded::output(command, self.deadline)?.trim().to_owned())
    }

    fn folder(&self) -> Result<String> {
        self.line(&mut self.command(&["rev-parse", "--absolute-git-dir"]))
    }

    /// The tree of a revision, and its short name.
    fn revision(&self, revision: &str) -> Result<(String, String)> {
        ensure!(!revision.starts_with('-'), "`{revision}` is no revision");
        let commit = format!("{revision}^{{commit}}");
        let short = self
            .line(&mut self.command(&["rev-parse", "--verify", "--short", &commit]))
            .with_context(|| format!("git knows no revision `{revision}`"))?;
        Ok((format!("{short}^{{tree}}"), short))
    }

    /// The tree of the files as they lie there.
    fn worktree(&self, folder: &Path) -> Result<String> {
        let index = folder.join("worktree-index");
        // It starts empty: what is left of an earlier run may be half written.
        let _ = fs::remove_file(&index);
        let mut add = self.command(&["add", "--all", "."]);
        bounded::run(add.env("GIT_INDEX_FILE", &index), self.deadline)?;
        self.line(self.command(&["write-tree"]).env("GIT_INDEX_FILE", &index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_copy_of_the_worktree_has_its_files_and_keeps_what_was_added() {
        let folder = std::env::temp_dir().join(format!("xtask-checkout-{}", std::process::id()));
        let workspace = Workspace::find().expect("a workspace");
        let deadline = Instant::now() + Duration::from_secs(60);
        let copy = || Checkout::new(&workspace, &folder, WORKTREE, deadline);
        let result = copy().and_then(|first| {
            first.add("crates/more/Cargo.toml", "[package]")?;
            copy()
        });
        let files = ["Cargo.lock", "xtask/Cargo.toml", "crates/more/Cargo.toml"];
        let found = result.as_ref().map(|copy| files.map(|file| copy.path(file).is_file()));
        let unknown = Checkout::new(&workspace, &folder, "no-such-revision", deadline).err();
        let _ = fs::remove_dir_all(&folder);
        match result.as_ref() {
            // A copy of the sources without git's folder is a good place for tests too.
            Err(error) if !workspace.path(".git").exists() => println!("skipped: {error:#}"),
            _ => {
                assert_eq!(found.expect("a copy"), [true; 3]);
                let message = format!("{:#}", unknown.expect("an unknown revision"));
                assert!(message.starts_with("git knows no revision `no-such-revision`"), "{message}");
            }
        }
    }
}
