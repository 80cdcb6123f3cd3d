//! From element type, operation and processor to a kernel.
//!
//! The choice of the instruction set is local and never changes the bits.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use std::sync::OnceLock;

use super::environment::Environment;
use super::fold::{And, Avg, Max, Min, Or, Prod, Sum, Xor};
use super::job::{KernelJob, KernelLoop, Run, Target};
use super::lanes::{Item, Lanes};
use super::number::{Bits, Number};
use super::portable::Portable;
use super::{DType, ReduceOp, op, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Result;
use crate::sys::copy::Stores;

/// An instruction set that kernels are compiled for, the better the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// The reference, element by element.
    Scalar,
    /// What every processor of the architecture has.
    Portable,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512: F, BW, DQ and VL.
    Avx512,
    /// That and AVX512-BF16.
    Avx512Bf16,
}

impl Isa {
    pub(crate) const ALL: [Self; 5] =
        [Self::Scalar, Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// Whether this processor has it.
    pub(crate) fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::is_available(),
            // What it adds to is there as well, so that the kernels of AVX2 are always a lesser choice.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx2::is_available() && avx512::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => Self::Avx512.is_available() && avx512::rounds_to_bf16(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 | Self::Avx512Bf16 => false,
        }
    }

    /// Whether this processor has it, and is the faster for it.
    fn is_worth_it(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx512Bf16 => self.is_available() && avx512::runs_at_full_clock(),
            _ => self.is_available(),
        }
    }

    /// This one, or the best below it that has code of its own for `dtype`.
    pub(super) fn own_code(self, dtype: DType) -> Self {
        let has_wide_floats = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        match self {
            Self::Avx512Bf16 if dtype == DType::BF16 => self,
            Self::Avx512 | Self::Avx512Bf16 if has_wide_floats => Self::Avx512,
            Self::Avx512 | Self::Avx512Bf16 => Self::Avx2,
            _ => self,
        }
    }

    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Scalar => "element by element",
            Self::Portable => "portable vectors",
            Self::Avx2 => "AVX2 and F16C",
            Self::Avx512 => "AVX-512",
            Self::Avx512Bf16 => "AVX-512 with BF16",
        }
    }

    /// The best for this processor.
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::ALL.into_iter().rev().find(|isa| isa.is_worth_it()).unwrap_or(Self::Portable)
        })
    }
}

/// The code that reduces elements of one type by one operation.
#[derive(Clone, Copy)]
pub(crate) struct ReduceKernel {
    run: Run,
    /// How many of the kernel's elements are one element: kernels that work on the bits take bytes.
    scale: usize,
    dtype: DType,
    op: ReduceOp,
    isa: Isa,
}

impl ReduceKernel {
    /// The best for this processor, or why `op` makes no sense for `dtype`. Found once, then by two indices:
    /// it is on the way of every reduction.
    #[inline]
    pub(crate) fn select(dtype: DType, op: ReduceOp) -> Result<&'static Self> {
        static KERNELS: [[OnceLock<ReduceKernel>; ReduceOp::ALL.len()]; DType::ALL.len()] =
            [const { [const { OnceLock::new() }; ReduceOp::ALL.len()] }; DType::ALL.len()];
        let place = &KERNELS[dtype as usize][op as usize];
        match place.get() {
            Some(kernel) => Ok(kernel),
            None => Self::for_isa(dtype, op, Isa::best()).map(|kernel| place.get_or_init(|| kernel)),
        }
    }

    /// The one for `isa`, or the best one if this processor does not have that; or a lesser one where that
    /// has no code of its own.
    pub(crate) fn for_isa(dtype: DType, op: ReduceOp, isa: Isa) -> Result<Self> {
        op::check(op, dtype)?;
        let isa = if isa.is_available() { isa } else { Isa::best() }.own_code(dtype);
        let run = match isa {
            Isa::Scalar => scalar::kernel(dtype),
            Isa::Portable => kernel::<Portable>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => kernel::<avx2::Avx2>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => wide_floats::<avx512::Avx512>(dtype, op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => arithmetic::<avx512::Avx512Bf16, avx512::Rounded>(op),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => kernel::<Portable>(dtype, op),
        };
        let scale = if op.is_bitwise() && isa > Isa::Scalar { dtype.size() } else { 1 };
        Ok(Self { run, scale, dtype, op, isa })
    }

    /// The instruction set it uses.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// `dst[i] = op(srcs[0][i], srcs[1][i], ...)` for `len` elements, in this order.
    ///
    /// # Safety
    /// As for [`ReduceKernel::reduce_to_many`].
    #[inline]
    pub(crate) unsafe fn reduce(&self, dst: *mut u8, srcs: &[*const u8], len: usize) {
        // SAFETY: the caller's duty.
        unsafe { self.reduce_to_many(&[dst], srcs, len, Stores::Cached) }
    }

    /// As [`ReduceKernel::reduce`], with the same result written to every one of `dsts`. Without a source
    /// nothing is written.
    ///
    /// # Safety
    /// Every pointer must be valid for `len` elements of the kernel's type, of any alignment. A destination
    /// must be equal to a source or overlap none of them, and no two destinations may overlap. Until the call
    /// returns nobody else may write to any of this memory or read the destinations.
    #[inline]
    pub(crate) unsafe fn reduce_to_many(
        &self,
        dsts: &[*mut u8],
        srcs: &[*const u8],
        len: usize,
        stores: Stores,
    ) {
        if srcs.is_empty() || len == 0 {
            return;
        }
        let job = KernelJob { dsts, srcs, len: len * self.scale, stores, op: self.op };
        let _environment = self.dtype.is_float().then(Environment::enter);
        // SAFETY: the caller's duty; the kernel was selected for this processor.
        unsafe { (self.run)(&job) }
    }
}

/// [`kernel`], for the types whose code is [`Isa::Avx512`]'s own: the others are not compiled.
#[cfg(target_arch = "x86_64")]
fn wide_floats<T: Target>(dtype: DType, op: ReduceOp) -> Run {
    match dtype {
        DType::F16 => arithmetic::<T, T::F16>(op),
        DType::BF16 => arithmetic::<T, T::BF16>(op),
        DType::F32 => arithmetic::<T, T::F32>(op),
        _ => arithmetic::<T, T::F64>(op),
    }
}

/// The kernel for what [`op::check`] lets pass.
fn kernel<T: Target>(dtype: DType, op: ReduceOp) -> Run {
    match dtype {
        DType::Bool => bitwise::<T, T::Bool>(op),
        _ if op.is_bitwise() => bitwise::<T, T::U8>(op),
        DType::I8 => arithmetic::<T, T::I8>(op),
        DType::I16 => arithmetic::<T, T::I16>(op),
        DType::I32 => arithmetic::<T, T::I32>(op),
        DType::I64 => arithmetic::<T, T::I64>(op),
        DType::U8 => unsigned::<T, T::U8, T::I8>(op),
        DType::U16 => unsigned::<T, T::U16, T::I16>(op),
        DType::U32 => unsigned::<T, T::U32, T::I32>(op),
        DType::U64 => unsigned::<T, T::U64, T::I64>(op),
        DType::F8E4M3 => arithmetic::<T, T::F8E4M3>(op),
        DType::F8E5M2 => arithmetic::<T, T::F8E5M2>(op),
        DType::F16 => arithmetic::<T, T::F16>(op),
        DType::BF16 => arithmetic::<T, T::BF16>(op),
        DType::F32 => arithmetic::<T, T::F32>(op),
        DType::F64 => arithmetic::<T, T::F64>(op),
    }
}

fn arithmetic<T: KernelLoop, L: Lanes>(op: ReduceOp) -> Run
where
    Item<L>: Number,
{
    match op {
        ReduceOp::Sum => T::run::<L, Sum>,
        ReduceOp::Prod => T::run::<L, Prod>,
        _ => ordered::<T, L>(op),
    }
}

/// Wrapping sums and products have the same bits with a sign and without: they share the code.
fn unsigned<T: KernelLoop, L: Lanes, S: Lanes>(op: ReduceOp) -> Run
where
    Item<L>: Number,
    Item<S>: Number,
{
    match op {
        ReduceOp::Sum | ReduceOp::Prod => arithmetic::<T, S>(op),
        _ => ordered::<T, L>(op),
    }
}

/// What depends on the sign.
fn ordered<T: KernelLoop, L: Lanes>(op: ReduceOp) -> Run
where
    Item<L>: Number,
{
    match op {
        ReduceOp::Min => T::run::<L, Min>,
        ReduceOp::Max => T::run::<L, Max>,
        _ => T::run::<L, Avg>,
    }
}

fn bitwise<T: KernelLoop, L: Lanes>(op: ReduceOp) -> Run
where
    Item<L>: Bits,
{
    match op {
        ReduceOp::And => T::run::<L, And>,
        ReduceOp::Or => T::run::<L, Or>,
        _ => T::run::<L, Xor>,
    }
}
