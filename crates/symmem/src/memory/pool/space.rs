//! Which bytes of a pool's blocks are free. It touches no memory: ranks that ask and give back in the same
//! order find the same places.

use std::collections::BTreeMap;
use std::ops::Range;

/// Places begin at multiples of so many bytes: a line of the cache on every machine, and more than any
/// element asks for.
pub(super) const ALIGNMENT: usize = 128;

/// A range of bytes of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolRange {
    pub(super) block: usize,
    pub(super) bytes: Range<usize>,
}

impl PoolRange {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.block == other.block && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// The free bytes of all blocks: where a range begins, and where it ends.
#[derive(Debug, Default)]
pub(super) struct Space {
    blocks: Vec<BTreeMap<usize, usize>>,
}

impl Space {
    /// A further block of `bytes`, all of them free.
    pub(super) fn add(&mut self, bytes: usize) {
        self.blocks.push(BTreeMap::from([(0, bytes)]));
    }

    /// The first place with so many bytes, which are a multiple of [`ALIGNMENT`] and more than none.
    pub(super) fn take(&mut self, bytes: usize) -> Option<PoolRange> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(ALIGNMENT));
        let (block, start, end) = self.blocks.iter().enumerate().find_map(|(block, free)| {
            let (start, end) = free.iter().find(|(start, end)| *end - *start >= bytes)?;
            Some((block, *start, *end))
        })?;
        let free = &mut self.blocks[block];
        free.remove(&start);
        if end - start > bytes {
            free.insert(start + bytes, end);
        }
        Some(PoolRange { block, bytes: start..start + bytes })
    }

    /// Gives a place back that was taken; free neighbours become one with it.
    pub(super) fn give_back(&mut self, place: &PoolRange) {
        let free = &mut self.blocks[place.block];
        let Range { mut start, mut end } = place.bytes;
        if let Some((before, _)) = free.range(..start).next_back().filter(|(_, until)| **until == start) {
            start = *before;
        }
        if let Some(until) = free.remove(&end) {
            end = until;
        }
        free.insert(start, end);
    }

    /// Free bytes of all blocks.
    pub(super) fn free(&self) -> usize {
        self.blocks.iter().flatten().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(space: &mut Space, sizes: &[usize]) -> Vec<Option<PoolRange>> {
        sizes.iter().map(|size| space.take(*size)).collect()
    }

    #[test]
    fn neighbours_become_one_whatever_the_order() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut space = Space::default();
            space.add(512);
            let places: Vec<PoolRange> = starts(&mut space, &[128; 4]).into_iter().flatten().collect();
            assert_eq!((places.len(), space.free(), space.take(128)), (4, 0, None));
            order.iter().for_each(|at: &usize| space.give_back(&places[*at]));
            assert_eq!(space.take(512), Some(PoolRange { block: 0, bytes: 0..512 }));
        }
    }

    #[test]
    fn holes_are_filled_first_and_too_small_ones_are_not() {
        let mut space = Space::default();
        space.add(1024);
        space.add(1024);
        let places: Vec<PoolRange> =
            starts(&mut space, &[256, 128, 640, 512]).into_iter().flatten().collect();
        assert_eq!(places[3], PoolRange { block: 1, bytes: 0..512 });
        space.give_back(&places[1]);
        assert_eq!(space.take(256).map(|place| place.block), Some(1));
        assert_eq!(space.take(128), Some(places[1].clone()));
    }

    /// Two ranks that do the same have the same places; what is taken never overlaps, and all of it comes
    /// back.
    #[test]
    fn many_takes_and_returns_stay_apart() {
        let (mut space, mut twin) = (Space::default(), Space::default());
        let mut taken: Vec<PoolRange> = Vec::new();
        let mut random = 7u64;
        for _ in 0..4000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = ((random >> 33) as usize % 12 + 1) * ALIGNMENT;
            if random >> 62 == 0 && !taken.is_empty() {
                let place = taken.swap_remove((random >> 40) as usize % taken.len());
                space.give_back(&place);
                twin.give_back(&place);
                continue;
            }
            let place = space.take(size);
            assert_eq!(place, twin.take(size));
            let Some(place) = place else {
                space.add(8192);
                twin.add(8192);
                continue;
            };
            assert!(place.bytes.start.is_multiple_of(ALIGNMENT) && place.bytes.len() == size);
            assert!(taken.iter().all(|other| !other.overlaps(&place)), "{place:?}");
            taken.push(place);
            if taken.len() > 300 {
                taken.drain(..150).for_each(|place| {
                    space.give_back(&place);
                    twin.give_back(&place);
                });
            }
        }
        taken.iter().for_each(|place| space.give_back(place));
        assert_eq!(space.free(), space.blocks.len() * 8192);
        assert!(space.blocks.iter().all(|free| free.len() == 1));
    }
}
