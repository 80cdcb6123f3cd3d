//! `cargo xtask kernels`: the CUDA kernels compile for every architecture, keep the rules of the memory
//! model, and the PTX in the repository is theirs.

mod embedded;
mod host;
mod multicast;
mod nvrtc;
mod ptx;
mod resources;
mod rules;
/// The one table of kernels: the library's own.
#[path = "../../../../crates/symmem/src/engine/cuda/sources.rs"]
#[expect(
    dead_code,
    reason = "headers are known by their ending, texts are read from the files, and nothing is launched"
)]
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

use crate::bounded;
use crate::plan::{self, Job, Outcome};
use embedded::{Files, Text};
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

/// What kernels that can be recorded are compiled for: where they differ from others has nothing of an
/// architecture.
const RECORDED_ARCH: &str = "sm_90a";

/// What to do with the PTX in the repository.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Write the PTX in the repository instead of comparing it.
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    plan::write_or_check(options.write, write, check)
}

/// The step of `cargo xtask test`.
pub(crate) fn check(job: &Job) -> Result<Outcome> {
    let sources = Sources::read(&job.workspace.path(FOLDER))?;
    host::check(&job.workspace.path(FOLDER))?;
    let texts = sources.files.read()?;
    embedded::check_fresh(&texts, &sources.wanted())?;
    texts.iter().try_for_each(|text| obey(&text.name, &text.ptx))?;
    let nvrtc = match Nvrtc::set_up(job) {
        Ok(nvrtc) => nvrtc,
        Err(error) if bounded::is_interrupted() => return Err(error),
        Err(error) => return Ok(Outcome::Skipped(format!("NVRTC cannot be had: {error:#}"))),
    };
    let user = job.workspace.path(USER).display().to_string();
    let requests = sources.requests().chain(embedded_requests()).chain(for_every_architecture(&user));
    let recorded = || sources.kernels().filter(|file| *file != table::BENCH.0);
    let requests: Vec<_> =
        requests.chain(recorded().map(|file| format!("{file}:{RECORDED_ARCH}:SYMMEM_RECORDED"))).collect();
    let out = nvrtc.compile(job, FOLDER, &requests)?;
    for arch in ARCHITECTURES {
        let files = sources.kernels().filter(|file| architectures(file).contains(&arch));
        judge(files.chain(["user.cu"]), &out, arch)?;
    }
    judge(recorded(), &out, &format!("{RECORDED_ARCH}.recorded"))?;
    for expected in sources.compiled(&out)? {
        embedded::check(&texts, &expected.name, &expected.ptx)?;
    }
    Ok(Outcome::Passed)
}

/// Compiles the PTX in the repository again. It must keep the rules as well.
fn write(job: &Job) -> Result<()> {
    let sources = Sources::read(&job.workspace.path(FOLDER))?;
    host::write(&job.workspace.path(FOLDER))?;
    let requests: Vec<_> = embedded_requests().collect();
    let out = Nvrtc::set_up(job)?.compile(job, FOLDER, &requests)?;
    let texts = sources.compiled(&out)?;
    texts.iter().try_for_each(|text| obey(&text.name, &text.ptx))?;
    sources.files.write(&texts)
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

/// The kernels and their headers, and the PTX of them that is in the repository.
struct Sources {
    /// Text by file name.
    texts: BTreeMap<String, String>,
    files: Files,
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
        let sources = Self { texts, files: Files::of(folder) };
        sources.check_listed()?;
        Ok(sources)
    }

    /// An error if a kernel is in no list. That what is listed exists is known: else nothing would compile.
    fn check_listed(&self) -> Result<()> {
        let lists = || table::ENGINE.iter().chain(table::MULTIMEM).chain([&table::BENCH]);
        let unknown = self.kernels().find(|file| !lists().any(|(name, _)| name == file));
        unknown.map_or(Ok(()), |file| {
            Err(anyhow!("{file} is in no row of crates/symmem/src/engine/cuda/sources.rs; add it there"))
        })
    }

    fn kernels(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str).filter(|name| name.ends_with(".cu"))
    }

    fn requests(&self) -> impl Iterator<Item = String> {
        self.kernels().flat_map(for_every_architecture)
    }

    /// What the packed PTX must be made of: names of sources, and hashes.
    fn wanted(&self) -> Vec<(&'static str, String)> {
        embedded().map(|file| (file, self.hash(file))).collect()
    }

    /// Of the file and of all headers: which of them it includes is not worth finding out.
    fn hash(&self, file: &str) -> String {
        let counts = |name: &str| name == file || name.ends_with(".cuh");
        embedded::hash(self.texts.iter().filter(|(name, _)| counts(name)).map(|(_, text)| text.as_str()))
    }

    /// The PTX to pack, of what the compiler left in `out`.
    fn compiled(&self, out: &Path) -> Result<Vec<Text>> {
        let text = |file: &str| {
            let path = out.join(format!("{file}.{}.ptx", embedded::ARCH));
            let text =
                fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            Ok(Text { name: file.to_owned(), sources: self.hash(file), ptx: embedded::render(&text) })
        };
        embedded().map(text).collect()
    }
}

/// The kernels whose PTX is packed: what the library loads on every device.
fn embedded() -> impl Iterator<Item = &'static str> {
    table::ENGINE.iter().map(|(name, _)| *name)
}

fn embedded_requests() -> impl Iterator<Item = String> {
    embedded().map(|file| format!("{file}:{}:{}", embedded::ARCH, embedded::MACRO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    fn sources(texts: &[(&str, &str)]) -> Sources {
        let texts = texts.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        Sources { texts, files: Files::of(Path::new("kernels")) }
    }

    #[test]
    fn every_kernel_is_compiled_for_every_architecture() {
        let multimem = "barrier_multimem.cu";
        let sources = sources(&[("a.cuh", ""), ("bench.cu", ""), (multimem, ""), ("signals.cu", "")]);
        let requests: Vec<_> = sources.requests().collect();
        assert_eq!(requests.len(), 2 * ARCHITECTURES.len() + WITH_MULTIMEM.len());
        assert!(requests.contains(&format!("{multimem}:sm_90a")));
        assert!(!requests.contains(&format!("{multimem}:sm_80")));
        assert!(requests.contains(&"signals.cu:sm_90a".to_owned()));
        assert!(embedded_requests().any(|request| request == "signals.cu:compute_80:SYMMEM_ANY_ONLY"));
        assert_eq!(embedded_requests().count(), table::ENGINE.len());
    }

    #[test]
    fn a_kernel_that_is_in_no_list_is_named() {
        let error = sources(&[("signals.cu", ""), ("forgotten.cu", "")]).check_listed().expect_err("no list");
        assert!(error.to_string().starts_with("forgotten.cu is in no row"), "{error}");
    }

    #[test]
    fn the_host_build_has_every_kernel() {
        let workspace = Workspace::find().expect("this workspace");
        host::check(&workspace.path(FOLDER)).expect("what the table says");
    }

    #[test]
    fn the_hash_of_a_kernel_is_of_its_text_and_of_all_headers() {
        let hash =
            |header, other| sources(&[("a.cu", "kernel"), ("b.cu", other), ("c.cuh", header)]).hash("a.cu");
        assert_eq!(hash("header", "one"), hash("header", "two"));
        assert_ne!(hash("header", "one"), hash("changed", "one"));
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
