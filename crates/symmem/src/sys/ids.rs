//! Random bytes, and the numbers that tell hosts and namespaces apart.
//!
//! Anybody may call it. Same host means same boot id, never the same host name.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// `N` random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::sys("getrandom", error)),
        }
    }
    Ok(bytes)
}

/// The id of this boot of this machine.
pub(crate) fn boot_id() -> Result<[u8; 16]> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(PATH)
        .map_err(|e| Error::sys_hint("read of /proc/sys/kernel/random/boot_id", e, "is /proc mounted?"))?;
    unhex(&text.trim().replace('-', ""))
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Error::invalid(PATH, format!("{text:?} is not a boot id")))
}

/// The network namespace of this process (an inode number); 0 when unknown.
pub(crate) fn net_ns() -> u64 {
    namespace("net")
}

/// The inode number of one of this process' namespaces; 0 when unknown.
pub(crate) fn namespace(kind: &str) -> u64 {
    fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |meta| meta.ino())
}

/// `bytes` as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]])
        .map(char::from)
        .collect()
}

/// The bytes that [`hex`] wrote; `None` for anything else.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    Some(digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<16>().unwrap(), random::<16>().unwrap());
        // More than getrandom gives in one uninterrupted call.
        assert!(random::<1000>().unwrap()[744..].iter().any(|b| *b != 0));
        assert!(random::<0>().unwrap().is_empty());
    }

    #[test]
    fn the_boot_id_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }

    #[test]
    fn namespaces_have_numbers() {
        assert_ne!(net_ns(), 0);
        assert_eq!(namespace("nonsense"), 0);
    }

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(unhex("001fFF").unwrap(), [0, 0x1f, 0xff]);
        assert_eq!(unhex(""), Some(Vec::new()));
        assert_eq!(unhex("abc"), None);
        assert_eq!(unhex("zz"), None);
    }
}
