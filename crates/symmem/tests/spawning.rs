//! Ranks as processes: what a launcher waits for, and what a rank takes for its report's pipe.

mod common;

use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{is_rank_of, report, start};
use symmem::{Group, Pin, Placement, ProcessSpawner, Result, ThreadSpawner, spawn_processes};

const LONG: &str = "30";

/// Starts a program that outlives this rank; its number.
fn leave_a_process_behind(_group: Group) -> Result<u32> {
    let left = Command::new("sleep").arg(LONG).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(left.expect("sleep starts").id())
}

fn end(pids: &[u32]) {
    for pid in pids {
        // SAFETY: sends a signal; the number is that of a `sleep` which the rank started and which runs for
        // long.
        unsafe { libc::kill(*pid as i32, libc::SIGKILL) };
    }
}

#[test]
fn what_a_rank_leaves_behind_does_not_hold_the_launcher() {
    let name = "what_a_rank_leaves_behind_does_not_hold_the_launcher";
    let started = Instant::now();
    let left = spawn_processes(name, 2, leave_a_process_behind).unwrap();
    let elapsed = started.elapsed();
    end(&left);
    assert!(elapsed < Duration::from_secs(15), "the launcher came back after {elapsed:?}");
}

#[test]
fn what_a_rank_starts_does_not_inherit_the_pipe_of_its_report() {
    let name = "what_a_rank_starts_does_not_inherit_the_pipe_of_its_report";
    let inherited = spawn_processes(name, 1, |_| {
        let variable = std::env::var("SYMMEM_SPAWN_RESULT_FD").expect("a rank");
        let number = variable.split(':').next().unwrap_or_default();
        let list = Command::new("ls").args(["-l", &format!("/proc/self/fd/{number}")]).output().unwrap();
        Ok(String::from_utf8_lossy(&list.stdout).contains("pipe:"))
    });
    assert_eq!(inherited.unwrap(), [false]);
}

#[test]
fn a_report_longer_than_a_pipe_arrives_whole() {
    let name = "a_report_longer_than_a_pipe_arrives_whole";
    let long = spawn_processes(name, 2, |group| Ok("x".repeat(3_000_000 + group.rank()))).unwrap();
    assert_eq!(long.iter().map(String::len).collect::<Vec<_>>(), [3_000_000, 3_000_001]);
}

#[test]
fn a_rank_that_dies_with_a_child_is_seen_at_once() {
    let name = "a_rank_that_dies_with_a_child_is_seen_at_once";
    let started = Instant::now();
    let outcomes = ProcessSpawner::new(name, 1).run_all(|group| {
        leave_a_process_behind(group)?;
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        Ok(())
    });
    assert!(outcomes.unwrap()[0].as_ref().is_err_and(|error| error.to_string().contains("signal 9")));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// A stale or made-up environment: the number it names belongs to somebody else in this process.
#[test]
fn a_number_from_the_environment_does_not_become_a_descriptor_of_ours() {
    const TEST: &str = "a_number_from_the_environment_does_not_become_a_descriptor_of_ours";
    const OURS: &str = "SYMMEM_TEST_NUMBERS";
    if !is_rank_of(TEST) {
        let name = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        // The launcher of the made-up environment named this call, and a descriptor that is not its pipe.
        let vars = [name("SYMMEM_SPAWN_NAME", TEST), name(OURS, "1")];
        for number in ["0", "1", "3"] {
            let said = start(TEST, &[&vars[..], &[name("SYMMEM_SPAWN_RESULT_FD", number)]].concat()).expect();
            assert_eq!(said, ["returned Ok([7]), and the file is there"], "{number}");
        }
        return;
    }
    // Only the process with the made-up environment keeps a file: its ranks are ranks.
    let ours = std::env::var("RANK").is_err().then(|| fs::File::open("/dev/zero").unwrap());
    let outcome = spawn_processes(TEST, 1, |_| Ok(7)).map_err(|error| error.to_string());
    let file = ours.expect("a rank does not come here");
    let there = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(there, std::path::Path::new("/dev/zero"));
    report(format!("returned {outcome:?}, and the file is there"));
}

/// The processors that the calling thread may use.
fn allowed() -> Vec<usize> {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let numbers = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.trim().split(',').flat_map(numbers).collect()
}

#[test]
fn math_libraries_are_told_their_share_unless_the_user_told_them() {
    let name = "math_libraries_are_told_their_share_unless_the_user_told_them";
    let told = || std::env::var("OPENBLAS_NUM_THREADS").unwrap_or_default();
    if std::env::var_os("OMP_NUM_THREADS").is_none() && !is_rank_of(name) {
        let share = Placement::new(2, None).unwrap().threads().to_string();
        assert_eq!(spawn_processes(name, 2, |_| Ok(told())).unwrap(), [share.clone(), share]);
    }
    let spawner = ProcessSpawner::new(name, 2).env("OPENBLAS_NUM_THREADS", 7);
    assert_eq!(spawner.run(|_| Ok(told())).unwrap(), ["7", "7"]);
}

#[test]
fn ranks_can_be_kept_on_cores() {
    let name = "ranks_can_be_kept_on_cores";
    let placement = Placement::new(2, Some(Pin::Cores)).unwrap();
    let processes = ProcessSpawner::new(name, 2).pin(Pin::Cores);
    let kept = processes.run(|group| {
        group.barrier()?;
        Ok(allowed())
    });
    let sorted = |rank| {
        let mut cpus = placement.cpus(rank);
        cpus.sort_unstable();
        cpus
    };
    let expected = [sorted(0), sorted(1)];
    assert_eq!(kept.unwrap(), expected);
    let before = allowed();
    assert_eq!(ThreadSpawner::new(2).pin(Pin::Cores).run(|_| Ok(allowed())).unwrap(), expected);
    assert_eq!(allowed(), before);
}
