//! Element types and reductions as NCCL numbers them.

use std::ffi::c_int;

use super::bindings::FP8;
use super::library::NcclLibrary;
use crate::numeric::{DType, ReduceOp};
use crate::{Error, Result};

/// The number of `dtype` for operations that only move; how many of NCCL's elements one of ours is. What NCCL
/// does not have moves as bytes.
pub(super) fn moved(nccl: &NcclLibrary, dtype: DType) -> (c_int, usize) {
    match number(dtype) {
        Some(number) if !is_fp8(dtype) || nccl.check(FP8).is_ok() => (number, 1),
        _ => (U8, dtype.size()),
    }
}

/// The number of `dtype` for operations that reduce.
pub(super) fn reduced(nccl: &NcclLibrary, dtype: DType) -> Result<c_int> {
    if is_fp8(dtype) {
        nccl.check(FP8)?;
    }
    number(dtype).ok_or_else(|| {
        let problem = format!("NCCL does not reduce {dtype}. Hint: it has i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64 and 8-bit floats");
        Error::invalid("element type", problem)
    })
}

const U8: c_int = 1;

fn number(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 => U8,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 11,
        DType::U16 | DType::I16 | DType::Bool => return None,
    })
}

fn is_fp8(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2)
}

/// The number of a reduction.
pub(super) fn operation(op: ReduceOp) -> Result<c_int> {
    match op {
        ReduceOp::Sum => Ok(0),
        ReduceOp::Prod => Ok(1),
        ReduceOp::Max => Ok(2),
        ReduceOp::Min => Ok(3),
        ReduceOp::Avg => Ok(4),
        _ => {
            let problem = format!("NCCL has no {op}. Hint: it has sum, prod, max, min and avg");
            Err(Error::invalid("reduce operation", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        let numbers: Vec<_> = DType::ALL.into_iter().filter_map(number).collect();
        assert_eq!(numbers, [1, 0, 3, 2, 5, 4, 10, 11, 6, 9, 7, 8]);
        assert_eq!(number(DType::Bool), None);
        let ops: Vec<_> = ReduceOp::ALL.into_iter().filter_map(|op| operation(op).ok()).collect();
        assert_eq!(ops, [0, 4, 3, 2, 1]);
        assert!(operation(ReduceOp::Xor).unwrap_err().to_string().contains("no xor"));
    }
}
