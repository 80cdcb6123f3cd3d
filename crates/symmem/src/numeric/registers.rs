//! The way through a job for an instruction set: unit by unit, the accumulators in registers.
//!
//! Each unit is read from all sources before it is written to any destination, so a destination may be a source.

use super::fold::Fold;
use super::job::{Job, Stores, finish, load, partial};
use super::lanes::{Item, Lanes, Vector};

/// How an instruction set goes past the caches, or ahead of the loop.
pub(super) trait Caching {
    /// # Safety
    /// `dst` must be valid for the write and a multiple of 32, and the processor must have the instruction set.
    unsafe fn stream<R: Copy>(dst: *mut u8, raw: R);

    /// Orders what was streamed before later stores.
    fn fence();

    /// Asks for the cache line at any address, to write it.
    fn prefetch(at: *const u8);
}

/// Does the whole job.
///
/// # Safety
/// As for [`Run`](super::job::Run).
#[inline(always)]
pub(super) unsafe fn run<S: Caching, L: Lanes, F: Fold<Item<L>>>(job: &Job<'_>) {
    let rest = job.len % L::ELEMENTS;
    let end = job.len / L::ELEMENTS * size_of::<L::Raw>();
    // SAFETY: up to `end` there are whole units, and then the rest; everything else is the caller's duty.
    unsafe {
        match (job.srcs, job.dsts) {
            _ if streams(job) => {
                any::<L, F>(job, end, |dst, raw| S::stream(dst, raw));
                S::fence();
            }
            (&[a, b], &[dst]) => pair::<S, L, F, 1>([a, b], [dst], end),
            (&[a, b], &[first, second]) => pair::<S, L, F, 2>([a, b], [first, second], end),
            _ => any::<L, F>(job, end, |dst, raw| dst.cast::<L::Raw>().write_unaligned(raw)),
        }
        if rest > 0 {
            partial::<L, F>(job, end, rest);
        }
    }
}

/// How far ahead destinations are asked for where elements are converted: the conversions fill the processor's window, which
/// keeps it from looking ahead by itself. A line that a peer has written is then fetched once, to be read and written.
const AHEAD: usize = 2048;

/// Whether streaming is wanted and every destination starts a cache line.
fn streams(job: &Job<'_>) -> bool {
    job.stores == Stores::Streaming && job.dsts.iter().all(|dst| dst.addr().is_multiple_of(64))
}

/// Two ranks, to one or two destinations.
///
/// # Safety
/// As for [`run`], with whole units up to `end`.
#[inline(always)]
unsafe fn pair<S: Caching, L: Lanes, F: Fold<Item<L>>, const D: usize>(
    [a, b]: [*const u8; 2],
    dsts: [*mut u8; D],
    end: usize,
) {
    let mut at = 0;
    while at < end {
        // SAFETY: a whole unit lies between `at` and `end`.
        unsafe {
            let value = load::<L>(a.add(at)).zip(load::<L>(b.add(at)), F::fold);
            let raw = finish::<L, F>(value, 2);
            for dst in dsts {
                // Such units are no longer than a cache line.
                if size_of::<L::Accumulators>() > size_of::<L::Raw>() {
                    S::prefetch(dst.wrapping_add(at + AHEAD));
                }
                dst.add(at).cast::<L::Raw>().write_unaligned(raw);
            }
        }
        at += size_of::<L::Raw>();
    }
}

/// Any number of ranks and destinations.
///
/// # Safety
/// As for [`run`], with whole units up to `end`, and `write` fit for every place that results go to.
#[inline(always)]
unsafe fn any<L: Lanes, F: Fold<Item<L>>>(job: &Job<'_>, end: usize, write: impl Fn(*mut u8, L::Raw)) {
    let mut at = 0;
    while at < end {
        // SAFETY: a whole unit lies between `at` and `end`.
        unsafe {
            let mut value = load::<L>(job.srcs[0].add(at));
            for src in &job.srcs[1..] {
                value = value.zip(load::<L>(src.add(at)), F::fold);
            }
            let raw = finish::<L, F>(value, job.srcs.len());
            for dst in job.dsts {
                write(dst.add(at), raw);
            }
        }
        at += size_of::<L::Raw>();
    }
}
