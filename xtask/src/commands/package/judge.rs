//! What would make a package incomplete, or a release inconsistent: each problem is one sentence.

use super::facts::{Crate, Facts, LICENCES, PAGE, PUBLISHED};
use super::includes::What;

/// Bytes of a package before compression. A registry takes 10 MiB after it.
const MOST: usize = 4 << 20;

/// What registries take as keywords: so many, of so many characters.
const KEYWORDS: (usize, usize) = (5, 20);

/// Everything that is wrong.
pub(super) fn problems(facts: &Facts) -> Vec<String> {
    let mut problems = Vec::new();
    for name in PUBLISHED {
        match facts.find(name) {
            Some(one) if one.is_published => problems.extend(package(one, facts)),
            Some(_) => problems.push(format!("{name} is to be published, and has `publish = false`")),
            None => problems.push(format!("{name} is to be published, and there is no such crate")),
        }
    }
    let others = facts.crates.iter().filter(|one| !PUBLISHED.contains(&one.name.as_str()));
    problems.extend(
        others.filter(|one| one.is_published).map(|one| format!("{} lacks `publish = false`", one.name)),
    );
    problems.extend(versions(facts));
    problems.extend(python(&facts.pyproject));
    problems
}

fn package(one: &Crate, facts: &Facts) -> Vec<String> {
    let mut problems = Vec::new();
    let mut say = |problem: String| problems.push(format!("{}: {problem}", one.name));
    for (key, _) in one.shown.iter().filter(|(_, value)| value.is_empty()) {
        say(format!("its manifest has no {}", key.replace('_', "-")));
    }
    if one.keywords.len() > KEYWORDS.0 || one.keywords.iter().any(|word| !is_keyword(word)) {
        say(format!("a registry takes {} keywords of {} plain characters", KEYWORDS.0, KEYWORDS.1));
    }
    if !one.files.contains_key("README.md") {
        say("its package has no README.md".to_owned());
    }
    for name in LICENCES {
        match one.files.get(name) {
            None => say(format!("its package has no {name}")),
            Some(text) if facts.licences.get(name) != Some(text) => {
                say(format!("its {name} is not that of the repository"));
            }
            Some(_) => {}
        }
    }
    if let Some(file) = one.files.keys().find(|file| file.starts_with("tests/")) {
        say(format!("its package has tests ({file}), which need the repository"));
    }
    let bytes: usize = one.files.values().map(Vec::len).sum();
    if bytes > MOST {
        say(format!("its package has {bytes} bytes, of at most {MOST}"));
    }
    for include in &one.includes {
        if let Some(problem) = missing(one, &include.what) {
            say(format!("{} {problem}", include.from));
        }
    }
    problems
}

fn is_keyword(word: &str) -> bool {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "_-+".contains(sign);
    word.len() <= KEYWORDS.1
        && word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.chars().all(plain)
}

fn missing(one: &Crate, what: &What) -> Option<String> {
    match what {
        What::File(path) => {
            (!one.files.contains_key(path)).then(|| format!("includes {path}, which its package lacks"))
        }
        What::Folder(folder) => {
            let is_in = |file: &&String| file.rsplit_once('/').is_some_and(|(place, _)| place == folder);
            match one.beside.iter().filter(is_in).find(|file| !one.files.contains_key(*file)) {
                Some(file) => Some(format!("includes files of {folder}, and its package lacks {file}")),
                None if one.beside.iter().any(|file| is_in(&file)) => None,
                None => Some(format!("includes files of {folder}, which is empty")),
            }
        }
        What::Outside(path) => Some(format!("includes {path}, which is outside of the crate")),
        What::BuildFolder => Some("has the path of the folder it was built in".to_owned()),
    }
}

/// Every crate has the version of the workspace, and asks for the others by it.
fn versions(facts: &Facts) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(version) = facts.find(PUBLISHED[0]).map(|one| &one.version) else { return problems };
    for one in &facts.crates {
        let name = &one.name;
        if one.version != *version || !one.has_the_workspace_version {
            problems.push(format!(
                "{name} has version {} of its own: write `version.workspace = true`, and the number into the Cargo.toml of the workspace",
                one.version
            ));
        }
        for other in &one.dependencies {
            let has_none = other.version == "*";
            if has_none && one.is_published && !other.is_dev {
                problems.push(format!("{name} needs {} without a version", other.name));
            } else if !has_none && other.version != format!("^{version}") {
                problems
                    .push(format!("{name} needs {} {}, and that is {version}", other.name, other.version));
            }
            let is_published = PUBLISHED.contains(&other.name.as_str());
            if one.is_published && !is_published && !(other.is_dev && has_none) {
                problems.push(format!("{name} needs {}, which is not published", other.name));
            }
        }
    }
    let stale = versions_in(&facts.page).into_iter().filter(|other| other != version);
    problems.extend(stale.map(|other| format!("{PAGE} speaks of version {other}, and this is {version}")));
    problems
}

/// Three numbers with dots between them.
fn versions_in(page: &str) -> Vec<String> {
    let words = page.split(|sign: char| !sign.is_ascii_digit() && sign != '.');
    let words = words.map(|word| word.trim_matches('.')).filter(|word| word.split('.').count() == 3);
    words.map(str::to_owned).collect()
}

/// The Python package has the version of its crate, and its licence files.
fn python(pyproject: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let section = pyproject.split_once("[project]\n").map_or("", |(_, rest)| rest);
    let section = section.split_once("\n[").map_or(section, |(section, _)| section);
    let value = |key: &str| {
        let lines = section.lines().filter_map(|line| line.split_once('='));
        lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim()).next()
    };
    if value("version").is_some() || !value("dynamic").is_some_and(|list| list.contains("\"version\"")) {
        problems.push(
            "pyproject.toml has a version of its own: write `dynamic = [\"version\"]`, and maturin takes that of the crate"
                .to_owned(),
        );
    }
    for name in LICENCES {
        if !value("license-files").is_some_and(|list| list.contains(name)) {
            problems.push(format!("pyproject.toml does not name {name} among its license-files"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Duration;

    use super::super::facts::Dependency;
    use super::super::includes::Include;
    use super::*;
    use crate::plan::Job;
    use crate::workspace::Workspace;

    /// What the repository has, which is known to be good: plants are made in copies of it.
    fn facts() -> &'static Facts {
        static FACTS: LazyLock<Facts> = LazyLock::new(|| {
            let workspace = Workspace::find().expect("a workspace");
            Facts::read(&Job::new(&workspace, Duration::from_secs(60))).expect("cargo answers")
        });
        assert_eq!(problems(&FACTS), [""; 0]);
        &FACTS
    }

    fn found<'a>(facts: &'a mut Facts, name: &str) -> &'a mut Crate {
        facts.crates.iter_mut().find(|one| one.name == name).expect("a crate of the workspace")
    }

    /// The problems after `plant` has made a fault.
    fn planted(facts: &Facts, plant: impl FnOnce(&mut Facts)) -> Vec<String> {
        let mut facts = facts.clone();
        plant(&mut facts);
        problems(&facts)
    }

    #[test]
    fn every_planted_fault_is_found() {
        let good = facts();
        let library = |plant: fn(&mut Crate)| planted(good, |facts| plant(found(facts, "symmem")));
        let missing = library(|one| drop(one.files.remove("LICENSE-MIT")));
        assert_eq!(missing, ["symmem: its package has no LICENSE-MIT"]);
        let other = library(|one| drop(one.files.insert("LICENSE-APACHE".to_owned(), b"mine".to_vec())));
        assert_eq!(other, ["symmem: its LICENSE-APACHE is not that of the repository"]);
        let shown = library(|one| drop(one.shown.insert("description", String::new())));
        assert_eq!(shown, ["symmem: its manifest has no description"]);
        let rust = library(|one| drop(one.shown.insert("rust_version", String::new())));
        assert_eq!(rust, ["symmem: its manifest has no rust-version"]);
        let keyword = library(|one| one.keywords.push("two words".to_owned()));
        assert_eq!(keyword, ["symmem: a registry takes 5 keywords of 20 plain characters"]);
        let tests = library(|one| drop(one.files.insert("tests/a.rs".to_owned(), Vec::new())));
        assert_eq!(tests, ["symmem: its package has tests (tests/a.rs), which need the repository"]);
        let large = library(|one| drop(one.files.insert("kernels/x".to_owned(), vec![0; MOST])));
        assert!(large.len() == 1 && large[0].contains("bytes, of at most"), "{large:?}");
        assert_eq!(
            library(|one| one.is_published = false),
            ["symmem is to be published, and has `publish = false`"]
        );
        assert_eq!(
            planted(good, |facts| found(facts, "symmem-models").is_published = true),
            ["symmem-models lacks `publish = false`"]
        );
        assert_eq!(
            planted(good, |facts| facts.crates.retain(|one| one.name != "symmem-cli")),
            ["symmem-cli is to be published, and there is no such crate"]
        );
    }

    #[test]
    fn an_included_file_that_the_package_lacks_is_found() {
        let good = facts();
        let library = |plant: fn(&mut Crate)| planted(good, |facts| plant(found(facts, "symmem")));
        let packed = library(|one| drop(one.files.remove("kernels/ptx.bin")));
        assert!(
            packed.iter().any(|line| line.ends_with("includes kernels/ptx.bin, which its package lacks"))
        );
        let kernel = library(|one| drop(one.files.remove("kernels/pull.cu")));
        assert!(kernel.iter().any(|line| line.ends_with("its package lacks kernels/pull.cu")), "{kernel:?}");
        let include = |what| Include { from: "src/a.rs:1".to_owned(), what };
        let outside = planted(good, |facts| {
            found(facts, "symmem-cli").includes.push(include(What::Outside("../../../x".to_owned())));
        });
        assert_eq!(outside, ["symmem-cli: src/a.rs:1 includes ../../../x, which is outside of the crate"]);
        let built =
            planted(good, |facts| found(facts, "symmem-cli").includes.push(include(What::BuildFolder)));
        assert_eq!(built, ["symmem-cli: src/a.rs:1 has the path of the folder it was built in"]);
    }

    #[test]
    fn versions_that_differ_are_found() {
        let good = facts();
        let own = planted(good, |facts| found(facts, "symmem-python").version = "0.0.9".to_owned());
        assert!(
            own.len() == 1 && own[0].starts_with("symmem-python has version 0.0.9 of its own"),
            "{own:?}"
        );
        let written = planted(good, |facts| found(facts, "symmem-cli").has_the_workspace_version = false);
        assert!(written.len() == 1 && written[0].starts_with("symmem-cli has version"), "{written:?}");
        let asked = |version: &'static str, is_dev| {
            planted(good, |facts| {
                let name = "symmem-models".to_owned();
                found(facts, "symmem").dependencies.push(Dependency {
                    name,
                    version: version.to_owned(),
                    is_dev,
                });
            })
        };
        assert_eq!(asked("*", true), [""; 0]);
        assert_eq!(asked("*", false)[0], "symmem needs symmem-models without a version");
        assert_eq!(asked("*", false)[1], "symmem needs symmem-models, which is not published");
        let old = planted(good, |facts| {
            let one = found(facts, "symmem-cli");
            let library = one.dependencies.iter_mut().find(|other| other.name == "symmem");
            library.expect("the program needs the library").version = "^0.0.9".to_owned();
        });
        assert!(
            old.len() == 1 && old[0].starts_with("symmem-cli needs symmem ^0.0.9, and that is "),
            "{old:?}"
        );
    }

    #[test]
    fn a_page_with_an_old_version_is_found() {
        let stale = planted(facts(), |facts| facts.page.push_str("symmem-0.0.9.crate"));
        assert!(
            stale.len() == 1 && stale[0].starts_with("docs/install.md speaks of version 0.0.9"),
            "{stale:?}"
        );
        assert_eq!(
            versions_in("Python 3.11. a-1.2.3-cp311-manylinux_2_17.whl, b-1.2.3.tar.gz"),
            ["1.2.3"; 2]
        );
    }

    #[test]
    fn the_python_package_follows_the_crate() {
        let good = "[project]\nlicense-files = [\"LICENSE-MIT\", \"LICENSE-APACHE\"]\ndynamic = [\"version\"]\n[tool.x]\nversion = 1\n";
        assert_eq!(python(good), [""; 0]);
        let own = good.replace("dynamic = [\"version\"]", "version = \"0.1.0\"");
        assert!(python(&own)[0].starts_with("pyproject.toml has a version of its own"));
        assert_eq!(python(&good.replace("dynamic", "static")).len(), 1);
        assert_eq!(
            python(&good.replace("\"LICENSE-MIT\", ", "")),
            ["pyproject.toml does not name LICENSE-MIT among its license-files"]
        );
    }
}
