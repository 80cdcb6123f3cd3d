//! The limit's inner loop: for my slice, s = a[i] + b[i] + ...; a[i] = s; b[i] = s; ...
//!
//! Nothing but loads, additions and stores, with the widest registers that every machine of the last decade
//! has.

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Through the caches.
    Cached,
    /// Past the caches, where the processor can.
    Streaming,
}

/// Sums `len` elements of all `ranks`, in order, and writes the sum to all of them.
///
/// # Safety
/// Every address has room for `len` elements, starts on a cache line, and nobody else accesses them
/// meanwhile.
#[inline]
pub(super) unsafe fn sum_everywhere(ranks: &[*mut f32], len: usize, stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as the caller promises, and the processor has AVX.
        return unsafe { avx::sum_everywhere(ranks, len, stores) };
    }
    let _ = stores;
    // SAFETY: as the caller promises.
    unsafe { sum_rest(ranks, 0, len) };
}

/// The same for the elements from `start` on, one by one.
///
/// # Safety
/// As for [`sum_everywhere`].
#[inline(always)]
unsafe fn sum_rest(ranks: &[*mut f32], start: usize, len: usize) {
    for at in start..len {
        // SAFETY: in range, as the caller promises.
        unsafe {
            let sum = ranks[1..].iter().fold(*ranks[0].add(at), |sum, rank| sum + *rank.add(at));
            ranks.iter().for_each(|rank| *rank.add(at) = sum);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::{
        __m256, _mm_sfence, _mm256_add_ps, _mm256_load_ps, _mm256_store_ps, _mm256_stream_ps,
    };

    use super::{Stores, sum_rest};

    const LANES: usize = 8;

    /// # Safety
    /// As for [`super::sum_everywhere`], and the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn sum_everywhere(ranks: &[*mut f32], len: usize, stores: Stores) {
        // The compiler unrolls the loops over ranks where it knows their number.
        // SAFETY: as the caller promises.
        unsafe {
            match ranks {
                [a, b] => with_stores(&[*a, *b], len, stores),
                [a, b, c, d] => with_stores(&[*a, *b, *c, *d], len, stores),
                ranks => with_stores(ranks, len, stores),
            }
        }
    }

    /// # Safety
    /// As for [`sum_everywhere`].
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn with_stores(ranks: &[*mut f32], len: usize, stores: Stores) {
        // SAFETY: as the caller promises; the slice starts on a cache line, so every vector is aligned.
        unsafe {
            match stores {
                Stores::Cached => sum(ranks, len, |to, sum| _mm256_store_ps(to, sum)),
                Stores::Streaming => {
                    sum(ranks, len, |to, sum| _mm256_stream_ps(to, sum));
                    // Streaming stores are not ordered by the release of a flag.
                    _mm_sfence();
                }
            }
        }
    }

    /// # Safety
    /// As for [`sum_everywhere`].
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn sum(ranks: &[*mut f32], len: usize, store: impl Fn(*mut f32, __m256)) {
        let whole = len - len % (2 * LANES);
        for at in (0..whole).step_by(2 * LANES) {
            // SAFETY: in range and aligned, as the caller promises.
            unsafe {
                let mut low = _mm256_load_ps(ranks[0].add(at));
                let mut high = _mm256_load_ps(ranks[0].add(at + LANES));
                for rank in &ranks[1..] {
                    low = _mm256_add_ps(low, _mm256_load_ps(rank.add(at)));
                    high = _mm256_add_ps(high, _mm256_load_ps(rank.add(at + LANES)));
                }
                for rank in ranks {
                    store(rank.add(at), low);
                    store(rank.add(at + LANES), high);
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe { sum_rest(ranks, whole, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Lines([f32; 64]);

    #[test]
    fn everybody_has_the_sum_and_nothing_else_changes() {
        for (ranks, len) in [(2, 0), (2, 1), (2, 16), (2, 37), (3, 19), (4, 48), (5, 33)] {
            for stores in [Stores::Cached, Stores::Streaming] {
                let start = |rank: usize| std::array::from_fn(|at| (rank * 100 + at) as f32);
                let mut buffers: Vec<Lines> = (0..ranks).map(|rank| Lines(start(rank))).collect();
                let addresses: Vec<*mut f32> = buffers.iter_mut().map(|lines| lines.0.as_mut_ptr()).collect();
                // SAFETY: aligned, long enough, and this thread's own.
                unsafe { sum_everywhere(&addresses, len, stores) };
                for (rank, lines) in buffers.iter().enumerate() {
                    for (at, value) in lines.0.iter().enumerate() {
                        let sum: f32 = (0..ranks).map(|rank| start(rank)[at]).sum();
                        let expected = if at < len { sum } else { start(rank)[at] };
                        assert_eq!(*value, expected, "{ranks} ranks, {len} elements, {rank} {at} {stores:?}");
                    }
                }
            }
        }
    }
}
