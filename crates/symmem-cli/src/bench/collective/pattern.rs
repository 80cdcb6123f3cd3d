//! What ranks write into their buffers: elements that differ by rank, position and iteration, and can be told
//! again.
//!
//! Floats are finite, of both signs and several magnitudes, so that sums round and their order matters.

use symmem::DType;

const WORD: usize = size_of::<u64>();

/// The elements of one rank in one iteration.
#[derive(Clone, Copy)]
pub(super) struct Pattern {
    seed: u64,
    /// Bits of a word that are taken from the hash.
    random: u64,
    /// Bits of a word that are always set.
    fixed: u64,
    size: usize,
}

impl Pattern {
    /// What `rank` writes in `iteration`.
    pub(super) fn new(dtype: DType, rank: usize, iteration: u64) -> Self {
        let (random, fixed) = bits(dtype);
        let seed = mix(mix(iteration) ^ rank as u64);
        Self { seed, random: repeat(dtype, random), fixed: repeat(dtype, fixed), size: dtype.size() }
    }

    /// Writes it into `bytes`.
    pub(super) fn fill(&self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<WORD>();
        words.iter_mut().enumerate().for_each(|(position, word)| *word = self.word(position).to_le_bytes());
        let last = self.word(words.len()).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// The bits of the element at `position`.
    pub(super) fn element(&self, position: usize) -> u64 {
        let start = position * self.size;
        let bits = self.word(start / WORD) >> (8 * (start % WORD));
        bits & (u64::MAX >> (64 - 8 * self.size))
    }

    #[inline(always)]
    fn word(&self, position: usize) -> u64 {
        mix(self.seed.wrapping_add(position as u64)) & self.random | self.fixed
    }
}

/// The finisher of SplitMix64: every bit of the result depends on every bit of `x`.
#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The bits of an element that are random, and those that are set: floats have their exponents near one.
fn bits(dtype: DType) -> (u64, u64) {
    match dtype {
        DType::F64 => (0x801f_ffff_ffff_ffff, 0x3fc0_0000_0000_0000),
        DType::F32 => (0x83ff_ffff, 0x3c00_0000),
        DType::BF16 => (0x83ff, 0x3c00),
        DType::F16 => (0x8fff, 0x3000),
        DType::F8E4M3 => (0x8f, 0x30),
        DType::F8E5M2 => (0x87, 0x38),
        DType::Bool => (0x01, 0x00),
        _ => (u64::MAX, 0),
    }
}

/// A word of elements that all have these bits.
fn repeat(dtype: DType, bits: u64) -> u64 {
    let width = 8 * dtype.size() as u32;
    let element = bits & (u64::MAX >> (64 - width));
    (0..64).step_by(width as usize).fold(0, |word, shift| word | element << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_what_was_filled_in() {
        for dtype in DType::ALL {
            let pattern = Pattern::new(dtype, 1, 2);
            let mut bytes = vec![0; 13 * dtype.size()];
            pattern.fill(&mut bytes);
            for (position, element) in bytes.chunks_exact(dtype.size()).enumerate() {
                let expected = pattern.element(position).to_le_bytes();
                assert_eq!(element, &expected[..dtype.size()], "{dtype} {position}");
            }
        }
    }

    #[test]
    fn every_rank_iteration_and_position_differs() {
        let words = |rank, iteration| {
            let pattern = Pattern::new(DType::U64, rank, iteration);
            (0..100).map(move |position| pattern.element(position))
        };
        let mut all: Vec<u64> = (0..4).flat_map(|n| words(n / 2, n as u64 % 2)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 400);
        let bytes = |rank| (0..64).map(|at| Pattern::new(DType::U8, rank, 0).element(at)).collect::<Vec<_>>();
        assert_ne!(bytes(0), bytes(1));
    }
}
