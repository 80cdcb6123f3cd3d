//! Help, completions and manual pages: what is generated of the command line, and that nothing hidden is in
//! it.

use std::process::Command;

use crate::program::{TempFolder, finish, symmem};

const HIDDEN: [&str; 5] = ["bench-rank", "bench-load", "bench-gpu-rank", "compile-kernels", "doctor-part"];

/// Whether there is such a program; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

#[test]
fn completions_for_every_shell_have_the_commands_and_nothing_hidden() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = symmem(&["completions", shell], &[]).ok().stdout;
        for word in ["bench", "doctor", "no-self-test", "completions"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
        for word in HIDDEN {
            assert!(
                !script.contains(word) && !script.contains(&word.replace('-', "__")),
                "{word} for {shell}"
            );
        }
    }
}

#[test]
fn completions_for_bash_are_a_script_that_completes() {
    if !has("bash") {
        return;
    }
    let folder = TempFolder::new("completions");
    folder.write("symmem.bash", &symmem(&["completions", "bash"], &[]).ok().stdout);
    let file = folder.0.join("symmem.bash");
    finish(Command::new("bash").arg("-n").arg(&file), &[]).ok();
    let script = "source \"$0\"; COMP_WORDS=(symmem doc); COMP_CWORD=1; _symmem symmem doc symmem; echo ${COMPREPLY[@]}";
    let outcome = finish(Command::new("bash").args(["--norc", "-c", script]).arg(&file), &[]).ok();
    assert_eq!(outcome.stdout.trim(), "doctor", "{}", outcome.stderr);
}

#[test]
fn a_shell_that_is_not_known_is_named() {
    let complaint = symmem(&["completions", "dos"], &[]).complaint();
    assert!(complaint.contains("'dos'") && complaint.contains("bash"), "{complaint}");
}

#[test]
fn every_command_has_a_manual_page_that_renders_without_warnings() {
    let folder = TempFolder::new("man");
    let pages = folder.0.join("new/man1");
    let listed = symmem(&["man", "--out", pages.to_str().expect("UTF-8")], &[]).ok().stdout;
    let mut names: Vec<String> = std::fs::read_dir(&pages)
        .expect("a folder")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    assert_eq!(listed.lines().count(), names.len());
    for name in ["symmem.1", "symmem-bench.1", "symmem-doctor.1", "symmem-man.1"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    for hidden in HIDDEN {
        assert!(!names.iter().any(|name| name.contains(hidden)), "{names:?}");
    }
    let groff = has("groff");
    for name in &names {
        let text = std::fs::read_to_string(pages.join(name)).expect("a page");
        assert!(text.contains(".TH symmem") && text.contains(".SH NAME"), "{name}: {text}");
        assert!(!HIDDEN.iter().any(|hidden| text.contains(hidden)), "{name}");
        if groff {
            let args = ["-man", "-Tutf8", "-ww", "-z"];
            let outcome = finish(Command::new("groff").args(args).arg(pages.join(name)), &[]).ok();
            assert_eq!(outcome.stderr, "", "{name}");
        }
    }
}

#[test]
fn one_page_goes_to_stdout() {
    let program = symmem(&["man"], &[]).ok().stdout;
    assert!(program.contains("symmem\\-doctor") || program.contains("symmem-doctor"), "{program}");
    let doctor = symmem(&["man", "doctor"], &[]).ok().stdout;
    assert!(doctor.contains(".SH EXAMPLES") && doctor.contains("64 ranks"), "{doctor}");
    let complaint = symmem(&["man", "dance"], &[]).complaint();
    assert!(complaint.contains("\"dance\"") && complaint.contains("bench"), "{complaint}");
    let complaint = symmem(&["man", "doctor-part"], &[]).complaint();
    assert!(complaint.contains("\"doctor-part\""), "{complaint}");
    let complaint = symmem(&["man", "--out", "/dev/null/folder"], &[]).complaint();
    assert!(complaint.contains("cannot be made"), "{complaint}");
}

#[test]
fn the_program_alone_prints_help_in_groups() {
    let outcome = symmem(&[], &[]);
    assert_eq!(outcome.code, Some(2));
    for help in [outcome.stderr, symmem(&["--help"], &[]).ok().stdout, symmem(&["help"], &[]).ok().stdout] {
        for line in ["Know the machine:", "Measure:", "More:", "Options:", "Examples:"] {
            assert!(help.lines().any(|found| found == line), "{line}: {help}");
        }
        assert!(!HIDDEN.iter().any(|hidden| help.contains(hidden)), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}
