//! The reference: the numeric contract in its plainest form, element by element, against which every other
//! path is tested.
//!
//! It shares no arithmetic with them: f16 and bf16 are converted by `half`, integers divide as `i128`, floats
//! are ordered by `total_cmp`.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use bytemuck::Pod;
use half::{bf16, f16};

use super::boolean::Bool;
use super::f8::{F8E4M3, F8E5M2};
use super::job::{KernelJob, Run};
use super::{DType, ReduceOp};

/// The reference for elements of `dtype`, for every operation that makes sense for it.
pub(super) fn kernel(dtype: DType) -> Run {
    match dtype {
        DType::U8 => run::<u8>,
        DType::I8 => run::<i8>,
        DType::U16 => run::<u16>,
        DType::I16 => run::<i16>,
        DType::U32 => run::<u32>,
        DType::I32 => run::<i32>,
        DType::U64 => run::<u64>,
        DType::I64 => run::<i64>,
        DType::F8E4M3 => run::<F8E4M3>,
        DType::F8E5M2 => run::<F8E5M2>,
        DType::F16 => run::<f16>,
        DType::BF16 => run::<bf16>,
        DType::F32 => run::<f32>,
        DType::F64 => run::<f64>,
        DType::Bool => run::<Bool>,
    }
}

/// An element and its accumulator.
trait Cell: Pod {
    type Accumulator: Copy;

    fn widen(self) -> Self::Accumulator;

    fn fold(op: ReduceOp, accumulator: Self::Accumulator, next: Self::Accumulator) -> Self::Accumulator;

    fn share(accumulator: Self::Accumulator, world: usize) -> Self::Accumulator;

    fn narrow(accumulator: Self::Accumulator) -> Self;
}

/// # Safety
/// As for [`Run`].
unsafe fn run<C: Cell>(job: &KernelJob<'_>) {
    for i in 0..job.len {
        // SAFETY: the element is within the buffers, which are the caller's duty; elements are plain data.
        let read = |src: *const u8| unsafe { src.cast::<C>().add(i).read_unaligned() }.widen();
        let mut accumulator = read(job.srcs[0]);
        for &src in &job.srcs[1..] {
            accumulator = C::fold(job.op, accumulator, read(src));
        }
        if job.op == ReduceOp::Avg {
            accumulator = C::share(accumulator, job.srcs.len());
        }
        for dst in job.dsts {
            // SAFETY: as above.
            unsafe { dst.cast::<C>().add(i).write_unaligned(C::narrow(accumulator)) }
        }
    }
}

macro_rules! integers {
    ($($int:ty),*) => {
        $(impl Cell for $int {
            type Accumulator = $int;

            fn widen(self) -> $int {
                self
            }

            fn fold(op: ReduceOp, accumulator: $int, next: $int) -> $int {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => accumulator.wrapping_add(next),
                    ReduceOp::Prod => accumulator.wrapping_mul(next),
                    ReduceOp::Min => accumulator.min(next),
                    ReduceOp::Max => accumulator.max(next),
                    ReduceOp::And => accumulator & next,
                    ReduceOp::Or => accumulator | next,
                    ReduceOp::Xor => accumulator ^ next,
                }
            }

            fn share(accumulator: $int, world: usize) -> $int {
                (accumulator as i128 / world as i128) as $int
            }

            fn narrow(accumulator: $int) -> $int {
                accumulator
            }
        })*
    };
}

/// `$wide` is the accumulator.
macro_rules! floats {
    ($($float:ty, $wide:ty: $widen:expr, $narrow:expr, $nan:expr);*) => {
        $(impl Cell for $float {
            type Accumulator = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn fold(op: ReduceOp, accumulator: $wide, next: $wide) -> $wide {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => accumulator + next,
                    ReduceOp::Prod => accumulator * next,
                    _ if accumulator.is_nan() || next.is_nan() => <$wide>::NAN,
                    ReduceOp::Min if next.total_cmp(&accumulator).is_lt() => next,
                    ReduceOp::Max if next.total_cmp(&accumulator).is_gt() => next,
                    // No other operation is ever selected for a float.
                    _ => accumulator,
                }
            }

            fn share(accumulator: $wide, world: usize) -> $wide {
                accumulator / world as $wide
            }

            fn narrow(accumulator: $wide) -> $float {
                if accumulator.is_nan() { $nan } else { $narrow(accumulator) }
            }
        })*
    };
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);
floats!(
    f32, f32: std::convert::identity, std::convert::identity, f32::NAN;
    f64, f64: std::convert::identity, std::convert::identity, f64::NAN;
    f16, f32: f16::to_f32, f16::from_f32, f16::NAN;
    bf16, f32: bf16::to_f32, bf16::from_f32, bf16::NAN;
    F8E4M3, f32: F8E4M3::to_f32, F8E4M3::from_f32, F8E4M3::NAN;
    F8E5M2, f32: F8E5M2::to_f32, F8E5M2::from_f32, F8E5M2::NAN
);

impl Cell for Bool {
    type Accumulator = bool;

    fn widen(self) -> bool {
        self.get()
    }

    fn fold(op: ReduceOp, accumulator: bool, next: bool) -> bool {
        match op {
            ReduceOp::And => accumulator && next,
            ReduceOp::Or => accumulator || next,
            // No other operation is ever selected for a truth value.
            _ => accumulator != next,
        }
    }

    fn share(accumulator: bool, _world: usize) -> bool {
        accumulator
    }

    fn narrow(accumulator: bool) -> Self {
        accumulator.into()
    }
}
