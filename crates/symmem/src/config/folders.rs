//! Where files lie unless a setting says otherwise: in the user's cache folder.

use std::path::PathBuf;

/// The folder of compiled kernels.
pub(super) fn kernels() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("symmem"))
}

/// The file of what `symmem tune` measured.
pub(crate) fn tuning() -> Option<PathBuf> {
    Some(kernels()?.join("tuning.json"))
}
