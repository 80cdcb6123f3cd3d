//! Which tests skipped themselves, and why, read from what test programs print.
//!
//! A test that cannot run where it is prints a line that starts with `skipped: `, and passes. Test programs
//! swallow what passing tests print, so they run with `--show-output`; what that adds is read here, and not
//! shown. Those that pytest lists (`-rs`) count too. Ignored tests do not: the program says itself how many,
//! and another step may run them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What a test prints before its reason.
const MARK: &str = "skipped: ";

/// Reads lines, and remembers who skipped itself.
#[derive(Default)]
pub(crate) struct Skips {
    /// Reasons, and the tests that gave them: the number of the program, and the name as far as it is known.
    tests: BTreeMap<String, BTreeSet<(usize, String)>>,
    /// Tests that only a number is known of, by reason.
    more: BTreeMap<String, usize>,
    steps: Vec<(String, String)>,
    has_run: bool,
    program: usize,
    /// Whose output comes next.
    test: String,
    /// Whether it is the output of tests that passed.
    is_hidden: bool,
}

impl Skips {
    /// Says that test programs come.
    pub(crate) fn start(&mut self) {
        self.has_run = true;
        self.start_program();
    }

    /// Takes a line of a test program, without its end; false if it need not be shown.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.is_hidden = true,
            "failures:" => self.is_hidden = false,
            _ if line.starts_with("test result: ") => self.is_hidden = false,
            _ if line.starts_with("running ") => self.start_program(),
            _ => self.look(line),
        }
        !self.is_hidden
    }

    /// Notes that a whole step was left out.
    pub(crate) fn add_step(&mut self, name: &str, reason: &str) {
        self.steps.push((name.to_owned(), reason.to_owned()));
    }

    fn start_program(&mut self) {
        self.program += 1;
        self.test.clear();
        self.is_hidden = false;
    }

    fn look(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.test = name.to_owned();
        } else if let Some((count, reason)) = pytest(line) {
            *self.more.entry(reason.to_owned()).or_default() += count;
        } else if let Some(reason) = line.strip_prefix(MARK) {
            self.add_test(self.test.clone(), reason);
        } else if let Some((name, rest)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        {
            // With `--nocapture` the first line that a test prints stands where its result would.
            if let Some(reason) = rest.strip_prefix(MARK) {
                self.add_test(name.to_owned(), reason);
            }
        }
    }

    /// A test that says it twice, from two ranks or for two types, skipped itself once.
    fn add_test(&mut self, name: String, reason: &str) {
        // What to do about it stands in the test's own output; the summary has a line for a reason.
        let reason = reason.split(". Hint: ").next().unwrap_or_default().trim();
        self.tests.entry(reason.to_owned()).or_default().insert((self.program, name));
    }

    /// How many skipped themselves, and why; the most frequent reason first. Nothing if there was nothing to
    /// skip.
    pub(crate) fn summary(&self) -> Option<String> {
        if !self.has_run && self.steps.is_empty() {
            return None;
        }
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        let named = self.tests.iter().map(|(reason, tests)| (reason, tests.len()));
        for (reason, count) in named.chain(self.more.iter().map(|(reason, count)| (reason, *count))) {
            *reasons.entry(reason).or_default() += count;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let total: usize = reasons.iter().map(|(_, count)| count).sum();
        let mut text = many(total, "test");
        for (reason, count) in reasons {
            let _ = write!(text, "\n{count:>6}  {reason}");
        }
        let _ = write!(text, "\n{}", many(self.steps.len(), "step"));
        for (name, reason) in &self.steps {
            let _ = write!(text, "\n        {name}: {reason}");
        }
        Some(text)
    }
}

fn many(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what} skipped itself"),
        1 => format!("1 {what} skipped itself:"),
        _ => format!("{count} {what}s skipped themselves:"),
    }
}

/// A line of pytest's summary: `SKIPPED [2] tests/test_a.py:7: reason`.
fn pytest(line: &str) -> Option<(usize, &str)> {
    let (count, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    let (_place, reason) = rest.split_once(": ")?;
    Some((count.parse().ok()?, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a test program prints with `--show-output`, and what of it is shown.
    const PROGRAM: [(&str, bool); 21] = [
        ("", true),
        ("running 4 tests", true),
        ("test gpu::copies ... ok", true),
        ("", true),
        ("successes:", false),
        ("", false),
        ("---- gpu::copies stdout ----", false),
        ("some words", false),
        ("skipped: no CUDA driver", false),
        ("skipped: no CUDA driver", false),
        ("---- gpu::sums stdout ----", false),
        ("skipped: no CUDA driver", false),
        ("", false),
        ("successes:", false),
        ("    gpu::copies", false),
        ("failures:", true),
        ("---- broken stdout ----", true),
        ("assertion failed", true),
        ("test result: FAILED. 2 passed; 1 failed", true),
        ("running 1 test", true),
        ("test large ... skipped: 3 GiB of memory", true),
    ];

    fn summary(skips: &Skips) -> String {
        skips.summary().expect("something to say")
    }

    fn read(lines: &[&str]) -> Skips {
        let mut skips = Skips::default();
        skips.start();
        lines.iter().for_each(|line| {
            skips.line(line);
        });
        skips
    }

    #[test]
    fn what_passing_tests_print_is_read_and_not_shown() {
        let mut skips = Skips::default();
        skips.start();
        for (line, is_shown) in PROGRAM {
            assert_eq!(skips.line(line), is_shown, "{line:?}");
        }
        let expected = "3 tests skipped themselves:\n     2  no CUDA driver\n     1  3 GiB of memory\n\
                        no step skipped itself";
        assert_eq!(summary(&skips), expected);
    }

    #[test]
    fn tests_of_one_name_in_two_programs_are_two() {
        let one =
            ["running 1 test", "successes:", "---- a stdout ----", "skipped: no torch", "test result: ok."];
        assert!(summary(&read(&[one, one].concat())).contains("     2  no torch"));
    }

    #[test]
    fn a_line_of_a_process_that_no_test_is_known_of_counts() {
        let skips = read(&["running 1 test", "skipped: only root can do that", "test a ... ok"]);
        assert!(summary(&skips).starts_with("1 test skipped itself:\n     1  only root can do that"));
    }

    #[test]
    fn a_hint_is_no_part_of_the_reason() {
        let skips = read(&["running 1 test", "skipped: no NVRTC. Hint: install it"]);
        assert!(summary(&skips).contains("     1  no NVRTC\n"));
    }

    #[test]
    fn pytests_summary_is_read() {
        let lines = [
            "SKIPPED [3] crates/symmem-python/tests/test_torch.py:13: torch is not installed",
            "SKIPPED [1] crates/symmem-python/tests/test_c10d.py:10: torch is not installed",
            "SKIPPED [x] nonsense",
        ];
        assert!(
            summary(&read(&lines)).starts_with("4 tests skipped themselves:\n     4  torch is not installed")
        );
    }

    #[test]
    fn steps_that_were_left_out_are_listed_with_their_reasons() {
        let mut skips = Skips::default();
        assert_eq!(skips.summary(), None);
        assert_eq!(summary(&read(&[])), "no test skipped itself\nno step skipped itself");
        skips.add_step("python", "there is no python3");
        assert!(summary(&skips).ends_with("1 step skipped itself:\n        python: there is no python3"));
    }
}
