//! The job secret: bytes that all ranks of a job have and nobody else.
//!
//! `config` reads it, and `group::seal` makes proofs with it. It comes from a file that only its owner can
//! read, from a descriptor that the launcher left open, or from code; never from the environment or the
//! arguments, which others can read. What it guarantees: the bytes are not printed, and are wiped when the
//! last holder drops them.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::sys::ids;
use crate::{Error, Result};

/// Fewest bytes: a random key of 128 bits as hexadecimal digits, or of 256 bits as it is.
pub(crate) const LEAST: usize = 32;
/// Most bytes. A longer file is a mistake.
pub(crate) const MOST: usize = 4096;
const HOW: &str = "Hint: (umask 077; openssl rand -hex 32 > FILE) makes one; every rank needs the same";

/// The bytes, and where they came from.
#[derive(Clone)]
pub(crate) struct Secret {
    bytes: Arc<Zeroizing<Vec<u8>>>,
    source: SecretSource,
}

/// Where a secret came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretSource {
    /// A file.
    File(PathBuf),
    /// A descriptor that this process inherited.
    Descriptor(u32),
    /// The program.
    Code,
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Descriptor(number) => write!(f, "{number}"),
            Self::Code => f.write_str("set in code"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secret").field(&self.source).finish()
    }
}

impl PartialEq for Secret {
    /// Compares configurations of this process, which holds both: how long that takes tells nobody anything.
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.bytes == other.bytes
    }
}

impl Eq for Secret {}

impl Secret {
    /// The secret in the file at `path`: a regular file of this user that nobody else may touch. Links are
    /// not followed, and the checks are made on the open file, so nobody can put another one in its place.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let what = || format!("secret file {}", path.display());
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK the opening of a pipe would wait for a writer.
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
        let file = options.open(path).map_err(|error| {
            let link = error.raw_os_error() == Some(libc::ELOOP);
            let problem = if link { "it is a symbolic link".to_owned() } else { error.to_string() };
            Error::invalid(what(), format!("{problem}. {HOW}"))
        })?;
        let euid = rustix::process::geteuid().as_raw();
        let checked = metadata(&file).and_then(|meta| check_private(&meta, euid));
        checked.map_err(|problem| Error::invalid(what(), problem))?;
        let bytes = read(&file).map_err(|problem| Error::invalid(what(), problem))?;
        Self::new(bytes, SecretSource::File(path.to_owned()))
            .map_err(|problem| Error::invalid(what(), problem))
    }

    /// The secret in the regular file (a memfd, too) that is open as descriptor `number`. The launcher left
    /// it open, so its owner and mode are the launcher's business.
    ///
    /// The number comes from the environment, so nothing says that this process may take the descriptor: it
    /// stays untouched, offset included, and the file behind it is opened again.
    pub(crate) fn from_descriptor(number: u32) -> Result<Self> {
        let what = || format!("descriptor {number} of the job secret");
        let path = format!("/proc/self/fd/{number}");
        let invalid = |problem: String| Error::invalid(what(), problem);
        // Looked at before it is opened: opening a device or a pipe may do something.
        let meta = fs::metadata(&path).map_err(|error| {
            invalid(format!("{error}. Hint: the launcher must leave it open for this process"))
        })?;
        check_regular(&meta).map_err(invalid)?;
        let file = File::open(&path).map_err(|error| invalid(error.to_string()))?;
        metadata(&file).and_then(|meta| check_regular(&meta)).map_err(invalid)?;
        let bytes = read(&file).map_err(invalid)?;
        Self::new(bytes, SecretSource::Descriptor(number)).map_err(invalid)
    }

    /// A secret that the program has from elsewhere.
    pub(crate) fn from_code(bytes: &[u8]) -> Result<Self> {
        let bytes = Zeroizing::new(bytes.to_vec());
        Self::new(bytes, SecretSource::Code).map_err(|problem| Error::invalid("job secret", problem))
    }

    fn new(mut bytes: Zeroizing<Vec<u8>>, source: SecretSource) -> Result<Self, String> {
        // Editors and `echo` end a file with a new line, and not everywhere the same one.
        let end = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let end = end.strip_suffix(b"\r").unwrap_or(end).len();
        bytes.truncate(end);
        if bytes.len() < LEAST {
            return Err(format!(
                "it has {} bytes, and fewer than {LEAST} can be guessed. {HOW}",
                bytes.len()
            ));
        }
        if bytes.len() > MOST {
            return Err(format!("it has more than {MOST} bytes. {HOW}"));
        }
        Ok(Self { bytes: Arc::new(bytes), source })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn source(&self) -> &SecretSource {
        &self.source
    }
}

fn metadata(file: &File) -> Result<Metadata, String> {
    file.metadata().map_err(|error| error.to_string())
}

fn check_regular(meta: &Metadata) -> Result<(), String> {
    let kind = meta.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let kind = if kind.is_fifo() { "a pipe" } else { "something else" };
    Err(format!("it must be a regular file or a memfd, and is {kind}. {HOW}"))
}

fn check_private(meta: &Metadata, euid: u32) -> Result<(), String> {
    check_regular(meta)?;
    if meta.uid() != euid {
        let owner = meta.uid();
        return Err(format!("it belongs to uid {owner}, and this process runs as {euid}. Hint: chown it"));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!("others may read or change it (mode {mode:04o}). Hint: chmod 600"));
    }
    Ok(())
}

/// Makes a file with a random secret at `path`, for this user only. What exists there already stays.
pub(crate) fn create(path: &Path) -> Result<()> {
    let failed = |problem: String| Error::invalid(format!("secret file {}", path.display()), problem);
    let text = Zeroizing::new(format!("{}\n", ids::hex(&*Zeroizing::new(ids::random::<32>()?))));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_CLOEXEC);
    let mut file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => failed("it exists already, and is not overwritten".to_owned()),
        _ => failed(error.to_string()),
    })?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
        // Half a secret is of no use, and would stand in the way of the next attempt.
        let _ = fs::remove_file(path);
        failed(error.to_string())
    })
}

/// All bytes of `file`, but not many more than a secret may have.
fn read(file: &File) -> Result<Zeroizing<Vec<u8>>, String> {
    // Room for the longest secret and its end of line, and one byte more to notice what is too long.
    let mut bytes = Zeroizing::new(vec![0; MOST + 3]);
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::Folder;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    /// A file of `bytes` and `mode` in `folder`.
    fn file(folder: &Folder, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn refused(secret: Result<Secret>) -> String {
        secret.unwrap_err().to_string()
    }

    #[test]
    fn a_private_file_is_read_without_its_end_of_line() {
        let folder = Folder::new();
        for (name, end) in [("none", ""), ("unix", "\n"), ("dos", "\r\n")] {
            let path = file(&folder, name, format!("{TEXT}{end}").as_bytes(), 0o600);
            assert_eq!(Secret::from_file(&path).unwrap().bytes(), TEXT.as_bytes(), "{name}");
        }
        let path = file(&folder, "read only", TEXT.as_bytes(), 0o400);
        assert_eq!(Secret::from_file(&path).unwrap().source(), &SecretSource::File(path));
    }

    #[test]
    fn a_new_file_holds_a_secret_of_its_own() {
        let folder = Folder::new();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        create(&one).unwrap();
        create(&other).unwrap();
        let read = |path: &Path| Secret::from_file(path).unwrap().bytes().to_vec();
        assert_eq!(read(&one).len(), 64);
        assert_ne!(read(&one), read(&other));
        let before = read(&one);
        assert!(create(&one).unwrap_err().to_string().contains("exists already"));
        assert_eq!(read(&one), before);
        assert!(create(&folder.path().join("missing/one")).is_err());
    }

    #[test]
    fn a_file_that_others_may_touch_is_refused() {
        let folder = Folder::new();
        for mode in [0o644, 0o640, 0o620, 0o606, 0o601] {
            let path = file(&folder, "open", TEXT.as_bytes(), mode);
            let text = refused(Secret::from_file(&path));
            assert!(text.contains("chmod 600") && text.contains(&format!("{mode:04o}")), "{text}");
        }
    }

    #[test]
    fn the_owner_must_be_this_user() {
        let folder = Folder::new();
        let path = file(&folder, "own", TEXT.as_bytes(), 0o600);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(check_private(&meta, meta.uid()), Ok(()));
        assert!(check_private(&meta, meta.uid() + 1).unwrap_err().contains("belongs to uid"));
    }

    #[test]
    fn links_folders_devices_and_pipes_are_refused() {
        let folder = Folder::new();
        let path = file(&folder, "real", TEXT.as_bytes(), 0o600);
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(refused(Secret::from_file(&link)).contains("symbolic link"));
        assert!(refused(Secret::from_file(folder.path())).contains("regular file"));
        assert!(refused(Secret::from_file(Path::new("/dev/zero"))).contains("regular file"));
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(refused(Secret::from_descriptor(reader.as_raw_fd() as u32)).contains("a pipe"));
        assert!(refused(Secret::from_file(&folder.path().join("missing"))).contains("openssl"));
    }

    #[test]
    fn too_short_and_too_long_are_refused() {
        let folder = Folder::new();
        for (name, bytes) in [("empty", 0), ("short", LEAST - 1), ("long", MOST + 1), ("huge", MOST * 10)] {
            let path = file(&folder, name, &vec![b'x'; bytes], 0o600);
            let text = refused(Secret::from_file(&path));
            assert!(text.contains("bytes") && text.contains("Hint: "), "{text}");
        }
        for bytes in [LEAST, MOST] {
            Secret::from_file(&file(&folder, "good", &vec![b'x'; bytes], 0o600)).unwrap();
        }
    }

    #[test]
    fn a_descriptor_is_read_from_the_start_and_left_as_it_is() {
        use std::io::Read;
        let folder = Folder::new();
        let path = file(&folder, "fd", TEXT.as_bytes(), 0o600);
        let mut open = File::open(&path).unwrap();
        open.read_exact(&mut [0; 5]).unwrap();
        let number = open.as_raw_fd() as u32;
        for _ in 0..2 {
            let secret = Secret::from_descriptor(number).unwrap();
            assert_eq!(
                (secret.bytes(), secret.source()),
                (TEXT.as_bytes(), &SecretSource::Descriptor(number))
            );
        }
        let mut rest = String::new();
        open.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, TEXT[5..]);
        assert!(refused(Secret::from_descriptor(1 << 30)).contains("leave it open"));
    }

    #[test]
    fn nobody_sees_the_bytes() {
        let secret = Secret::from_code(TEXT.as_bytes()).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(Code)");
        assert_eq!(secret.source().to_string(), "set in code");
    }
}
