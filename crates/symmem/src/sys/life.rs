//! Knowing whether a peer's process lives.
//!
//! Called by the waits, at least once per tick. A pidfd that the peer sent of itself never errs: not for
//! zombies, not for reused process numbers, not across pid namespaces. Where there is none, `/proc` and the
//! start time tell, within one pid namespace. A peer is never called dead on a guess.

#![allow(unsafe_code, reason = "system calls")]

use std::fmt::Display;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::error::{Error, Result};
use crate::sys::ids;

/// Which process, once and for all: numbers are reused, start times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    /// Its number in its own pid namespace.
    pub(crate) pid: u32,
    /// Its start in clock ticks after boot; 0 when unknown.
    pub(crate) start_time: u64,
    /// Its pid namespace (an inode number); 0 when unknown.
    pub(crate) pid_ns: u64,
}

impl ProcessId {
    /// This process.
    pub(crate) fn own() -> Self {
        let pid = getpid().as_raw_nonzero().get() as u32;
        let start_time = match Stat::read("self") {
            Ok(stat) if !boot_time_is_shifted() => stat.start_time,
            _ => 0,
        };
        Self { pid, start_time, pid_ns: ids::namespace("pid") }
    }

    /// Whether it is certain that this process, and no later one of the same number, runs in our pid
    /// namespace. Unlike [`ProcessLife::is_dead`], what is not known counts against it.
    pub(crate) fn is_running(&self) -> bool {
        let own = Self::own();
        if *self == own {
            return true;
        }
        let known = |id: &Self| id.start_time != 0 && id.pid_ns != 0;
        let visible = known(self) && known(&own) && self.pid_ns == own.pid_ns && proc_is_ours();
        visible && Stat::read(self.pid).is_ok_and(|stat| stat.start_time == self.start_time && !stat.ended)
    }
}

/// A pidfd of this process, to send to peers; `None` where the kernel has none, or if `disable`.
pub(crate) fn own_pidfd(disable: bool) -> Option<OwnedFd> {
    if disable {
        return None;
    }
    // The kernel makes every pidfd close-on-exec.
    pidfd_open(getpid(), PidfdFlags::empty()).ok()
}

/// How we know whether a peer's process lives.
#[derive(Debug)]
pub(crate) struct ProcessLife(LifeSource);

#[derive(Debug)]
enum LifeSource {
    Pidfd(OwnedFd),
    Proc(ProcessId),
    Unknown,
}

impl ProcessLife {
    /// By the pidfd that process `id` sent of itself. Fails if the fd is something else.
    pub(crate) fn from_pidfd(fd: OwnedFd, id: ProcessId) -> Result<Self> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
            .map_err(|e| Error::sys_hint("read of a received pidfd's fdinfo", e, "is /proc mounted?"))?;
        check_pidfd(&info, id, ids::namespace("pid"))
            .map_err(|problem| Error::invalid("fd received as a pidfd", problem))?;
        Ok(Self(LifeSource::Pidfd(fd)))
    }

    /// By `/proc`. A process that `/proc` cannot show us (another pid or time namespace, a `/proc` of another
    /// namespace) counts as alive for ever.
    pub(crate) fn from_proc(id: ProcessId) -> Self {
        let own = ProcessId::own();
        let known = |id: ProcessId| id.start_time != 0 && id.pid_ns != 0;
        if !known(id) || !known(own) || id.pid_ns != own.pid_ns || !proc_is_ours() {
            return Self::unknown();
        }
        Self(LifeSource::Proc(id))
    }

    /// We do not know, so: alive.
    pub(crate) fn unknown() -> Self {
        Self(LifeSource::Unknown)
    }

    /// Whether a death would be seen.
    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.0, LifeSource::Unknown)
    }

    /// Whether the process has ended; a zombie has.
    pub(crate) fn is_dead(&self) -> bool {
        any_dead(&[self]).is_some()
    }

    fn is_dead_by_proc(&self) -> bool {
        let LifeSource::Proc(id) = &self.0 else { return false };
        match Stat::read(id.pid) {
            Ok(stat) => stat.start_time != id.start_time || stat.ended,
            // Out of fds or memory says nothing about the peer.
            Err(error) => {
                error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
            }
        }
    }
}

/// The first of `lives` that has ended. One poll for all pidfds (per 256), without allocating.
pub(crate) fn any_dead(lives: &[&ProcessLife]) -> Option<usize> {
    const BATCH: usize = 256;
    let mut fds = [libc::pollfd { fd: -1, events: 0, revents: 0 }; BATCH];
    for (batch, lives) in lives.chunks(BATCH).enumerate() {
        let fds = &mut fds[..lives.len()];
        for (slot, life) in fds.iter_mut().zip(lives) {
            // poll skips negative fds.
            let fd = if let LifeSource::Pidfd(fd) = &life.0 { fd.as_raw_fd() } else { -1 };
            *slot = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        }
        // SAFETY: the array holds as many entries as we say. A failing poll leaves `revents` zero: not dead.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
        let dead = fds
            .iter()
            .zip(lives)
            .position(|(slot, life)| slot.revents & libc::POLLIN != 0 || life.is_dead_by_proc());
        if let Some(index) = dead {
            return Some(batch * BATCH + index);
        }
    }
    None
}

/// Whether fdinfo text belongs to a pidfd of `id`, seen from pid namespace `our_ns`.
///
/// `Pid:` is -1 for a process that is dead and reaped (the peer died after sending: take it, it reads as
/// dead) and 0 for one that our `/proc` cannot see, which only a process of another namespace may be.
/// Otherwise the last number of `NSpid:` is the process' number in its own namespace, which is what the peer
/// claims.
fn check_pidfd(info: &str, id: ProcessId, our_ns: u64) -> Result<(), String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let Some(pid) = field("Pid:").and_then(|text| text.trim().parse::<i64>().ok()) else {
        return Err("it is not a pidfd".into());
    };
    if pid == -1 || pid == 0 && id.pid_ns != our_ns {
        return Ok(());
    }
    let own_number = field("NSpid:").and_then(|text| text.split_whitespace().last()?.parse().ok());
    let number = own_number.unwrap_or(pid);
    if number != i64::from(id.pid) {
        return Err(format!("it belongs to process {number}, not to {}", id.pid));
    }
    Ok(())
}

/// Whether `/proc` shows our own pid namespace (it shows the one of whoever mounted it).
pub fn proc_is_ours() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

/// Whether this process is in a time namespace, where start times look different.
pub fn boot_time_is_shifted() -> bool {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    offsets.split_ascii_whitespace().any(|word| word.parse::<i64>().is_ok_and(|offset| offset != 0))
}

/// What we need of `/proc/<pid>/stat`.
pub(crate) struct Stat {
    /// In clock ticks after boot.
    pub(crate) start_time: u64,
    pub(crate) ended: bool,
    /// The kernel's letter for what the main thread does.
    pub(crate) state: u8,
    pub(crate) parent: u32,
}

impl Stat {
    pub(crate) fn read(pid: impl Display) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The second field is the program's name in parentheses, which may hold blanks and parentheses
        // itself.
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(text.get(name_end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads: i64 = fields.nth(15)?.parse().ok()?;
        let start_time = fields.nth(1)?.parse().ok()?;
        // A main thread that ended before the others is a zombie of a process that lives.
        let ended = matches!(state, "X" | "x") || state == "Z" && threads <= 1;
        Some(Self { start_time, ended, state: state.as_bytes()[0], parent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::eventually;
    use rustix::process::Pid;
    use std::process::{Child, Command};

    /// A process that sleeps, and its id.
    fn sleeper() -> (Child, ProcessId) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let start_time = Stat::read(child.id()).unwrap().start_time;
        let id = ProcessId { pid: child.id(), start_time, ..ProcessId::own() };
        (child, id)
    }

    fn pidfd(id: ProcessId) -> OwnedFd {
        pidfd_open(Pid::from_raw(id.pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn a_killed_child_is_dead_before_and_after_it_is_reaped() {
        let (mut child, id) = sleeper();
        let ways = [ProcessLife::from_pidfd(pidfd(id), id).unwrap(), ProcessLife::from_proc(id)];
        for life in &ways {
            assert!(!life.is_dead(), "{life:?}");
        }
        child.kill().unwrap();
        for life in &ways {
            eventually("the zombie is seen as dead", || life.is_dead());
        }
        child.wait().unwrap();
        for life in &ways {
            assert!(life.is_dead(), "{life:?}");
        }
    }

    #[test]
    fn a_process_runs_for_certain_only_if_everything_fits() {
        let (mut child, id) = sleeper();
        assert!(id.is_running() && ProcessId::own().is_running());
        assert!(!ProcessId { start_time: id.start_time + 1, ..id }.is_running());
        assert!(!ProcessId { start_time: 0, ..id }.is_running());
        assert!(!ProcessId { pid_ns: id.pid_ns + 1, ..id }.is_running());
        child.kill().unwrap();
        eventually("the zombie does not run", || !id.is_running());
        child.wait().unwrap();
        assert!(!id.is_running());
    }

    #[test]
    fn a_reaped_process_is_dead_at_once() {
        let (mut child, id) = sleeper();
        let fd = pidfd(id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ProcessLife::from_pidfd(fd, id).unwrap().is_dead());
        assert!(ProcessLife::from_proc(id).is_dead());
    }

    #[test]
    fn this_process_lives() {
        let id = ProcessId::own();
        assert!(id.pid != 0 && id.start_time != 0 && id.pid_ns != 0);
        assert_eq!(id, ProcessId::own());
        assert!(!ProcessLife::from_pidfd(own_pidfd(false).unwrap(), id).unwrap().is_dead());
        assert!(!ProcessLife::from_proc(id).is_dead());
        assert!(own_pidfd(true).is_none());
        assert!(!ProcessLife::unknown().is_dead());
    }

    #[test]
    fn a_reused_number_is_another_process() {
        let id = ProcessId::own();
        assert!(ProcessLife::from_proc(ProcessId { start_time: id.start_time + 1, ..id }).is_dead());
    }

    #[test]
    fn what_proc_cannot_show_is_never_dead() {
        let gone = ProcessId { start_time: 1, ..ProcessId::own() };
        assert!(!ProcessLife::from_proc(ProcessId { pid_ns: gone.pid_ns + 1, ..gone }).is_dead());
        assert!(!ProcessLife::from_proc(ProcessId { pid_ns: 0, ..gone }).is_dead());
        assert!(!ProcessLife::from_proc(ProcessId { start_time: 0, ..gone }).is_dead());
    }

    #[test]
    fn only_a_pidfd_of_the_claimed_process_is_taken() {
        let (mut child, id) = sleeper();
        let own = ProcessId::own();
        assert!(
            ProcessLife::from_pidfd(pidfd(id), own).unwrap_err().to_string().contains("belongs to process")
        );
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ProcessLife::from_pidfd(file.into(), own).unwrap_err().to_string().contains("not a pidfd"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn pidfds_across_namespaces() {
        let id = ProcessId { pid: 7, start_time: 1, pid_ns: 100 };
        let check = |info: &str, our_ns| check_pidfd(info, id, our_ns);
        // The same namespace.
        assert!(check("pos:\t0\nPid:\t7\nNSpid:\t7\n", 100).is_ok());
        assert!(check("pos:\t0\nPid:\t8\nNSpid:\t8\n", 100).is_err());
        assert!(check("Pid:\t7\n", 100).is_ok());
        // A namespace below ours, or a /proc of a namespace above ours: the last number is the process' own.
        assert!(check("Pid:\t4711\nNSpid:\t4711\t7\n", 99).is_ok());
        assert!(check("Pid:\t4711\nNSpid:\t4711\t7\n", 100).is_ok());
        assert!(check("Pid:\t7\nNSpid:\t7\t9\n", 99).is_err());
        // Reaped; invisible from here; not a pidfd.
        assert!(check("Pid:\t-1\nNSpid:\t-1\n", 100).is_ok());
        assert!(check("Pid:\t0\nNSpid:\t0\n", 99).is_ok());
        assert!(check("Pid:\t0\nNSpid:\t0\n", 100).is_err());
        assert!(check("pos:\t0\n", 100).is_err());
        assert!(check("Pid:\tx\n", 100).is_err());
    }

    #[test]
    fn the_first_dead_of_many_is_found() {
        let own = ProcessId::own();
        let gone = ProcessId { start_time: own.start_time + 1, ..own };
        let mut lives: Vec<ProcessLife> = (0..300)
            .map(|i| match i % 3 {
                0 => ProcessLife::from_pidfd(own_pidfd(false).unwrap(), own).unwrap(),
                1 => ProcessLife::from_proc(own),
                _ => ProcessLife::unknown(),
            })
            .collect();
        let first = |lives: &[ProcessLife]| any_dead(&lives.iter().collect::<Vec<_>>());
        assert_eq!(first(&lives), None);
        assert_eq!(any_dead(&[]), None);
        lives[299] = ProcessLife::from_proc(gone);
        assert_eq!(first(&lives), Some(299));
        let (mut child, id) = sleeper();
        lives[257] = ProcessLife::from_pidfd(pidfd(id), id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(first(&lives), Some(257));
        lives[3] = ProcessLife::from_proc(gone);
        assert_eq!(first(&lives), Some(3));
    }

    #[test]
    fn stat_lines_are_read_whatever_the_program_is_called() {
        let line = |name: &str, state: &str, threads: u32| {
            let numbers = ["1"; 16].join(" ");
            format!("42 ({name}) {state} {numbers} {threads} 0 777 4 5 6\n").into_bytes()
        };
        for name in ["sh", "a b", ") Z 1", "((", "\u{fffd})"] {
            let stat = Stat::parse(&line(name, "S", 2)).unwrap();
            assert_eq!((stat.start_time, stat.ended), (777, false), "{name}");
        }
        assert!(Stat::parse(&line("x", "Z", 1)).unwrap().ended);
        assert!(Stat::parse(&line("x", "X", 0)).unwrap().ended);
        // The main thread has ended, others run.
        assert!(!Stat::parse(&line("x", "Z", 2)).unwrap().ended);
        for bad in ["", "42", "42 (x) S", "42 (x) S 1 2 3"] {
            assert!(Stat::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
