//! The header by which the host build, which runs the kernels' protocols as threads, has every kernel of the
//! table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::table::{ENGINE, FORMS, MULTIMEM, MessageLimit, NORM, Routine};

const HEAD: &str = "\
// Every kernel, and the all-reduces that every engine has: written by `cargo xtask kernels --write` from the table in src/engine/cuda/sources.rs.
#pragma once

";

const LIST: &str = "
// X(kind, body, forms as bits, whether each rank must own a part) for each of them.
#define SYMMEM_ALL_REDUCES(X)";

fn path(folder: &Path) -> PathBuf {
    folder.join("host/kernels.hpp")
}

/// An error unless the header is what the table says.
pub(super) fn check(folder: &Path) -> Result<()> {
    let path = path(folder);
    let found = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    ensure!(
        found == text(),
        "{} is not what the table says; run `cargo xtask kernels --write`",
        path.display()
    );
    Ok(())
}

pub(super) fn write(folder: &Path) -> Result<()> {
    let path = path(folder);
    fs::write(&path, text()).with_context(|| format!("{} cannot be written", path.display()))
}

fn text() -> String {
    let mut text = HEAD.to_owned();
    for name in ENGINE.iter().chain(MULTIMEM).map(|(name, _)| *name).collect::<BTreeSet<_>>() {
        let _ = writeln!(text, "#include \"../{name}\"");
    }
    text += LIST;
    for (kernel, forms, owns) in all_reduces() {
        let body = kernel.name().trim_start_matches("all_reduce_");
        let _ = write!(text, " \\\n    X({}, {body}, {forms}, {owns})", body.to_uppercase());
    }
    text + "\n"
}

/// The kernels of all algorithms that need no multicast: each with the forms that it has, a bit for each, and
/// whether each rank must own a part.
fn all_reduces() -> Vec<(Routine, u32, bool)> {
    let mut found: Vec<(Routine, u32, bool)> = Vec::new();
    for (form, kernel) in FORMS.iter().flat_map(|(_, forms)| forms[..NORM].iter().enumerate()) {
        let Some((kernel, room)) = kernel.filter(|(kernel, _)| Routine::ALL.contains(kernel)) else {
            continue;
        };
        match found.iter_mut().find(|(known, ..)| *known == kernel) {
            Some((_, forms, _)) => *forms |= 1 << form,
            None => found.push((kernel, 1 << form, room == MessageLimit::HalfSlots)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_every_form_is_listed() {
        let text = text();
        for (name, _) in ENGINE.iter().chain(MULTIMEM) {
            assert!(text.contains(&format!("#include \"../{name}\"\n")), "{name}");
        }
        for row in ["X(LOW_LATENCY, low_latency, 7, false)", "X(TWO_SHOT, two_shot, 1, false)"] {
            assert!(text.contains(row), "{text}");
        }
        for row in ["X(TWO_SHOT_OUT, two_shot_out, 6, false)", "X(TWO_TRIP, two_trip, 7, true)"] {
            assert!(text.contains(row), "{text}");
        }
        assert!(!text.contains("X(MULTIMEM"), "{text}");
    }
}
