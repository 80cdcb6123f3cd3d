//! What `symmem tune` measured, in a file: by machine, then by number of ranks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Tuning;
use crate::config::folders;
use crate::{Error, Result};

/// Tunings by machine and number of ranks. One file can serve a shared home folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    machines: BTreeMap<String, BTreeMap<usize, Tuning>>,
}

impl Book {
    /// Where the book lies unless `SYMMEM_TUNING` says otherwise: `symmem/tuning.json` in the user's cache folder.
    pub fn default_path() -> Option<PathBuf> {
        folders::tuning()
    }

    /// Reads the book at `path`; an empty one if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unusable(path, &error.to_string())),
        };
        serde_json::from_slice(&text).map_err(|error| unusable(path, &error.to_string()))
    }

    /// Writes the book to `path`, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |error: std::io::Error| Error::invalid(path.display().to_string(), error.to_string());
        let text = serde_json::to_vec_pretty(self).map_err(|error| unusable(path, &error.to_string()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let draft = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path)).map_err(failed)
    }

    /// What was measured on this machine for `world` ranks, else what is built in.
    pub fn tuning(&self, world: usize) -> Tuning {
        let measured = self.machines.get(machine()).and_then(|worlds| worlds.get(&world));
        // A file may say anything: what was measured in another world is not for this one.
        measured.filter(|tuning| tuning.world() == world).cloned().unwrap_or_else(|| Tuning::built_in(world))
    }

    /// Whether there is a measurement for `world` ranks on this machine.
    pub fn has(&self, world: usize) -> bool {
        self.machines.get(machine()).is_some_and(|worlds| worlds.contains_key(&world))
    }

    /// Keeps a measurement of this machine.
    pub fn keep(&mut self, tuning: Tuning) {
        self.machines.entry(machine().to_owned()).or_default().insert(tuning.world(), tuning);
    }
}

fn unusable(path: &Path, problem: &str) -> Error {
    let problem = format!("{problem}; remove it or set SYMMEM_TUNING=off");
    Error::invalid(format!("tuning book {}", path.display()), problem)
}

/// What tells machines apart: processor and number of cores.
pub fn machine() -> &'static str {
    static MACHINE: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    MACHINE.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let name = field("model name").or_else(|| field("CPU part")).unwrap_or_else(|| "unknown".to_owned());
        let family =
            [field("cpu family"), field("model\t")].into_iter().flatten().collect::<Vec<_>>().join("-");
        format!("{name} {family}, {} cores", crate::sys::limits::usable_cores())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::{Bounds, Collective};

    /// A new folder for the test `name`.
    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("symmem-book-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let path = scratch("kept").join("deep/tuning.json");
        let mut book = Book::open(&path).unwrap();
        assert_eq!(book.tuning(3), Tuning::built_in(3));
        let mut tuning = Tuning::built_in(3);
        tuning.set_bounds(Collective::Broadcast, Bounds { push: 8, staged: 99, pipelined: 999 });
        book.keep(tuning.clone());
        book.save(&path).unwrap();
        let found = Book::open(&path).unwrap();
        assert!(found.has(3) && !found.has(2));
        assert_eq!((found.tuning(3), found.tuning(2)), (tuning, Tuning::built_in(2)));
        std::fs::remove_dir_all(scratch("kept")).unwrap();
    }

    #[test]
    fn a_tuning_of_another_world_is_not_used() {
        let path = scratch("other").join("tuning.json");
        let text = serde_json::json!({"machines": {(machine()): {
            "2": {"world": 0, "bounds": {}},
            "1024": {"world": 1, "bounds": {}},
        }}});
        std::fs::write(&path, text.to_string()).unwrap();
        let book = Book::open(&path).unwrap();
        assert_eq!((book.tuning(2), book.tuning(1024)), (Tuning::built_in(2), Tuning::built_in(1024)));
        std::fs::remove_dir_all(scratch("other")).unwrap();
    }

    #[test]
    fn a_broken_book_is_an_error_that_says_what_to_do() {
        let path = scratch("broken").join("tuning.json");
        std::fs::write(&path, "{").unwrap();
        let message = Book::open(&path).unwrap_err().to_string();
        assert!(message.contains("SYMMEM_TUNING=off"), "{message}");
        std::fs::remove_dir_all(scratch("broken")).unwrap();
    }
}
