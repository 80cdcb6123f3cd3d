//! The pipe through which a spawned rank sends its report.
//!
//! Only `group/spawn` uses it. The launcher keeps the reading end; the rank inherits the writing end and
//! learns from the environment which one it is. Neither end relies on the other's end of file: a process that
//! the rank has started may hold the pipe for as long as it likes. The launcher hears until the rank's
//! process has ended, and then takes what is left.

#![allow(unsafe_code, reason = "descriptors between fork and exec")]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_setfl, fstat};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Error, Result};

/// How often a process is looked at where the kernel has no pidfds.
const LOOK: Duration = Duration::from_millis(10);
/// The longest sleep with a pidfd: it wakes by itself, so this only bounds the wait.
const NAP: Duration = Duration::from_secs(1);
/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// A new pipe, both ends close-on-exec.
pub(crate) fn new() -> Result<(LauncherPipe, Writing)> {
    let failed = |error: rustix::io::Errno| Error::sys("pipe for a rank's report", error);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    fcntl_setfl(&reader, OFlags::NONBLOCK).map_err(failed)?;
    Ok((LauncherPipe(reader.into()), Writing(writer.into())))
}

/// The rank's end.
pub(crate) struct Writing(File);

impl Writing {
    /// What tells a rank which of its descriptors this is: the number that it inherits, and which pipe is
    /// behind it.
    pub(crate) fn name(&self) -> Result<String> {
        let stat = fstat(&self.0).map_err(|error| Error::sys("fstat of a pipe", error))?;
        Ok(format!("{}:{}:{}", self.0.as_raw_fd(), stat.st_dev, stat.st_ino))
    }

    /// Lets the program that `command` starts have this end, which must stay open until then.
    pub(crate) fn hand_down(&self, command: &mut Command) {
        let inherited = self.0.as_raw_fd();
        // SAFETY: runs between fork and exec and makes one system call, which is safe there.
        unsafe { command.pre_exec(move || inherit(inherited)) };
    }

    /// The pipe of that name, if this process has inherited it. The descriptor returned is a new one. The
    /// inherited number stays whose it was, but is not handed down to programs that this process starts.
    pub(crate) fn inherited(name: &str) -> Result<Option<Self>> {
        let Some((fd, device, inode)) = parse(name) else { return Ok(None) };
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` has room for what is written. A number that is no descriptor is an error and does
        // nothing.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            return Ok(None);
        }
        // SAFETY: the call succeeded, so it has filled the structure.
        let stat = unsafe { stat.assume_init() };
        let is_pipe = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        if !is_pipe || (stat.st_dev, stat.st_ino) != (device, inode) {
            return Ok(None);
        }
        // SAFETY: sets a flag of the launcher's pipe, and changes no memory. Should another thread close the
        // number meanwhile, the call fails, or sets the flag that every descriptor of this library has.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        // SAFETY: makes a new descriptor, and changes no memory.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(Error::sys("duplicating the pipe of a report", io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows its number.
        Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(copy) }.into())))
    }
}

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// In the child, before exec: let the new program have the pipe.
fn inherit(fd: RawFd) -> io::Result<()> {
    // SAFETY: the parent keeps the pipe open until the child has exec'ed.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    Ok(fcntl_setfd(fd, FdFlags::empty())?)
}

/// Number, device and inode out of a name.
fn parse(name: &str) -> Option<(RawFd, u64, u64)> {
    let mut parts = name.split(':');
    let found = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().is_none().then_some(found)
}

/// The launcher's end. Reading never blocks.
pub(crate) struct LauncherPipe(File);

/// What a look at the pipe found.
#[derive(PartialEq, Eq)]
enum Heard {
    Something,
    NothingNow,
    /// Nobody has the other end any more, or the pipe is broken.
    NothingMore,
}

impl LauncherPipe {
    /// All that `child` wrote until its process ended.
    pub(crate) fn until_it_ends(&mut self, child: &mut Child) -> Vec<u8> {
        let pid = Pid::from_raw(child.id() as i32);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut report = Vec::new();
        let mut open = true;
        loop {
            // First whether it has ended: what it wrote before that is in the pipe then.
            let ended = !matches!(child.try_wait(), Ok(None));
            if open {
                open = self.drain(&mut report) != Heard::NothingMore;
            }
            if ended {
                return report;
            }
            self.nap(pidfd.as_ref(), open);
        }
    }

    /// Takes what is in the pipe, but not more than it can hold: others may go on writing.
    fn drain(&mut self, report: &mut Vec<u8>) -> Heard {
        let most = report.len() + fcntl_getpipe_size(&self.0).unwrap_or(CHUNK);
        loop {
            match self.read(report) {
                Heard::Something if report.len() < most => {}
                heard => return heard,
            }
        }
    }

    fn read(&mut self, report: &mut Vec<u8>) -> Heard {
        let start = report.len();
        report.resize(start + CHUNK, 0);
        let read = self.0.read(&mut report[start..]);
        report.truncate(start + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Heard::NothingMore,
            Ok(_) => Heard::Something,
            Err(error) if error.kind() == ErrorKind::Interrupted => Heard::Something,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Heard::NothingNow,
            Err(_) => Heard::NothingMore,
        }
    }

    /// Sleeps until there is something to do: the process ends, or, while the pipe is `open`, writes.
    fn nap(&self, pidfd: Option<&OwnedFd>, open: bool) {
        let pipe = open.then_some(self.0.as_fd());
        let watched = pidfd.map(OwnedFd::as_fd).into_iter().chain(pipe);
        let mut fds: Vec<PollFd<'_>> =
            watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let nap = if pidfd.is_some() { NAP } else { LOOK };
        let timeout = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
        if poll(&mut fds, Some(&timeout)).is_err() {
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_pipe_that_is_named_is_taken() {
        let (mut reader, writer) = new().unwrap();
        let name = writer.name().unwrap();
        let (fd, device, inode) = parse(&name).unwrap();
        let mut taken = Writing::inherited(&name).unwrap().unwrap();
        assert_ne!(taken.0.as_raw_fd(), fd, "the number is the original's");
        taken.write_all(b"word").unwrap();
        drop(taken);
        // The original is as it was.
        let mut original = writer;
        original.write_all(b"s").unwrap();
        let mut heard = Vec::new();
        assert!(reader.drain(&mut heard) == Heard::NothingNow);
        assert_eq!(heard, b"words");

        let (_other_reader, other) = new().unwrap();
        let file = File::open("/dev/null").unwrap();
        for wrong in [
            format!("{}:{device}:{inode}", other.0.as_raw_fd()),
            format!("{}:{device}:{inode}", file.as_raw_fd()),
            format!("{fd}:{device}:{}", inode + 1),
            format!("{fd}"),
            format!("-1:{device}:{inode}"),
            format!("{}:{device}:{inode}", i32::MAX),
            format!("{fd}:{device}:{inode}:"),
            String::new(),
        ] {
            assert!(Writing::inherited(&wrong).unwrap().is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_report_ends_with_its_process_whoever_holds_the_pipe() {
        let (mut reader, mut writer) = new().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        writer.write_all(b"all").unwrap();
        assert_eq!(reader.until_it_ends(&mut child), b"all");
        drop(writer);
    }
}
