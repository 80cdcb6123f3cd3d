//! Numbers: the types of elements, the reduce operations, and the kernels that collectives are built on.
//!
//! Collectives take a [`ReduceKernel`] for their element type and operation, and let it run over the ranks'
//! buffers. What it guarantees, on every path, is the contract in `docs/numerics.md`: ranks in order, small
//! floats accumulated in f32 and rounded once, one NaN, subnormals kept; the same bits from every instruction
//! set.
//!
//! A kernel is a way through a [`job`] (the portable [`loops`], or [`registers`] of an instruction set) by
//! units of elements ([`lanes`]) folded by an operation ([`fold`]). Instruction sets are [`portable`],
//! [`avx2`] and [`avx512`]; [`dispatch`] chooses, and [`scalar`] is the reference that all are tested
//! against.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod boolean;
mod dispatch;
pub(crate) mod element;
mod environment;
mod f8;
mod fold;
mod identity;
mod job;
mod lanes;
mod loops;
mod minifloat;
pub(crate) mod norm;
mod number;
mod op;
mod portable;
pub(crate) mod product;
#[cfg(target_arch = "x86_64")]
mod registers;
mod scalar;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use half::{bf16, f16};

pub use self::boolean::Bool;
pub(crate) use self::dispatch::{Isa, ReduceKernel};
pub(crate) use self::element::with_type;
pub use self::element::{DType, Element};
pub use self::f8::{F8E4M3, F8E5M2};
pub(crate) use self::identity::identity;
pub use self::op::ReduceOp;
