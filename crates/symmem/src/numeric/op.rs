//! The reduce operations, and which element types each of them is for.

use std::fmt;

use super::DType;
use crate::{Error, Result};

/// How the elements of all ranks become one. `docs/numerics.md` has the exact rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The sum, then divided once by the number of ranks. Integers round towards zero.
    Avg,
    /// The smallest. NaN if any is NaN; -0.0 is less than +0.0.
    Min,
    /// The largest. NaN if any is NaN; -0.0 is less than +0.0.
    Max,
    /// The product. Integers wrap.
    Prod,
    /// Bitwise and; for `bool` whether all are true.
    And,
    /// Bitwise or; for `bool` whether any is true.
    Or,
    /// Bitwise exclusive or; for `bool` whether an odd number is true.
    Xor,
}

impl ReduceOp {
    /// Every operation.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Avg, Self::Min, Self::Max, Self::Prod, Self::And, Self::Or, Self::Xor];

    /// Its name in messages, on the command line and in Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
        }
    }

    /// Whether it works on the bits and not on the number.
    pub(super) const fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether `op` makes sense for `dtype`; the error says what to do instead.
pub(crate) fn check(op: ReduceOp, dtype: DType) -> Result<()> {
    let hint = match (op.is_bitwise(), dtype) {
        (true, dtype) if dtype.is_float() => {
            "floats have sum, avg, min, max and prod; to combine their bits, use an unsigned integer of the same size"
        }
        (false, DType::Bool) => "bool has and (all), or (any) and xor; to count, use an integer",
        _ => return Ok(()),
    };
    Err(Error::invalid("reduce operation", format!("{op} of {dtype} has no meaning: {hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operations_that_make_sense() {
        for op in ReduceOp::ALL {
            assert!(check(op, DType::I32).is_ok() && check(op, DType::U8).is_ok());
            for float in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2] {
                assert_eq!(check(op, float).is_ok(), !op.is_bitwise(), "{op} {float}");
            }
            assert_eq!(check(op, DType::Bool).is_ok(), op.is_bitwise());
        }
        let message = check(ReduceOp::And, DType::BF16).unwrap_err().to_string();
        assert!(message.contains("and of bf16"), "{message}");
    }
}
