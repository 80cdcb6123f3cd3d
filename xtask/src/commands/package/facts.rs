//! What cargo says of the crates of the workspace, and which files each package would hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::includes::{self, Include};
use crate::plan::Job;

/// The crates that go to the registry, in the order in which they must.
pub(super) const PUBLISHED: [&str; 3] = ["symmem-store", "symmem", "symmem-cli"];

/// Files of the repository that every package holds a copy of.
pub(super) const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// Says how files of a release are installed, by their names.
pub(super) const PAGE: &str = "docs/install.md";

/// A crate of the workspace.
#[derive(Clone, Debug, Default)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) is_published: bool,
    /// What a registry shows, by its name in the manifest; empty where the manifest has none.
    pub(super) shown: BTreeMap<&'static str, String>,
    pub(super) keywords: Vec<String>,
    /// Whether its manifest takes the version of the workspace.
    pub(super) has_the_workspace_version: bool,
    pub(super) dependencies: Vec<Dependency>,
    /// The files of its package, and what they hold; read for published crates only.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// Files of its folder, in the package or not.
    pub(super) beside: BTreeSet<String>,
    /// What its code has the compiler read.
    pub(super) includes: Vec<Include>,
}

/// A crate of this repository that another one needs.
#[derive(Clone, Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// As cargo writes it: `^0.1.0`, or `*` where none is given.
    pub(super) version: String,
    /// Needed by tests and examples only: cargo leaves it out of the package if it has no version.
    pub(super) is_dev: bool,
}

/// Everything that the check looks at.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) crates: Vec<Crate>,
    /// The licence files of the repository.
    pub(super) licences: BTreeMap<String, Vec<u8>>,
    pub(super) pyproject: String,
    /// The page that says how files of a release are installed.
    pub(super) page: String,
}

/// What a registry shows of a crate, or refuses it for.
pub(super) const SHOWN: [&str; 6] =
    ["description", "license", "readme", "keywords", "categories", "rust_version"];

impl Facts {
    /// Asks cargo, which needs neither a network nor a build for it.
    pub(super) fn read(job: &Job) -> Result<Self> {
        let metadata = said(job, "metadata", &["metadata", "--no-deps", "--format-version", "1"])?;
        let metadata: Value = serde_json::from_str(&metadata).context("`cargo metadata` is no JSON")?;
        let packages = metadata["packages"].as_array().context("`cargo metadata` names no packages")?;
        let crates = packages.iter().map(|package| read_crate(job, package)).collect::<Result<_>>()?;
        let file = |name: &str| read(&job.workspace.path(name));
        let licences = LICENCES.iter().map(|name| Ok(((*name).to_owned(), file(name)?)));
        let text = |name: &str| anyhow::Ok(String::from_utf8_lossy(&file(name)?).into_owned());
        let (pyproject, page) = (text("pyproject.toml")?, text(PAGE)?);
        Ok(Self { crates, licences: licences.collect::<Result<_>>()?, pyproject, page })
    }

    /// The crate of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Crate> {
        self.crates.iter().find(|one| one.name == name)
    }
}

fn read_crate(job: &Job, package: &Value) -> Result<Crate> {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let list = |key: &str| -> Vec<String> {
        let items = package[key].as_array().into_iter().flatten();
        items.filter_map(|item| Some(item.as_str()?.to_owned())).collect()
    };
    let joined = |key: &str| if package[key].is_array() { list(key).join(", ") } else { text(key) };
    let manifest = PathBuf::from(text("manifest_path"));
    let folder = manifest.parent().context("a manifest lies in a folder")?;
    let mut found = Crate {
        name: text("name"),
        version: text("version"),
        // `false` is an empty list of registries, and nothing is any registry.
        is_published: package["publish"].as_array().is_none_or(|registries| !registries.is_empty()),
        shown: SHOWN.iter().map(|key| (*key, joined(key))).collect(),
        keywords: list("keywords"),
        has_the_workspace_version: String::from_utf8_lossy(&read(&manifest)?)
            .lines()
            .any(|line| line.trim() == "version.workspace = true"),
        dependencies: package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(dependency)
            .collect(),
        ..Crate::default()
    };
    if found.is_published {
        let name = found.name.clone();
        let listed =
            said(job, &name, &["package", "--list", "--quiet", "--allow-dirty", "--package", &name])?;
        // Cargo makes some files itself: those are not in the folder.
        found.files = listed
            .lines()
            .filter_map(|file| Some((file.to_owned(), fs::read(folder.join(file)).ok()?)))
            .collect();
        // And a README from elsewhere is copied to the root of the package.
        for file in listed.lines().filter(|file| !found.files.contains_key(*file)).collect::<Vec<_>>() {
            found.files.insert(file.to_owned(), Vec::new());
        }
        beside(folder, "", &mut found.beside)?;
        found.includes = includes::of(folder)?;
    }
    Ok(found)
}

fn dependency(value: &Value) -> Option<Dependency> {
    value["path"].as_str()?;
    Some(Dependency {
        name: value["name"].as_str()?.to_owned(),
        version: value["req"].as_str()?.to_owned(),
        is_dev: value["kind"].as_str() == Some("dev"),
    })
}

/// What cargo prints, by way of a file: it is more than a pipe holds.
fn said(job: &Job, name: &str, arguments: &[&str]) -> Result<String> {
    let folder = job.workspace.target("packages");
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let path = folder.join(format!("{name}-{}.said", std::process::id()));
    let file = File::create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
    job.run(job.workspace.cargo(arguments.iter().copied()).stdout(file))?;
    let said = String::from_utf8_lossy(&read(&path)?).into_owned();
    // Anything that is left of it is of no use, and in nobody's way.
    let _ = fs::remove_file(&path);
    Ok(said)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
}

fn beside(folder: &Path, inside: &str, found: &mut BTreeSet<String>) -> Result<()> {
    let unreadable = || format!("{} cannot be read", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if inside.is_empty() { name } else { format!("{inside}/{name}") };
        if entry.path().is_dir() {
            beside(&entry.path(), &path, found)?;
        } else {
            found.insert(path);
        }
    }
    Ok(())
}
