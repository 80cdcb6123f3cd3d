//! The steps of the path, each timed. One that fails ends it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::readme::Readme;
use crate::environment;
use crate::plan::Job;

/// What of the developer's settings must not reach a newcomer's programs.
const FOREIGN: [&str; 8] =
    ["CARGO", "SYMMEM_", "RUSTFLAGS", "RUSTDOCFLAGS", "PYTHON", "VIRTUAL_ENV", "MATURIN_", "OMP_"];

/// What a page must name to be an answer, on its first screen.
const ANSWER: &str = "survivors";

/// One thing that a newcomer did.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
    /// Seconds that processors worked for it: a busy machine changes these little.
    pub(super) processor: f64,
    pub(super) about: String,
}

/// Somebody in a folder of their own.
pub(super) struct Newcomer<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) folder: &'a Path,
    pub(super) fresh_home: bool,
}

impl Newcomer<'_> {
    /// Goes the whole way.
    pub(super) fn go(&self) -> Result<Vec<Step>> {
        let mut steps = vec![timed("clone", || self.clone_it())?];
        let text = fs::read_to_string(self.clone_at("README.md")).context("the clone has no README.md")?;
        let readme = Readme::parse(&text)?;
        steps.push(timed("first screen", || Ok(format!("{} words to read", readme.words)))?);
        steps.push(timed("first command", || self.first_command(&readme))?);
        steps.push(timed("pip", || self.pip(&readme))?);
        steps.push(timed("Python lines", || self.python(&readme))?);
        steps.push(timed("Rust lines", || self.rust(&readme))?);
        steps.push(timed("a rank died", || self.rank_died(&readme))?);
        Ok(steps)
    }

    fn clone_at(&self, inside: &str) -> PathBuf {
        self.folder.join("symmem").join(inside)
    }

    /// A command without what the developer has set. What it prints goes to stderr.
    fn command(&self, program: impl Into<std::ffi::OsString>, at: &Path) -> Command {
        let mut command = self.job.workspace.program(program);
        let is_foreign =
            |name: &str| FOREIGN.iter().any(|start| name.starts_with(start)) && name != "CARGO_HOME";
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_foreign(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        if self.fresh_home {
            command.env("CARGO_HOME", self.folder.join("cargo"));
        }
        command.current_dir(at).stdout(Stdio::from(io::stderr()));
        command
    }

    fn clone_it(&self) -> Result<String> {
        let mut git = self.command("git", self.folder);
        // As over a network: nothing is shared with the repository it came from.
        git.args(["clone", "--quiet", "--no-local"]).arg(self.job.workspace.path("")).arg("symmem");
        self.job.run(&mut git)?;
        Ok("what is committed here".to_owned())
    }

    fn first_command(&self, readme: &Readme) -> Result<String> {
        let (program, arguments) = readme.command.split_first().context("the first command is empty")?;
        self.job.run(self.command(program, &self.clone_at("")).args(arguments))?;
        Ok(format!("`{}`", readme.command.join(" ")))
    }

    fn venv(&self) -> PathBuf {
        self.folder.join("venv")
    }

    fn pip(&self, readme: &Readme) -> Result<String> {
        self.job.run(&mut environment::venv(self.job.workspace, &self.venv()))?;
        let mut pip = self.command(self.venv().join("bin/python"), &self.clone_at(""));
        self.job.run(pip.args(["-m", "pip", "--disable-pip-version-check"]).args(&readme.pip))?;
        Ok(format!("`pip {}` in a new environment", readme.pip.join(" ")))
    }

    fn python(&self, readme: &Readme) -> Result<String> {
        let script = self.folder.join("ten.py");
        fs::write(&script, &readme.python).context("the script cannot be written")?;
        let mut python = self.command(self.venv().join("bin/python"), self.folder);
        let printed = self.job.output(python.arg(&script))?;
        ensure!(
            printed.trim() == readme.printed,
            "the Python lines printed {:?}, not {:?}",
            printed.trim(),
            readme.printed
        );
        Ok(format!("printed {}", printed.trim()))
    }

    fn rust(&self, readme: &Readme) -> Result<String> {
        let crate_ = self.folder.join("ten");
        fs::create_dir_all(crate_.join("src")).context("the folder of a crate cannot be made")?;
        fs::write(crate_.join("src/main.rs"), &readme.rust).context("the program cannot be written")?;
        let manifest = "[package]\nname = \"ten\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\nsymmem = { path = \"../symmem/crates/symmem\" }\n";
        fs::write(crate_.join("Cargo.toml"), manifest).context("the manifest cannot be written")?;
        let printed = self.job.output(self.command("cargo", &crate_).args(["run", "--quiet"]))?;
        let lines = printed.lines().filter(|line| line.contains("reads 6 from rank")).count();
        ensure!(lines == 4, "the Rust lines printed {printed:?}, not what four ranks read");
        Ok("`cargo run` in a crate of its own; four ranks read 6".to_owned())
    }

    fn rank_died(&self, readme: &Readme) -> Result<String> {
        let page = fs::read_to_string(self.clone_at(&readme.rank_died)).context("the link leads nowhere")?;
        let at = page.lines().position(|line| line.contains(ANSWER));
        let at = at.with_context(|| format!("{} does not name `{ANSWER}`", readme.rank_died))?;
        let words: usize = page.lines().take(at + 1).map(|line| line.split_whitespace().count()).sum();
        Ok(format!("one link; `{ANSWER}` is named after {words} words of {}", readme.rank_died))
    }
}

fn timed(name: &'static str, work: impl FnOnce() -> Result<String>) -> Result<Step> {
    eprintln!("{name}");
    let (began, worked) = (Instant::now(), processor());
    let about = work().with_context(|| format!("the newcomer's step `{name}` failed"))?;
    let step = Step { name, seconds: began.elapsed().as_secs_f64(), processor: processor() - worked, about };
    // Whoever gives up before the end has this much.
    eprintln!("{name}: {:.1} s, {:.1} s of processors", step.seconds, step.processor);
    Ok(step)
}

/// Seconds that processors have worked for children that have ended, and theirs.
fn processor() -> f64 {
    /// Linux counts in these for every program.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may hold blanks. After it, the 14th and 15th are cutime and
    // cstime.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_work_is_counted() {
        let step = timed("spins", || {
            let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
            ensure!(Command::new("sh").args(["-c", spin]).status()?.success());
            Ok("x".to_owned())
        });
        let step = step.expect("a shell");
        assert!(step.processor > 0.0 && step.seconds > 0.0, "{step:?}");
    }
}
