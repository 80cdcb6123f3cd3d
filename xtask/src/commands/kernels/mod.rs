//! `cargo xtask kernels`: the CUDA kernels compile for every architecture, keep the rules of the memory model, and the
//! PTX in the repository is theirs.

mod embedded;
mod multicast;
mod nvrtc;
mod ptx;
mod resources;
mod rules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::bounded;
use crate::plan::{Job, Outcome};
use crate::workspace::Workspace;
pub(crate) use nvrtc::Nvrtc;
use resources::Resources;
use rules::Kind;

const FOLDER: &str = "crates/symmem/kernels";

/// Uses the header that is for users' own kernels, which no kernel of ours includes.
const USER: &str = "xtask/src/commands/kernels/user.cu";

/// The oldest architecture we support, the one we measure on, and the newest there is.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// Those that have multimem instructions.
const WITH_MULTIMEM: [&str; 2] = ["sm_90a", "sm_100a"];

/// For the command; a step has the limit of its plan.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What to do with the PTX in the repository.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Write the PTX in the repository instead of comparing it.
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, LIMIT);
    if options.write {
        return write(&job);
    }
    match check(&job)? {
        Outcome::Passed => Ok(()),
        Outcome::Skipped(reason) => bail!("{reason}"),
    }
}

/// The step of `cargo xtask test`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let sources = Sources::read(&job.workspace.path(FOLDER))?;
    for file in sources.embedded() {
        embedded::check_head(&sources.embedded_path(file), sources.hash(file))?;
    }
    if let Some(left) = sources.left_over()?.first() {
        bail!("{} belongs to no kernel any more; run `cargo xtask kernels --write`", left.display());
    }
    let nvrtc = match Nvrtc::set_up(job) {
        Ok(nvrtc) => nvrtc,
        Err(error) if bounded::is_interrupted() => return Err(error),
        Err(error) => return Ok(Outcome::Skipped(format!("NVRTC cannot be had: {error:#}"))),
    };
    let user = job.workspace.path(USER).display().to_string();
    let requests: Vec<_> =
        sources.requests().chain(sources.embedded_requests()).chain(for_every_architecture(&user)).collect();
    let out = nvrtc.compile(job, FOLDER, &requests)?;
    for arch in ARCHITECTURES {
        let files = sources.files().filter(|file| architectures(file).contains(&arch));
        judge(files.chain(["user.cu"]), &out, arch)?;
    }
    for file in sources.embedded() {
        embedded::check(&sources.embedded_path(file), &sources.render(&out, file)?)?;
    }
    Ok(Outcome::Passed)
}

/// Compiles the PTX in the repository anew. It must keep the rules as well.
fn write(job: &Job) -> Result<()> {
    let sources = Sources::read(&job.workspace.path(FOLDER))?;
    let requests: Vec<_> = sources.embedded_requests().collect();
    let out = Nvrtc::set_up(job)?.compile(job, FOLDER, &requests)?;
    let texts: Vec<_> =
        sources.embedded().map(|file| Ok((file, sources.render(&out, file)?))).collect::<Result<_>>()?;
    embedded::check_size(texts.iter().map(|(_, text)| text.len()).sum())?;
    texts.iter().try_for_each(|(file, text)| obey(file, text))?;
    let folder = sources.embedded_folder();
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    for (file, text) in texts {
        let path = sources.embedded_path(file);
        fs::write(&path, &text).with_context(|| format!("{} cannot be written", path.display()))?;
        println!("{}: {} bytes", path.display(), text.len());
    }
    for path in sources.left_over()? {
        fs::remove_file(&path).with_context(|| format!("{} cannot be removed", path.display()))?;
        println!("{}: removed", path.display());
    }
    Ok(())
}

/// Looks at what every file compiled to for one architecture.
fn judge<'a>(files: impl Iterator<Item = &'a str>, out: &Path, arch: &str) -> Result<()> {
    let mut largest = Resources::default();
    for file in files {
        let read = |end: &str| {
            let path = out.join(format!("{file}.{arch}.{end}"));
            fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
        };
        let used = resources::read(&read("log")?).with_context(|| format!("{file} for {arch}"))?;
        obey(file, &read("ptx")?).with_context(|| format!("{file} for {arch}"))?;
        largest = largest.max(used);
    }
    println!("{arch}: at most {} registers and {} bytes of stack", largest.registers, largest.stack);
    Ok(())
}

fn obey(file: &str, text: &str) -> Result<()> {
    let breaches = rules::breaches(Kind::of(file), text);
    ensure!(breaches.is_empty(), "{file} breaks rules of the memory model:\n  {}", breaches.join("\n  "));
    Ok(())
}

/// Those that `file` is compiled for.
fn architectures(file: &str) -> &'static [&'static str] {
    match Kind::of(file) {
        Kind::Multimem => &WITH_MULTIMEM,
        _ => &ARCHITECTURES,
    }
}

/// The requests to compile `file` for each of them.
fn for_every_architecture(file: &str) -> impl Iterator<Item = String> {
    architectures(file).iter().map(move |arch| format!("{file}:{arch}"))
}

/// The kernels and their headers.
struct Sources {
    folder: PathBuf,
    /// Text by file name.
    texts: BTreeMap<String, String>,
}

impl Sources {
    fn read(folder: &Path) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.ends_with(".cu") || name.ends_with(".cuh") {
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("{} cannot be read", path.display()))?;
                texts.insert(name.to_owned(), text);
            }
        }
        let sources = Self { folder: folder.to_owned(), texts };
        ensure!(sources.files().next().is_some(), "there is no kernel in {}", folder.display());
        Ok(sources)
    }

    fn files(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str).filter(|name| name.ends_with(".cu"))
    }

    /// The files that the library loads on every device. Of the others, some belong to the bench; those with multimem instructions are for few
    /// machines, which can have the compiler.
    fn embedded(&self) -> impl Iterator<Item = &str> {
        self.files().filter(|file| Kind::of(file) == Kind::Protocol)
    }

    fn requests(&self) -> impl Iterator<Item = String> {
        self.files().flat_map(for_every_architecture)
    }

    fn embedded_requests(&self) -> impl Iterator<Item = String> {
        self.embedded().map(|file| format!("{file}:{}:{}", embedded::ARCH, embedded::MACRO))
    }

    fn embedded_folder(&self) -> PathBuf {
        self.folder.join("ptx")
    }

    fn embedded_path(&self, file: &str) -> PathBuf {
        self.embedded_folder().join(file).with_extension("ptx")
    }

    /// Embedded files whose source is gone.
    fn left_over(&self) -> Result<Vec<PathBuf>> {
        let folder = self.embedded_folder();
        let known: Vec<_> = self.embedded().map(|file| self.embedded_path(file)).collect();
        let entries =
            fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
        let paths: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        Ok(paths.into_iter().filter(|path| !known.contains(path)).collect())
    }

    /// Of the file and of all headers: which of them it includes is not worth finding out.
    fn hash(&self, file: &str) -> u64 {
        let counts = |name: &str| name == file || name.ends_with(".cuh");
        embedded::hash(self.texts.iter().filter(|(name, _)| counts(name)).map(|(_, text)| text.as_str()))
    }

    /// The embedded file that the compiler's output makes.
    fn render(&self, out: &Path, file: &str) -> Result<String> {
        let path = out.join(format!("{file}.{}.ptx", embedded::ARCH));
        let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        Ok(embedded::render(self.hash(file), &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(texts: &[(&str, &str)]) -> Sources {
        let texts = texts.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        Sources { folder: "kernels".into(), texts }
    }

    #[test]
    fn every_kernel_is_compiled_for_every_architecture() {
        let sources = sources(&[("a.cuh", ""), ("bench.cu", ""), ("multimem.cu", ""), ("signals.cu", "")]);
        let requests: Vec<_> = sources.requests().collect();
        assert_eq!(requests.len(), 2 * ARCHITECTURES.len() + WITH_MULTIMEM.len());
        assert!(requests.contains(&"multimem.cu:sm_90a".to_owned()));
        assert!(!requests.contains(&"multimem.cu:sm_80".to_owned()));
        assert!(requests.contains(&"signals.cu:sm_90a".to_owned()));
        let embedded: Vec<_> = sources.embedded_requests().collect();
        assert_eq!(embedded, ["signals.cu:compute_80:SYMMEM_ANY_ONLY"]);
        assert_eq!(sources.embedded_path("signals.cu"), Path::new("kernels/ptx/signals.ptx"));
    }

    #[test]
    fn the_hash_of_a_kernel_is_of_its_text_and_of_all_headers() {
        let hash =
            |header, other| sources(&[("a.cu", "kernel"), ("b.cu", other), ("c.cuh", header)]).hash("a.cu");
        assert_eq!(hash("header", "one"), hash("header", "two"));
        assert_ne!(hash("header", "one"), hash("changed", "one"));
    }

    #[test]
    fn embedded_files_without_a_kernel_are_found() {
        let folder = std::env::temp_dir().join(format!("xtask-kernels-{}", std::process::id()));
        fs::create_dir_all(folder.join("ptx")).expect("a new folder");
        for name in ["signals.ptx", "gone.ptx"] {
            fs::write(folder.join("ptx").join(name), "").expect("a new file");
        }
        let found = Sources { folder: folder.clone(), ..sources(&[("signals.cu", "")]) }.left_over();
        fs::remove_dir_all(&folder).expect("the folder is ours");
        assert_eq!(found.expect("a readable folder"), [folder.join("ptx/gone.ptx")]);
    }

    #[test]
    fn a_broken_rule_names_file_and_kernel() {
        let module = ".visible .entry copy(\n)\n{\n\tld.volatile.global.u32 %r1, [%rd1];\n}\n";
        let error = obey("signals.cu", module).expect_err("a broken rule").to_string();
        assert!(
            error.starts_with("signals.cu breaks rules") && error.contains("copy: `ld.volatile"),
            "{error}"
        );
    }
}
