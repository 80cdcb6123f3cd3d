//! What the doctor found: one row per fact.

use serde::{Deserialize, Serialize};

use crate::screen::Tone;

/// How good a fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// It works, but less well or not for everything.
    Warn,
    /// Something that should work does not.
    Fail,
    /// There was nothing to look at.
    Skip,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }

    pub(super) fn tone(self) -> Tone {
        match self {
            Self::Ok => Tone::Good,
            Self::Warn => Tone::Doubtful,
            Self::Fail => Tone::Bad,
            Self::Skip => Tone::Quiet,
        }
    }
}

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Section {
    Kernel,
    Limits,
    Memory,
    Containers,
    Gpus,
    Python,
    Settings,
    SelfTest,
}

impl Section {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Limits => "limits",
            Self::Memory => "memory and processor",
            Self::Containers => "containers and security",
            Self::Gpus => "GPUs",
            Self::Python => "Python",
            Self::Settings => "settings",
            Self::SelfTest => "self-test",
        }
    }
}

/// A fact of a section, without the section's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fact {
    pub(super) name: String,
    pub(super) status: Status,
    /// What was found, and what it means here.
    pub(super) found: String,
    /// What to do about it; only where something is not as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

impl Fact {
    pub(super) fn ok(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), status: Status::Ok, found: found.into(), hint: None }
    }

    pub(super) fn skip(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { status: Status::Skip, ..Self::ok(name, found) }
    }

    pub(super) fn warn(name: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: Status::Warn, hint: Some(hint.into()), ..Self::ok(name, found) }
    }

    pub(super) fn fail(name: impl Into<String>, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: Status::Fail, hint: Some(hint.into()), ..Self::ok(name, found) }
    }

    /// The failure that `text` tells, whose hint may follow the word "Hint:" as in the library's errors.
    pub(super) fn failure(name: impl Into<String>, text: &str) -> Self {
        let (found, hint) = split_hint(text);
        Self { status: Status::Fail, hint, ..Self::ok(name, found) }
    }
}

/// A text of the library without its hint, and the hint.
pub(super) fn split_hint(text: &str) -> (String, Option<String>) {
    match text.split_once("Hint:") {
        Some((found, hint)) => {
            (found.trim().trim_end_matches(['.', ';']).to_owned(), Some(hint.trim().to_owned()))
        }
        None => (text.trim().to_owned(), None),
    }
}

/// A fact in its section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    pub(super) section: Section,
    #[serde(flatten)]
    pub(super) fact: Fact,
}

/// How many rows there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Summary {
    pub(super) ok: usize,
    pub(super) warnings: usize,
    pub(super) failures: usize,
    pub(super) skipped: usize,
}

impl Summary {
    pub(super) fn of(rows: &[Row]) -> Self {
        let count = |status| rows.iter().filter(|row| row.fact.status == status).count();
        Self {
            ok: count(Status::Ok),
            warnings: count(Status::Warn),
            failures: count(Status::Fail),
            skipped: count(Status::Skip),
        }
    }

    /// `12 ok, 2 warnings, 1 failure`, and what was skipped.
    pub(super) fn words(self) -> String {
        let many = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let skipped = if self.skipped == 0 { String::new() } else { format!(", {} skipped", self.skipped) };
        format!(
            "{} ok, {}, {}{skipped}",
            self.ok,
            many(self.warnings, "warning"),
            many(self.failures, "failure")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts() {
        let summary = Summary { ok: 12, warnings: 2, failures: 1, skipped: 0 };
        assert_eq!(summary.words(), "12 ok, 2 warnings, 1 failure");
        let summary = Summary { ok: 0, warnings: 1, failures: 0, skipped: 3 };
        assert_eq!(summary.words(), "0 ok, 1 warning, 0 failures, 3 skipped");
    }

    #[test]
    fn hints_of_the_library_become_hints_of_a_row() {
        let fact = Fact::failure("x", "the driver has no y. Hint: update it");
        assert_eq!((fact.found.as_str(), fact.hint.as_deref()), ("the driver has no y", Some("update it")));
        assert_eq!(Fact::failure("x", "it broke").hint, None);
    }
}
