//! `symmem doctor`: on this machine, under limits, with wrong settings, with Pythons of all kinds, and with a
//! GPU that is none.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::program::{Outcome, TempFolder, symmem, symmem_after};
use serde_json::Value;

/// Nothing of a machine that has a GPU or a Python: these tests are about the rest.
const BARE: [(&str, &str); 2] = [("CUDA_VISIBLE_DEVICES", ""), ("SYMMEM_PYTHON", "/no/such/python")];
const SECTIONS: [&str; 8] =
    ["kernel", "limits", "memory", "containers", "gpus", "python", "settings", "self-test"];

fn report(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout))
}

/// The row of this name.
fn row<'a>(report: &'a Value, section: &str, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| row["section"] == section && row["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} of {section} in {report:#}"))
}

fn status<'a>(report: &'a Value, section: &str, name: &str) -> &'a str {
    row(report, section, name)["status"].as_str().expect("a status")
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_else(|| panic!("{field} of {row}"))
}

/// A program of this test that runs as a Python.
fn script(folder: &TempFolder, text: &str) -> String {
    let path = folder.0.join("python");
    folder.write("python", &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a program");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_good_machine_has_every_section_and_a_self_test_that_is_right() {
    let outcome = symmem(&["doctor", "--json", "--ranks", "2"], &BARE).ok();
    let report = report(&outcome);
    for section in SECTIONS {
        let rows = report["rows"].as_array().expect("rows");
        assert!(rows.iter().any(|row| row["section"] == section), "no {section}: {report:#}");
    }
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["summary"]["failures"], 0);
    assert_eq!(status(&report, "kernel", "memory files"), "ok");
    let shm = row(&report, "self-test", "shm");
    assert!(text(shm, "found").contains("all-reduce of 1 MiB") && shm["status"] == "ok", "{shm}");
    assert_eq!(status(&report, "gpus", "GPUs"), "skip");
    assert_eq!(status(&report, "python", "interpreter"), "skip");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn the_text_is_grouped_fits_a_hundred_columns_and_ends_with_a_count() {
    let text = symmem(&["doctor", "--ranks", "2"], &BARE).ok().stdout;
    for title in ["kernel", "limits", "containers and security", "GPUs", "Python", "settings", "self-test"] {
        assert!(text.lines().any(|line| line == title), "{title}: {text}");
    }
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?}: {text}");
    let last = text.lines().last().expect("a line");
    assert!(last.contains(" ok, ") && last.contains(" warning") && last.contains(" 0 failures"), "{last}");
    assert!(!text.contains('\x1b'), "no colours: stdout is no terminal");
    let coloured = symmem(&["doctor", "--no-self-test"], &[BARE[0], BARE[1], ("CLICOLOR_FORCE", "1")]).ok();
    assert!(coloured.stdout.contains("\x1b[32mok"), "{}", coloured.stdout);
}

#[test]
fn no_self_test_starts_no_ranks() {
    let report = report(&symmem(&["doctor", "--json", "--no-self-test"], &BARE).ok());
    assert_eq!(status(&report, "self-test", "self-test"), "skip");
}

#[test]
fn too_few_open_files_are_a_failure_with_the_command_that_helps() {
    let args = ["doctor", "--json", "--no-self-test", "--ranks", "64"];
    let outcome = symmem_after("ulimit -n 100", &args, &BARE);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let report = report(&outcome);
    let files = row(&report, "limits", "open files");
    assert_eq!(files["status"], "fail", "{files}");
    assert!(text(files, "found").starts_with("100 a process, for 64 ranks"), "{files}");
    assert!(text(files, "hint").contains("hard limit is 100"), "{files}");

    let outcome = symmem_after("ulimit -S -n 600", &args, &BARE).ok();
    let files = self::report(&outcome);
    let files = row(&files, "limits", "open files");
    assert_eq!((text(files, "status"), text(files, "hint")), ("warn", "ulimit -n 768"), "{files}");
}

#[test]
fn limits_on_address_space_and_file_size_are_told() {
    let setup = "ulimit -v 8000000 && ulimit -f 1000";
    let outcome = symmem_after(setup, &["doctor", "--json", "--no-self-test"], &BARE);
    let report = report(&outcome);
    assert_eq!(text(row(&report, "limits", "address space"), "hint"), "ulimit -v unlimited");
    assert_eq!(status(&report, "limits", "file size"), "fail");
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn a_failure_shows_its_hint_in_the_text_and_in_the_status() {
    let args = ["doctor", "--no-self-test", "--ranks", "64"];
    let outcome = symmem_after("ulimit -n 100", &args, &BARE);
    assert_eq!(outcome.code, Some(1));
    let mut lines = outcome.stdout.lines().skip_while(|line| !line.contains("open files"));
    assert!(lines.next().is_some_and(|line| line.trim_start().starts_with("fail ")), "{}", outcome.stdout);
    assert!(lines.any(|line| line.trim_start().starts_with("hint: ")), "{}", outcome.stdout);
    assert!(outcome.stdout.trim_end().ends_with("skipped"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains(", 1 failure"), "{}", outcome.stdout);
}

#[test]
fn variables_that_mean_nothing_are_warnings_and_wrong_ones_failures() {
    let args = ["doctor", "--json", "--no-self-test"];
    let env = [BARE[0], BARE[1], ("SYMMEM_TIMEOUTS", "5"), ("SYMMEM_SPIN", "7")];
    let outcome = symmem(&args, &env).ok();
    let report = self::report(&outcome);
    let unknown = row(&report, "settings", "SYMMEM_TIMEOUTS");
    assert_eq!((text(unknown, "status"), text(unknown, "hint")), ("warn", "did you mean SYMMEM_TIMEOUT?"));
    assert_eq!(text(row(&report, "settings", "variables"), "found"), "SYMMEM_SPIN=7");
    assert_eq!(outcome.stderr, "", "it is told once");

    let outcome = symmem(&args, &[BARE[0], BARE[1], ("SYMMEM_TIMEOUT", "soon")]);
    assert_eq!(outcome.code, Some(1));
    let report = self::report(&outcome);
    let wrong = row(&report, "settings", "variables");
    assert!(wrong["status"] == "fail" && text(wrong, "found").contains("SYMMEM_TIMEOUT"), "{wrong}");
}

#[test]
fn a_python_that_hangs_is_a_warning_and_is_not_waited_for() {
    let folder = TempFolder::new("doctor-hangs");
    let python = script(&folder, "echo thinking >&2; sleep 1000");
    let start = Instant::now();
    let args = ["doctor", "--json", "--no-self-test", "--timeout", "2", "--python", &python];
    let report = report(&symmem(&args, &BARE).ok());
    assert!(start.elapsed() < Duration::from_secs(60));
    let found = row(&report, "python", "interpreter");
    assert!(found["status"] == "warn" && text(found, "found").contains("after 2 s"), "{found}");
    assert!(text(found, "found").ends_with("thinking"), "{found}");
}

#[test]
fn a_python_that_fails_or_is_not_there_is_told() {
    let folder = TempFolder::new("doctor-fails");
    let python = script(&folder, "echo no such module >&2; exit 1");
    let args = ["doctor", "--json", "--no-self-test", "--python", &python];
    let found = report(&symmem(&args, &BARE).ok());
    let found = row(&found, "python", "interpreter");
    assert!(found["status"] == "warn" && text(found, "found").ends_with("no such module"), "{found}");

    let args = ["doctor", "--json", "--no-self-test", "--python", "/no/such/python"];
    let outcome = symmem(&args, &BARE);
    assert_eq!(outcome.code, Some(1), "who names one wants it");
    assert_eq!(status(&report(&outcome), "python", "interpreter"), "fail");
}

#[test]
fn a_real_python_answers() {
    let real = ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|name| std::process::Command::new(name).arg("--version").output().is_ok());
    let Some(real) = real else {
        println!("skipped: there is no python3");
        return;
    };
    let args = ["doctor", "--json", "--no-self-test", "--timeout", "60", "--python", real];
    let outcome = symmem(&args, &BARE[..1]);
    let report = report(&outcome);
    let found = text(row(&report, "python", "interpreter"), "found");
    assert!(found.starts_with("Python 3."), "{found}");
    for name in ["numpy", "symmem", "torch"] {
        row(&report, "python", name);
    }
}

/// A folder with the fake driver under the names that the loader asks for, and its environment.
pub(crate) fn fake_driver(name: &str) -> (TempFolder, Vec<(String, String)>) {
    let program = std::env::current_exe().expect("this program");
    let library: PathBuf = program.with_file_name("libsymmem_fakecuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    let folder = TempFolder::new(name);
    for file in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink(&library, folder.0.join(file)).expect("a link");
    }
    let env = [
        ("LD_LIBRARY_PATH", folder.arg()),
        ("SYMMEM_NVRTC_LIBRARY", library.to_str().expect("UTF-8")),
        ("SYMMEM_NCCL_LIBRARY", "/no/such/nccl"),
        ("SYMMEM_CACHE_DIR", "off"),
        ("SYMMEM_PYTHON", "/no/such/python"),
        ("FAKECUDA_UUIDS", "gpu-a,gpu-b"),
        ("FAKECUDA_CLIQUES", "1,1"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    (folder, env)
}

fn doctor_with(env: &[(String, String)], more: &[(&str, &str)], args: &[&str]) -> Outcome {
    let env: Vec<(&str, &str)> =
        env.iter().map(|(name, value)| (&**name, &**value)).chain(more.to_vec()).collect();
    symmem(&[&["doctor", "--json"], args].concat(), &env)
}

#[test]
fn gpus_are_told_with_what_they_can_and_whom_they_reach() {
    let (_folder, env) = fake_driver("doctor-gpus");
    let report = report(&doctor_with(&env, &[], &["--no-self-test"]).ok());
    assert!(text(row(&report, "gpus", "driver"), "found").starts_with("speaks CUDA 13.0"), "{report:#}");
    let gpu = text(row(&report, "gpus", "GPU 1"), "found");
    assert!(gpu.starts_with("Fake GPU, 16 GiB, compute capability 9."), "{gpu}");
    assert!(gpu.contains("has virtual memory, descriptors") && gpu.contains("without"), "{gpu}");
    assert!(
        text(row(&report, "gpus", "peer access"), "found").starts_with("each of 2 devices"),
        "{report:#}"
    );
    assert_eq!(text(row(&report, "gpus", "fabric manager"), "found"), "all GPUs are members of its fabric");
    for (name, expected) in [("MPS", "ok"), ("NVLink", "ok"), ("NVRTC", "ok"), ("NCCL", "skip")] {
        assert_eq!(status(&report, "gpus", name), expected, "{name}");
    }
}

#[test]
fn gpus_that_cannot_share_are_a_failure_and_those_apart_a_warning() {
    let (_folder, env) = fake_driver("doctor-apart");
    let outcome =
        doctor_with(&env, &[("FAKECUDA_NO_PEER", "1"), ("FAKECUDA_NO_EXPORT", "1")], &["--no-self-test"]);
    assert_eq!(outcome.code, Some(1));
    let report = report(&outcome);
    assert_eq!(status(&report, "gpus", "GPU 0"), "ok");
    assert_eq!(status(&report, "gpus", "GPU 1"), "fail");
    assert_eq!(text(row(&report, "gpus", "peer access"), "found"), "not between 0-1");
}

#[test]
fn a_provider_whose_numbers_are_wrong_is_a_failure() {
    // Kernels of the fake driver do nothing.
    let (_folder, env) = fake_driver("doctor-wrong");
    let outcome = doctor_with(&env, &[], &[]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    let report = report(&outcome);
    assert_eq!(status(&report, "self-test", "shm"), "ok");
    let vmm = row(&report, "self-test", "vmm");
    assert!(vmm["status"] == "fail" && !text(vmm, "found").is_empty(), "{vmm}");
    assert_eq!(status(&report, "self-test", "nccl"), "skip");
}

#[test]
fn input_that_cannot_be_used_is_named() {
    for (args, words) in [
        (&["--ranks", "0"][..], "'0' for '--ranks"),
        (&["--timeout", "0"], "'0' for '--timeout"),
        (&["--fast"], "'--fast'"),
    ] {
        let complaint = symmem(&[&["doctor"], args].concat(), &[]).complaint();
        assert!(complaint.contains(words), "{complaint}");
    }
}
