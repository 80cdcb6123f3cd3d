//! Counts the instructions of an operation, under valgrind's callgrind, in a group of one.
//!
//! The program runs the operation few and many times; the difference is the operation alone, set-up and end
//! cancel out. A group of one never waits, so the number is the same in every run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::judge::{TOLERATED_INSTRUCTIONS, Verdict, verdict};
use super::results::short;
use crate::plan::Job;

/// What is counted: the operation and its memory, bytes, and how many more operations the longer run has.
const CASES: [(&str, u64, u64); 7] = [
    ("barrier:symmetric", 0, 20_000),
    ("all_reduce:symmetric", 8, 20_000),
    ("all_reduce:symmetric", 8 << 10, 10_000),
    ("all_reduce:symmetric", 64 << 10, 2_000),
    ("all_reduce:private", 8, 20_000),
    ("all_reduce:private", 8 << 10, 10_000),
    ("all_reduce:private", 64 << 10, 2_000),
];
/// Operations of the shorter run.
const FEW: u64 = 500;

/// Instructions of one operation in both builds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) name: String,
    pub(super) old: f64,
    pub(super) new: f64,
}

impl Counted {
    pub(super) fn ratio(&self) -> f64 {
        self.new / self.old
    }

    /// Counts are no matter of chance: what is tolerated is all the spread there is.
    pub(super) fn verdict(&self) -> Verdict {
        let spread = (1.0 - TOLERATED_INSTRUCTIONS, 1.0 + TOLERATED_INSTRUCTIONS);
        verdict(self.ratio(), spread, TOLERATED_INSTRUCTIONS)
    }
}

/// Why nothing can be counted here, if so.
pub(super) fn missing(job: &Job) -> Option<String> {
    let found = job.output(job.workspace.program("valgrind").arg("--version"));
    found.err().map(|error| format!("instructions are not counted, as there is no valgrind: {error:#}"))
}

/// Counts every case with both programs; `files` is a folder for callgrind's.
pub(super) fn run(job: &Job, old: &Path, new: &Path, files: &Path) -> Result<Vec<Counted>> {
    let mut all = Vec::new();
    for (at, (op, bytes, more)) in CASES.into_iter().enumerate() {
        let name = name(op, bytes);
        eprintln!("instructions {}/{}: {name}", at + 1, CASES.len());
        let count = |program: &Path| -> Result<f64> {
            let total = |times: u64| total(job, program, files, op, bytes, times);
            Ok((total(FEW + more)? as f64 - total(FEW)? as f64) / more as f64)
        };
        all.push(Counted { name, old: count(old)?, new: count(new)? });
    }
    Ok(all)
}

fn name(op: &str, bytes: u64) -> String {
    let op = op.replace(':', " ");
    if bytes == 0 { op } else { format!("{op} {}", short(bytes)) }
}

/// Instructions of a whole run.
fn total(job: &Job, program: &Path, files: &Path, op: &str, bytes: u64, times: u64) -> Result<u64> {
    let file = |end: &str| files.join(format!("callgrind-{}.{end}", std::process::id()));
    let (out, log) = (file("out"), file("log"));
    let mut valgrind = job.workspace.program("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display()));
    // It warns of system calls that are younger than itself; those fail, and the library does without them.
    valgrind.arg(format!("--log-file={}", log.display())).arg(program);
    valgrind.args(["count", op, &bytes.to_string(), &times.to_string()]);
    job.run(&mut valgrind).with_context(|| format!("see {}", log.display()))?;
    let text = fs::read_to_string(&out).unwrap_or_default();
    let _ = (fs::remove_file(&out), fs::remove_file(&log));
    parse(&text).context("callgrind did not say how many instructions it saw")
}

/// The sum in callgrind's file.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(new: f64) -> Verdict {
        Counted { name: "barrier".to_owned(), old: 1000.0, new }.verdict()
    }

    #[test]
    fn two_per_cent_more_instructions_are_tolerated_and_no_more() {
        assert_eq!(counted(1000.0), Verdict::Same);
        assert_eq!(counted(1019.0), Verdict::Same);
        assert_eq!(counted(1021.0), Verdict::Slower);
        assert_eq!(counted(900.0), Verdict::Faster);
    }

    #[test]
    fn the_sum_is_read_from_callgrinds_file() {
        assert_eq!(parse("version: 1\nevents: Ir\nfn=(1)\n3 4\n\ntotals: 123456\n"), Some(123456));
        assert_eq!(parse("version: 1\n"), None);
    }

    #[test]
    fn cases_are_named_as_rows_are() {
        assert_eq!(name("barrier:symmetric", 0), "barrier symmetric");
        assert_eq!(name("all_reduce:private", 8 << 10), "all_reduce private 8K");
    }
}
