//! Jobs that run already: their groups are told to record, and their rings are found among their open files.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::inspect::{GroupState, find};
use crate::sync::control::{ControlMap, ExaminedFile, PREFIX};
use crate::sync::record::{self, Reader};
use crate::sys::memfd::Mapping;

/// How often processes are looked at for new rings.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Groups that record because of this. They stop when it is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    controls: Vec<ControlMap>,
    pids: Vec<u32>,
    /// Rings that were found before, by the device and number of their files.
    known: HashSet<(u64, u64)>,
    looked: Option<Instant>,
    /// Of an earlier trace; these have not been given to anybody yet.
    old: Vec<Reader>,
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
                ExaminedFile::Segment(map, _) => Some(map),
                ExaminedFile::OtherVersion | ExaminedFile::Nothing => None,
            }
        });
        let controls: Vec<ControlMap> =
            maps.filter(|map| ids.contains(map.control().about.id().as_str())).collect();
        let mut attached = Self { controls, pids, known: HashSet::new(), looked: None, old: Vec::new() };
        // What an earlier trace left in its rings is not of this one; and who records must not find there
        // that nobody has read for long.
        attached.old = attached.fresh();
        attached.old.iter_mut().for_each(Reader::skip);
        // Only the first rank's word counts, and which one that is depends on the hosts.
        attached.controls.iter().for_each(|map| map.control().set_recorded(true));
        attached
    }

    /// Rings that were not there at the last look.
    pub(super) fn look(&mut self) -> Vec<Reader> {
        if self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let mut readers = std::mem::take(&mut self.old);
        readers.extend(self.fresh());
        readers
    }

    /// Rings that are not known yet.
    fn fresh(&mut self) -> Vec<Reader> {
        let files = self.pids.iter().flat_map(|pid| find::open_files(*pid, record::NAME));
        let known = &mut self.known;
        let fresh = files.filter_map(|file| {
            let meta = file.metadata().ok()?;
            let key = (meta.dev(), meta.ino());
            if known.contains(&key) {
                return None;
            }
            // One that its rank is just making is no ring yet: it is looked at again.
            let reader = Reader::of(OwnedFd::from(file))?;
            known.insert(key);
            Some(reader)
        });
        fresh.collect()
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::sync::record::{RecordedPart, RecordedRank, Recorder};
    use crate::sys::memfd::Segment;

    fn file(segment: &Segment) -> File {
        File::from(segment.fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn a_ring_that_was_found_while_it_was_made_is_found_again() {
        let (group, id, pid) = ("attach".to_owned(), "found again".to_owned(), std::process::id());
        let owner = RecordedRank { group, id, rank: 0, world: 1, pid, part: RecordedPart::Host };
        let other = Recorder::new(&owner).unwrap();
        let mut ring = vec![0; file(other.segment()).metadata().unwrap().len() as usize];
        file(other.segment()).read_exact_at(&mut ring, 0).unwrap();
        drop(other);
        let (controls, pids) = (Vec::new(), vec![pid]);
        let mut attached = Attached { controls, pids, known: HashSet::new(), looked: None, old: Vec::new() };
        let mut look = || {
            attached.hurry();
            // Other tests of this process have rings, too.
            attached.look().into_iter().filter(|reader| reader.owner == owner).count()
        };
        let made = Segment::create(&format!("{}attach", record::NAME), ring.len()).unwrap();
        assert_eq!(look(), 0, "it is empty");
        file(&made).write_all_at(&ring, 0).unwrap();
        assert_eq!((look(), look()), (1, 0));
    }
}
