//! Where files lie unless a setting says otherwise: in the user's cache folder.

use std::path::PathBuf;

/// What is called `name` in that folder.
pub(super) fn cached(name: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join(name))
}
