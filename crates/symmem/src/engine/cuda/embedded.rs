//! Kernels as PTX, for machines without NVRTC and for devices that are newer than theirs.
//!
//! Made by `cargo xtask kernels --write`, which a test keeps true to the sources: the kernels for groups of
//! any size, for compute capability 8.0 and up. The driver compiles them when they are loaded; it must know
//! PTX 9.0, that is, be of release 580 or later.
//!
//! They are packed (`archive.rs`), and unpacked when they are asked for: a third of a millisecond each,
//! beside a driver that takes far longer.

use super::archive;

const MANIFEST: &str = include_str!("../../../kernels/ptx.manifest");
const PACKED: &[u8] = include_bytes!("../../../kernels/ptx.bin");

/// The PTX of the source called `name`, if it is built in. An error if what was built in is damaged.
pub(super) fn ptx(name: &str) -> Result<Option<Vec<u8>>, String> {
    archive::unpack(MANIFEST, PACKED, name)
}

#[cfg(test)]
mod tests {
    use super::super::sources::{BENCH, ENGINE, MULTIMEM};
    use super::*;

    #[test]
    fn every_source_of_the_engine_is_built_in_and_whole() {
        let rows = archive::rows(MANIFEST).unwrap();
        assert_eq!(rows.len(), ENGINE.len());
        assert_eq!(rows.iter().map(|row| row.packed).sum::<usize>(), PACKED.len());
        for (name, _) in ENGINE {
            let text = String::from_utf8(ptx(name).unwrap().expect("it is built in")).unwrap();
            assert!(text.starts_with(".version 9.0\n.target sm_80\n"), "{name}");
            assert!(text.contains(".visible .entry"), "{name}");
        }
    }

    #[test]
    fn nothing_else_is_built_in() {
        for (name, _) in MULTIMEM.iter().chain([&BENCH]) {
            assert_eq!(ptx(name), Ok(None));
        }
    }
}
