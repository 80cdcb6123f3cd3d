//! The scalar reference that results are compared with: one element at a time, ranks in order, none of the
//! library's kernels. Small floats are summed in f32 and rounded once.

use symmem::collectives::Output;
use symmem::{DType, bf16, f16};

use super::case::{Case, ROOT};
use super::pattern::Pattern;

/// How near a result must be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Accuracy {
    /// The same bits.
    Exact,
    /// For systems that sum in any order and precision.
    Close,
}

/// Whether `result`, in bytes, is what `rank` must have after `iteration`.
pub(super) fn is_right(
    case: &Case,
    (rank, ranks): (usize, usize),
    iteration: u64,
    accuracy: Accuracy,
    result: &[u8],
) -> bool {
    let patterns: Vec<Pattern> = (0..ranks).map(|from| Pattern::new(case.dtype, from, iteration)).collect();
    // What is no collective gives nothing.
    let Some(row) = case.op.row() else { return true };
    if row.is_to_root() && rank != ROOT {
        return true;
    }
    let (part, givers) = (case.len() / ranks, row.givers(rank, ROOT, ranks));
    let is_right = |(at, got): (usize, u64)| {
        let (from, at) = match row.output {
            Output::Share => (givers.clone(), rank * part + at),
            Output::Whole => (at / part..at / part + 1, at % part),
            Output::Same if row.parts => (at / part..at / part + 1, rank * part + at % part),
            _ => (givers.clone(), at),
        };
        is_sum(case.dtype, patterns[from].iter().map(|pattern| pattern.element(at)), got, accuracy)
    };
    result.chunks_exact(case.dtype.size()).map(bits_of).enumerate().all(is_right)
}

fn bits_of(element: &[u8]) -> u64 {
    let mut bits = [0; 8];
    bits[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(bits)
}

/// Whether `got` is the sum of `bits`.
fn is_sum(dtype: DType, bits: impl Iterator<Item = u64> + Clone, got: u64, accuracy: Accuracy) -> bool {
    let expected = sum(dtype, bits.clone());
    if got == expected || accuracy == Accuracy::Exact || !dtype.is_float() {
        return got == expected;
    }
    let scale: f64 = bits.clone().map(|bits| value(dtype, bits).abs()).sum();
    let tolerance = scale * bits.count() as f64 * epsilon(dtype);
    (value(dtype, got) - value(dtype, expected)).abs() <= tolerance
}

/// The bits of the sum of elements with these bits; of bools, whether any is true.
fn sum(dtype: DType, bits: impl Iterator<Item = u64>) -> u64 {
    let mask = u64::MAX >> (64 - 8 * dtype.size());
    match dtype {
        DType::F64 => bits.map(f64::from_bits).reduce(|a, b| a + b).map_or(0, f64::to_bits),
        DType::Bool => bits.fold(0, |any, bits| any | bits),
        dtype if dtype.is_float() => {
            let sum = bits.map(|bits| widen(dtype, bits)).reduce(|a, b| a + b).unwrap_or(0.0);
            narrow(dtype, sum)
        }
        _ => bits.fold(0u64, u64::wrapping_add) & mask,
    }
}

/// The value of an element as f64, to compare with a tolerance.
fn value(dtype: DType, bits: u64) -> f64 {
    if dtype == DType::F64 { f64::from_bits(bits) } else { widen(dtype, bits).into() }
}

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f32::EPSILON.into(),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F8E4M3 => 2f64.powi(-3),
        _ => 2f64.powi(-2),
    }
}

fn widen(dtype: DType, bits: u64) -> f32 {
    match dtype {
        DType::F32 => f32::from_bits(bits as u32),
        DType::F16 => f16::from_bits(bits as u16).to_f32(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        DType::F8E4M3 => widen_f8(bits as u8, 3),
        _ => widen_f8(bits as u8, 2),
    }
}

fn narrow(dtype: DType, value: f32) -> u64 {
    match dtype {
        DType::F32 => value.to_bits().into(),
        DType::F16 => f16::from_f32(value).to_bits().into(),
        DType::BF16 => bf16::from_f32(value).to_bits().into(),
        DType::F8E4M3 => narrow_f8(value, 3).into(),
        _ => narrow_f8(value, 2).into(),
    }
}

/// The value of a finite 8-bit float with so many bits of mantissa.
fn widen_f8(bits: u8, mantissa: i32) -> f32 {
    let bias = (1 << (6 - mantissa)) - 1;
    let exponent = i32::from(bits & 0x7f) >> mantissa;
    let fraction = f32::from(bits & ((1 << mantissa) - 1)) / 2f32.powi(mantissa);
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(1 - bias),
        _ => (1.0 + fraction) * 2f32.powi(exponent - bias),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The 8-bit float nearest to `value`, ties to even. Patterns are small, so that no sum of 64 ranks is out of
/// range.
fn narrow_f8(value: f32, mantissa: i32) -> u8 {
    // The bits of positive numbers are in the order of their values.
    let (mut below, mut above) = (0, 0x7b);
    while above - below > 1 {
        let middle = (below + above) / 2;
        if widen_f8(middle, mantissa) <= value.abs() { below = middle } else { above = middle }
    }
    let (down, up) = (value.abs() - widen_f8(below, mantissa), widen_f8(above, mantissa) - value.abs());
    let nearest = if down < up || (down == up && below % 2 == 0) { below } else { above };
    nearest | if value.is_sign_negative() { 0x80 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::case::Collective;
    use super::super::ours::open;
    use super::*;
    use crate::args::Memory;
    use symmem::{F8E4M3, F8E5M2};

    #[test]
    fn eight_bit_floats_agree_with_the_library() {
        for bits in (0..=0x7b).chain(0x80..=0xfb) {
            let (e4m3, e5m2) = (F8E4M3::from_bits(bits).to_f32(), F8E5M2::from_bits(bits).to_f32());
            assert_eq!(widen_f8(bits, 3).to_bits(), e4m3.to_bits());
            assert_eq!(widen_f8(bits, 2).to_bits(), e5m2.to_bits());
            for value in [e4m3, e4m3 * 1.03, e4m3 * 1.0625, e4m3 * 0.97] {
                if value.abs() < 300.0 {
                    assert_eq!(narrow_f8(value, 3), F8E4M3::from_f32(value).to_bits(), "{value}");
                }
            }
            for value in [e5m2, e5m2 * 1.1, e5m2 * 1.125, e5m2 * 0.9] {
                if value.abs() < 40_000.0 {
                    assert_eq!(narrow_f8(value, 2), F8E5M2::from_f32(value).to_bits(), "{value}");
                }
            }
        }
    }

    #[test]
    fn sums_are_in_rank_order_and_rounded_once() {
        let f32s = [1e8f32, 1.0, -1e8].map(|value| u64::from(value.to_bits()));
        assert_eq!(sum(DType::F32, f32s.into_iter()), u64::from(0f32.to_bits()));
        // Rounded after every step, the halves would be lost.
        let bf16s = [256.0, 1.0, 1.0].map(|value| u64::from(bf16::from_f32(value).to_bits()));
        assert_eq!(sum(DType::BF16, bf16s.into_iter()), u64::from(bf16::from_f32(258.0).to_bits()));
        assert_eq!(sum(DType::U8, [200, 100].into_iter()), 44);
        assert_eq!(sum(DType::I64, [u64::MAX, 2].into_iter()), 1);
        assert_eq!(sum(DType::Bool, [0, 1, 1].into_iter()), 1);
    }

    #[test]
    fn close_is_not_exact_and_not_anything() {
        let one = u64::from(1f32.to_bits());
        let two = u64::from(2f32.to_bits());
        let right = |got, accuracy| is_sum(DType::F32, [one, one].into_iter(), got, accuracy);
        assert!(right(two, Accuracy::Exact) && right(two, Accuracy::Close));
        assert!(!right(two + 1, Accuracy::Exact) && right(two + 1, Accuracy::Close));
        assert!(!right(two + 100, Accuracy::Close));
    }

    #[test]
    fn what_the_library_gives_is_right_and_nothing_else() {
        for op in Collective::ALL.iter().copied() {
            let case = Case::new(op, DType::U16, 24, 2);
            symmem::spawn(2, |group| {
                let place = (group.rank(), 2);
                let mut ours = open(&group, &case, Memory::Symmetric)?;
                ours.input(&|bytes| Pattern::new(DType::U16, place.0, 5).fill(bytes))?;
                ours.barrier()?;
                ours.operate()?;
                let right = |result: &[u8]| is_right(&case, place, 5, Accuracy::Exact, result);
                assert!(ours.output(&right)?, "{op:?}");
                // What others than the root have of a reduction to it is not looked at.
                if place.0 == ROOT {
                    let found = |result: &[u8]| {
                        let mut wrong = result.to_vec();
                        (0..wrong.len()).all(|at| {
                            wrong[at] ^= 1;
                            let found = !right(&wrong);
                            wrong[at] ^= 1;
                            found
                        })
                    };
                    assert!(ours.output(&found)?, "a wrong byte of {op:?} was not found");
                }
                ours.close()
            })
            .unwrap();
        }
    }
}
