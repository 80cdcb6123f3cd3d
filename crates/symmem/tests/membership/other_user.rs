//! A stranger: a process of another uid that reaches the store.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use symmem::{Error, Group};

use super::join;
use crate::common::{self, assert_error, config};

const STRANGER: u32 = 2000;
const TEST: &str = "other_user::a_stranger_of_another_uid_is_no_rank_whatever_host_it_claims";
const ROLE: &str = "SYMMEM_TEST_STRANGER";

/// This program as another user, running this test only; `None` where that cannot be.
fn as_stranger(host: &str, port: u16) -> Option<Child> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, host).env("MASTER_PORT", port.to_string()).env("SYMMEM_TIMEOUT", "3");
    command.env("SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS", "1").env("HOME", "/nonexistent");
    command.current_dir("/").uid(STRANGER).gid(STRANGER).stdin(Stdio::null());
    command.spawn().ok()
}

/// Ends the child, whatever happens.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The stranger's part: it tries to be rank 1. Says by its status whether it is.
fn try_to_join(host: &str) {
    let port = std::env::var("MASTER_PORT").unwrap().parse().unwrap();
    let mut config = config().timeout(Duration::from_secs(3));
    if !host.is_empty() {
        config = config.host_id(host);
    }
    let joined: symmem::Result<Group> = join(config, &common::connect(port), 1, 2);
    assert!(joined.is_err(), "the stranger is a rank");
}

#[test]
fn a_stranger_of_another_uid_is_no_rank_whatever_host_it_claims() {
    if let Ok(host) = std::env::var(ROLE) {
        return try_to_join(&host);
    }
    // SAFETY: only reads this process' uid.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    for host in ["", "elsewhere"] {
        let server = common::serve();
        let Some(stranger) = as_stranger(host, server.port()) else {
            eprintln!("skipped: uid {STRANGER} cannot run this program");
            return;
        };
        let mut stranger = Kept(stranger);
        let start = Instant::now();
        let joined = join(config(), &common::connect(server.port()), 0, 2);
        match host {
            // It is refused over the fd channel, by the kernel's word.
            "" => assert!(matches!(joined, Err(Error::Channel { .. } | Error::Rank { .. })), "{joined:?}"),
            _ => assert_error!(joined, Error::Unproven { ranks, .. } if ranks == [1]),
        }
        assert!(start.elapsed() < common::PATIENCE, "{:?}", start.elapsed());
        let status = stranger.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}
