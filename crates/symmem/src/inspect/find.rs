//! Finds the memory files of ranks among the open files of all processes, and maps them for reading.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::device::DEVICE_PREFIX;
use crate::device::status::{self, HostStatusWords};
use crate::sync::control::{ControlMap, ExaminedFile, PREFIX};
use crate::sys::memfd::Mapping;
use crate::sys::{fd, user};
use crate::{Error, Result};

/// Everything that was found.
pub(super) struct FoundFiles {
    pub(super) segments: Vec<ControlSegment>,
    pub(super) engines: Vec<status::ExaminedEngine>,
    pub(super) unreadable: usize,
    pub(super) other_versions: usize,
}

/// A rank's control segment, mapped for reading.
pub(super) struct ControlSegment {
    pub(super) map: ControlMap,
    pub(super) rank: usize,
    /// The processes that have it open, by their numbers here: the rank's own, and perhaps its children.
    pub(super) holders: Vec<u32>,
}

/// What a memory file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryFileKind {
    Control,
    Device,
}

/// A memory file and who has it open.
struct Held {
    inode: (u64, u64),
    kind: MemoryFileKind,
    file: OwnedFd,
    holders: Vec<u32>,
}

/// Looks at the open files of every process.
pub(super) fn find() -> Result<FoundFiles> {
    let processes = fs::read_dir("/proc")
        .map_err(|error| Error::sys_hint("look at /proc", error, "inspection needs it: is it mounted?"))?;
    let mut found =
        FoundFiles { segments: Vec::new(), engines: Vec::new(), unreadable: 0, other_versions: 0 };
    let mut files: Vec<Held> = Vec::new();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    for pid in processes.flatten().filter_map(number) {
        match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(fds) => fds.flatten().for_each(|fd| look(pid, &fd.path(), &mut files)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && is_ours(pid) => {
                found.unreadable += 1;
            }
            // Another user's, or gone.
            Err(_) => {}
        }
    }
    for held in files {
        // What is not sealed, or too small, is not what its name says.
        let Ok(mapping) = Mapping::look_at(held.file.as_fd()) else { continue };
        match held.kind {
            MemoryFileKind::Device => found.engines.extend(HostStatusWords::examine(&mapping)),
            MemoryFileKind::Control => match ControlMap::examine(mapping) {
                ExaminedFile::Segment(map, rank) => {
                    found.segments.push(ControlSegment { map, rank, holders: held.holders });
                }
                ExaminedFile::OtherVersion => found.other_versions += 1,
                ExaminedFile::Nothing => {}
            },
        }
    }
    Ok(found)
}

/// Adds the file behind `link`, a file descriptor of process `pid`, if it is a rank's.
fn look(pid: u32, link: &Path, files: &mut Vec<Held>) {
    let mut reading = OpenOptions::new();
    let Some((file, kind)) = open(link, reading.read(true), kind_of_name) else { return };
    let Ok(meta) = file.metadata() else { return };
    let inode = (meta.dev(), meta.ino());
    match files.iter_mut().find(|held| held.inode == inode) {
        Some(held) => held.holders.push(pid),
        None => files.push(Held { inode, kind, file: file.into(), holders: vec![pid] }),
    }
}

/// Opens the file behind `link`, a file descriptor of some process, if `what` knows the name that `/proc`
/// shows for it.
fn open<K>(link: &Path, how: &OpenOptions, what: impl Fn(&[u8]) -> Option<K>) -> Option<(File, K)> {
    let named = |link: &Path| what(fs::read_link(link).ok()?.as_os_str().as_bytes());
    named(link)?;
    // The descriptor may be another file by now, and opening some files does something: so it is only looked
    // at first.
    let handle = fd::look_at(link).ok()?;
    let again = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let kind = named(Path::new(&again))?;
    Some((how.open(&again).ok()?, kind))
}

/// The memory files of process `pid` whose names begin so, open for reading and writing.
pub(crate) fn open_files(pid: u32, prefix: &str) -> Vec<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true);
    let is_one = |link: &[u8]| link.strip_prefix(b"/memfd:")?.starts_with(prefix.as_bytes()).then_some(());
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| Some(open(&fd.path(), &how, is_one)?.0)).collect()
}

/// By the name that `/proc` shows for a memory file.
fn kind_of_name(link: &[u8]) -> Option<MemoryFileKind> {
    let name = link.strip_prefix(b"/memfd:")?;
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    if name.starts_with(DEVICE_PREFIX.as_bytes()) {
        return Some(MemoryFileKind::Device);
    }
    // Other memory of the library has no rank behind its name.
    let rest = name.strip_prefix(PREFIX.as_bytes())?;
    let rank = &rest[rest.iter().rposition(|byte| *byte == b':')? + 1..];
    (!rank.is_empty() && rank.iter().all(u8::is_ascii_digit)).then_some(MemoryFileKind::Control)
}

/// Whether process `pid` is this user's.
fn is_ours(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let real = uids.and_then(|uids| uids.split_ascii_whitespace().next()?.parse::<u32>().ok());
    real == Some(user::uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_found_by_the_names_of_their_files() {
        let kind = |link: &str| kind_of_name(link.as_bytes());
        assert_eq!(kind("/memfd:symmem:train:0 (deleted)"), Some(MemoryFileKind::Control));
        assert_eq!(kind("/memfd:symmem:a:b/c d:127 (deleted)"), Some(MemoryFileKind::Control));
        assert_eq!(kind("/memfd:symmem-device:train:0:1 (deleted)"), Some(MemoryFileKind::Device));
        for other in [
            "/memfd:symmem:data (deleted)",
            "/memfd:symmem:train: (deleted)",
            "/memfd:symmem:train:x (deleted)",
            "/memfd:other:0 (deleted)",
            "/tmp/memfd:symmem:train:0",
            "socket:[1]",
        ] {
            assert_eq!(kind(other), None, "{other}");
        }
    }
}
