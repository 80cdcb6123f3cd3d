//! A folder for the files of one run, removed in the end.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The folder.
pub(super) struct ScratchFolder(pub(super) PathBuf);

impl ScratchFolder {
    /// A new one; its name is short, because sockets lie in it.
    pub(super) fn open(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("symmem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self(path))
    }

    /// A new one for a test.
    #[cfg(test)]
    pub(super) fn new(name: &str) -> Self {
        Self::open(name).expect("a folder")
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // What stays in the folder for temporary files does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
