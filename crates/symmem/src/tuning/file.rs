//! What `symmem tune` measured, in a file: of hosts by machine, of devices by their kind, then by number of
//! ranks.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DeviceBounds, Tuning};
use crate::{Error, Result};

/// Tunings by machine and number of ranks. One file can serve a shared home folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningFile {
    machines: BTreeMap<String, BTreeMap<usize, Tuning>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    devices: BTreeMap<String, BTreeMap<usize, DeviceBounds>>,
}

impl TuningFile {
    /// Reads the file at `path`; an empty one if there is none.
    pub fn open(path: &Path) -> Result<Self> {
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| unusable(path, error))?,
        };
        serde_json::from_slice(&text).map_err(|error| unusable(path, error))
    }

    /// Writes the file to `path`, whole or not at all.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| unusable(path, error))?;
        let draft = path.with_extension(format!("{}.tmp", std::process::id()));
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| std::fs::write(&draft, text));
        let kept = written.and_then(|()| std::fs::rename(&draft, path));
        kept.map_err(|error| Error::invalid(path.display().to_string(), error.to_string()))
    }

    /// What was measured on this machine for `world` ranks, else what is built in; and what was measured on
    /// devices for so many.
    pub fn tuning(&self, world: usize) -> Tuning {
        let measured = self.machines.get(machine()).and_then(|worlds| worlds.get(&world));
        // A file may say anything: what was measured in another world is not for this one.
        let measured = measured.filter(|tuning| tuning.world() == world).cloned();
        let devices = self.devices.iter().filter_map(|(kind, worlds)| Some((kind, worlds.get(&world)?)));
        let devices = devices.map(|(kind, bounds)| (kind.clone(), bounds.clone())).collect();
        Tuning { devices, ..measured.unwrap_or_else(|| Tuning::built_in(world)) }
    }

    /// Whether there is a measurement for `world` ranks on this machine.
    pub fn has(&self, world: usize) -> bool {
        self.machines.get(machine()).is_some_and(|worlds| worlds.contains_key(&world))
    }

    /// Keeps a measurement of this machine.
    pub fn keep(&mut self, tuning: Tuning) {
        self.machines.entry(machine().to_owned()).or_default().insert(tuning.world(), tuning);
    }

    /// Keeps a measurement of devices of this kind, in groups of `world` ranks.
    pub fn keep_devices(&mut self, kind: &str, world: usize, bounds: DeviceBounds) {
        self.devices.entry(kind.to_owned()).or_default().insert(world, bounds);
    }
}

fn unusable(path: &Path, problem: impl Display) -> Error {
    let problem = format!("{problem}; remove it or set SYMMEM_TUNING=off");
    Error::invalid(format!("tuning file {}", path.display()), problem)
}

/// What tells machines apart: processor and number of cores.
pub fn machine() -> &'static str {
    static MACHINE: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = |name: &str| info.lines().find(|line| line.starts_with(name));
        let field = |name: &str| Some(line(name)?.split_once(':')?.1.trim());
        let name = field("model name").or_else(|| field("CPU part")).unwrap_or("unknown");
        let family: Vec<&str> = ["cpu family", "model\t"].into_iter().filter_map(field).collect();
        format!("{name} {}, {} cores", family.join("-"), crate::sys::limits::usable_cores())
    });
    &MACHINE
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tuning::{Bounds, Collective};

    /// A new folder for the test `name`.
    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("symmem-file-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_was_kept_is_found_again() {
        let path = scratch("kept").join("deep/tuning.json");
        let mut file = TuningFile::open(&path).unwrap();
        assert_eq!(file.tuning(3), Tuning::built_in(3));
        let mut tuning = Tuning::built_in(3);
        tuning.set_bounds(Collective::Broadcast, Bounds { push: 8, staged: 99, pipelined: 999 });
        file.keep(tuning.clone());
        let bounds = [("low_latency".to_owned(), 4096)].into();
        tuning.devices.insert("a GPU".to_owned(), DeviceBounds::from([("out".to_owned(), bounds)]));
        file.keep_devices("a GPU", 3, tuning.devices["a GPU"].clone());
        file.save(&path).unwrap();
        let found = TuningFile::open(&path).unwrap();
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
        let file = TuningFile::open(&path).unwrap();
        assert_eq!((file.tuning(2), file.tuning(1024)), (Tuning::built_in(2), Tuning::built_in(1024)));
        std::fs::remove_dir_all(scratch("other")).unwrap();
    }

    #[test]
    fn a_broken_book_is_an_error_that_says_what_to_do() {
        let path = scratch("broken").join("tuning.json");
        std::fs::write(&path, "{").unwrap();
        let message = TuningFile::open(&path).unwrap_err().to_string();
        assert!(message.contains("SYMMEM_TUNING=off"), "{message}");
        std::fs::remove_dir_all(scratch("broken")).unwrap();
    }
}
