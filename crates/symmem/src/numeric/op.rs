//! The reduce operations, and which element types each of them is for.

use super::DType;
use crate::named::named;
use crate::{Error, Result};

named! {
    /// How the elements of all ranks become one. `docs/numerics.md` has the exact rules.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ReduceOp read as "reduce operation" {
        /// Every operation.
        ALL: {
            /// The sum. Integers wrap.
            Sum = "sum",
            /// The sum, then divided once by the number of ranks. Integers round towards zero.
            Avg = "avg",
            /// The smallest. NaN if any is NaN; -0.0 is less than +0.0.
            Min = "min",
            /// The largest. NaN if any is NaN; -0.0 is less than +0.0.
            Max = "max",
            /// The product. Integers wrap.
            Prod = "prod",
            /// Bitwise and; for `bool` whether all are true.
            And = "and",
            /// Bitwise or; for `bool` whether any is true.
            Or = "or",
            /// Bitwise exclusive or; for `bool` whether an odd number is true.
            Xor = "xor",
        }
    }
}

impl ReduceOp {
    /// Whether it works on the bits and not on the number.
    pub(super) const fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
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
