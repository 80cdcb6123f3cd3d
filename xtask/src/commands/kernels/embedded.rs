//! The PTX in the repository, packed, with its manifest: for machines without NVRTC, and for architectures
//! that come after it.
//!
//! The manifest has hashes of everything that a text was made of, so that a stale one is noticed even where
//! nothing can be compiled. The packed file changes only when a text does: a header's remark changes the
//! manifest alone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use super::nvrtc;

/// The format, as the library reads it.
#[path = "../../../../crates/symmem/src/engine/cuda/archive.rs"]
mod archive;

use archive::ManifestRow;

/// Every text together, packed: the library should not grow by more.
const MAX_BYTES: usize = 256 << 10;

/// Of the packer, from 0 to 10. Nobody waits for it.
const LEVEL: u8 = 9;

/// The oldest architecture that has all instructions; a driver translates from it to any later one.
pub(super) const ARCH: &str = "compute_80";
/// Leaves out the kernels for a fixed number of ranks, three quarters of the text: `_any` does what they do.
pub(super) const MACRO: &str = "SYMMEM_ANY_ONLY";

const HINT: &str = "run `cargo xtask kernels --write`";

const HEAD: &str = "\
# The PTX in ptx.bin, one zlib stream for each row: `cargo xtask kernels --write` makes both files, `cargo xtask kernels` checks them.
# source, architecture, bytes packed, bytes, sha256 of the PTX, sha256 of what it was made of
";

/// What a text is made of, as a hash.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let settings = [nvrtc::PACKAGE, ARCH, MACRO];
    // Each part is closed by a byte that no text holds, so that moving one between parts changes the hash.
    let bytes = |part: &'a str| part.bytes().chain([0xff]);
    archive::sha256(&settings.into_iter().chain(parts).flat_map(bytes).collect::<Vec<_>>())
}

/// What is kept of the compiler's text: all but its remarks, which name its build and are a tenth of the
/// text.
pub(super) fn render(ptx: &str) -> String {
    let kept = ptx
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.trim_start().starts_with("//"));
    kept.fold(String::new(), |text, line| text + line + "\n")
}

/// One text that is in the repository, or goes there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// The file name of its source.
    pub(super) name: String,
    /// [`hash`] of what it was made of.
    pub(super) sources: String,
    pub(super) ptx: String,
}

/// The two files.
pub(super) struct Files {
    manifest: PathBuf,
    packed: PathBuf,
}

impl Files {
    /// Those in the folder of the kernels.
    pub(super) fn of(folder: &Path) -> Self {
        Self { manifest: folder.join("ptx.manifest"), packed: folder.join("ptx.bin") }
    }

    /// Everything that they hold. An error if they do not belong together.
    pub(super) fn read(&self) -> Result<Vec<Text>> {
        let missing = |path: &Path| format!("{} cannot be read; {HINT}", path.display());
        let manifest = fs::read_to_string(&self.manifest).with_context(|| missing(&self.manifest))?;
        let packed = fs::read(&self.packed).with_context(|| missing(&self.packed))?;
        unpack(&manifest, &packed).with_context(|| {
            let (manifest, packed) = (self.manifest.display(), self.packed.display());
            format!("{packed} is not what {manifest} says; {HINT}")
        })
    }

    /// Writes `texts`. The same texts give the same bytes everywhere, as long as `Cargo.lock` has the same
    /// packer.
    pub(super) fn write(&self, texts: &[Text]) -> Result<()> {
        let (manifest, packed) = pack(texts);
        check_size(packed.len())?;
        for (path, bytes) in [(&self.packed, &packed[..]), (&self.manifest, manifest.as_bytes())] {
            fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
            println!("{}: {} bytes", path.display(), bytes.len());
        }
        Ok(())
    }
}

/// An error unless `found` was made of what `wanted`, names and hashes, stands for: nothing less, nothing
/// more.
pub(super) fn check_fresh(found: &[Text], wanted: &[(&str, String)]) -> Result<()> {
    for (name, sources) in wanted {
        let text = found.iter().find(|text| text.name == *name);
        let text = text.with_context(|| format!("the PTX of {name} is not in the repository; {HINT}"))?;
        ensure!(text.sources == *sources, "the PTX of {name} is older than the kernels; {HINT}");
    }
    let left = found.iter().find(|text| !wanted.iter().any(|(name, _)| *name == text.name));
    left.map_or(Ok(()), |text| Err(anyhow!("the PTX of {} belongs to no kernel any more; {HINT}", text.name)))
}

/// An error unless `found` has, for the source `name`, what the compiler made of it.
pub(super) fn check(found: &[Text], name: &str, expected: &str) -> Result<()> {
    let is_same = found.iter().any(|text| text.name == name && text.ptx == expected);
    ensure!(is_same, "the PTX of {name} is not what it compiles to; {HINT}");
    Ok(())
}

/// Manifest and packed file of `texts`.
fn pack(texts: &[Text]) -> (String, Vec<u8>) {
    let mut manifest = HEAD.to_owned();
    let mut packed = Vec::new();
    for Text { name, sources, ptx } in texts {
        let stream = miniz_oxide::deflate::compress_to_vec_zlib(ptx.as_bytes(), LEVEL);
        let (size, bytes, hash) = (stream.len(), ptx.len(), archive::sha256(ptx.as_bytes()));
        manifest += &format!("{name} {ARCH} {size} {bytes} {hash} {sources}\n");
        packed.extend(stream);
    }
    (manifest, packed)
}

/// What [`pack`] was given; an error if a byte of the two is not accounted for.
fn unpack(manifest: &str, packed: &[u8]) -> Result<Vec<Text>> {
    let rows = archive::rows(manifest).map_err(|error| anyhow!(error))?;
    let bytes: usize = rows.iter().map(|row| row.packed).sum();
    ensure!(bytes == packed.len(), "it has {} bytes instead of {bytes}", packed.len());
    let text = |row: ManifestRow| {
        ensure!(row.arch == ARCH, "{} is for {}", row.name, row.arch);
        let text = archive::unpack(manifest, packed, &row.name).map_err(|error| anyhow!(error))?;
        let ptx = String::from_utf8(text.with_context(|| format!("there is no {}", row.name))?)?;
        Ok(Text { name: row.name, sources: row.sources, ptx })
    };
    rows.into_iter().map(text).collect()
}

/// An error if the texts together are too large.
fn check_size(bytes: usize) -> Result<()> {
    ensure!(bytes <= MAX_BYTES, "the embedded PTX has {bytes} bytes, packed; at most {MAX_BYTES} are fine");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str =
        "//\n// Compiler Build ID: 1\n//\n.version 9.0\n\n{ // callseq\n\t// begin inline asm\n\tret; \n}\n";

    fn texts() -> Vec<Text> {
        let text = |name: &str| {
            let ptx = format!("{}// {name}\n", render(PTX).repeat(7));
            Text { name: name.to_owned(), sources: hash([name]), ptx }
        };
        ["a.cu", "b.cu"].map(text).into()
    }

    /// Runs `test` on files in a folder of their own.
    fn with_files(name: &str, test: impl FnOnce(&Files)) {
        let folder = std::env::temp_dir().join(format!("xtask-embedded-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a new folder");
        test(&Files::of(&folder));
        fs::remove_dir_all(&folder).expect("the folder is ours");
    }

    fn wanted() -> [(&'static str, String); 2] {
        ["a.cu", "b.cu"].map(|name| (name, hash([name])))
    }

    #[test]
    fn a_text_is_kept_without_remarks() {
        assert_eq!(render(PTX), ".version 9.0\n{ // callseq\n\tret;\n}\n");
    }

    #[test]
    fn fresh_files_are_fine_and_the_same_every_time() {
        with_files("fresh", |files| {
            files.write(&texts()).expect("a new folder");
            let found = files.read().expect("what was written");
            assert_eq!(found, texts());
            check_fresh(&found, &wanted()).expect("the same sources");
            check(&found, "a.cu", &texts()[0].ptx).expect("the same text");
        });
        assert_eq!(pack(&texts()), pack(&texts()));
    }

    #[test]
    fn stale_missing_and_left_over_texts_are_told_apart() {
        let message =
            |wanted: &[(&str, String)]| check_fresh(&texts(), wanted).expect_err("not fresh").to_string();
        let [a, b] = wanted();
        assert!(
            message(&[("a.cu", hash(["changed"])), b.clone()]).contains("a.cu is older than the kernels")
        );
        assert!(message(&[a.clone(), b, ("c.cu", hash(["c"]))]).contains("c.cu is not in the repository"));
        assert!(message(&[a]).contains("b.cu belongs to no kernel"));
        assert!(check(&texts(), "a.cu", "another").expect_err("changed").to_string().contains("--write"));
    }

    #[test]
    fn damaged_and_missing_files_are_named_with_the_way_out() {
        with_files("damaged", |files| {
            let message = |files: &Files| format!("{:#}", files.read().expect_err("damaged"));
            assert!(
                message(files).contains("ptx.manifest cannot be read; run `cargo xtask kernels --write`")
            );
            files.write(&texts()).expect("a new folder");
            let good = fs::read(&files.packed).expect("what was written");
            let mut damaged = good.clone();
            damaged[good.len() / 4] ^= 1;
            for (bytes, problem) in [(damaged, "a.cu "), (good[1..].to_vec(), "bytes instead of")] {
                fs::write(&files.packed, bytes).expect("the file is ours");
                let text = message(files);
                assert!(text.contains("ptx.bin is not what") && text.contains(problem), "{text}");
            }
            files.write(&texts()).expect("the file is ours");
            assert_eq!(fs::read(&files.packed).expect("written again"), good);
        });
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
