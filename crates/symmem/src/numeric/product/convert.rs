//! Rows of elements as f32, and back.

#![allow(unsafe_code, reason = "kernels over raw elements")]

use crate::numeric::minifloat::{self, Binary16};
use crate::numeric::{DType, Element};
use crate::sys::copy;

/// Small floats that are widened at once.
const CHUNK: usize = 256;

/// Copies `len` elements of `dtype` to `to` as f32; exact. Of types that no product is made of, nothing. They
/// are read by opaque copies: what a peer writes meanwhile gives any numbers, and nothing worse.
///
/// # Safety
/// Both must be valid for as many, and not overlap; `from` may be anywhere, and written meanwhile.
#[inline]
pub(in crate::numeric) unsafe fn widen(dtype: DType, from: *const u8, len: usize, to: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe {
        match dtype {
            DType::F32 => copy::read(from, to.cast(), len * size_of::<f32>()),
            DType::BF16 => widen_halves(from, len, to, |bits| f32::from_bits(u32::from(bits) << 16)),
            DType::F16 => widen_halves(from, len, to, |bits| minifloat::widen::<Binary16>(bits.into())),
            _ => {}
        }
    }
}

/// [`widen`] of a slice.
pub(in crate::numeric) fn widen_slice<T: Element>(from: &[T], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: as many of both.
    unsafe { widen(T::DTYPE, from.as_ptr().cast(), from.len(), to.as_mut_ptr()) };
}

/// [`narrow`] to a slice.
pub(in crate::numeric) fn narrow_slice<T: Element>(from: &[f32], to: &mut [T]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: as many of both.
    unsafe { narrow(from.as_ptr(), from.len(), T::DTYPE, to.as_mut_ptr().cast()) };
}

/// # Safety
/// As for [`widen`].
#[inline(always)]
unsafe fn widen_halves(from: *const u8, len: usize, to: *mut f32, widen: impl Fn(u16) -> f32) {
    let mut bits = [0u16; CHUNK];
    for start in (0..len).step_by(CHUNK) {
        let chunk = &mut bits[..CHUNK.min(len - start)];
        // SAFETY: the caller's duty.
        unsafe {
            copy::read(from.add(2 * start), chunk.as_mut_ptr().cast(), size_of_val(chunk));
            for (at, bits) in chunk.iter().enumerate() {
                *to.add(start + at) = widen(*bits);
            }
        }
    }
}

/// Copies `len` f32 to `to` as elements of `dtype`, each rounded once.
///
/// # Safety
/// Both must be valid for as many, not overlap, and be used by nobody else; `to` may be anywhere.
#[inline]
pub(in crate::numeric) unsafe fn narrow(from: *const f32, len: usize, dtype: DType, to: *mut u8) {
    let halves = to.cast::<u16>();
    // SAFETY: the caller's duty.
    unsafe {
        match dtype {
            DType::F32 => from.cast::<u8>().copy_to_nonoverlapping(to, len * size_of::<f32>()),
            DType::BF16 => (0..len).for_each(|at| {
                let bits = minifloat::narrow_to_bf16(*from.add(at)) >> 16;
                halves.add(at).write_unaligned(bits as u16);
            }),
            DType::F16 => (0..len).for_each(|at| {
                halves.add(at).write_unaligned(minifloat::narrow::<Binary16>(*from.add(at)));
            }),
            _ => {}
        }
    }
}
