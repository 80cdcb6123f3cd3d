//! What of the kernel the library uses: each is tried, since a container may refuse what the kernel has.

use std::io;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::futex;
use symmem::machine;

use super::row::Fact;
use super::text::{field, read};

/// The first kernel with everything that is used: it fills page tables in one call.
const WANTED: (u32, u32) = (5, 14);
/// The first kernel with pidfds that can be opened.
const PIDFDS: (u32, u32) = (5, 3);

pub(super) fn facts() -> Vec<Fact> {
    let status = read("/proc/self/status").unwrap_or_default();
    vec![
        version(&rustix::system::uname().release().to_string_lossy()),
        memory_files(seal_a_file()),
        futexes(try_futex()),
        pidfds(pidfd_open(getpid(), PidfdFlags::empty()).map(drop)),
        reading_processes(read_own_memory()),
        proc(machine::proc_is_ours()),
        pid_namespace(&status),
        time_namespace(machine::boot_time_is_shifted()),
        Fact::ok("/dev/shm", "not used: memory is in memory files, so its size does not matter"),
    ]
}

fn version(release: &str) -> Fact {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().ok());
    let found = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => {
            return Fact::warn("version", format!("Linux {release}"), "this version is unknown here");
        }
    };
    match found {
        _ if found >= WANTED => Fact::ok("version", format!("Linux {release}")),
        _ if found >= PIDFDS => Fact::warn(
            "version",
            format!("Linux {release}: a rendezvous touches its pages one by one"),
            "from Linux 5.14 on one call does it",
        ),
        _ => Fact::warn(
            "version",
            format!("Linux {release}: without pidfds, dead ranks are found through /proc"),
            "from Linux 5.14 on everything is there",
        ),
    }
}

/// Makes a memory file as the library does, and seals its size.
fn seal_a_file() -> Result<(), Errno> {
    let file = rustix::fs::memfd_create("symmem-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, 4096)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

fn memory_files(tried: Result<(), Errno>) -> Fact {
    match tried {
        Ok(()) => Fact::ok("memory files", "memfd_create with seals works: what shared memory is made of"),
        Err(error) => Fact::fail(
            "memory files",
            format!("a sealed memory file cannot be made: {error}"),
            "without memfd_create and seals there is no shared memory; does seccomp forbid them?",
        ),
    }
}

/// A wait for a value that the word does not have, and a wake of nobody, both shared between processes.
fn try_futex() -> Result<(), Errno> {
    let word = AtomicU32::new(1);
    match futex::wait(&word, futex::Flags::empty(), 0, None) {
        Err(Errno::AGAIN) => {}
        Err(error) => return Err(error),
        Ok(()) => return Err(Errno::INVAL),
    }
    futex::wake(&word, futex::Flags::empty(), 1).map(drop)
}

fn futexes(tried: Result<(), Errno>) -> Fact {
    match tried {
        Ok(()) => Fact::ok("futexes", "shared futexes work: how ranks sleep and wake each other"),
        Err(error) => Fact::fail(
            "futexes",
            format!("a shared futex does not work: {error}"),
            "ranks cannot wake each other; does seccomp forbid the call?",
        ),
    }
}

fn pidfds(tried: Result<(), Errno>) -> Fact {
    match tried {
        Ok(()) => Fact::ok("pidfds", "pidfd_open works: the death of a rank is seen at once"),
        Err(error) => Fact::warn(
            "pidfds",
            format!("pidfd_open does not work ({error}): dead ranks are found through /proc"),
            "from Linux 5.3 on it is there; does seccomp forbid it?",
        ),
    }
}

/// Reads a number of this process as another one would.
fn read_own_memory() -> io::Result<()> {
    let (from, mut to) = (0x5eed_u64, 0u64);
    let local = libc::iovec { iov_base: (&raw mut to).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec { iov_base: (&raw const from).cast_mut().cast(), iov_len: size_of::<u64>() };
    let own = getpid().as_raw_nonzero().get();
    // SAFETY: both are a number of this function's; the first is only read.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        8 if to == from => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn reading_processes(tried: io::Result<()>) -> Fact {
    let name = "process_vm_readv";
    match tried {
        Ok(()) => Fact::ok(name, "works; symmem does not need it, MPI and UCX beside it often do"),
        Err(error) => {
            Fact::ok(name, format!("does not work ({error}); symmem does not need it, MPI and UCX may"))
        }
    }
}

fn proc(is_ours: bool) -> Fact {
    if is_ours {
        return Fact::ok("/proc", "mounted, and of this pid namespace");
    }
    Fact::fail(
        "/proc",
        "not mounted, or it shows another pid namespace",
        "mount it (mount -t proc proc /proc): pidfds are checked by it, and `symmem inspect` reads it",
    )
}

/// By the line `NSpid` of `/proc/self/status`: the number of this process in every namespace around it.
fn pid_namespace(status: &str) -> Fact {
    let depth = field(status, "NSpid").map_or(1, |numbers| numbers.split_whitespace().count());
    Fact::ok(
        "pid namespace",
        match depth {
            0 | 1 => "ranks started here see each other's numbers".to_owned(),
            depth => format!("{} below that of /proc: ranks in others are watched by pidfds", depth - 1),
        },
    )
}

fn time_namespace(is_shifted: bool) -> Fact {
    if !is_shifted {
        return Fact::ok("time namespace", "clocks are the machine's");
    }
    Fact::warn(
        "time namespace",
        "clocks are shifted: start times cannot tell processes apart",
        "ranks with pidfds do not mind; run all ranks in the same time namespace",
    )
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    #[test]
    fn old_kernels_are_a_warning() {
        for (release, status) in [
            ("6.18.44-fc-v490", Status::Ok),
            ("5.14.0-427.el9.x86_64", Status::Ok),
            ("5.4.0-150-generic", Status::Warn),
            ("4.18.0-372.el8", Status::Warn),
            ("plan 9", Status::Warn),
        ] {
            assert_eq!(version(release).status, status, "{release}");
        }
        assert!(version("4.18.0").found.contains("without pidfds"));
    }

    #[test]
    fn what_is_refused_is_told_by_how_much_it_matters() {
        assert_eq!(memory_files(Err(Errno::PERM)).status, Status::Fail);
        assert_eq!(futexes(Err(Errno::NOSYS)).status, Status::Fail);
        assert_eq!(pidfds(Err(Errno::NOSYS)).status, Status::Warn);
        assert_eq!(proc(false).status, Status::Fail);
        assert_eq!(time_namespace(true).status, Status::Warn);
        let refused = reading_processes(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.status, Status::Ok);
    }

    #[test]
    fn nested_pid_namespaces_are_counted() {
        assert!(pid_namespace("NSpid:\t4711\n").found.contains("each other"));
        assert!(pid_namespace("Pid:\t1\nNSpid:\t4711\t12\t1\n").found.starts_with("2 below"));
    }

    #[test]
    fn everything_works_here() {
        for fact in facts() {
            assert_ne!(fact.status, Status::Fail, "{fact:?}");
        }
    }
}
