//! Error texts in the words of Python.
//!
//! The library's errors name what a Rust program would call. [`in_python`] puts Python's names in their
//! place; `error` sends every text through it. What has no name in the tables makes the test below fail,
//! which reads the library's sources.

use symmem::DType;

use crate::dtype;

/// What the library says, and what a Python program would write. Longer ones come before those that they
/// contain.
const NAMES: [(&str, &str); 22] = [
    (
        " (bind= in Python, TcpStoreOptions::bind in Rust; * is every interface)",
        " (bind=; \"*\" is every interface)",
    ),
    ("SYMMEM_TIMEOUT or Config::timeout", "SYMMEM_TIMEOUT, timeout= of the group or timeout_ms= of the call"),
    ("symmem::spawn needs", "symmem.spawn needs"),
    ("Group::survivors", "group.survivors()"),
    ("Group::try_clone", "group.clone()"),
    ("Pending::wait", "its wait()"),
    ("drop the guard that `local` or `local_mut` returned first", "wait for what was started on it first"),
    ("local_mut or a running operation", "a running operation"),
    ("`salvage` copies the bytes out", "numpy(), torch() and DLPack still show what is there"),
    (
        "use exec (Group::from_env in a fresh process) or spawn_processes instead of fork",
        "use symmem.spawn, subprocess, or multiprocessing with the start method \"spawn\"",
    ),
    (
        "SYMMEM_SIGNAL_PAD_SIZE or Config::signal_pad_size",
        "SYMMEM_SIGNAL_PAD_SIZE or symmem.set_signal_pad_size()",
    ),
    ("use Group::local", "use group.local()"),
    ("Group::local is the group", "group.local() is the group"),
    (" or Config::allow_overlapping_devices", ""),
    ("Settings::lanes or SYMMEM_LANES gives more", "SYMMEM_LANES gives more"),
    (", Config::provider or Settings::provider", ""),
    ("a stream of its own (Stream::new)", "a stream of its own (torch.cuda.Stream())"),
    ("choose it with using(Algorithm::Multimem), or take", "take"),
    ("all_reduce_out gives the result elsewhere", "out= puts the result elsewhere"),
    ("end the GroupCall first", "end the group of calls first"),
    ("before begin_capture", "before the capture begins"),
    ("keep and reuse slices, or pass peer_ptrs by value", "keep and reuse what was made before"),
];

/// Operations of the library, and what a Python program called.
const OPERATIONS: [(&str, &str); 10] = [
    ("all_reduce_out", "all_reduce"),
    ("reduce_scatter_columns", "reduce_scatter"),
    ("low_contention_all_gather", "all_gather"),
    ("low_contention_reduce_scatter", "reduce_scatter"),
    ("engine set-up", "rendezvous"),
    ("communicator set-up", "init_rank"),
    ("wait_flag", "wait_signal"),
    ("put_with_flag", "put_signal"),
    ("receive", "recv"),
    ("copy", "get"),
];

/// `text` with Python's names.
pub(crate) fn in_python(text: &str) -> String {
    let text = NAMES.iter().fold(text.to_owned(), |text, (rust, python)| match text.contains(rust) {
        true => text.replace(rust, python),
        false => text,
    });
    // Where it failed comes first.
    let of_rust = |(rust, _): &&(&str, &str)| {
        text.strip_prefix(rust).is_some_and(|rest| rest.starts_with(" on group ") || rest.starts_with(": "))
    };
    match OPERATIONS.iter().find(of_rust) {
        Some((rust, python)) => format!("{python}{}", &text[rust.len()..]),
        None => text,
    }
}

/// The name of the operation `op` in Python.
pub(crate) fn operation(op: &'static str) -> &'static str {
    OPERATIONS.iter().find(|(rust, _)| *rust == op).map_or(op, |(_, python)| python)
}

/// `text`, which says what ranks called, with numpy's names of element types and Python's of operations:
/// `4 x f64` is `4 x float64`. For texts in which nothing is the user's.
pub(crate) fn of_calls(text: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut given = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c)).map_or(rest.len(), |len| start + len);
        let word = &rest[start..end];
        given.push_str(&rest[..start]);
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == word).map(dtype::name);
        let operation = || OPERATIONS.iter().find(|(rust, _)| *rust == word).map(|(_, python)| *python);
        given.push_str(dtype.or_else(operation).unwrap_or(word));
        rest = &rest[end..];
    }
    given.push_str(rest);
    given
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// What no Python program has, besides everything that is written `Type::name`.
    const RUST_ONLY: [&str; 8] = [
        "spawn_processes",
        "try_clone",
        "local_mut",
        "`salvage`",
        "begin_capture",
        "GroupCall",
        "peer_ptrs",
        "symmem::",
    ];

    /// The sentences among the string literals of the file.
    fn sentences(source: &str) -> Vec<String> {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        // A literal that goes on in the next line.
        let whole: String = code.split("\\\n").map(|part| part.trim_start_matches(' ')).collect();
        let lines = whole.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let literals =
            lines.flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
        literals.filter(|literal| literal.contains(' ')).collect()
    }

    fn every_sentence(folder: &Path, all: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match path.is_dir() {
                true => every_sentence(&path, all),
                false if path.ends_with("tests.rs") => {}
                false if path.extension().is_some_and(|end| end == "rs") => {
                    all.extend(sentences(&fs::read_to_string(&path).unwrap()));
                }
                false => {}
            }
        }
    }

    /// Whether something in it is written `Type::name`.
    fn names_rust(text: &str) -> bool {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        text.match_indices("::").any(|(at, _)| {
            let before = text[..at].rsplit(|c| !is_name(c)).next().unwrap_or_default();
            let after = text[at + 2..].chars().next().unwrap_or(' ');
            before.starts_with(char::is_alphabetic) && is_name(after)
        })
    }

    #[test]
    fn collectives_that_python_calls_otherwise_have_their_row() {
        for row in symmem::collectives::ROWS {
            let said = OPERATIONS.iter().find(|(library, _)| *library == row.name).map(|(_, python)| *python);
            let other = row.python.filter(|python| *python != row.name);
            assert!(other.is_none() || said == other, "{} is {other:?} in Python, not {said:?}", row.name);
        }
    }

    #[test]
    fn no_sentence_of_the_library_reaches_python_with_names_of_rust() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        // The bench support, fuzzing and testing modules speak to developers.
        for folder in ["symmem/src", "symmem-store/src"] {
            every_sentence(&crates.join(folder), &mut all);
        }
        assert!(all.len() > 300, "only {} sentences were found", all.len());
        let wrong = |text: &String| {
            let text = in_python(text);
            names_rust(&text) || RUST_ONLY.iter().any(|name| text.contains(name))
        };
        let left: Vec<&String> = all.iter().filter(|text| wrong(text)).collect();
        assert!(left.is_empty(), "add them to NAMES: {left:#?}");
    }

    #[test]
    fn every_name_is_still_said_somewhere() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        every_sentence(&crates.join("symmem/src"), &mut all);
        every_sentence(&crates.join("symmem-store/src"), &mut all);
        let ops = fs::read_to_string(crates.join("symmem/src/operation/op.rs")).unwrap();
        let said = all.join("\n") + &ops;
        for (rust, _) in NAMES.iter().chain(&OPERATIONS) {
            assert!(said.contains(rust), "nothing says {rust:?} any more");
        }
    }

    #[test]
    fn operations_are_what_python_calls() {
        assert_eq!(in_python("receive on group \"g\" (rank 0)"), "recv on group \"g\" (rank 0)");
        assert_eq!(in_python("copy: rank 9 must be"), "get: rank 9 must be");
        let torch = "one_shot_all_reduce_out: the output has sizes";
        assert_eq!(in_python(torch), torch);
    }

    #[test]
    fn element_types_get_numpys_names() {
        assert_eq!(
            of_calls("rank 0: 4 x f64; rank 1: (2, 2) x bf16"),
            "rank 0: 4 x float64; rank 1: (2, 2) x bfloat16"
        );
        assert_eq!(of_calls("9 bytes, buf16"), "9 bytes, buf16");
    }
}
