//! What the tests of this module share.

use std::path::{Path, PathBuf};

/// A folder that goes away with its owner.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let id = crate::sys::ids::hex(&crate::sys::ids::random::<8>().unwrap());
        let path = std::env::temp_dir().join(format!("symmem-cuda-test-{id}"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes an empty file below the folder, and returns where it is.
    pub(super) fn touch(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
