//! The copies of any other processor: relaxed atomic accesses of the largest size that the shared side's
//! alignment allows.

#![allow(unsafe_code, reason = "copies of memory that others write")]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// # Safety
/// As for [`super::read`].
pub(super) unsafe fn load(src: *const u8, dst: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: `step` keeps within `len` and finds the atomic's alignment.
        unsafe {
            let (from, to) = (src.add(done), dst.add(done));
            let step = step(from, len - done);
            match step {
                8 => to.cast::<u64>().write_unaligned((*from.cast::<AtomicU64>()).load(Relaxed)),
                4 => to.cast::<u32>().write_unaligned((*from.cast::<AtomicU32>()).load(Relaxed)),
                2 => to.cast::<u16>().write_unaligned((*from.cast::<AtomicU16>()).load(Relaxed)),
                _ => to.write((*from.cast::<AtomicU8>()).load(Relaxed)),
            }
            done += step;
        }
    }
}

/// # Safety
/// As for [`super::write`].
pub(crate) unsafe fn store(src: *const u8, dst: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        // SAFETY: `step` keeps within `len` and finds the atomic's alignment.
        unsafe {
            let (from, to) = (src.add(done), dst.add(done));
            let step = step(to, len - done);
            match step {
                8 => (*to.cast::<AtomicU64>()).store(from.cast::<u64>().read_unaligned(), Relaxed),
                4 => (*to.cast::<AtomicU32>()).store(from.cast::<u32>().read_unaligned(), Relaxed),
                2 => (*to.cast::<AtomicU16>()).store(from.cast::<u16>().read_unaligned(), Relaxed),
                _ => (*to.cast::<AtomicU8>()).store(from.read(), Relaxed),
            }
            done += step;
        }
    }
}

/// The size of the next access: a power of two, at most 8, that `at` is aligned to and `left` holds.
fn step(at: *const u8, left: usize) -> usize {
    let aligned = 1 << at.addr().trailing_zeros().min(3);
    aligned.min(1 << left.min(8).ilog2())
}

/// Whether lines of staging are faster written again when they have left the first-level caches: nobody has
/// measured that here.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub(crate) fn lines_rest() -> bool {
    false
}
