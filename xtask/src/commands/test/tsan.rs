//! The thread-rank suite under ThreadSanitizer.
//!
//! The standard library is built with the sanitizer too. The shipped one hides what a contended `Mutex`, the
//! drop of an `Arc` or the end of a scope order, so that sound code is reported by the dozen; with it rebuilt
//! there is nothing to suppress, and a report is a bug.

use anyhow::{Context, Result};

use crate::component;
use crate::plan::{Job, Outcome};

/// Hosts for which Rust ships the ThreadSanitizer runtime and on which the suite is kept clean.
const HOSTS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

pub(super) fn run(job: &Job) -> Result<Outcome> {
    let host = host(job)?;
    if !HOSTS.contains(&host.as_str()) {
        return Ok(Outcome::Skipped(format!("ThreadSanitizer is not available for {host}")));
    }
    if let Err(error) = component::for_building_std(job) {
        return Ok(Outcome::Skipped(format!("the standard library's source cannot be had: {error:#}")));
    }
    test(job, &host)?;
    Ok(Outcome::Passed)
}

fn test(job: &Job, host: &str) -> Result<()> {
    // `--target`, even though it is the host: build scripts and macros then stay without the sanitizer.
    let mut cargo = job.workspace.cargo(["test", "-p", "symmem", "--test", "threads", "--target", host]);
    cargo.arg("-Zbuild-std").arg("--target-dir").arg(job.workspace.target("tsan"));
    // Both switches are unstable; this lets the stable toolchain take them. With rustix' libc backend the
    // sanitizer sees mappings come and go; raw system calls would make it take a reused address for the old
    // mapping.
    let flags = "-Zsanitizer=thread --cfg rustix_use_libc";
    cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
    cargo.env("TSAN_OPTIONS", "halt_on_error=1");
    job.run_tests(cargo.args(["--", "--show-output"]))
}

/// The triple of this machine, as rustc names it.
fn host(job: &Job) -> Result<String> {
    let version = job.output(job.workspace.rustc().arg("-vV"))?;
    host_in(&version).context("`rustc -vV` names no host")
}

fn host_in(version: &str) -> Option<String> {
    version.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_read_from_what_rustc_prints() {
        let version = "rustc 1.95.0\nbinary: rustc\nhost: aarch64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(host_in(version).as_deref(), Some("aarch64-unknown-linux-gnu"));
        assert_eq!(host_in("rustc 1.95.0\n"), None);
    }
}
