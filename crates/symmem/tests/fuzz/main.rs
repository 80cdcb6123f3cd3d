//! Every fuzz target for a moment, on stable: seeds that get far, changed at random, and the inputs kept in
//! `fuzz/seeds`.
//!
//! `cargo xtask fuzz` feeds the same targets for longer, by what they cover.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use symmem::fuzzing::{feed, target, targets};

/// One change to an input.
#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// An integer of eight bytes at an edge.
    Number(Index, u64),
    /// The rest of another seed.
    Splice(Index, Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    let edges =
        prop::sample::select(vec![0, 1, 127, 128, 255, 256, 1 << 31, 1 << 32, u64::MAX >> 1, u64::MAX]);
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (at(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at(), 1usize..40).prop_map(|(at, count)| Edit::Remove(at, count)),
        (at(), edges).prop_map(|(at, number)| Edit::Number(at, number)),
        (at(), at(), at()).prop_map(|(at, seed, from)| Edit::Splice(at, seed, from)),
    ]
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let place = |at: &Index, bytes: &Vec<u8>| at.index(bytes.len() + 1);
        match self {
            Self::Set(at, byte) => {
                let at = place(at, bytes);
                bytes.splice(at..bytes.len().min(at + 1), [*byte]);
            }
            Self::Flip(at, bit) => {
                let at = place(at, bytes);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << bit);
            }
            Self::Insert(at, new) => {
                let at = place(at, bytes);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(at, count) => {
                let at = place(at, bytes);
                bytes.drain(at..bytes.len().min(at + count));
            }
            Self::Number(at, number) => {
                let at = place(at, bytes);
                bytes.splice(at..bytes.len().min(at + 8), number.to_le_bytes());
            }
            Self::Splice(at, seed, from) => {
                let (at, other) = (place(at, bytes), &seeds[seed.index(seeds.len())]);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[place(from, other)..]);
            }
        }
    }
}

/// The inputs kept in the repository.
fn kept(name: &str) -> Vec<PathBuf> {
    let folder = fuzz_folder().join("seeds").join(name);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let made = (target(name).expect("a target").seeds)();
    let kept = kept(name).into_iter().map(|path| std::fs::read(path).unwrap());
    made.into_iter().chain(kept).collect()
}

/// Feeds the target all its seeds as they are, and `cases` changed ones.
fn run(name: &'static str, cases: u32) {
    let seeds = seeds(name);
    assert!(!seeds.is_empty(), "{name} has no seed");
    seeds.iter().for_each(|seed| feed(name, seed));
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let inputs = (any::<Index>(), prop::collection::vec(edit(), 1..8));
    let result = TestRunner::new(config).run(&inputs, |(seed, edits)| {
        let mut bytes = seeds[seed.index(seeds.len())].clone();
        edits.iter().for_each(|edit| edit.apply(&mut bytes, &seeds));
        feed(name, &bytes);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{name}: {failure}\nKeep the input in fuzz/seeds/{name}.");
    }
}

macro_rules! tests {
    ($($name:ident: $cases:literal),* $(,)?) => {
        /// The targets that have a test here.
        const TESTED: &[&str] = &[$(stringify!($name)),*];

        mod holds_its_promises_for_any_bytes {
            $(#[test]
            fn $name() {
                super::run(stringify!($name), $cases);
            })*
        }
    };
}

// Together a few seconds in a debug build.
tests! {
    store_parser: 2000,
    store_service: 1500,
    store_server: 80,
    file_store: 500,
    channel_message: 1500,
    channel_endpoint: 300,
    join_values: 3000,
    join_store: 12,
    tuning: 1500,
    kernel_cache: 300,
}

#[test]
fn every_target_is_tested_here_and_fuzzed_there() {
    let named = |names: &mut dyn Iterator<Item = String>| names.collect::<BTreeSet<_>>();
    let listed = named(&mut targets().map(|target| target.name.to_owned()));
    let tested = named(&mut TESTED.iter().map(|name| (*name).to_owned()));
    assert_eq!(tested, listed, "tests here, and targets of the library");
    let files = std::fs::read_dir(fuzz_folder().join("fuzz_targets")).unwrap();
    let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let files = named(&mut files.map(|entry| stem(entry.unwrap().path())));
    assert_eq!(files, listed, "files in fuzz/fuzz_targets, and targets of the library");
    let manifest = std::fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for name in &listed {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml lacks {name}");
        let source = std::fs::read_to_string(fuzz_folder().join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(source.contains(&format!("\"{name}\"")), "fuzz_targets/{name}.rs feeds another target");
    }
    for entry in std::fs::read_dir(fuzz_folder().join("seeds")).unwrap() {
        let name = stem(entry.unwrap().path());
        assert!(listed.contains(&name), "fuzz/seeds/{name} is for no target");
    }
}

/// Writes the seeds to the folder that `SYMMEM_FUZZ_SEEDS` names, for libFuzzer to start from.
#[test]
#[ignore = "writes files; cargo xtask fuzz asks for it"]
fn seeds_are_written() {
    let folder = PathBuf::from(std::env::var_os("SYMMEM_FUZZ_SEEDS").expect("SYMMEM_FUZZ_SEEDS"));
    for target in targets() {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder).unwrap();
        for (at, seed) in seeds(target.name).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{at:03}")), seed).unwrap();
        }
    }
}
