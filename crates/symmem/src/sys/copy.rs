//! Copies between private and shared memory that are defined even while a peer writes.
//!
//! Called for every access to a peer's bytes that is not an atomic word. A peer may store to the shared side at any
//! moment, so an ordinary `ptr::copy` there would be a data race. These copies are none: on x86-64 they are
//! inline assembly, which the compiler must take for byte-wise relaxed atomic accesses (it cannot look inside,
//! invent, split or merge accesses), elsewhere they are relaxed atomic accesses. The memory of a peer is
//! moreover reached through a mapping of its own, never through an address that the peer's own references use.
//! The result may mix old and new bytes ("torn"), and no order with other accesses is promised: what must be
//! seen together is published with a Release store and read after an Acquire load. Copies of 1, 2, 4 or 8
//! bytes that are aligned on the shared side are not torn.

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use words::{load, store};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86_64::{copy as load, copy as store};

/// Copies `len` bytes of shared memory at `src` to private memory at `dst`.
///
/// # Safety
/// `src` must be valid for reads of `len` bytes but for races; `dst` must be valid for writes of `len` bytes and
/// be nobody else's meanwhile; the two must not overlap.
#[inline]
pub(crate) unsafe fn read(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { load(src, dst, len) }
}

/// Copies `len` bytes of private memory at `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `len` bytes but for races; `src` must be valid for reads of `len` bytes and
/// not be written meanwhile; the two must not overlap.
#[inline]
pub(crate) unsafe fn write(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { store(src, dst, len) }
}

/// Inline assembly. Not `rep movsb`, and not `memcpy`, which uses it: on AMD's Zen 3 and 4 that is twenty times slower
/// than plain moves when the destination lies a few bytes further into its page than the source, which is how
/// page-aligned segments and large heap blocks lie.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;

    /// Either direction.
    ///
    /// # Safety
    /// As for [`super::read`] or [`super::write`], whichever side is the shared one.
    #[inline]
    pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: every move stays within `len` bytes of both pointers, and nothing else is touched.
        unsafe {
            match len {
                8 => {
                    asm!("mov {t}, [{s}]", "mov [{d}], {t}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
                    options(nostack, preserves_flags))
                }
                4 => {
                    asm!("mov {t:e}, [{s}]", "mov [{d}], {t:e}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
                    options(nostack, preserves_flags))
                }
                2 => {
                    asm!("mov {t:x}, [{s}]", "mov [{d}], {t:x}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
                    options(nostack, preserves_flags))
                }
                0..16 => bytes(src, dst, len),
                16.. => blocks(src, dst, len),
            }
        }
    }

    /// # Safety
    /// As for [`copy`].
    #[inline]
    unsafe fn bytes(src: *const u8, dst: *mut u8, len: usize) {
        for offset in 0..len {
            // SAFETY: the offset is less than `len`.
            unsafe {
                asm!("mov {t}, [{s} + {i}]", "mov [{d} + {i}], {t}", s = in(reg) src, d = in(reg) dst,
                    i = in(reg) offset, t = out(reg_byte) _, options(nostack, preserves_flags));
            }
        }
    }

    /// Copies in blocks of 128 and 16 bytes; the last block may overlap the one before.
    ///
    /// # Safety
    /// As for [`copy`], with a `len` of at least 16.
    unsafe fn blocks(src: *const u8, dst: *mut u8, len: usize) {
        let mut done = 0;
        if len >= 128 && std::is_x86_feature_detected!("avx") {
            done = len & !127;
            // SAFETY: `done` bytes in steps of 128 lie within `len`; the processor has AVX.
            unsafe { blocks_of_128(src, dst, done) };
        }
        while done < len {
            let offset = done.min(len - 16);
            // SAFETY: the 16 bytes at `offset` end at or before `len`.
            unsafe {
                asm!("movups {t}, [{s} + {i}]", "movups [{d} + {i}], {t}", s = in(reg) src, d = in(reg) dst,
                    i = in(reg) offset, t = out(xmm_reg) _, options(nostack, preserves_flags));
            }
            done = offset + 16;
        }
    }

    /// # Safety
    /// As for [`copy`], with a `len` that is a multiple of 128 and not 0, on a processor with AVX.
    unsafe fn blocks_of_128(src: *const u8, dst: *mut u8, len: usize) {
        // SAFETY: the loop counts from 0 to `len` in steps of 128.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{s} + {i}]",
                "vmovdqu ymm1, [{s} + {i} + 32]",
                "vmovdqu ymm2, [{s} + {i} + 64]",
                "vmovdqu ymm3, [{s} + {i} + 96]",
                "vmovdqu [{d} + {i}], ymm0",
                "vmovdqu [{d} + {i} + 32], ymm1",
                "vmovdqu [{d} + {i} + 64], ymm2",
                "vmovdqu [{d} + {i} + 96], ymm3",
                "add {i}, 128",
                "cmp {i}, {n}",
                "jb 2b",
                "vzeroupper",
                s = in(reg) src, d = in(reg) dst, n = in(reg) len, i = inout(reg) 0usize => _,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack)
            );
        }
    }
}

/// Relaxed atomic accesses of the largest size that the shared side's alignment allows.
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
mod words {
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
    pub(super) unsafe fn store(src: *const u8, dst: *mut u8, len: usize) {
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// All copies that exist on this machine.
    const COPIES: [(&str, Copy); 4] = [
        ("read", super::read),
        ("write", super::write),
        ("words::load", super::words::load),
        ("words::store", super::words::store),
    ];

    /// Copies `len` bytes between odd offsets and compares everything, guard bytes included.
    fn check(from: usize, to: usize, len: usize, seed: u8) -> Result<(), TestCaseError> {
        let src: Vec<u8> =
            (0..from + len + 64).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        for (name, copy) in COPIES {
            let mut dst = vec![0xa5; to + len + 64];
            let mut expected = dst.clone();
            expected[to..to + len].copy_from_slice(&src[from..from + len]);
            // SAFETY: both ranges lie in vectors of their own.
            unsafe { copy(src[from..].as_ptr(), dst[to..].as_mut_ptr(), len) };
            prop_assert!(dst == expected, "{name} of {len} bytes from offset {from} to {to}");
        }
        Ok(())
    }

    #[test]
    fn all_small_sizes_at_all_small_offsets() {
        for len in 0..300 {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 7), (8, 16), (5, 13)] {
                check(from, to, len, 7).unwrap();
            }
        }
    }

    proptest! {
        #[test]
        fn copies_what_a_plain_copy_copies(
            from in 0usize..70, to in 0usize..70, len in 0usize..5000, seed in any::<u8>(),
        ) {
            check(from, to, len, seed)?;
        }
    }

    #[test]
    fn aligned_words_are_never_torn() {
        let word = std::sync::atomic::AtomicU64::new(0);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let values = [0u64, u64::MAX];
                for value in values.iter().cycle() {
                    // SAFETY: the word is shared memory of 8 bytes, only accessed by copies and atomics.
                    unsafe { super::write((&raw const *value).cast(), word.as_ptr().cast(), 8) };
                    if stop.load(relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..200_000 {
                let mut value = 1u64;
                // SAFETY: as above.
                unsafe { super::read(word.as_ptr().cast(), (&raw mut value).cast(), 8) };
                assert!(value == 0 || value == u64::MAX, "{value:#x}");
            }
            stop.store(true, relaxed);
        });
    }
}
