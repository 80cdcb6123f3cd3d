//! A Python, and what the packages in it are good for here.
//!
//! The interpreter answers a short script within a limit; one that hangs is a warning, since the program
//! itself needs none.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::row::Fact;
use crate::child::{self, Ended};

const PROBE: &str = include_str!("probe.py");
/// The oldest Python that the package takes.
const OLDEST: (u32, u32) = (3, 11);
/// The torch that `symmem.torch` is written for and tested with.
const TORCH: (u32, u32) = (2, 11);
/// The first torch that finds backends by itself.
const AUTOLOAD: (u32, u32) = (2, 5);

/// What the script says.
#[derive(Debug, Deserialize)]
struct Answer {
    python: String,
    file: String,
    numpy: Option<String>,
    ml_dtypes: Option<String>,
    cloudpickle: Option<String>,
    torch: Option<String>,
    cuda: Option<String>,
    backends: Vec<String>,
    symmem: Option<String>,
    /// Why the package cannot be imported.
    problem: Option<String>,
}

pub(super) fn facts(option: Option<&Path>, limit: Duration) -> Vec<Fact> {
    let program = crate::python::find(option);
    let name = program.display().to_string();
    // Before an import of torch, a backend must not be loaded by it: the script only looks.
    match child::run(Command::new(&program).args(["-c", PROBE]), limit) {
        Err(error) if option.is_some() => vec![Fact::fail(
            "interpreter",
            format!("{name} cannot be started: {error}"),
            "--python names the interpreter",
        )],
        Err(error) => vec![Fact::skip("interpreter", format!("{name} cannot be started: {error}"))],
        Ok(ended) => answered(&name, &ended, limit),
    }
}

fn answered(name: &str, ended: &Ended, limit: Duration) -> Vec<Fact> {
    let answer = ended.stdout.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match answer.filter(|_| ended.is_good()) {
        Some(answer) => rows(&answer, env!("CARGO_PKG_VERSION")),
        None => {
            let said = ended.last_words().map(|words| format!(": {words}")).unwrap_or_default();
            let found = format!("{name} {}{said}", ended.words(limit));
            vec![Fact::warn(
                "interpreter",
                found,
                "--python PROG names another one; --timeout gives it more time",
            )]
        }
    }
}

fn rows(answer: &Answer, own: &str) -> Vec<Fact> {
    vec![interpreter(answer), numpy(answer), package(answer, own), torch(answer)]
}

fn interpreter(answer: &Answer) -> Fact {
    let found = format!("Python {} ({})", answer.python, answer.file);
    match numbers(&answer.python) {
        Some(version) if version < OLDEST => {
            Fact::warn("interpreter", found, "the package needs Python 3.11 or newer")
        }
        _ => Fact::ok("interpreter", found),
    }
}

fn numpy(answer: &Answer) -> Fact {
    let Some(version) = &answer.numpy else {
        return Fact::skip("numpy", "not installed; the package needs it");
    };
    let has = |found: &Option<String>, what: &str| found.as_ref().map(|version| format!("{what} {version}"));
    let more = [
        has(&answer.ml_dtypes, "ml_dtypes")
            .unwrap_or_else(|| "no ml_dtypes (bf16 and fp8 arrays)".to_owned()),
        has(&answer.cloudpickle, "cloudpickle")
            .unwrap_or_else(|| "no cloudpickle (spawn of lambdas)".to_owned()),
    ];
    Fact::ok("numpy", format!("{version}; {}", more.join(", ")))
}

/// The package, which must be of the same version as this program.
fn package(answer: &Answer, own: &str) -> Fact {
    const NAME: &str = "symmem";
    match (&answer.symmem, &answer.problem) {
        (_, Some(problem)) => Fact::fail(
            NAME,
            format!("installed, and cannot be imported: {problem}"),
            format!("{} -m pip install --force-reinstall symmem", answer.file),
        ),
        (None, None) => Fact::skip(NAME, "the package is not installed there; programs in Rust need none"),
        (Some(version), None) if version == own => Fact::ok(NAME, format!("{version}, as this program")),
        (Some(version), None) => Fact::warn(
            NAME,
            format!("the package is {version}, this program is {own}: ranks of both do not meet"),
            format!("{} -m pip install symmem=={own}, or run `python -m symmem`", answer.file),
        ),
    }
}

fn torch(answer: &Answer) -> Fact {
    const NAME: &str = "torch";
    let Some(version) = &answer.torch else {
        return Fact::skip(NAME, "not installed: no symmem.torch, no backend of torch.distributed");
    };
    let cuda =
        answer.cuda.as_ref().map_or("for the host only".to_owned(), |cuda| format!("with CUDA {cuda}"));
    let found = format!("{version} {cuda}");
    if answer.symmem.is_none() {
        return Fact::ok(NAME, found);
    }
    let backend = match (numbers(version), answer.backends.iter().any(|name| name == "symmem")) {
        (Some(version), true) if version >= AUTOLOAD => "backend \"symmem\" found by torch itself",
        _ => "backend \"symmem\" after `import symmem.torch`",
    };
    let found = format!("{found}: tensors, symmem.torch, {backend}");
    match numbers(version) {
        Some(version) if version != TORCH => Fact::warn(
            NAME,
            found,
            format!("symmem.torch is written for and tested with {}.{}; others may differ", TORCH.0, TORCH.1),
        ),
        _ => Fact::ok(NAME, found),
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    fn answer() -> Answer {
        let text = |text: &str| Some(text.to_owned());
        Answer {
            python: "3.12.3".to_owned(),
            file: "/v/bin/python".to_owned(),
            numpy: text("2.3.1"),
            ml_dtypes: None,
            cloudpickle: text("3.1"),
            torch: text("2.11.0+cpu"),
            cuda: None,
            backends: vec!["symmem".to_owned()],
            symmem: text("0.1.0"),
            problem: None,
        }
    }

    #[test]
    fn a_good_environment_is_good() {
        for fact in rows(&answer(), "0.1.0") {
            assert_eq!(fact.status, Status::Ok, "{fact:?}");
        }
        assert!(torch(&answer()).found.contains("found by torch itself"));
        assert!(numpy(&answer()).found.contains("no ml_dtypes"));
    }

    #[test]
    fn versions_that_do_not_fit_are_told() {
        assert_eq!(package(&answer(), "0.2.0").status, Status::Warn);
        let old = Answer { torch: Some("2.4.1+cu121".to_owned()), cuda: Some("12.1".to_owned()), ..answer() };
        let fact = torch(&old);
        assert_eq!(fact.status, Status::Warn);
        assert!(fact.found.contains("with CUDA 12.1") && fact.found.contains("after `import"), "{fact:?}");
        assert_eq!(interpreter(&Answer { python: "3.9.18".to_owned(), ..answer() }).status, Status::Warn);
    }

    #[test]
    fn what_is_not_installed_is_skipped_and_what_is_broken_fails() {
        let bare = Answer { numpy: None, torch: None, symmem: None, ..answer() };
        let statuses: Vec<Status> = rows(&bare, "0.1.0").iter().map(|fact| fact.status).collect();
        assert_eq!(statuses, [Status::Ok, Status::Skip, Status::Skip, Status::Skip]);
        let broken = Answer { problem: Some("ImportError: no".to_owned()), ..answer() };
        assert_eq!(package(&broken, "0.1.0").status, Status::Fail);
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_a_warning() {
        let ended =
            |stdout: &str| Ended { status: None, stdout: stdout.to_owned(), stderr: "bye\n".to_owned() };
        let facts = answered("python3", &ended("{}"), Duration::from_secs(5));
        assert_eq!(facts[0].status, Status::Warn);
        assert_eq!(facts[0].found, "python3 had not ended after 5 s and was killed: bye");
    }
}
