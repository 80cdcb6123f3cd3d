//! Variables that are named like settings and are none: most likely misspelt, so whoever set one should hear
//! of it.
//!
//! [`Config`](super::Config) asks when it has read the environment. One rank of a machine speaks for all of
//! them, or their launcher.

use strsim::levenshtein;

use super::ConfigRow;

const PREFIX: &str = "SYMMEM_";
/// The variable with the name of the call that a rank's process is for; who started the process has
/// complained already.
pub(crate) const SPAWN_NAME: &str = "SYMMEM_SPAWN_NAME";

/// What people may set beside the settings: for parts of the library that know no configuration, and for the
/// programs.
const OTHERS: [&str; 5] =
    ["SYMMEM_CUBLASLT_LIBRARY", "SYMMEM_LOG", "SYMMEM_NCCL_LIBRARY", "SYMMEM_NVRTC_LIBRARY", "SYMMEM_PYTHON"];

/// How names go on after [`PREFIX`] that nobody is sent to: what launchers tell their ranks and tests their
/// processes, and a setting that is no more, which is refused by its name.
const INTERNAL: &str = "BENCH_ CRASH_ FAIL FRESH_RUN LEAVE_OUT SPAWN_ SPINS TEST_ TRACE_";

/// A sentence for each variable of this process that is meant for symmem and means nothing; none where
/// another rank of this machine or its launcher says them.
pub(super) fn in_environment(rows: &[ConfigRow]) -> Vec<String> {
    let is_another_rank = std::env::var("LOCAL_RANK").is_ok_and(|rank| rank != "0");
    if is_another_rank || std::env::var_os(SPAWN_NAME).is_some() {
        return Vec::new();
    }
    let names: std::collections::BTreeSet<String> =
        std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.iter().filter_map(|name| complaint(name, rows)).collect()
}

fn complaint(name: &str, rows: &[ConfigRow]) -> Option<String> {
    let rest = name.strip_prefix(PREFIX).filter(|_| !is_known(name, rows))?;
    let settings = rows.iter().map(|row| row.variable).chain(OTHERS);
    let nearest = settings.map(|known| (levenshtein(name, known), known)).min();
    // A fifth of the letters may be wrong, and one more.
    let hint = match nearest.filter(|(far, _)| *far <= 1 + rest.len() / 5) {
        Some((_, known)) => format!("did you mean {known}?"),
        None => "`symmem config` lists the settings".to_owned(),
    };
    Some(format!("{name} is set, and means nothing. Hint: {hint}"))
}

fn is_known(name: &str, rows: &[ConfigRow]) -> bool {
    let is_internal = |rest: &str| INTERNAL.split(' ').any(|start| rest.starts_with(start));
    rows.iter().any(|row| row.variable == name)
        || OTHERS.contains(&name)
        || name.strip_prefix(PREFIX).is_some_and(is_internal)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn rows() -> Vec<ConfigRow> {
        Config::from_env().unwrap().rows()
    }

    #[test]
    fn distances_count_letters() {
        for (one, other, far) in [("", "", 0), ("a", "", 1), ("TIMEOUT", "TIMOUT", 1), ("SPIN", "PINS", 2)] {
            assert_eq!((levenshtein(one, other), levenshtein(other, one)), (far, far), "{one} {other}");
        }
    }

    #[test]
    fn a_misspelt_setting_is_told_with_the_one_that_is_meant() {
        let say = |name| complaint(name, &rows()).unwrap();
        assert!(say("SYMMEM_TIMEOUTS").contains("did you mean SYMMEM_TIMEOUT?"));
        assert!(say("SYMMEM_SIGNALPAD_SIZE").contains("did you mean SYMMEM_SIGNAL_PAD_SIZE?"));
        assert!(say("SYMMEM_LOGS").contains("did you mean SYMMEM_LOG?"));
        for name in ["SYMMEM_COLOUR_OF_THE_SKY", "SYMMEM_ABC", "SYMMEM_"] {
            assert!(say(name).contains("`symmem config`"), "{}", say(name));
        }
        assert_eq!(complaint("PATH", &rows()), None);
        assert_eq!(complaint("SYMMETRY", &rows()), None);
    }

    /// Every name between quotes in the sources of the library, the program and the Python package is known,
    /// or the start of one that a test looks for.
    #[test]
    fn whatever_the_sources_read_is_known() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let rows = rows();
        let mut found = 0;
        for source in ["symmem/src", "symmem-cli/src", "symmem-python/src", "symmem-python/python"] {
            each_file(&crates.join(source), &mut |path, text| {
                for part in text.split("\"SYMMEM_").skip(1).filter(|_| !path.ends_with("unknown.rs")) {
                    let name = format!("{PREFIX}{}", part.split('"').next().unwrap_or_default());
                    if name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
                        let is_start = rows.iter().any(|row| row.variable.starts_with(&name));
                        assert!(is_start || is_known(&name, &rows), "{name} in {}", path.display());
                        found += 1;
                    }
                }
            });
        }
        assert!(found > 30, "{found}");
    }

    fn each_file(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                each_file(&path, look);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                look(&path, &text);
            }
        }
    }
}
