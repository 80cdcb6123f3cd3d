//! Who runs this process, and whether a uid tells this user from others.
//!
//! The fd channel asks before it takes a peer's uid for a proof. In a user namespace the kernel shows every
//! uid that the namespace does not map as the overflow uid. A process that has that uid itself cannot tell
//! its own user from strangers.

use std::fs;

/// The overflow uid of a kernel that nobody has configured.
const OVERFLOW: u32 = 65534;
/// How many uids there are: the length of the map of a namespace that hides none.
const ALL: u32 = u32::MAX;

/// The user who started this process.
pub(crate) fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The user with whose rights it runs.
pub(crate) fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether only processes of this user show as this process' effective uid. What cannot be read counts
/// against it.
pub fn uid_is_proof() -> bool {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    is_proof(effective_uid(), overflow, &map)
}

fn is_proof(euid: u32, overflow: u32, map: &str) -> bool {
    euid != overflow || maps_all(map)
}

/// Whether `map` leaves no uid out. Only the first namespace, and those that map all of it, can.
fn maps_all(map: &str) -> bool {
    let fields: Vec<Option<u32>> = map.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    fields == [Some(0), Some(0), Some(ALL)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: &str = "         0          0 4294967295\n";

    #[test]
    fn only_the_overflow_uid_of_a_namespace_that_hides_uids_is_no_proof() {
        for (euid, map, proof) in [
            (1000, INITIAL, true),
            (65534, INITIAL, true),
            (0, "0 1000 1\n", true),
            (65534, "65534 1000 1\n", false),
            (65534, "0 100000 65536\n", false),
            // No map at all: everybody, this process included, shows as the overflow uid.
            (65534, "", false),
            (65534, "junk", false),
        ] {
            assert_eq!(is_proof(euid, OVERFLOW, map), proof, "{euid} {map:?}");
        }
    }

    #[test]
    fn a_kernel_may_have_another_overflow_uid() {
        assert!(!is_proof(4242, 4242, "4242 1000 1"));
        assert!(is_proof(65534, 4242, "65534 1000 1"));
    }
}
