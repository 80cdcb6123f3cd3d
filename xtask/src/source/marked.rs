//! Generated blocks in hand-written pages, between two comments that name the command that writes them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// An error unless the block `name` of `page` holds `text`.
pub(crate) fn check(page: &Path, name: &str, text: &str) -> Result<()> {
    let old = read(page)?;
    let new = replaced(&old, name, text).with_context(|| page.display().to_string())?;
    ensure!(old == new, "the block `{name}` of {} is stale; run `{}`", page.display(), command(name));
    Ok(())
}

/// Puts `text` into the block `name` of `page`.
pub(crate) fn write(page: &Path, name: &str, text: &str) -> Result<()> {
    let old = read(page)?;
    let new = replaced(&old, name, text).with_context(|| page.display().to_string())?;
    fs::write(page, new).with_context(|| format!("{} cannot be written", page.display()))
}

fn read(page: &Path) -> Result<String> {
    fs::read_to_string(page).with_context(|| format!("{} cannot be read", page.display()))
}

fn command(name: &str) -> String {
    format!("cargo xtask {name} --write")
}

fn replaced(page: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) =
        (format!("<!-- `{}` writes this -->\n", command(name)), format!("<!-- end of {name} -->"));
    let (before, rest) =
        page.split_once(&begin).with_context(|| format!("there is no line `{}`", begin.trim()))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("there is no line `{end}`"))?;
    Ok(format!("{before}{begin}{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a\n<!-- `cargo xtask x --write` writes this -->\nold\n<!-- end of x -->\nb\n";

    #[test]
    fn only_the_block_is_replaced() {
        assert_eq!(replaced(PAGE, "x", "new\n").expect("a block"), PAGE.replace("old", "new"));
    }

    #[test]
    fn a_page_without_the_block_is_an_error() {
        assert!(replaced(PAGE, "y", "").expect_err("no block").to_string().contains("cargo xtask y --write"));
        assert!(replaced(&PAGE.replace("end of", ""), "x", "").is_err());
    }
}
