//! Versions of NCCL: as the library codes them, as people write them, and the suffix that only its file
//! tells.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2, so far.
    pub major: u32,
    /// What brings new functions.
    pub minor: u32,
    /// What mends them.
    pub patch: u32,
}

impl Version {
    /// The version `major.minor.patch`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// The version that NCCL writes as `code`: up to 2.8 with three digits behind the major number, since
    /// then with four.
    pub(crate) const fn from_code(code: i32) -> Self {
        let code = code.unsigned_abs();
        let major = if code < 10_000 { code / 1000 } else { code / 10_000 };
        let rest = if code < 10_000 { code % 1000 } else { code % 10_000 };
        Self { major, minor: rest / 100, patch: rest % 100 }
    }

    /// NCCL's own number for it.
    pub const fn code(self) -> u32 {
        let major = if self.major <= 2 && self.minor <= 8 { 1000 } else { 10_000 };
        self.major * major + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Constant data is read in pieces of this size.
const PIECE: usize = 1 << 20;

/// What follows the numbers of `version` in the sentence with which the library in `file` names itself: empty
/// for a release. `None` where there is no such sentence. Only the constants of the file are read, not its
/// kernels.
pub(super) fn suffix(file: &Path, version: Version) -> Option<String> {
    let file = File::open(file).ok()?;
    let (start, len) = constants(&file)?;
    let mark = format!("NCCL version {version}").into_bytes();
    let mut piece = vec![0; PIECE.min(usize::try_from(len).ok()?)];
    // Pieces overlap, so that nothing is cut.
    let step = piece.len().checked_sub(256)?.max(1);
    for at in (0..len).step_by(step) {
        let read = file.read_at(&mut piece, start + at).ok()?;
        let mut rest = &piece[..read];
        while let Some(found) = rest.windows(mark.len()).position(|window| window == mark) {
            rest = &rest[found + mark.len()..];
            if let Some(end) = rest.windows(5).take(128).position(|window| window == b"+cuda") {
                return Some(String::from_utf8_lossy(&rest[..end]).into_owned());
            }
        }
    }
    None
}

/// Where the section `.rodata` of an ELF file is, and how long.
fn constants(file: &File) -> Option<(u64, u64)> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    // A 64-bit little-endian file; everything else has no NCCL in it.
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]) as usize;
    let table = u64::from_le_bytes(head[40..48].try_into().ok()?);
    let (size, count, names) = (short(58), short(60), short(62));
    if size < 64 || names >= count {
        return None;
    }
    let mut sections = vec![0; size * count];
    file.read_exact_at(&mut sections, table).ok()?;
    let word = |section: usize, at: usize| {
        let bytes = &sections[section * size + at..][..8];
        bytes.try_into().map(u64::from_le_bytes).ok()
    };
    let mut text = vec![0; usize::try_from(word(names, 32)?).ok().filter(|len| *len < 1 << 20)?];
    file.read_exact_at(&mut text, word(names, 24)?).ok()?;
    let is_constants = |section: &usize| {
        let name = word(*section, 0).map_or(0, |word| word as u32 as usize);
        text.get(name..).is_some_and(|name| name.starts_with(b".rodata\0"))
    };
    let section = (0..count).find(is_constants)?;
    Some((word(section, 24)?, word(section, 32)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_header() {
        for (code, version) in [(2708, (2, 7, 8)), (21903, (2, 19, 3)), (23007, (2, 30, 7))] {
            let version = Version::new(version.0, version.1, version.2);
            assert_eq!(Version::from_code(code), version);
            assert_eq!(version.code() as i32, code);
        }
        assert!(Version::new(2, 9, 1) < Version::new(2, 28, 0));
        assert_eq!(Version::new(2, 30, 7).to_string(), "2.30.7");
    }

    #[test]
    fn a_file_that_does_not_say_so_has_no_suffix() {
        let program = std::env::current_exe().unwrap();
        let file = File::open(&program).unwrap();
        assert!(constants(&file).is_some_and(|(start, len)| start > 0 && len > 0));
        assert_eq!(suffix(&program, Version::new(2, 0, 99)), None);
        assert_eq!(suffix(Path::new("/proc/self/maps"), Version::new(2, 0, 99)), None);
    }
}
