//! The cache of compiled code on disk.
//!
//! Called by the engine around its compiler. What it guarantees: many processes may start at once (a file
//! appears whole or not at all), a damaged or foreign file is made again and never handed to the driver, and
//! without a folder that can be written everything works, only slower.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::Result;
use crate::config::Config;
use crate::sys::{ids, user};

/// First bytes of a file: the format.
const MAGIC: &[u8; 8] = b"symmem01";
/// Magic, then the sum of the rest.
const HEADER: usize = MAGIC.len() + 16;

/// What `make` makes for these parts of a key, from the folder that the environment names if it is there.
pub(crate) fn cached(key_parts: &[&[u8]], make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    cached_in(Config::from_env()?.cache_dir.as_deref(), key_parts, make)
}

/// As [`cached`], with the folder; `None`: nothing is kept.
pub(crate) fn cached_in(
    folder: Option<&Path>,
    key_parts: &[&[u8]],
    make: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let Some(folder) = folder else { return make() };
    let path = folder.join(format!("{}.kernels", key(key_parts)));
    match read(&path) {
        Ok(code) => {
            tracing::debug!(path = %path.display(), "from the cache");
            return Ok(code);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!(path = %path.display(), %error, "made again"),
    }
    let code = make()?;
    if let Err(error) = write(folder, &path, &code) {
        tracing::debug!(path = %path.display(), %error, "not kept");
    }
    Ok(code)
}

/// The name for a key. Each part goes in with its length, so that parts cannot run into each other.
fn key(parts: &[&[u8]]) -> String {
    let mut sum = Checksum::new();
    for part in parts {
        sum.add(&(part.len() as u64).to_le_bytes());
        sum.add(part);
    }
    ids::hex(&sum.0.to_be_bytes())
}

/// The code in the file at `path`, if it is whole and nobody else can have written it: it will run with our
/// rights.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let status = file.metadata()?;
    let me = user::effective_uid();
    if !status.is_file() || (status.uid() != me && status.uid() != 0) || status.mode() & 0o022 != 0 {
        return Err(io::Error::other("somebody else can write it"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(status.len()).unwrap_or(0));
    file.read_to_end(&mut bytes)?;
    let sound = bytes.len() > HEADER
        && bytes.starts_with(MAGIC)
        && bytes[MAGIC.len()..HEADER] == Checksum::of(&bytes[HEADER..]).to_le_bytes();
    if !sound {
        return Err(io::Error::other("damaged"));
    }
    bytes.drain(..HEADER);
    Ok(bytes)
}

/// Writes beside `path`, then renames: readers see all or nothing, and the last of many writers wins with the
/// same bytes.
fn write(folder: &Path, path: &Path, code: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let id = ids::random::<8>().map_err(|error| io::Error::other(error.to_string()))?;
    let draft = path.with_extension(format!("{}.tmp", ids::hex(&id)));
    let written = write_draft(&draft, code).and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written
}

fn write_draft(draft: &Path, code: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(MAGIC)?;
    file.write_all(&Checksum::of(code).to_le_bytes())?;
    file.write_all(code)
}

/// FNV-1a with 128 bits: tells contents apart and sees damage; it need not withstand an attacker, who cannot
/// write here.
struct Checksum(u128);

impl Checksum {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013B);
        }
    }

    fn of(bytes: &[u8]) -> u128 {
        let mut sum = Self::new();
        sum.add(bytes);
        sum.0
    }
}

/// A file of the cache with any bytes: it is what was kept, or it is made again, and is sound afterwards. A
/// first byte that is odd stands for the right beginning, so that the rest gets a chance.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    const KEY: &[&[u8]] = &[b"fuzz"];
    const MADE: &[u8] = b"made again";
    let Some((choice, rest)) = bytes.split_first() else { return };
    let whole = match choice & 1 {
        0 => rest.to_vec(),
        _ => [MAGIC, &Checksum::of(rest).to_le_bytes()[..], rest].concat(),
    };
    // One per process: each input replaces what the one before left.
    let folder = std::env::temp_dir().join(format!("symmem-fuzz-{}", std::process::id()));
    let path = folder.join(format!("{}.kernels", key(KEY)));
    let look = || cached_in(Some(&folder), KEY, || Ok(MADE.to_vec())).expect("what can be made is there");
    let planted = write(&folder, &path, b"").and_then(|()| std::fs::write(&path, &whole));
    planted.expect("a folder for temporary files");
    let found = look();
    assert!(found == MADE || whole.len() > HEADER && found == whole[HEADER..], "{found:?} was never kept");
    assert!(choice & 1 == 0 || rest.is_empty() || found == rest, "what was kept is not used");
    assert_eq!(look(), found, "what is there now is not sound");
    let _ = std::fs::remove_dir_all(&folder);
}

#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_seeds() -> Vec<Vec<u8>> {
    let whole = |code: &[u8]| [MAGIC, &Checksum::of(code).to_le_bytes()[..], code].concat();
    let plain = [whole(b"code"), whole(b""), whole(&[0; 300])[..200].to_vec(), MAGIC.to_vec()];
    let marked = plain.iter().map(|bytes| [&[0], &bytes[..]].concat());
    marked.chain([b"\x01code".to_vec(), b"\x01".to_vec()]).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::testing::Folder;
    use super::*;
    use crate::Error;

    const KEY: &[&[u8]] = &[b"source", b"sm_90a"];

    fn made(folder: &Path, count: &AtomicUsize) -> Vec<u8> {
        cached_in(Some(folder), KEY, || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(vec![7; 100_000])
        })
        .unwrap()
    }

    fn only_file(folder: &Path) -> PathBuf {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[test]
    fn the_sum_is_the_published_one() {
        assert_eq!(Checksum::of(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(Checksum::of(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"ab"]), key(&[b"ab", b""]));
        assert_eq!(key(KEY), key(KEY));
    }

    #[test]
    fn code_is_made_once() {
        let (folder, count) = (Folder::new(), AtomicUsize::new(0));
        let below = folder.path().join("not/yet/there");
        for _ in 0..3 {
            assert_eq!(made(&below, &count), [7; 100_000]);
        }
        assert_eq!(count.into_inner(), 1);
        assert_eq!(std::fs::metadata(&below).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn many_writers_leave_one_whole_file() {
        let (folder, count) = (Folder::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(made(folder.path(), &count), [7; 100_000]));
            }
        });
        let before = count.load(Ordering::Relaxed);
        assert!((1..=8).contains(&before));
        only_file(folder.path());
        made(folder.path(), &count);
        assert_eq!(count.into_inner(), before);
    }

    #[test]
    fn a_damaged_file_is_made_again() {
        let (folder, count) = (Folder::new(), AtomicUsize::new(0));
        made(folder.path(), &count);
        let path = only_file(folder.path());
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        for damaged in
            [&b""[..], b"symmem01", &whole[..whole.len() - 1], &flipped[..], b"rubbish that is long enough"]
        {
            std::fs::write(&path, damaged).unwrap();
            let before = count.load(Ordering::Relaxed);
            assert_eq!(made(folder.path(), &count), [7; 100_000]);
            assert_eq!(count.load(Ordering::Relaxed), before + 1);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn what_others_can_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, count) = (Folder::new(), AtomicUsize::new(0));
        made(folder.path(), &count);
        let path = only_file(folder.path());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        made(folder.path(), &count);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn without_a_folder_code_is_just_made() {
        let folder = Folder::new();
        let file = folder.touch("a-file");
        let count = AtomicUsize::new(0);
        for _ in 0..2 {
            made(&file.join("below"), &count);
        }
        assert_eq!(count.into_inner(), 2);
        assert_eq!(cached_in(None, KEY, || Ok(vec![1])).unwrap(), [1]);
    }

    #[test]
    fn what_cannot_be_made_is_not_kept() {
        let folder = Folder::new();
        let failed =
            cached_in(Some(folder.path()), KEY, || Err(Error::invalid("kernel", "does not compile")));
        assert!(failed.is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
