//! The step `words` of `cargo xtask lint`: the words of CONTRIBUTING.md are kept, and comments fit the page.
//!
//! The tables of CONTRIBUTING.md are the only source: words that are not used (`search.rs`), types that may
//! be defined twice (`types.rs`), words that the project has. The width of comments is rustfmt's
//! (`columns.rs`). Nothing is written.

mod columns;
mod search;
mod tables;
mod types;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::plan::{Job, Outcome};
use crate::source::{File, Sources};
use crate::workspace::Workspace;
use tables::Tables;

const PAGE: &str = "CONTRIBUTING.md";
/// The crates whose types have names of their own.
const LIBRARIES: [&str; 3] = ["crates/symmem/src", "crates/symmem-python/src", "crates/symmem-store/src"];
/// The others: names may come twice in them, but none may say too little.
const PROGRAMS: [&str; 4] = [
    "crates/symmem-cli/src",
    "crates/symmem-fakecuda/src",
    "crates/symmem-fakenccl/src",
    "crates/symmem-models/src",
];
const RUSTFMT: &str = "rustfmt.toml";

/// Names of files that are read, by how they end.
const KINDS: [&str; 13] = ["rs", "py", "pyi", "md", "cu", "cuh", "h", "hpp", "c", "cpp", "toml", "txt", "sh"];
/// Files that name what is no longer there, and the tests of this very step.
const SPARED: [&str; 2] = ["CHANGELOG.md", "xtask/src/commands/words/"];

/// A file of the repository.
struct Text {
    path: String,
    text: String,
}

/// The step of `cargo xtask lint`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let tables = Tables::parse(&read(&job.workspace.path(PAGE))?).context(PAGE)?;
    let width = columns::width(&read(&job.workspace.path(RUSTFMT))?).context(RUSTFMT)?;
    let texts = texts(job.workspace)?;
    let sources = |folder: &&'static str| Ok((*folder, Sources::read(&job.workspace.path(folder))?));
    let libraries = LIBRARIES.iter().map(sources).collect::<Result<Vec<_>>>()?;
    let programs = PROGRAMS.iter().map(sources).collect::<Result<Vec<_>>>()?;
    let mut wrong = search::forbidden(&texts, &tables);
    wrong.extend(search::stale(&texts, &tables));
    wrong.extend(types::judge(&libraries, &tables));
    wrong.extend(types::bare(&libraries, &tables));
    wrong.extend(types::bare(&programs, &tables));
    let is_wide = |file: &&Text| file.text.lines().any(|line| line.len() > width);
    for Text { path, text } in texts.iter().filter(|file| file.path.ends_with(".rs")).filter(is_wide) {
        wrong.extend(columns::too_wide(&File::new(path, text.clone())?, width));
    }
    if !wrong.is_empty() {
        bail!("the words of {PAGE} are not kept:\n  {}", wrong.join("\n  "));
    }
    Ok(Outcome::Passed)
}

/// The files that git has, as they are on disk. A file that was deleted and not yet committed is none.
fn texts(workspace: &Workspace) -> Result<Vec<Text>> {
    let mut git = workspace.program("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = git.output().context("git cannot be started")?;
    if !listed.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let listed = String::from_utf8(listed.stdout).context("git ls-files")?;
    let is_read = |path: &&str| {
        let kind = Path::new(path).extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        KINDS.contains(&kind)
            && !SPARED.iter().any(|spared| path.starts_with(spared))
            && workspace.path(path).is_file()
    };
    let paths = listed.split_terminator('\0').filter(is_read);
    paths.map(|path| Ok(Text { path: path.to_owned(), text: read(&workspace.path(path))? })).collect()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}
