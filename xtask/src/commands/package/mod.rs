//! `cargo xtask package`: everything that a release uploads, built and checked; and the lint `packages`,
//! which needs no build.
//!
//! Crates are built from their packages, as a registry would. The wheel is linked by zig with an old glibc,
//! and auditwheel says whether it runs where its name says. Nothing is uploaded.

mod crates;
mod facts;
mod includes;
mod judge;
mod made;
mod python;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::facts::Facts;
use self::made::{Made, Report};
use crate::plan::{Job, Outcome};
use crate::workspace::Workspace;

/// What can be made, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// The crates, for a registry.
    Crates,
    /// The wheel of the Python package, with the program.
    Wheel,
    /// The sources of the Python package.
    Sdist,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Crates, Self::Wheel, Self::Sdist];

    fn about(self) -> &'static str {
        match self {
            Self::Crates => "packs the crates, and builds each from its package",
            Self::Wheel => "builds the wheel with its program, and asks auditwheel where it runs",
            Self::Sdist => "packs the sources of the Python package",
        }
    }
}

/// What to make, and where.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Make only this (may be repeated).
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    only: Vec<Kind>,
    /// The folder to make it in: a new or an empty one. Without it: target/dist, which is emptied.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// The oldest systems that the wheel is for: `manylinux_2_N` is glibc 2.N.
    #[arg(long, value_name = "TAG", default_value = python::TAG, value_parser = python::parse_tag)]
    compatibility: String,
    /// Take the files as they are, committed or not.
    #[arg(long)]
    allow_dirty: bool,
    /// Also write what was made as JSON; "-" is stdout, with the table on stderr.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Minutes after which it is given up.
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, Duration::from_secs(options.limit * 60));
    check(&job)?;
    if !options.allow_dirty {
        ensure_committed(&job)?;
    }
    let folder = empty(&workspace, options.out.as_deref())?;
    let chosen: Vec<_> =
        Kind::ALL.into_iter().filter(|kind| options.only.is_empty() || options.only.contains(kind)).collect();
    let mut made = Vec::new();
    for (index, kind) in chosen.iter().enumerate() {
        eprintln!("[{}/{}] {}", index + 1, chosen.len(), kind.about());
        let began = Instant::now();
        let new = match kind {
            Kind::Crates => crates::make(&job, &folder, options.allow_dirty)?,
            Kind::Wheel => vec![python::wheel(&job, &folder, &options.compatibility)?],
            Kind::Sdist => vec![python::sdist(&job, &folder)?],
        };
        eprintln!("{} in {:.0} s\n", names(&new), began.elapsed().as_secs_f64());
        made.extend(new);
    }
    Report { folder, made }.print(options.json.as_deref())
}

/// The step of the lint: an error that lists everything that is wrong.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let problems = judge::problems(&Facts::read(job)?);
    if problems.is_empty() {
        return Ok(Outcome::Passed);
    }
    problems.iter().for_each(|problem| eprintln!("{problem}"));
    bail!("{} problems in the packages", problems.len())
}

fn names(made: &[Made]) -> String {
    made.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn ensure_committed(job: &Job) -> Result<()> {
    let changed = job
        .output(job.workspace.program("git").args(["status", "--porcelain", "--untracked-files=normal"]))
        .context("git does not say what is committed; --allow-dirty takes the files as they are")?;
    let count = changed.lines().count();
    ensure!(count == 0, "{count} files are not committed: commit them, or say --allow-dirty");
    Ok(())
}

/// The folder for what is made, empty.
fn empty(workspace: &Workspace, given: Option<&Path>) -> Result<PathBuf> {
    let folder = match given {
        Some(folder) => std::path::absolute(folder).context("the folder has no path")?,
        None => {
            let own = workspace.target("dist");
            let _ = fs::remove_dir_all(&own);
            own
        }
    };
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let mut inside = fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    ensure!(inside.next().is_none(), "{} is not empty: name another folder", folder.display());
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_files_is_refused_and_left_alone() {
        let folder = std::env::temp_dir().join(format!("xtask-package-{}", std::process::id()));
        let workspace = Workspace::find().expect("a workspace");
        let new = empty(&workspace, Some(&folder));
        let again = empty(&workspace, Some(&folder));
        fs::write(folder.join("mine"), "").expect("a new file");
        let full = empty(&workspace, Some(&folder));
        let is_there = folder.join("mine").exists();
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert!(new.is_ok() && again.is_ok());
        assert!(
            full.expect_err("a file is there").to_string().ends_with("is not empty: name another folder")
        );
        assert!(is_there);
    }
}
