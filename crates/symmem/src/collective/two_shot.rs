//! The two-shot algorithm: each rank owns a slice, which it alone reduces, and puts the result into
//! everybody's memory.
//!
//! Every element is read once per rank and written once per rank, whatever the number of ranks. Framed by
//! [`direct`].
//!
//! [`direct`]: super::direct

use std::ops::Range;

use super::peers::Peers;
use crate::numeric::{Element, ReduceKernel};

/// Reduces the slice of `rank` in everybody's memory.
pub(super) fn run<T: Element>(
    peers: &Peers<'_, T>,
    kernel: &ReduceKernel,
    len: usize,
    (rank, world): (usize, usize),
) {
    peers.reduce_everywhere(kernel, slice_of(len, world, rank));
}

/// The slice of `len` elements that `rank` of `world` owns: contiguous, cache-line sized pieces where
/// possible.
pub(super) fn slice_of(len: usize, world: usize, rank: usize) -> Range<usize> {
    // Whole lines of 64 elements keep two ranks from writing into one cache line.
    let lines = len.div_ceil(64);
    let edge = |rank: usize| (lines * rank / world * 64).min(len);
    edge(rank)..edge(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_everything_once() {
        for (len, world) in [(0, 3), (1, 4), (63, 2), (64, 2), (65, 2), (1000, 7), (4096, 16), (100, 33)] {
            let edges: Vec<_> = (0..world).map(|rank| slice_of(len, world, rank)).collect();
            assert_eq!((edges[0].start, edges[world - 1].end), (0, len));
            assert!(edges.windows(2).all(|pair| pair[0].end == pair[1].start), "{len} {world}: {edges:?}");
        }
    }
}
