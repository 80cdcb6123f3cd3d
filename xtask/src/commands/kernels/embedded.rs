//! The PTX in the repository: for machines without NVRTC, and for architectures that come after it.
//!
//! Its first line holds a hash of everything it was made of, so that a stale file is noticed even where nothing can be
//! compiled.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::nvrtc;

/// Every file together; the repository should not grow by more.
const MAX_BYTES: usize = 1 << 20;

/// The oldest architecture that has all instructions; a driver translates from it to any later one.
pub(super) const ARCH: &str = "compute_80";
/// Leaves out the kernels for a fixed number of ranks, three quarters of the text: `_any` does what they do.
pub(super) const MACRO: &str = "SYMMEM_ANY_ONLY";

/// What a file is made of, as a number. Not for protection: it tells stale from fresh.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    let settings = [nvrtc::PACKAGE, ARCH, MACRO];
    // FNV-1a; each part is closed by a byte that no text holds, so that moving one between parts changes the number.
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let bytes = |part: &'a str| part.bytes().chain([0xff]);
    settings.into_iter().chain(parts).flat_map(bytes).fold(0xcbf2_9ce4_8422_2325, fold)
}

fn head(hash: u64) -> String {
    format!("// {hash:016x} {ARCH} -D{MACRO} {}; written by `cargo xtask kernels --write`\n", nvrtc::PACKAGE)
}

/// The file for what the compiler made: without its remarks, which name its build and are a tenth of the text.
pub(super) fn render(hash: u64, ptx: &str) -> String {
    let kept = ptx
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.trim_start().starts_with("//"));
    kept.fold(head(hash), |text, line| text + line + "\n")
}

/// An error unless the file was made of what `hash` stands for.
pub(super) fn check_head(file: &Path, hash: u64) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("{} cannot be read; {HINT}", file.display()))?;
    ensure!(text.starts_with(&head(hash)), "{} is older than the kernels; {HINT}", file.display());
    Ok(())
}

/// An error unless the file is `expected`.
pub(super) fn check(file: &Path, expected: &str) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("{} cannot be read; {HINT}", file.display()))?;
    if text != expected {
        bail!("{} is not what the kernels compile to; {HINT}", file.display());
    }
    Ok(())
}

/// An error if the files together are too large.
pub(super) fn check_size(bytes: usize) -> Result<()> {
    ensure!(bytes <= MAX_BYTES, "the embedded PTX has {bytes} bytes, at most {MAX_BYTES} are fine");
    Ok(())
}

const HINT: &str = "run `cargo xtask kernels --write`";

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str =
        "//\n// Compiler Build ID: 1\n//\n.version 9.0\n\n{ // callseq\n\t// begin inline asm\n\tret; \n}\n";

    fn with_file(name: &str, text: &str, test: impl FnOnce(&Path)) {
        let file = std::env::temp_dir().join(format!("xtask-embedded-{}-{name}", std::process::id()));
        fs::write(&file, text).expect("a new file");
        test(&file);
        fs::remove_file(&file).expect("the file is ours");
    }

    #[test]
    fn a_file_is_its_head_and_the_text_without_remarks() {
        assert_eq!(render(7, PTX), head(7) + ".version 9.0\n{ // callseq\n\tret;\n}\n");
    }

    #[test]
    fn a_fresh_file_is_fine() {
        with_file("fresh", &render(7, PTX), |file| {
            check_head(file, 7).expect("the same sources");
            check(file, &render(7, PTX)).expect("the same text");
        });
    }

    #[test]
    fn a_file_of_other_sources_is_stale() {
        with_file("stale", &render(7, PTX), |file| {
            assert!(check_head(file, 8).expect_err("stale").to_string().contains("older than the kernels"));
        });
    }

    #[test]
    fn a_changed_or_missing_file_is_noticed() {
        with_file("changed", &(render(7, PTX) + "\n"), |file| {
            assert!(check(file, &render(7, PTX)).expect_err("changed").to_string().contains("--write"));
        });
        assert!(check_head(Path::new("/no/such/file"), 7).is_err());
    }

    #[test]
    fn the_hash_depends_on_every_part_and_its_place() {
        assert_eq!(hash(["a", "bc"]), hash(["a", "bc"]));
        assert_ne!(hash(["a", "bc"]), hash(["ab", "c"]));
        assert_ne!(hash(["a", "bc"]), hash(["a", "bd"]));
    }

    #[test]
    fn too_much_text_is_refused() {
        check_size(MAX_BYTES).expect("small enough");
        assert!(check_size(MAX_BYTES + 1).is_err());
    }
}
