#![allow(unsafe_code, reason = "copies of memory that others write")]

use proptest::prelude::*;

use super::{Stores, is_large, last_level_cache, parse_size};

type Copy = unsafe fn(*const u8, *mut u8, usize);

/// All copies that exist on this machine; the duties are those of the functions that they call.
const COPIES: &[(&str, Copy)] = &[
    ("read", super::read),
    ("write", super::write),
    // SAFETY: the caller's duty, here and below.
    ("streaming read", |src, dst, len| unsafe { super::read_with(src, dst, len, Stores::Streaming) }),
    // SAFETY: as above.
    ("streaming write", |src, dst, len| unsafe { super::write_with(src, dst, len, Stores::Streaming) }),
    ("give", super::give),
    // SAFETY: as above.
    ("take", |src, dst, len| unsafe { super::take_with(src.cast_mut(), dst, len, Stores::Cached) }),
    // SAFETY: as above.
    ("streaming take", |src, dst, len| unsafe {
        super::take_with(src.cast_mut(), dst, len, Stores::Streaming)
    }),
    ("words::load", super::words::load),
    ("words::store", super::words::store),
];

/// [`check_here`] as on every kind of processor.
fn check(from: usize, to: usize, len: usize, seed: u8) -> Result<(), TestCaseError> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for forced in [Some(true), Some(false), None] {
        super::x86_64::FORCED.set(forced);
        check_here(from, to, len, seed)?;
    }
    check_here(from, to, len, seed)
}

/// Copies `len` bytes between odd offsets and compares everything, guard bytes included.
fn check_here(from: usize, to: usize, len: usize, seed: u8) -> Result<(), TestCaseError> {
    let mut src: Vec<u8> =
        (0..from + len + 64).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    let given = src.clone();
    for (name, copy) in COPIES {
        // Guard bytes on both sides.
        let to = to + 64;
        let mut dst = vec![0xa5; to + len + 64];
        let mut expected = dst.clone();
        expected[to..to + len].copy_from_slice(&src[from..from + len]);
        // SAFETY: both ranges lie in vectors of their own.
        unsafe { copy(src[from..].as_mut_ptr(), dst[to..].as_mut_ptr(), len) };
        prop_assert!(src == given, "{name} of {len} bytes changed what it read");
        prop_assert!(dst == expected, "{name} of {len} bytes from offset {from} to {to}");
    }
    Ok(())
}

#[test]
fn all_small_sizes_at_all_small_offsets() {
    for len in 0..600 {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 7), (8, 16), (5, 13)] {
            check(from, to, len, 7).unwrap();
        }
    }
}

#[test]
fn every_offset_from_a_cache_line() {
    for offset in 0..64 {
        for len in [127, 129, 255, 256, 257, 383, 512, 1023, 4096, 4353] {
            check(0, offset, len, 3).unwrap();
            check(offset, 0, len, 4).unwrap();
            check(offset, offset, len, 5).unwrap();
        }
    }
}

#[test]
fn streaming_is_for_what_does_not_fit_the_cache() {
    assert!(!is_large(0) && !is_large(1 << 20) && !is_large(last_level_cache()));
    assert!(is_large(last_level_cache() + 1));
    assert_eq!(Stores::for_footprint(4096), Stores::Cached);
    assert_eq!(Stores::for_footprint(usize::MAX), Stores::Streaming);
    assert_eq!(parse_size("32768K\n"), Some(32 << 20));
    for odd in ["", "K", "0K", "32M", "-1K", "99999999999999999999K"] {
        assert_eq!(parse_size(odd), None, "{odd:?}");
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

/// Code that has values in wide registers while it copies, as a caller has that is compiled for this
/// processor.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide_registers {
    use std::arch::x86_64::{__m256, _mm256_add_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps};

    use crate::sys::copy::x86_64::{long_inline, stream_blocks, stream_inline};

    const VECTORS: usize = 8;
    const LANES: usize = 8;
    const ROUNDS: usize = 3;

    type Sums = unsafe fn(&[f32; VECTORS * LANES], &[u8], &mut [u8]) -> Vec<f32>;

    /// Defines a function that adds up `values` again and again with a copy after each round. Only an
    /// optimised build keeps the sums in registers meanwhile.
    macro_rules! sums {
        ($name:ident, $copy:expr $(, $with:expr)*) => {
            /// # Safety
            /// As for [`super::super::read`], and the processor has AVX.
            #[inline(never)]
            #[target_feature(enable = "avx")]
            unsafe fn $name(values: &[f32; VECTORS * LANES], src: &[u8], dst: &mut [u8]) -> Vec<f32> {
                // SAFETY: vectors lie in the arrays, and copies in the slices, which are of one length.
                unsafe {
                    let mut sums: [__m256; VECTORS] = [_mm256_setzero_ps(); VECTORS];
                    for _ in 0..ROUNDS {
                        for (at, sum) in sums.iter_mut().enumerate() {
                            *sum = _mm256_add_ps(*sum, _mm256_loadu_ps(values.as_ptr().add(at * LANES)));
                        }
                        $copy(src.as_ptr(), dst.as_mut_ptr(), src.len() $(, $with)*);
                    }
                    let mut out = vec![0.0; VECTORS * LANES];
                    for (at, sum) in sums.into_iter().enumerate() {
                        _mm256_storeu_ps(out.as_mut_ptr().add(at * LANES), sum);
                    }
                    out
                }
            }
        };
    }

    sums!(sums_around_long, long_inline);
    sums!(sums_around_stream, stream_inline, stream_blocks);

    #[test]
    fn values_in_wide_registers_outlive_a_copy_that_is_inlined() {
        if !std::is_x86_feature_detected!("avx") {
            println!("skipped: this processor has no AVX");
            return;
        }
        let values: [f32; VECTORS * LANES] = std::array::from_fn(|at| at as f32 + 1.0);
        let expected = values.map(|value| value * ROUNDS as f32);
        for len in [40, 100, 200, 1000, 4096] {
            let src: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for (name, sums) in [("long", sums_around_long as Sums), ("stream", sums_around_stream)] {
                let mut dst = vec![0; len];
                // SAFETY: the slices are of one length and this thread's, and the processor has AVX.
                let sums = unsafe { sums(&values, &src, &mut dst) };
                assert_eq!(sums, expected, "{name} of {len} bytes");
                assert_eq!(dst, src, "{name} of {len} bytes");
            }
        }
    }
}
