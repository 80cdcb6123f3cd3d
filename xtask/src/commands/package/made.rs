//! What was made: a table for people, JSON for programs.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One file.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) name: String,
    kind: &'static str,
    bytes: u64,
    sha256: String,
    /// What it is for, or where it runs, in a few words.
    about: String,
}

impl Made {
    /// The file at `path`.
    pub(super) fn new(path: &Path, kind: &'static str, about: String) -> Result<Self> {
        let content = fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sha256 = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name, kind, bytes: content.len() as u64, sha256, about })
    }
}

/// Everything that was made.
pub(super) struct Report {
    pub(super) folder: PathBuf,
    pub(super) made: Vec<Made>,
}

impl Report {
    fn table(&self) -> String {
        let width = self.made.iter().map(|one| one.name.len()).max().unwrap_or_default().max(4);
        let mut text = format!("{:<width$} {:>9}  {:<5}  about\n", "file", "KB", "kind");
        for one in &self.made {
            let kilobytes = one.bytes as f64 / 1000.0;
            let _ = writeln!(text, "{:<width$} {kilobytes:>9.1}  {:<5}  {}", one.name, one.kind, one.about);
        }
        let _ = writeln!(text, "in {}", self.folder.display());
        text
    }

    fn json(&self) -> Value {
        let row = |one: &Made| json!({"file": one.name, "kind": one.kind, "bytes": one.bytes, "sha256": one.sha256, "about": one.about});
        json!({"folder": self.folder, "made": self.made.iter().map(row).collect::<Vec<_>>()})
    }

    /// Prints the table; writes the JSON to a file, or to stdout if that is "-", with the table on stderr.
    pub(super) fn print(&self, json: Option<&Path>) -> Result<()> {
        let text = format!("{:#}\n", self.json());
        match json {
            Some(path) if path == Path::new("-") => {
                eprint!("{}", self.table());
                print!("{text}");
            }
            Some(path) => {
                print!("{}", self.table());
                fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
            }
            None => print!("{}", self.table()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_digests_are_those_of_the_file() {
        let path = std::env::temp_dir().join(format!("xtask-made-{}.crate", std::process::id()));
        fs::write(&path, vec![b'a'; 1500]).expect("a new file");
        let made = Made::new(&path, "crate", "for a test".to_owned());
        fs::remove_file(&path).expect("the file is ours");
        let report = Report { folder: "dist".into(), made: vec![made.expect("it is there")] };
        assert!(report.table().contains("      1.5  crate  for a test\nin dist\n"), "{}", report.table());
        let json = report.json();
        assert_eq!(json["made"][0]["bytes"], 1500);
        assert_eq!(json["made"][0]["sha256"].as_str().map(str::len), Some(64));
    }
}
