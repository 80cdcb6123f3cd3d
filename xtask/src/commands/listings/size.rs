//! The size of the Python extension module, as the wheel has it: release build, stripped.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{FOLDER, HINT, Listing};
use crate::workspace::Workspace;

const FILE: &str = "extension-size.txt";
const HEAD: &str = "# Bytes of _symmem.abi3.so in the release wheel for x86_64 Linux. The step `python` of `cargo xtask test` allows 3 % more.\n";

/// Parts of the stored size by which the module may grow before somebody looks, in 100. Another version of
/// the compiler or the linker makes less.
const TOLERANCE: u64 = 3;

/// Where the module is below a folder of packages.
const MODULE: &str = "symmem/_symmem.abi3.so";

/// An error if the module in the folder of packages `site` is too large. Elsewhere than on x86_64 code has
/// another size.
pub(crate) fn check(workspace: &Workspace, site: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        println!("the size of the extension module is known for x86_64 only");
        return Ok(());
    }
    let stored = number(&Listing::of(workspace, FILE).read()?)?;
    println!("{}", judge(stored, size(&site.join(MODULE))?)?);
    Ok(())
}

/// Stores the size of the module that the step `python` installed last, if it did.
pub(super) fn write(workspace: &Workspace) -> Result<()> {
    let installed = fs::read_dir(workspace.target("python/venv/lib")).into_iter().flatten().flatten();
    let module =
        installed.map(|python| python.path().join("site-packages").join(MODULE)).find(|path| path.exists());
    match module {
        Some(module) => Listing::of(workspace, FILE).write(&format!("{HEAD}{}\n", size(&module)?)),
        None => {
            println!(
                "{FOLDER}/{FILE}: as it was; `cargo xtask test --only python` builds what it is the size of"
            );
            Ok(())
        }
    }
}

fn size(module: &Path) -> Result<u64> {
    let context = || format!("there is no extension module at {}", module.display());
    Ok(fs::metadata(module).with_context(context)?.len())
}

fn number(text: &str) -> Result<u64> {
    let line = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    line.trim().parse().with_context(|| format!("{FOLDER}/{FILE} has no number"))
}

/// What to say about a module of `bytes` bytes; an error if it is too large.
fn judge(stored: u64, bytes: u64) -> Result<String> {
    let most = stored + stored * TOLERANCE / 100;
    let percent = (bytes as f64 / stored as f64 - 1.0) * 100.0;
    ensure!(
        bytes <= most,
        "the extension module has {bytes} bytes, {percent:.1} % more than the {stored} of {FOLDER}/{FILE}; {HINT}"
    );
    let said = format!("the extension module has {bytes} bytes, {percent:+.1} % of what is stored");
    let advice = format!("{said}: `cargo xtask listings --write` keeps what was won");
    Ok(if stored - bytes.min(stored) > most - stored { advice } else { said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_more_is_fine_and_more_is_not() {
        assert_eq!(
            judge(1000, 1030).expect("3 % more"),
            "the extension module has 1030 bytes, +3.0 % of what is stored"
        );
        let error = judge(1000, 1031).expect_err("more than that").to_string();
        assert!(error.contains("3.1 % more than the 1000") && error.contains("listings --write"), "{error}");
    }

    #[test]
    fn much_less_is_worth_keeping() {
        assert!(judge(1000, 960).expect("less").contains("listings --write"));
        assert!(!judge(1000, 980).expect("less").contains("listings --write"));
    }

    #[test]
    fn the_file_is_a_number_behind_remarks() {
        assert_eq!(number(&format!("{HEAD}12\n")).expect("a number"), 12);
        assert!(number("# nothing\n").is_err());
    }
}
