//! The hot path: a small all_reduce on ranks that have a core each makes no system call and no allocation.
//!
//! Each rank is a process on a core of its own. Once warm, it installs a filter that lets nothing through but
//! the last two rungs of the wait ladder (yield, futex) and the end of the process; so it reports through
//! memory that it shares with the launcher, and ends without another word.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Launch, is_rank_of, serve};
use symmem::{Counters, Group, ReduceOp, Result};

const RANKS: usize = 2;
/// 8 KB.
const LEN: usize = 1024;
const WARM_UP: u64 = 2000;
const OPS: u64 = 10_000;
/// Other programs may take a core away at any moment: one quiet run is enough.
const TRIES: usize = 20;
/// Where the ranks find the board.
const BOARD: &str = "SYMMEM_HOT_PATH_BOARD";

/// Counts what is allocated.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a rank reports. All zero at first.
#[repr(C)]
#[derive(Debug, Default)]
struct Line {
    /// Ops that came out right.
    right: AtomicU64,
    /// Ops that yielded or slept.
    gave_way: AtomicU64,
    allocations: AtomicU64,
    /// A system call that was trapped, plus one.
    trapped: AtomicU64,
}

impl Line {
    fn is_clean(&self) -> bool {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        read(&self.right) == OPS
            && read(&self.gave_way) * 50 < OPS
            && read(&self.allocations) == 0
            && read(&self.trapped) == 0
    }
}

/// The lines of all ranks, in memory that launcher and ranks share.
fn board(path: &str) -> &'static [Line; RANKS] {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the board");
    // SAFETY: a new mapping of a file that is as long, never unmapped; lines are atomics, so any bytes are
    // valid.
    unsafe {
        let (bytes, access) = (size_of::<[Line; RANKS]>(), libc::PROT_READ | libc::PROT_WRITE);
        let map = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        &*map.cast()
    }
}

/// Keeps this thread on the core that is the `index`th of those it may use.
fn stay_on_core(index: usize) {
    // SAFETY: the sets are plain memory of the size told.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed), 0);
        let core = (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &allowed)).nth(index);
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core.expect("a core for every rank"), &mut one);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
    }
}

/// This rank's line, for the signal handler.
static OWN_LINE: OnceLock<&'static Line> = OnceLock::new();

/// Notes the system call that the filter caught, and ends.
extern "C" fn trapped(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    /// Where the kernel puts the number of the call in a `siginfo_t` of SIGSYS.
    const CALL: usize = 24;
    // SAFETY: the kernel's `info` is that long; nothing here is unsafe in a signal handler.
    unsafe {
        let call = info.cast::<u8>().add(CALL).cast::<libc::c_int>().read();
        if let Some(line) = OWN_LINE.get() {
            line.trapped.store(call as u64 + 1, Ordering::Relaxed);
        }
        libc::_exit(1)
    }
}

/// From here on no thread of this process can make a system call but these.
fn confine() {
    // Who rings a bell asks for its core, which is a system call where there is neither rseq nor a vDSO for
    // it.
    let rungs = [libc::SYS_futex, libc::SYS_sched_yield, libc::SYS_getcpu];
    let allowed = [rungs.as_slice(), &[libc::SYS_exit, libc::SYS_exit_group]].concat();
    let op = |code: u32, jump_if: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: 0,
        k: value,
    };
    // The first word that a filter sees is the number of the call.
    let mut filter = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, call) in allowed.iter().enumerate() {
        let to_the_end = (allowed.len() - index) as u8;
        filter.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_end, *call as u32));
    }
    filter.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_TRAP));
    filter.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: handler, filter and program are valid for the calls that read them.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = trapped as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all_threads, &program), 0);
    }
}

fn gave_way(counters: Counters) -> u64 {
    counters.yields + counters.sleeps
}

/// One rank's part; ends the process.
fn reduce_in_silence() -> Result<()> {
    let group = Group::from_env()?;
    let rank = group.rank();
    let line: &'static Line = &board(&std::env::var(BOARD).expect("the launcher's word"))[rank];
    OWN_LINE.set(line).expect("one rank per process");
    let mut memory = group.alloc::<u64>(LEN)?.rendezvous(&group)?;
    stay_on_core(rank);
    let mut op = |round: u64| -> Result<bool> {
        let mut local = memory.local_mut()?;
        (local[0], local[LEN - 1]) = (round, round + rank as u64);
        drop(local);
        memory.all_reduce(ReduceOp::Sum)?;
        let local = memory.local()?;
        Ok((local[0], local[LEN - 1]) == (2 * round, 2 * round + 1))
    };
    for round in 0..WARM_UP {
        assert!(op(round)?);
    }
    confine();
    let allocated = ALLOCATIONS.load(Ordering::Relaxed);
    for round in 0..OPS {
        let before = gave_way(group.counters());
        let right = matches!(op(round), Ok(true));
        line.right.fetch_add(right.into(), Ordering::Relaxed);
        line.gave_way.fetch_add((gave_way(group.counters()) > before).into(), Ordering::Relaxed);
    }
    line.allocations.store(ALLOCATIONS.load(Ordering::Relaxed) - allocated, Ordering::Relaxed);
    // SAFETY: ends the process here; what it holds is the kernel's to clean up.
    unsafe { libc::_exit(0) }
}

#[test]
fn small_all_reduces_make_no_system_call_and_no_allocation() {
    const NAME: &str = "small_all_reduces_make_no_system_call_and_no_allocation";
    if is_rank_of(NAME) {
        panic!("{:?}", reduce_in_silence());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < RANKS {
        println!("skipped: {cores} core for {RANKS} ranks");
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let file = rustix::fs::memfd_create("board", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&file, size_of::<[Line; RANKS]>() as u64).expect("its size");
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let lines = board(&path);
        let server = serve();
        let ended = Launch::new(NAME, RANKS, server.port()).env(BOARD, &path).run();
        println!("{lines:?}");
        if lines.iter().all(Line::is_clean) && ended.iter().all(|rank| rank.ok) {
            return;
        }
        seen.push(format!("{lines:?} {ended:?}"));
    }
    panic!("no try of {TRIES} was clean:\n{}", seen.join("\n"));
}
