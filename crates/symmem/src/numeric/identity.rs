//! What a reduction of nothing gives: the value that changes no other.
//!
//! For exclusive scans, whose first rank has no ranks before it. `docs/numerics.md` lists the values.

use super::{DType, Element, ReduceOp, bf16, f16};

/// The value that changes no other in a reduction by `op`, which elements of type `T` have.
pub(crate) fn identity<T: Element>(op: ReduceOp) -> T {
    let bits = bits(T::DTYPE, op).to_le_bytes();
    bytemuck::pod_read_unaligned(&bits[..size_of::<T>()])
}

/// Its bits, the lowest ones first.
fn bits(dtype: DType, op: ReduceOp) -> u64 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Or | ReduceOp::Xor => 0,
        ReduceOp::And if dtype == DType::Bool => 1,
        ReduceOp::And => u64::MAX,
        ReduceOp::Prod => one(dtype),
        ReduceOp::Min => highest(dtype),
        ReduceOp::Max => lowest(dtype),
    }
}

fn one(dtype: DType) -> u64 {
    match dtype {
        DType::F64 => 1f64.to_bits(),
        DType::F32 => 1f32.to_bits().into(),
        DType::F16 => f16::ONE.to_bits().into(),
        DType::BF16 => bf16::ONE.to_bits().into(),
        DType::F8E4M3 => 0x38,
        DType::F8E5M2 => 0x3c,
        _ => 1,
    }
}

/// Infinity, or the largest number where there is none.
fn highest(dtype: DType) -> u64 {
    match dtype {
        DType::F64 => f64::INFINITY.to_bits(),
        DType::F32 => f32::INFINITY.to_bits().into(),
        DType::F16 => f16::INFINITY.to_bits().into(),
        DType::BF16 => bf16::INFINITY.to_bits().into(),
        DType::F8E4M3 => 0x7e,
        DType::F8E5M2 => 0x7c,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => sign(dtype) - 1,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => u64::MAX,
        DType::Bool => 1,
    }
}

/// Its opposite.
fn lowest(dtype: DType) -> u64 {
    match dtype {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => 0,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => sign(dtype),
        _ => highest(dtype) | sign(dtype),
    }
}

/// The highest bit of an element.
fn sign(dtype: DType) -> u64 {
    1 << (8 * dtype.size() - 1)
}
