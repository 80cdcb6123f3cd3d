//! Which Python is meant where none is named.

use std::path::{Path, PathBuf};

/// The Python of the option, else of `SYMMEM_PYTHON`, else `python3` of the path.
pub(crate) fn find(option: Option<&Path>) -> PathBuf {
    let variable = std::env::var_os("SYMMEM_PYTHON").filter(|name| !name.is_empty()).map(PathBuf::from);
    option.map(Path::to_owned).or(variable).unwrap_or_else(|| "python3".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_python() {
        assert_eq!(find(Some(Path::new("/a/python"))), Path::new("/a/python"));
    }
}
