//! Elements whose sums, products and averages are exact in every type and every order.

use std::fmt::Debug;

use symmem::{Bool, Element, F8E4M3, F8E5M2, bf16, f16};

/// An element that is made of a small whole number.
pub(crate) trait Value: Element + PartialEq + Debug {
    fn of(number: usize) -> Self;

    /// The element that means `number` in sums: another one only where [`Value::of`] gives bits.
    fn whole(number: usize) -> Self {
        Self::of(number)
    }
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
    Bool => |number| Bool::from(number % 2 == 1),
);

macro_rules! bytes {
    ($($type:ty),*) => {
        $(impl Value for $type {
            /// As bits, to be moved.
            fn of(number: usize) -> Self {
                bytemuck::cast(number as u8)
            }

            fn whole(number: usize) -> Self {
                Self::from_f32(number as f32)
            }
        })*
    };
}

bytes!(F8E4M3, F8E5M2);

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

/// [`elements`] that mean their numbers.
pub(crate) fn wholes<T: Value>(len: usize, of: impl Fn(usize) -> usize) -> Vec<T> {
    (0..len).map(|at| T::whole(of(at))).collect()
}

/// [`assert_elements`] of elements that mean their numbers.
pub(crate) fn assert_wholes<T: Value>(what: &str, found: &[T], of: impl Fn(usize) -> usize) {
    for (at, found) in found.iter().enumerate() {
        let expected = T::whole(of(at));
        assert!(*found == expected, "{what} of {}: element {at} is {found:?}, not {expected:?}", T::DTYPE);
    }
}

/// `$body` with `$type` standing for the element type of `$dtype`. A type that is new to the library fails
/// here, until it has values.
macro_rules! with_type {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            symmem::DType::U8 => {
                type $type = u8;
                $body
            }
            symmem::DType::I8 => {
                type $type = i8;
                $body
            }
            symmem::DType::U16 => {
                type $type = u16;
                $body
            }
            symmem::DType::I16 => {
                type $type = i16;
                $body
            }
            symmem::DType::U32 => {
                type $type = u32;
                $body
            }
            symmem::DType::I32 => {
                type $type = i32;
                $body
            }
            symmem::DType::U64 => {
                type $type = u64;
                $body
            }
            symmem::DType::I64 => {
                type $type = i64;
                $body
            }
            symmem::DType::F8E4M3 => {
                type $type = symmem::F8E4M3;
                $body
            }
            symmem::DType::F8E5M2 => {
                type $type = symmem::F8E5M2;
                $body
            }
            symmem::DType::F16 => {
                type $type = symmem::f16;
                $body
            }
            symmem::DType::BF16 => {
                type $type = symmem::bf16;
                $body
            }
            symmem::DType::F32 => {
                type $type = f32;
                $body
            }
            symmem::DType::F64 => {
                type $type = f64;
                $body
            }
            symmem::DType::Bool => {
                type $type = symmem::Bool;
                $body
            }
            other => panic!("{other} has no values in the conformance suite"),
        }
    };
}
pub(crate) use with_type;

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "it panicked",
    }
}
