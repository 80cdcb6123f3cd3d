//! `xtask/fences.txt`: the files that are excepted from each fence, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

/// A file, and the reason of its exception.
pub(super) type Excepted = BTreeMap<String, String>;

/// The lists, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    /// Why the files of a room, or a file, may have `unsafe` code; the longest name that fits counts.
    pub(super) reasons: Excepted,
    /// System calls outside of `sys/`.
    pub(super) calls: Excepted,
    /// Waits that do not go through the ladder.
    pub(super) waits: Excepted,
    /// Who asks whether kernels or NCCL carry an operation.
    pub(super) routes: Excepted,
    /// Files with `unsafe` code; their reasons are at their heads.
    pub(super) unsafe_code: Vec<String>,
    /// Remarks, by the section they stand before.
    remarks: BTreeMap<String, String>,
}

const SECTIONS: [&str; 5] = ["[reasons]", "[calls]", "[waits]", "[routes]", "[unsafe]"];

impl Lists {
    /// Reads the file's text.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lists = Self::default();
        let (mut section, mut remarks) = (String::new(), String::new());
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('#') {
                _ = writeln!(remarks, "{line}");
            } else if line.starts_with('[') {
                section = line.to_owned();
                lists.remarks.insert(section.clone(), std::mem::take(&mut remarks));
            } else if !line.is_empty() {
                lists.line(&section, line).with_context(|| format!("line {}: {line}", number + 1))?;
            }
        }
        Ok(lists)
    }

    fn line(&mut self, section: &str, line: &str) -> Result<()> {
        let list = match section {
            "[reasons]" => &mut self.reasons,
            "[calls]" => &mut self.calls,
            "[waits]" => &mut self.waits,
            "[routes]" => &mut self.routes,
            "[unsafe]" => {
                self.unsafe_code.push(line.to_owned());
                return Ok(());
            }
            _ => bail!("it is in no section"),
        };
        let (file, reason) = line.split_once('|').context("it must be `file | reason`")?;
        let (file, reason) = (file.trim(), reason.trim());
        ensure!(!reason.is_empty() && !reason.contains('"'), "it needs a reason, without quotes");
        ensure!(list.insert(file.to_owned(), reason.to_owned()).is_none(), "it is listed twice");
        Ok(())
    }

    /// The reason for `unsafe` code in this file.
    pub(super) fn reason(&self, path: &str) -> Option<&str> {
        let fits = |name: &str| {
            path == name || path.starts_with(&format!("{name}/")) || path == format!("{name}.rs")
        };
        let best = self.reasons.iter().filter(|(name, _)| fits(name)).max_by_key(|(name, _)| name.len());
        best.map(|(_, reason)| reason.as_str())
    }

    /// The file's text.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for section in SECTIONS {
            let remarks = self.remarks.get(section).map_or("", String::as_str);
            let between = if text.is_empty() { "" } else { "\n" };
            _ = writeln!(text, "{between}{remarks}{section}");
            let list = match section {
                "[reasons]" => &self.reasons,
                "[calls]" => &self.calls,
                "[waits]" => &self.waits,
                "[routes]" => &self.routes,
                _ => {
                    self.unsafe_code.iter().for_each(|file| _ = writeln!(text, "{file}"));
                    continue;
                }
            };
            list.iter().for_each(|(file, reason)| _ = writeln!(text, "{file} | {reason}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Why.\n[reasons]\nsys | calls\nsys/copy | copies\n\n[calls]\na.rs | x\n\n# Waits.\n[waits]\nb.rs | y\n\n[routes]\nc.rs | z\n\n[unsafe]\nsys/a.rs\n";

    #[test]
    fn it_is_written_as_it_was_read() {
        assert_eq!(Lists::parse(TEXT).expect("lists").render(), TEXT);
    }

    #[test]
    fn the_longest_name_gives_the_reason() {
        let lists = Lists::parse(TEXT).expect("lists");
        assert_eq!(lists.reason("sys/futex.rs"), Some("calls"));
        assert_eq!(lists.reason("sys/copy/words.rs"), Some("copies"));
        assert_eq!(lists.reason("sys/copy.rs"), Some("copies"));
        assert_eq!(lists.reason("system/a.rs"), None);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |old, new| format!("{:#}", Lists::parse(&TEXT.replace(old, new)).expect_err("wrong"));
        assert!(error("a.rs | x", "a.rs").contains("line 7: a.rs: it must be `file | reason`"));
        assert!(error("a.rs | x", "a.rs |").contains("it needs a reason"));
        assert!(error("a.rs | x", "a.rs | x\na.rs | y").contains("listed twice"));
    }
}
