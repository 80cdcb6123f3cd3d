//! Arithmetic on bytes of NCCL's types.

use std::ffi::c_int;

use half::{bf16, f16};

use crate::control::{Code, INVALID_ARGUMENT};

/// Bytes of an element of a type.
pub(crate) fn size_of_type(dtype: c_int) -> Result<usize, Code> {
    Ok(match dtype {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return Err(INVALID_ARGUMENT),
    })
}

/// The reduction of everybody's bytes. 8-bit floats are not done.
pub(crate) fn reduce(parts: &[&[u8]], dtype: c_int, op: c_int) -> Result<Vec<u8>, Code> {
    macro_rules! integers {
        ($type:ty) => {
            fold(
                parts,
                |bytes| <$type>::from_le_bytes(bytes) as i128,
                op,
                |value, world| {
                    let value = if op == 4 { value / world } else { value };
                    (value as $type).to_le_bytes()
                },
            )
        };
    }
    macro_rules! floats {
        ($type:ty, $from:expr, $to:expr) => {
            fold(
                parts,
                |bytes| $from(<$type>::from_le_bytes(bytes)),
                op,
                |value: f64, world| {
                    let value = if op == 4 { value / world as f64 } else { value };
                    ($to(value) as $type).to_le_bytes()
                },
            )
        };
    }
    if !(0..=4).contains(&op) {
        return Err(INVALID_ARGUMENT);
    }
    Ok(match dtype {
        0 => integers!(i8),
        1 => integers!(u8),
        2 => integers!(i32),
        3 => integers!(u32),
        4 => integers!(i64),
        5 => integers!(u64),
        6 => fold(
            parts,
            |bytes| f16::from_le_bytes(bytes).to_f64(),
            op,
            |value, world| f16::from_f64(if op == 4 { value / world as f64 } else { value }).to_le_bytes(),
        ),
        7 => floats!(f32, f64::from, |value: f64| value),
        8 => floats!(f64, |value: f64| value, |value: f64| value),
        9 => fold(
            parts,
            |bytes| bf16::from_le_bytes(bytes).to_f64(),
            op,
            |value, world| bf16::from_f64(if op == 4 { value / world as f64 } else { value }).to_le_bytes(),
        ),
        _ => return Err(INVALID_ARGUMENT),
    })
}

/// What can be reduced.
trait Number: Copy + PartialOrd + std::ops::Add<Output = Self> + std::ops::Mul<Output = Self> {}
impl Number for i128 {}
impl Number for f64 {}

fn fold<const N: usize, T: Number>(
    parts: &[&[u8]],
    read: impl Fn([u8; N]) -> T,
    op: c_int,
    write: impl Fn(T, i128) -> [u8; N],
) -> Vec<u8> {
    let (Some(first), world) = (parts.first(), parts.len() as i128) else { return Vec::new() };
    let element = |part: &[u8], at: usize| {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&part[at..at + N]);
        read(bytes)
    };
    let places = (0..first.len()).step_by(N);
    let reduced = places.map(|at| {
        let all = parts.iter().map(|part| element(part, at));
        all.reduce(|one, other| match op {
            1 => one * other,
            2 => {
                if other > one {
                    other
                } else {
                    one
                }
            }
            3 => {
                if other < one {
                    other
                } else {
                    one
                }
            }
            _ => one + other,
        })
    });
    reduced.flatten().flat_map(|value| write(value, world)).collect()
}
