//! The shape of an array in one word, for ranks that compare it.
//!
//! Used by [`Group::shaped`](crate::Group::shaped) and in signatures. Shapes of as many elements are the same word only if they are
//! the same shape; those that do not fit one exactly are a hash of theirs, and cannot be shown.

use std::fmt;

/// Bits that say how many sides there are; the others are for the sides.
const COUNT: u32 = 4;
/// What is there instead for a hash.
const HASHED: u64 = (1 << COUNT) - 1;

/// What a rank says of its array's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u64);

impl Shape {
    /// Nothing: ranks agree on the number of elements.
    pub(crate) const ANY: Self = Self(0);

    /// The last side is left out: the number of elements says what it is.
    pub(crate) fn of(shape: &[usize]) -> Self {
        let leading = &shape[..shape.len().saturating_sub(1)];
        let bits = bits_of(shape.len());
        // An empty array's number of elements does not tell its last side.
        let fits = (shape.len() as u64) < HASHED - 1
            && !shape.contains(&0)
            && leading.iter().all(|side| (*side as u64) >> bits == 0);
        match fits {
            true => {
                let sides = leading.iter().rev().fold(0, |sides, side| sides << bits | *side as u64);
                Self(sides << COUNT | (shape.len() as u64 + 1))
            }
            false => Self(hash(shape) << COUNT | HASHED),
        }
    }

    /// The word that announcements carry.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The shape of an array of `len` elements, where it can be told.
    fn sides(self, len: u64) -> Option<Vec<u64>> {
        let count = (self.0 & HASHED).checked_sub(1).filter(|_| self.0 & HASHED != HASHED)?;
        let bits = bits_of(count as usize);
        let leading = count.saturating_sub(1);
        let mut sides: Vec<u64> =
            (0..leading).map(|at| self.0 >> COUNT >> (at as u32 * bits) & ((1 << bits) - 1)).collect();
        if count > 0 {
            let before = sides.iter().try_fold(1u64, |product, side| product.checked_mul(*side))?;
            sides.push(len.checked_div(before)?);
        }
        Some(sides)
    }

    /// `len` elements of this shape, as people read it.
    pub(crate) fn describe(self, len: u64) -> impl fmt::Display {
        fmt::from_fn(move |f| match self.sides(len).as_deref() {
            Some([]) => f.write_str("()"),
            Some([_]) => write!(f, "{len}"),
            Some([first, others @ ..]) => {
                write!(f, "({first}")?;
                others.iter().try_for_each(|side| write!(f, ", {side}"))?;
                f.write_str(")")
            }
            None if self == Self::ANY => write!(f, "{len}"),
            None => write!(f, "{len} in a shape with hash {:#x}", self.0 >> COUNT),
        })
    }
}

/// Bits for each but the last of `count` sides.
fn bits_of(count: usize) -> u32 {
    let most = u64::BITS - COUNT;
    match count.saturating_sub(1) {
        0 => most,
        leading => most / leading as u32,
    }
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
        Shape::of(shape).describe(shape.iter().product::<usize>() as u64).to_string()
    }

    #[test]
    fn shapes_come_back_as_they_were() {
        assert_eq!(shown(&[]), "()");
        assert_eq!(shown(&[5]), "5");
        assert_eq!(shown(&[3, 4]), "(3, 4)");
        assert_eq!(shown(&[1, 1, 1]), "(1, 1, 1)");
        assert_eq!(shown(&[1 << 40, 2]), format!("({}, 2)", 1u64 << 40));
        assert_eq!(shown(&[2, 3, 4, 5, 6, 7]), "(2, 3, 4, 5, 6, 7)");
        assert_eq!(Shape::ANY.describe(7).to_string(), "7");
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
