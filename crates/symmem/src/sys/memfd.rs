//! Shared memory without names: sealed memory files, and their mappings.
//!
//! Called by whoever makes or maps a segment. What it guarantees: the memory is reserved when
//! [`Segment::create`] returns (touching it later is neither a SIGBUS nor a visit of the OOM killer), its
//! size can never change, it vanishes with its last user whatever kills them, and a received fd is not mapped
//! before seals and size were checked.

#![allow(unsafe_code, reason = "system calls")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::sys::fault::{self, FailingCall};
use crate::sys::{copy, limits};

/// What a segment's file must be sealed against before anybody maps it.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Bytes reserved per system call: a signal makes the kernel undo the whole call, so calls must stay short,
/// and several ranks may be reserving at once, so the limits are looked at again in between.
const RESERVE_STEP: u64 = 64 << 20;
/// Longest name the kernel takes for a memory file.
const NAME_MAX: usize = 249;

/// Memory that this process made, to be shared by sending its fd.
#[derive(Debug)]
pub(crate) struct Segment {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Segment {
    /// Makes, reserves, seals and maps `bytes` of zeroed memory (rounded up to whole pages, at least one).
    /// `name` is what `/proc/<pid>/fd` shows.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<Self> {
        let len = page_rounded(bytes)?;
        // Before ftruncate: growing a file beyond `ulimit -f` ends in a signal.
        check_limits(len as u64, 0)?;
        let fd = memory_file(name)?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|e| Error::sys("ftruncate of a segment", e))?;
        reserve(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, FIXED_SIZE | SealFlags::SEAL)
            .map_err(|e| Error::sys("sealing of a segment", e))?;
        let mapping = Arc::new(Mapping::new(fd.as_fd(), len)?);
        Ok(Self { fd, mapping })
    }

    /// The memory file, to send to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memory.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// A memory file mapped for reading and writing, until drop. Others may change the bytes at any time.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; it is unmapped once, by whoever drops it.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out a raw pointer only; what is done through it is the caller's unsafe code.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a memory file that a peer sent and that must hold `bytes` (rounded up to whole pages).
    ///
    /// The fd is closed in any case; the mapping does not need it.
    pub(crate) fn import(fd: OwnedFd, bytes: usize) -> Result<Self> {
        fault::fail(FailingCall::Map).map_err(|e| Error::sys("mmap of a peer's segment", e))?;
        let len = page_rounded(bytes)?;
        check_file(fd.as_fd(), len as u64)?;
        Self::new(fd.as_fd(), len)
    }

    /// Maps a memory file of another process for reading alone, whatever its size: nothing may be written to
    /// it.
    pub(crate) fn look_at(fd: BorrowedFd<'_>) -> Result<Self> {
        check_seals(fd)?;
        let stat = rustix::fs::fstat(fd).map_err(|e| Error::sys("fstat of a segment", e))?;
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        Self::with(fd, len, ProtFlags::READ)
    }

    fn new(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        Self::with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(fd: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> Result<Self> {
        // SAFETY: the kernel chooses an address range that nothing else uses.
        let ptr = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
        const HINT: &str = "check ulimit -v and vm.max_map_count";
        let ptr = ptr.map_err(|e| Error::sys_hint("mmap of a segment", e, HINT))?;
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| Error::sys("mmap of a segment", Errno::FAULT))?;
        Ok(Self { ptr, len })
    }

    /// The first byte; aligned to a page.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Mapped bytes: whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Fills the page tables now, so that the first access does not pay for it.
    pub(crate) fn populate(&self) -> Result<()> {
        loop {
            return match self.advise(Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                // Kernels before 5.14.
                Err(Errno::INVAL) => {
                    self.touch();
                    Ok(())
                }
                result => result.map_err(|e| Error::sys("populating a segment", e)),
            };
        }
    }

    /// Asks for huge pages; nothing happens where there are none.
    pub(crate) fn advise_huge(&self) {
        let _ = self.advise(Advice::LinuxHugepage);
    }

    /// Moves the memory to NUMA node `node` where that is possible; nothing happens where not. Works best
    /// after [`Mapping::populate`] and before peers map the segment: the kernel moves only pages with one
    /// user.
    pub(crate) fn prefer_node(&self, node: usize) {
        const BITS: usize = usize::BITS as usize;
        /// From linux/mempolicy.h; libc lacks it.
        const MPOL_MF_MOVE: libc::c_uint = 1 << 1;
        let mut mask = [0usize; 16];
        let Some(word) = mask.get_mut(node / BITS) else { return };
        *word = 1 << (node % BITS);
        // SAFETY: mbind reads the mask, changes where our own pages live, and leaves their contents alone.
        // It takes one bit more than it reads.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.ptr.as_ptr(),
                self.len,
                libc::MPOL_PREFERRED,
                mask.as_ptr(),
                mask.len() * BITS + 1,
                MPOL_MF_MOVE,
            )
        };
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping, and none of the advices used changes its contents.
        unsafe { rustix::mm::madvise(self.ptr.as_ptr().cast(), self.len, advice) }
    }

    fn touch(&self) {
        let mut byte = 0;
        for offset in (0..self.len).step_by(rustix::param::page_size()) {
            // SAFETY: the offset lies in the mapping; the copy is defined whatever peers do. Reading is
            // enough: the pages exist already, and shared ones are mapped writable at once.
            unsafe { copy::read(self.ptr.as_ptr().add(offset), &raw mut byte, 1) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nobody may use pointers into a dropped mapping.
        let result = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok(), "munmap of a mapping: {result:?}");
    }
}

/// `bytes` rounded up to whole pages, at least one: files and mappings cannot be empty.
fn page_rounded(bytes: usize) -> Result<usize> {
    bytes.max(1).checked_next_multiple_of(rustix::param::page_size()).ok_or_else(|| Error::OutOfMemory {
        asked: bytes as u64,
        left: isize::MAX as u64,
        limit: "the address space".into(),
    })
}

/// Whether there is memory for `asked` bytes, of which we have `got` already.
fn check_limits(asked: u64, got: u64) -> Result<()> {
    let found = limits::memory_left();
    let left = found.left.saturating_add(got);
    if asked > left {
        return Err(Error::OutOfMemory { asked, left, limit: found.limit });
    }
    Ok(())
}

fn memory_file(name: &str) -> Result<OwnedFd> {
    let name = file_name(name);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(&name, flags),
        result => result,
    }
    .map_err(|e| Error::sys_hint("memfd_create", e, "check ulimit -n"))
}

/// `name` without zero bytes; a long one loses its middle, for its ends tell segments apart.
fn file_name(name: &str) -> String {
    let name = name.replace('\0', "?");
    if name.len() <= NAME_MAX {
        return name;
    }
    let (head, tail) =
        (name.floor_char_boundary(NAME_MAX / 2), name.ceil_char_boundary(name.len() - NAME_MAX / 2 + 3));
    format!("{}...{}", &name[..head], &name[tail..])
}

/// Gets every page of the file from the kernel, step by step.
fn reserve(fd: &OwnedFd, len: u64) -> Result<()> {
    let mut done = 0;
    while done < len {
        let step = RESERVE_STEP.min(len - done);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), done, step) {
            Ok(()) => done += step,
            Err(Errno::INTR) => continue,
            Err(Errno::NOSPC | Errno::NOMEM) => return Err(refused(len, done)),
            Err(e) => return Err(Error::sys("fallocate of a segment", e)),
        }
        if done < len {
            check_limits(len, done)?;
        }
    }
    Ok(())
}

/// The limits said yes and the kernel no.
fn refused(asked: u64, got: u64) -> Error {
    let found = limits::memory_left();
    let limit = format!("{} (the kernel refused)", found.limit);
    Error::OutOfMemory { asked, left: found.left.saturating_add(got), limit }
}

/// Whether `fd` is a memory file of `len` bytes that nobody can resize: mapping anything else risks SIGBUS.
fn check_file(fd: BorrowedFd<'_>, len: u64) -> Result<()> {
    check_seals(fd)?;
    let stat = rustix::fs::fstat(fd).map_err(|e| Error::sys("fstat of a received segment", e))?;
    if stat.st_size as u64 != len {
        return Err(refused_file(format!("it holds {} bytes, not the {len} agreed on", stat.st_size)));
    }
    Ok(())
}

fn check_seals(fd: BorrowedFd<'_>) -> Result<()> {
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(FIXED_SIZE) => Ok(()),
        Ok(seals) => {
            Err(refused_file(format!("it is not sealed against resizing (seals {:#x})", seals.bits())))
        }
        Err(error) => Err(refused_file(format!("it is not a memory file ({error})"))),
    }
}

fn refused_file(problem: String) -> Error {
    Error::invalid("fd received as a segment", problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::{Folder, succeeds_alone};

    fn read(mapping: &Mapping, offset: usize) -> u8 {
        assert!(offset < mapping.len());
        let mut byte = 0;
        // SAFETY: the offset lies in the mapping.
        unsafe { copy::read(mapping.ptr().add(offset), &raw mut byte, 1) };
        byte
    }

    fn write(mapping: &Mapping, offset: usize, byte: u8) {
        assert!(offset < mapping.len());
        // SAFETY: the offset lies in the mapping.
        unsafe { copy::write(&raw const byte, mapping.ptr().add(offset), 1) };
    }

    fn import(segment: &Segment, bytes: usize) -> Result<Mapping> {
        Mapping::import(segment.fd().try_clone_to_owned().unwrap(), bytes)
    }

    #[test]
    fn peers_see_each_others_bytes() {
        let segment = Segment::create("memory", 10_000).unwrap();
        assert_eq!(segment.mapping().len() % rustix::param::page_size(), 0);
        let peer = import(&segment, 10_000).unwrap();
        peer.populate().unwrap();
        peer.touch();
        peer.advise_huge();
        peer.prefer_node(0);
        peer.prefer_node(1 << 20);
        assert_eq!((peer.len(), read(&peer, 9_999)), (segment.mapping().len(), 0));
        write(segment.mapping(), 9_999, 7);
        drop(segment);
        assert_eq!(read(&peer, 9_999), 7);
    }

    #[test]
    fn no_bytes_is_a_page() {
        let segment = Segment::create("empty", 0).unwrap();
        assert_eq!(segment.mapping().len(), rustix::param::page_size());
        import(&segment, 0).unwrap();
    }

    #[test]
    fn a_segment_cannot_change_its_size_and_does_not_survive_exec() {
        let segment = Segment::create("sealed", 4096).unwrap();
        for size in [0, 100, 1 << 20] {
            assert_eq!(rustix::fs::ftruncate(segment.fd(), size), Err(Errno::PERM));
        }
        assert_eq!(rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE), Err(Errno::PERM));
        let flags = rustix::io::fcntl_getfd(segment.fd()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn import_refuses_what_could_change_or_is_something_else() {
        let refused = |fd: OwnedFd, why: &str| {
            let error = Mapping::import(fd, 4096).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        let unsealed =
            rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        refused(unsealed.try_clone().unwrap(), "not sealed");
        rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
        refused(unsealed, "not sealed");
        let folder = Folder::new();
        folder.write("file", &"x".repeat(4096));
        refused(std::fs::File::open(folder.path().join("file")).unwrap().into(), "not a memory file");
        refused(std::fs::File::open("/dev/null").unwrap().into(), "not a memory file");
        refused(rustix::pipe::pipe().unwrap().0, "not a memory file");
        let other_size = Segment::create("two pages", 8192).unwrap();
        refused(other_size.fd().try_clone_to_owned().unwrap(), "8192 bytes, not the 4096");
        assert!(import(&other_size, usize::MAX).is_err());
    }

    #[test]
    fn too_much_is_an_error_that_names_the_limit() {
        for bytes in [1 << 50, isize::MAX as usize, usize::MAX] {
            match Segment::create("huge", bytes).unwrap_err() {
                Error::OutOfMemory { asked, left, limit } => {
                    assert!(asked >= bytes as u64 && left < asked && !limit.is_empty());
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_limit_on_file_sizes_is_an_error_and_not_a_signal() {
        succeeds_alone("sys::memfd::tests::a_limit_on_file_sizes_is_an_error_and_not_a_signal", || {
            let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: None };
            rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
            let error = Segment::create("large", 2 << 20).unwrap_err();
            assert!(error.to_string().contains("ulimit -f"), "{error}");
            Segment::create("small", 1 << 20).unwrap();
        });
    }

    #[test]
    fn more_than_4_gib_works() {
        const BYTES: usize = (4 << 30) + 4097;
        let left = limits::memory_left().left;
        if left < BYTES as u64 + (1 << 30) {
            println!("skipped: {left} bytes of memory left");
            return;
        }
        let segment = Segment::create("large", BYTES).unwrap();
        let peer = import(&segment, BYTES).unwrap();
        write(segment.mapping(), BYTES - 1, 9);
        write(segment.mapping(), 4096, 8);
        assert_eq!((read(&peer, BYTES - 1), read(&peer, 4096), read(&peer, 1 << 32)), (9, 8, 0));
    }

    #[test]
    fn odd_names_are_taken() {
        Segment::create("a\0b", 1).unwrap();
        Segment::create(&format!("symmem:{}:7", "ä".repeat(300)), 1).unwrap();
        for len in 240..300 {
            let name = file_name(&"x".repeat(len));
            assert!(name.len() <= NAME_MAX, "{len}: {}", name.len());
        }
        assert!(file_name(&format!("{}:7", "ä".repeat(300))).ends_with(":7"));
    }
}
