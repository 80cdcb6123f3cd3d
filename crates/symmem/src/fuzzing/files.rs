//! Files that a user may have and that may hold anything: tunings and compiled kernels.

use symmem_store::fuzzing::nameless_file;

use crate::cuda::cache;
use crate::sync::control::staging_bytes;
use crate::sync::protocol::PARCEL_WORDS;
use crate::tuning::{Algorithm, Collective, DeviceBounds, PUSH_RANKS, Tuning, TuningFile, machine};

/// Stands for this machine's name in an input, so that what is said about it is looked at.
const HERE: &str = "@HERE@";
/// Ranks that a file is asked about.
const WORLDS: [usize; 4] = [1, 2, 17, 1024];
/// Sizes at which algorithms give way to each other, and the ends.
const SIZES: [usize; 7] = [0, 32, 536, 537, 256 << 10, (256 << 10) + 1, usize::MAX];

/// A file of tunings: unusable, or it answers every question with an algorithm that can carry the collective.
pub(super) fn tuning(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).replace(HERE, machine());
    let (_file, path) = nameless_file(text.as_bytes());
    if let Ok(file) = TuningFile::open(path.as_ref()) {
        WORLDS.into_iter().for_each(|world| check(&file.tuning(world), world));
    }
    // What `SYMMEM_ALGORITHM` may hold.
    let mut tuning = Tuning::built_in(2);
    let _ = tuning.force_by_text(&text);
    check(&tuning, 2);
}

/// Whether a group of `world` ranks can do what `tuning` says.
fn check(tuning: &Tuning, world: usize) {
    assert_eq!(tuning.world(), world, "the tuning of another world");
    for collective in Collective::ALL {
        for bytes in SIZES {
            let chosen = tuning.choose(collective, bytes);
            assert!(collective.algorithms().contains(&chosen), "{chosen} for {collective}");
            // What does not fit a parcel or staging would be written beyond its end.
            assert!(fits(chosen, world, bytes), "{chosen} for {bytes} bytes of {world} ranks");
        }
    }
}

/// Whether `algorithm` can carry `bytes` per rank in a group of `world`.
fn fits(algorithm: Algorithm, world: usize, bytes: usize) -> bool {
    match algorithm {
        Algorithm::Push => world <= PUSH_RANKS && bytes <= PARCEL_WORDS * 8,
        Algorithm::Staged => bytes <= staging_bytes(world),
        _ => true,
    }
}

pub(super) fn tuning_seeds() -> Vec<Vec<u8>> {
    let mut file = TuningFile::default();
    for world in WORLDS {
        let mut tuning = Tuning::built_in(world);
        let _ = tuning.force(Collective::AllReduce, Algorithm::TwoShot);
        file.keep(tuning);
        let bounds = [("low_latency".to_owned(), 4096)].into();
        file.keep_devices("a GPU, ranks on several", world, DeviceBounds::from([("out".to_owned(), bounds)]));
    }
    let text = serde_json::to_string(&file).unwrap_or_default().replace(machine(), HERE);
    let texts = [&*text, "{}", "staged", "all_reduce=push,broadcast=direct", r#"{"machines":{"@HERE@":{}}}"#];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A file of the kernel cache: it is what was kept, or it is made again, and is sound afterwards.
pub(super) fn kernel_cache(bytes: &[u8]) {
    cache::fuzz(bytes);
}

pub(super) fn kernel_cache_seeds() -> Vec<Vec<u8>> {
    cache::fuzz_seeds()
}
