//! Texts packed into one file, and the manifest that says what is in it.
//!
//! `embedded.rs` reads the kernels' PTX by it; `cargo xtask kernels` compiles this file too, to check them
//! and to write them. What it guarantees: a text that is returned is the one that the manifest has the hash
//! of, whatever the two files hold.
//!
//! The packed file is one zlib stream after the other, in the order of the manifest's rows. Each text is a
//! stream of its own, so who needs one unpacks one.

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use sha2::{Digest, Sha256};

/// One text, as a line of the manifest describes it: these fields in this order, with blanks between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestRow {
    /// The source that it was made of.
    pub(crate) name: String,
    /// The architecture that it is for.
    pub(crate) arch: String,
    /// Bytes of the packed file.
    pub(crate) packed: usize,
    /// Bytes of the text.
    pub(crate) bytes: usize,
    /// [`sha256`] of the text.
    pub(crate) text: String,
    /// [`sha256`] of everything that it was made of. Only `cargo xtask kernels` knows what that is.
    pub(crate) sources: String,
}

/// The rows of a manifest; lines that begin with `#` are remarks.
pub(crate) fn rows(manifest: &str) -> Result<Vec<ManifestRow>, String> {
    let lines = manifest.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| row(line).ok_or_else(|| format!("the manifest has no such row: {line:?}"))).collect()
}

fn row(line: &str) -> Option<ManifestRow> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [name, arch, packed, bytes, text, sources] = fields[..] else { return None };
    let owned = |field: &str| field.to_owned();
    Some(ManifestRow {
        name: owned(name),
        arch: owned(arch),
        packed: packed.parse().ok()?,
        bytes: bytes.parse().ok()?,
        text: owned(text),
        sources: owned(sources),
    })
}

/// The text called `name`, if the manifest has it; an error unless it is what the manifest says.
pub(crate) fn unpack(manifest: &str, packed: &[u8], name: &str) -> Result<Option<Vec<u8>>, String> {
    let mut rest = packed;
    for row in rows(manifest)? {
        let Some((stream, others)) = rest.split_at_checked(row.packed) else {
            return Err(format!("{} is beyond the end of the packed file", row.name));
        };
        if row.name == name {
            return text_of(&row, stream).map(Some);
        }
        rest = others;
    }
    Ok(None)
}

fn text_of(row: &ManifestRow, stream: &[u8]) -> Result<Vec<u8>, String> {
    let name = &row.name;
    let text = decompress_to_vec_zlib_with_limit(stream, row.bytes)
        .map_err(|error| format!("{name} cannot be unpacked: {error}"))?;
    if text.len() != row.bytes || sha256(&text) != row.text {
        return Err(format!("{name} is not the text that the manifest has the hash of"));
    }
    Ok(text)
}

/// The SHA-256 of `bytes`, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use miniz_oxide::deflate::compress_to_vec_zlib;

    use super::*;

    const NAMES: [&str; 2] = ["one.cu", "two.cu"];

    fn text(name: &str) -> String {
        format!("what {name} compiles to\n").repeat(9)
    }

    /// A manifest and its packed file.
    fn archive() -> (String, Vec<u8>) {
        let mut manifest = "# name arch packed bytes text sources\n".to_owned();
        let mut packed = Vec::new();
        for name in NAMES {
            let text = text(name);
            let stream = compress_to_vec_zlib(text.as_bytes(), 9);
            let hash = sha256(text.as_bytes());
            manifest += &format!("{name} compute_80 {} {} {hash} 0\n", stream.len(), text.len());
            packed.extend(stream);
        }
        (manifest, packed)
    }

    #[test]
    fn every_text_comes_back_and_no_other() {
        let (manifest, packed) = archive();
        for name in NAMES {
            assert_eq!(unpack(&manifest, &packed, name), Ok(Some(text(name).into_bytes())));
        }
        assert_eq!(unpack(&manifest, &packed, "three.cu"), Ok(None));
    }

    #[test]
    fn a_damaged_byte_never_changes_a_text() {
        let (manifest, packed) = archive();
        let end = rows(&manifest).unwrap()[0].packed;
        let mut errors = 0;
        for at in 0..end {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x10;
            match unpack(&manifest, &damaged, NAMES[0]) {
                // A few bits mean nothing: the size of a window, and what fills the last byte.
                Ok(found) => assert_eq!(found, Some(text(NAMES[0]).into_bytes()), "{at}"),
                Err(error) => {
                    assert!(error.starts_with("one.cu "), "{at}: {error}");
                    errors += 1;
                }
            }
            assert!(unpack(&manifest, &damaged, NAMES[1]).is_ok(), "{at}");
        }
        assert!(errors + 4 > end, "{errors} of {end}");
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let (manifest, packed) = archive();
        for end in [0, packed.len() - 1] {
            let error = unpack(&manifest, &packed[..end], NAMES[1]).unwrap_err();
            assert!(error.contains("beyond the end"), "{error}");
        }
    }

    #[test]
    fn a_manifest_of_other_texts_is_an_error() {
        let (manifest, packed) = archive();
        for (right, wrong) in
            [(sha256(text(NAMES[0]).as_bytes()), sha256(b"another")), ("# ".into(), "".into())]
        {
            assert!(unpack(&manifest.replace(&right, &wrong), &packed, NAMES[0]).is_err());
        }
        let bytes = text(NAMES[0]).len();
        for wrong in [bytes - 1, bytes + 1] {
            let manifest = manifest.replace(&format!(" {bytes} "), &format!(" {wrong} "));
            assert!(unpack(&manifest, &packed, NAMES[0]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_hash_is_the_one_that_other_programs_have() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
