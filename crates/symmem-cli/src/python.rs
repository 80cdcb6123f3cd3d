//! Which Python is meant where none is named.

use std::path::{Path, PathBuf};

/// The Python of the option, else of `SYMMEM_PYTHON`, else of the environment that this program is installed
/// in, else `python3` of the path.
pub(crate) fn find(option: Option<&Path>) -> PathBuf {
    let variable = std::env::var_os("SYMMEM_PYTHON").filter(|name| !name.is_empty()).map(PathBuf::from);
    let own = || std::env::current_exe().ok().and_then(|program| of_environment(&program));
    option.map(Path::to_owned).or(variable).or_else(own).unwrap_or_else(|| "python3".into())
}

/// The Python of the virtual environment that `program` is in: such a program may be called by its path,
/// while another Python is first in the search path.
fn of_environment(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let python = folder.join("python3");
    (folder.parent()?.join("pyvenv.cfg").is_file() && python.is_file()).then_some(python)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_option_is_the_python() {
        assert_eq!(find(Some(Path::new("/a/python"))), Path::new("/a/python"));
    }

    #[test]
    fn a_program_of_an_environment_means_its_python() {
        let folder = std::env::temp_dir().join(format!("symmem-environment-{}", std::process::id()));
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("a new folder");
        fs::write(bin.join("python3"), "").expect("a new file");
        let outside = of_environment(&bin.join("symmem"));
        fs::write(folder.join("pyvenv.cfg"), "").expect("a new file");
        let inside = of_environment(&bin.join("symmem"));
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert_eq!((outside, inside), (None, Some(bin.join("python3"))));
    }
}
