//! What ranks could leave behind: in their own process, in the file system, and in the process table.

// The survey of kills uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) fds: usize,
    pub(crate) mappings: usize,
    pub(crate) threads: usize,
}

impl Holdings {
    pub(crate) fn now() -> Self {
        let entries = |path| fs::read_dir(path).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            fds: entries("/proc/self/fd"),
            mappings: maps.lines().filter(|line| line.contains("memfd:symmem")).count(),
            threads: entries("/proc/self/task"),
        }
    }

    /// What is held now, given a moment to become `expected`: a joined thread shows in /proc a little longer.
    pub(crate) fn settled(expected: Self) -> Self {
        Self::once(|now| now == expected)
    }

    /// What is held now, given a moment to become no more than `most`.
    pub(crate) fn at_most(most: Self) -> Self {
        Self::once(|now| now.is_within(most))
    }

    /// Whether there is no more of anything.
    pub(crate) fn is_within(self, most: Self) -> bool {
        self.fds <= most.fds && self.mappings <= most.mappings && self.threads <= most.threads
    }

    /// What is held once it is `right`, or a moment later.
    fn once(right: impl Fn(Self) -> bool) -> Self {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if right(now) || start.elapsed() > Duration::from_secs(2) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Everything of a suite that outlives its ranks. Dropping it removes the suite's own temp folder.
pub(crate) struct Scene {
    /// Marks the suite's processes in their environment.
    pub(crate) mark: String,
    /// The ranks' own temp folder: the machine's is busy with other programs.
    pub(crate) temp: PathBuf,
    shm: BTreeSet<PathBuf>,
}

pub(crate) const MARK: &str = "SYMMEM_KILL_MARK";

impl Scene {
    pub(crate) fn new() -> Self {
        let mark = format!("symmem-kill-{}-{:x}", std::process::id(), super::random::entropy());
        let temp = std::env::temp_dir().join(&mark);
        fs::create_dir(&temp).unwrap();
        Self { mark, temp, shm: list(Path::new("/dev/shm")) }
    }

    /// Checks that there is nothing that was not there before.
    pub(crate) fn check(&self) {
        assert_eq!(self.files(), Vec::<PathBuf>::new(), "left in the temp folder or in /dev/shm");
        assert_eq!(self.processes(), Vec::<u32>::new(), "processes left over");
    }

    /// Files that were not there before.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let shm = list(Path::new("/dev/shm"));
        list(&self.temp).into_iter().chain(shm.difference(&self.shm).cloned()).collect()
    }

    /// Processes of this suite that still run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let marked = |pid: &u32| {
            // A process that has ended, or that belongs to somebody else, cannot be read.
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let wanted = format!("{MARK}={}", self.mark);
            environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let pids = list(Path::new("/proc")).into_iter();
        pids.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).filter(marked).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.temp);
    }
}

fn list(folder: &Path) -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
