//! The shape of an array in one word, for ranks that compare it.
//!
//! Used by [`Group::shaped`](crate::Group::shaped) and in signatures. Shapes of as many elements are the same
//! word only if they are the same shape; those that do not fit one exactly are a hash of theirs, and cannot
//! be shown.

/// Bits that say how many sides there are; the others are for the sides.
const COUNT: u32 = 4;
/// What is there instead for a hash.
const HASHED: u64 = (1 << COUNT) - 1;

/// What a rank says of its array's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What announcements carry.
    pub(crate) word: u64,
}

impl Shape {
    /// Nothing: ranks agree on the number of elements.
    pub(crate) const ANY: Self = Self { word: 0 };

    /// The last side is left out: the number of elements says what it is.
    pub(crate) fn of(shape: &[usize]) -> Self {
        let leading = &shape[..shape.len().saturating_sub(1)];
        // An empty array's number of elements does not tell its last side.
        Self::packed(leading, shape.len() as u64 + 1, shape, !shape.contains(&0))
    }

    /// What ranks say of rows: the shape that they have by what is said here, or `rows` and `columns` where
    /// that is of other rows, or nothing.
    pub(crate) fn of_rows(self, [rows, columns]: [usize; 2]) -> Self {
        let count = (self.word & HASHED).saturating_sub(1);
        let mut leading = self.unpacked(count.saturating_sub(1));
        let all = leading.try_fold(1, |all: u64, side| all.checked_mul(side));
        let says_so = count > 0 && count + 1 < HASHED && all == Some(rows as u64);
        if says_so { self } else { Self::of(&[rows, columns]) }
    }

    /// What ranks say of `counts`, one per rank, in the place of a shape: these themselves if they fit, else
    /// a hash of theirs.
    pub(crate) fn of_counts(counts: &[usize]) -> Self {
        Self::packed(counts, counts.len() as u64, counts, !counts.is_empty())
    }

    /// `numbers` under `tag` if they fit and may be told, else a hash of `whole`.
    fn packed(numbers: &[usize], tag: u64, whole: &[usize], may: bool) -> Self {
        let bits = bits_of(numbers.len());
        let fits = may && tag < HASHED && numbers.iter().all(|number| (*number as u64) >> bits == 0);
        let packed = || numbers.iter().rev().fold(0, |packed, number| packed << bits | *number as u64);
        let (packed, tag) = if fits { (packed(), tag) } else { (hash(whole), HASHED) };
        Self { word: packed << COUNT | tag }
    }

    /// The `count` numbers that were packed.
    fn unpacked(self, count: u64) -> impl Iterator<Item = u64> {
        let bits = bits_of(count as usize);
        (0..count).map(move |at| self.word >> COUNT >> (at as u32 * bits) & ((1 << bits) - 1))
    }

    /// What [`Shape::of_counts`] says, as people read it; [`Shape::ANY`]: every rank has `len`.
    pub(crate) fn describe_counts(self, len: u64) -> String {
        match self.word & HASHED {
            0 => format!("even counts, {len}"),
            HASHED => format!("counts with hash {:#x}", self.word >> COUNT),
            ranks => format!("{:?}", self.unpacked(ranks).collect::<Vec<_>>()),
        }
    }

    /// `len` elements of this shape, as people read it.
    pub(crate) fn describe(self, len: u64) -> String {
        match (self.word & HASHED).checked_sub(1) {
            None | Some(1) => len.to_string(),
            Some(0) => "()".to_owned(),
            Some(count) if count + 1 < HASHED => {
                let leading: Vec<u64> = self.unpacked(count - 1).collect();
                // Whatever a peer says: nothing here may overflow.
                let before = leading.iter().fold(1, |product: u64, side| product.saturating_mul(*side));
                let sides = leading.iter().copied().chain([len / before.max(1)]);
                format!("({})", sides.map(|side| side.to_string()).collect::<Vec<_>>().join(", "))
            }
            Some(_) => format!("{len} in a shape with hash {:#x}", self.word >> COUNT),
        }
    }
}

/// Bits for each of `count` numbers.
fn bits_of(count: usize) -> u32 {
    (u64::BITS - COUNT) / count.max(1) as u32
}

/// FNV-1a over the sides: the same in every process.
fn hash(shape: &[usize]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    shape.iter().flat_map(|side| (*side as u64).to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(shape: &[usize]) -> String {
        Shape::of(shape).describe(shape.iter().product::<usize>() as u64)
    }

    #[test]
    fn shapes_come_back_as_they_were() {
        assert_eq!(shown(&[]), "()");
        assert_eq!(shown(&[5]), "5");
        assert_eq!(shown(&[3, 4]), "(3, 4)");
        assert_eq!(shown(&[1, 1, 1]), "(1, 1, 1)");
        assert_eq!(shown(&[1 << 40, 2]), format!("({}, 2)", 1u64 << 40));
        assert_eq!(shown(&[2, 3, 4, 5, 6, 7]), "(2, 3, 4, 5, 6, 7)");
        assert_eq!(Shape::ANY.describe(7), "7");
    }

    #[test]
    fn rows_keep_the_shape_that_they_have() {
        let of_rows = |shape: &[usize], rows, columns| Shape::of(shape).of_rows([rows, columns]);
        for kept in [&[2, 3, 4][..], &[6, 4], &[1, 6, 4], &[6, 1, 4]] {
            assert_eq!(of_rows(kept, 6, 4), Shape::of(kept));
        }
        assert_eq!(of_rows(&[4], 1, 4), Shape::of(&[4]));
        assert_eq!(Shape::ANY.of_rows([6, 4]), Shape::of(&[6, 4]));
        // Rows of another length, no rows, or a shape that cannot be told.
        for other in [&[24][..], &[4, 6], &[2, 2, 6], &[], &[1; 20], &[1 << 40, 1 << 40, 1]] {
            assert_eq!(of_rows(other, 6, 4), Shape::of(&[6, 4]), "{other:?}");
        }
    }

    #[test]
    fn counts_come_back_as_they_were_or_as_a_hash() {
        let shown = |counts: &[usize]| Shape::of_counts(counts).describe_counts(9);
        assert_eq!(shown(&[3, 0, 5]), "[3, 0, 5]");
        assert_eq!(shown(&[(1 << 60) - 1]), format!("[{}]", (1u64 << 60) - 1));
        assert_eq!(shown(&[15; 14]), format!("{:?}", [15; 14]));
        for long in [&[1 << 60][..], &[16; 14], &[1; 15]] {
            assert!(shown(long).contains("hash"), "{long:?}");
        }
        let all: [&[usize]; 7] = [&[0], &[0, 0], &[1, 0], &[0, 1], &[1 << 40, 0], &[0, 1 << 40], &[1; 15]];
        for (index, counts) in all.iter().enumerate() {
            assert_eq!(
                all.iter().position(|other| Shape::of_counts(other) == Shape::of_counts(counts)),
                Some(index)
            );
            assert_ne!(Shape::of_counts(counts), Shape::ANY);
        }
    }

    #[test]
    fn what_does_not_fit_is_told_apart_by_a_hash() {
        assert!(shown(&[1 << 40, 1, 1]).contains("hash"));
        assert!(shown(&[1; 20]).contains("hash"));
        assert!(shown(&[0, 3]).contains("hash"));
        for (one, other) in [([0, 3], [3, 0]), ([0, 3], [0, 5])] {
            assert_ne!(Shape::of(&one), Shape::of(&other));
        }
        assert_ne!(Shape::of(&[1 << 40, 1, 1]), Shape::of(&[1, 1 << 40, 1]));
        assert_ne!(Shape::of(&[1; 20]), Shape::of(&[1; 21]));
    }

    #[test]
    fn shapes_of_as_many_elements_differ() {
        let shapes: [&[usize]; 9] =
            [&[12], &[3, 4], &[4, 3], &[2, 6], &[1, 12], &[12, 1], &[2, 2, 3], &[3, 2, 2], &[1, 2, 6]];
        for (index, shape) in shapes.iter().enumerate() {
            let same = shapes.iter().position(|other| Shape::of(other) == Shape::of(shape));
            assert_eq!(same, Some(index), "{shape:?}");
            assert_ne!(Shape::of(shape), Shape::ANY);
        }
    }
}
