//! Jobs that run already: their groups are told to record, and their rings are found among their open files.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::inspect::{GroupState, find};
use crate::sync::control::{ControlMap, Examined, PREFIX};
use crate::sync::record;
use crate::sys::memfd::Mapping;

/// How often processes are looked at for new rings.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Groups that record because of this. They stop when it is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    controls: Vec<ControlMap>,
    pids: Vec<u32>,
    /// Files that were found before, by device and number.
    known: HashSet<(u64, u64)>,
    looked: Option<Instant>,
}

impl Attached {
    /// Has `groups` record.
    pub(super) fn new(groups: &[GroupState]) -> Self {
        let ids: HashSet<&str> = groups.iter().map(|group| group.id.as_str()).collect();
        let pids: HashSet<u32> =
            groups.iter().flat_map(|group| &group.ranks).filter_map(|rank| rank.pid).collect();
        let pids: Vec<u32> = pids.into_iter().collect();
        let files = pids.iter().flat_map(|pid| find::open_files(*pid, PREFIX));
        let maps = files.filter_map(|file| {
            let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
            match ControlMap::examine(Mapping::import(OwnedFd::from(file), bytes).ok()?) {
                Examined::Segment(map, _) => Some(map),
                Examined::OtherVersion | Examined::Nothing => None,
            }
        });
        let controls: Vec<ControlMap> =
            maps.filter(|map| ids.contains(map.control().about.id().as_str())).collect();
        // Only the first rank's word counts, and which one that is depends on the hosts.
        controls.iter().for_each(|map| map.control().set_recorded(true));
        Self { controls, pids, known: HashSet::new(), looked: None }
    }

    /// Rings that were not there at the last look.
    pub(super) fn look(&mut self) -> Vec<OwnedFd> {
        if self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let files = self.pids.iter().flat_map(|pid| find::open_files(*pid, record::NAME));
        let fresh = files
            .filter(|file| file.metadata().is_ok_and(|meta| self.known.insert((meta.dev(), meta.ino()))));
        fresh.map(OwnedFd::from).collect()
    }

    /// Has the next look happen, however long ago the last one was.
    pub(super) fn hurry(&mut self) {
        self.looked = None;
    }

    /// Whether one of the processes is there.
    pub(super) fn is_alive(&self) -> bool {
        self.pids
            .iter()
            .any(|pid| std::path::Path::new(&format!("/proc/{pid}/fd/0")).symlink_metadata().is_ok())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.controls.iter().for_each(|map| map.control().set_recorded(false));
    }
}
