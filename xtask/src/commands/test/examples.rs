//! Runs every example of the library.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::plan::{Job, Outcome};

const FOLDER: &str = "crates/symmem/examples";

/// An example shows one idea; one that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let names = names(&job.workspace.path(FOLDER))?;
    ensure!(!names.is_empty(), "there is no example in {FOLDER}");
    // Built first, so that the limit counts the example's own time.
    job.run(&mut job.workspace.cargo(["build", "--release", "-p", "symmem", "--examples"]))?;
    for name in names {
        println!("example {name}");
        let mut cargo = job.workspace.cargo(["run", "--release", "-p", "symmem", "--example", &name]);
        job.run_within(LIMIT, &mut cargo)?;
    }
    Ok(Outcome::Passed)
}

/// The names of the examples in `folder`, sorted; none if there is no such folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.extension().is_some_and(|end| end == "rs"), path.file_stem()) {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_the_rust_files_of_the_folder_in_order() {
        let folder = std::env::temp_dir().join(format!("xtask-examples-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        for name in ["02_b.rs", "01_a.rs", "README.md"] {
            fs::write(folder.join(name), "").expect("a new file");
        }
        let found = names(&folder);
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert_eq!(found.expect("a readable folder"), ["01_a", "02_b"]);
    }

    #[test]
    fn a_missing_folder_holds_no_examples() {
        assert!(names(Path::new("/no/such/folder")).expect("no error").is_empty());
    }
}
