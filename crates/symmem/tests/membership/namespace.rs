//! A user namespace in which this user shows as the overflow uid, and so does everybody else.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use symmem::{Error, ProcessSpawner};

use crate::common::config;

const ROLE: &str = "SYMMEM_TEST_INSIDE";

/// `test` of this program in a new user namespace as uid 65534; `None`, with the reason said, where there can
/// be none.
fn inside(test: &str, secret: Option<&PathBuf>) -> Option<Output> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-U", "--map-user=65534", "--"]).stdin(Stdio::null());
        command
    };
    match unshare().arg("true").output() {
        Ok(output) if output.status.success() => {}
        refused => {
            eprintln!("skipped: no user namespace here: {refused:?}");
            return None;
        }
    }
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap());
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .env("SYMMEM_TIMEOUT", "20");
    if let Some(secret) = secret {
        command.env("SYMMEM_SECRET_FILE", secret);
    }
    Some(command.output().unwrap())
}

fn succeeds(output: Option<Output>) {
    let Some(output) = output else { return };
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn is_inside() -> bool {
    std::env::var_os(ROLE).is_some()
}

#[test]
fn processes_are_refused_there_without_a_secret() {
    const TEST: &str = "namespace::processes_are_refused_there_without_a_secret";
    if !is_inside() {
        return succeeds(inside(TEST, None));
    }
    let outcomes = ProcessSpawner::new(TEST, 2).run_all(|_| Ok(())).unwrap();
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("overflow uid") && text.contains("SYMMEM_SECRET_FILE"), "{text}");
    }
}

#[test]
fn threads_of_one_process_need_no_proof_there() {
    const TEST: &str = "namespace::threads_of_one_process_need_no_proof_there";
    if !is_inside() {
        return succeeds(inside(TEST, None));
    }
    symmem::spawn(2, |group| {
        group.alloc::<u8>(1)?.rendezvous(&group)?.close()?;
        group.try_clone()?.barrier()
    })
    .unwrap();
}

#[test]
fn the_secret_proves_processes_there() {
    const TEST: &str = "namespace::the_secret_proves_processes_there";
    if !is_inside() {
        let path = std::env::temp_dir().join(format!("symmem-secret-{}", std::process::id()));
        std::fs::write(&path, [b'x'; 64]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let output = inside(TEST, Some(&path));
        std::fs::remove_file(&path).unwrap();
        return succeeds(output);
    }
    let ranks = ProcessSpawner::new(TEST, 3).run(|group| {
        group.alloc::<u8>(1)?.rendezvous(&group)?.close()?;
        group.try_clone()?.barrier()?;
        group.all_gather(&group.rank())
    });
    assert_eq!(ranks.unwrap(), vec![vec![0, 1, 2]; 3]);
}

#[test]
fn a_secret_file_of_the_wrong_mode_is_an_error_of_the_configuration() {
    let path = std::env::temp_dir().join(format!("symmem-open-secret-{}", std::process::id()));
    std::fs::write(&path, [b'x'; 64]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = config().secret_file(&path);
    std::fs::remove_file(&path).unwrap();
    assert!(
        matches!(&refused, Err(Error::Invalid { problem, .. }) if problem.contains("chmod 600")),
        "{refused:?}"
    );
}
