//! Elements whose sums, products and averages are exact in every type and every order.

use std::fmt::Debug;

use symmem::{Bool, Element, F8E4M3, F8E5M2, bf16, f16};

/// An element that is made of a small whole number.
pub(crate) trait Value: Element + PartialEq + Debug {
    fn of(number: usize) -> Self;
}

macro_rules! values {
    ($($type:ty => $of:expr),* $(,)?) => {
        $(impl Value for $type {
            fn of(number: usize) -> Self {
                let of: fn(usize) -> $type = $of;
                of(number)
            }
        })*
    };
}

values!(
    u8 => |number| number as u8,
    i8 => |number| number as i8,
    u16 => |number| number as u16,
    i16 => |number| number as i16,
    u32 => |number| number as u32,
    i32 => |number| number as i32,
    u64 => |number| number as u64,
    i64 => |number| number as i64,
    f32 => |number| number as f32,
    f64 => |number| number as f64,
    f16 => |number| f16::from_f32(number as f32),
    bf16 => |number| bf16::from_f32(number as f32),
    // As bits: these are only moved.
    F8E4M3 => |number| bytemuck::cast(number as u8),
    F8E5M2 => |number| bytemuck::cast(number as u8),
    Bool => |number| Bool::from(number % 2 == 1),
);

/// What is moved: below 113, which is in step with nothing that is cut, and tells ranks and places apart.
pub(crate) fn number(rank: usize, at: usize) -> usize {
    (rank * 37 + at * 11) % 113
}

/// What is summed: up to 6.
pub(crate) fn addend(rank: usize, at: usize) -> usize {
    (rank * 5 + at * 3 + at / 7) % 7
}

/// What is multiplied: 1 to 3.
pub(crate) fn factor(rank: usize, at: usize) -> usize {
    (rank * 5 + at) % 3 + 1
}

/// `len` elements by their place.
pub(crate) fn elements<T: Value>(len: usize, of: impl Fn(usize) -> usize) -> Vec<T> {
    (0..len).map(|at| T::of(of(at))).collect()
}

/// Panics at the first element that is not the expected one.
pub(crate) fn assert_elements<T: Value>(what: &str, found: &[T], of: impl Fn(usize) -> usize) {
    for (at, found) in found.iter().enumerate() {
        let expected = T::of(of(at));
        assert!(*found == expected, "{what} of {}: element {at} is {found:?}, not {expected:?}", T::DTYPE);
    }
}
