//! What can be an element of symmetric memory: plain data, any bits valid, no padding.

use bytemuck::Pod;

use super::{Bool, F8E4M3, F8E5M2, bf16, f16};
use crate::named::named;
use crate::{Error, Result};

named! {
    /// The type of an element, as ranks compare it at rendezvous.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    #[allow(missing_docs)]
    pub enum DType read as "element type" {
        /// Every one.
        ALL: {
            U8 = "u8",
            I8 = "i8",
            U16 = "u16",
            I16 = "i16",
            U32 = "u32",
            I32 = "i32",
            U64 = "u64",
            I64 = "i64",
            F8E4M3 = "f8e4m3",
            F8E5M2 = "f8e5m2",
            F16 = "f16",
            BF16 = "bf16",
            F32 = "f32",
            F64 = "f64",
            Bool = "bool",
        }
    }
}

impl DType {
    /// Its name in numpy and torch.
    pub const fn long_name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F8E4M3 => "float8_e4m3fn",
            Self::F8E5M2 => "float8_e5m2",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::Bool => "bool",
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::F8E4M3 | Self::F8E5M2 | Self::Bool => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2 | Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }
}

mod sealed {
    /// Only this module can implement it, and so [`super::Element`].
    pub trait Sealed {}
}

/// A type that symmetric memory can hold: those of [`DType`].
///
/// No others: kernels go by [`Element::DTYPE`] and believe that it says how long an element is. Data of a
/// type of one's own travels as elements of these, for example by `bytemuck::cast_slice`.
///
/// ```
/// use bytemuck::{Pod, Zeroable};
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(transparent)]
/// struct Mine(u8);
/// assert_eq!(bytemuck::cast_slice::<Mine, u8>(&[Mine(7)]), [7]);
/// ```
///
/// The same type is no element, and cannot be made one:
///
/// ```compile_fail,E0277
/// use bytemuck::{Pod, Zeroable};
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(transparent)]
/// struct Mine(u8);
/// impl symmem::Element for Mine {
///     const DTYPE: symmem::DType = symmem::DType::U64;
/// }
/// ```
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// Its name among the ranks.
    const DTYPE: DType;
}

/// The error for `len` elements from element `start` on, where there are only `have`.
pub(crate) fn out_of_bounds<T>(op: &'static str, start: usize, len: usize, have: usize) -> Error {
    let bytes = |elements: usize| (elements as u64).saturating_mul(size_of::<T>() as u64);
    Error::OutOfBounds { op, offset: bytes(start), bytes: bytes(len), size: bytes(have) }
}

/// Whether `len` elements of `T` from byte `start` on are aligned and within `bytes`.
pub(crate) fn fit<T: Element>(op: &'static str, start: usize, len: usize, bytes: usize) -> Result<()> {
    // Memory starts at a page, and no element is aligned to more than its size.
    if !start.is_multiple_of(size_of::<T>()) {
        return Err(uneven::<T>("offset", start));
    }
    let end = len.checked_mul(size_of::<T>()).and_then(|length| length.checked_add(start));
    match end.is_some_and(|end| end <= bytes) {
        true => Ok(()),
        false => Err(Error::OutOfBounds {
            op,
            offset: start as u64,
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
            size: bytes as u64,
        }),
    }
}

/// The `offset` and `len` that count elements of `T`, which are in range, counted in elements of `U`.
pub(crate) fn recount<T: Element, U: Element>(offset: usize, len: usize) -> Result<(usize, usize)> {
    let (offset, len) = (offset * size_of::<T>(), len * size_of::<T>());
    if !offset.is_multiple_of(size_of::<U>()) {
        return Err(uneven::<U>("offset", offset));
    }
    if !len.is_multiple_of(size_of::<U>()) {
        return Err(uneven::<U>("length", len));
    }
    Ok((offset / size_of::<U>(), len / size_of::<U>()))
}

#[cold]
fn uneven<T: Element>(what: &'static str, bytes: usize) -> Error {
    let problem = format!("{bytes} bytes are not a multiple of the {} bytes of {}", size_of::<T>(), T::DTYPE);
    Error::invalid(what, problem)
}

macro_rules! elements {
    ($dollar:tt: $($type:ty => $dtype:ident),*) => {
        $(
            impl sealed::Sealed for $type {}

            impl Element for $type {
                const DTYPE: DType = DType::$dtype;
            }

            // What kernels and addresses rely on: memory starts at a page, and elements at multiples of their
            // size.
            const _: () = {
                assert!(DType::$dtype.size() == size_of::<$type>());
                assert!(align_of::<$type>() <= size_of::<$type>() && size_of::<$type>().is_power_of_two());
            };
        )*

        /// Every element type has a name of its own.
        const _: () = assert!(DType::ALL.len() == [$(DType::$dtype),*].len());

        /// Runs `$body` with `$T` standing for the type that `$dtype` names:
        /// `with_type!(dtype, T => work::<T>())`.
        macro_rules! with_type {
            ($dollar dtype:expr, $dollar T:ident => $dollar body:expr) => {{
                #[allow(unused_imports, reason = "some are in scope already")]
                use crate::numeric::{Bool, F8E4M3, F8E5M2, bf16, f16};
                match $dollar dtype {
                    $(crate::numeric::DType::$dtype => {
                        type $dollar T = $type;
                        $dollar body
                    })*
                }
            }};
        }
        pub(crate) use with_type;
    };
}

elements!(
    $: u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, Bool => Bool
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_must_be_aligned_and_in_range() {
        assert!(fit::<f32>("test", 4, 3, 16).is_ok());
        assert!(fit::<f32>("test", 16, 0, 16).is_ok());
        assert!(matches!(fit::<f32>("test", 4, 4, 16), Err(Error::OutOfBounds { .. })));
        assert!(matches!(fit::<f32>("test", 0, usize::MAX, 16), Err(Error::OutOfBounds { .. })));
        assert!(matches!(fit::<f32>("test", 2, 1, 16), Err(Error::Invalid { .. })));
    }

    #[test]
    fn elements_are_recounted_only_where_they_come_out_even() {
        assert_eq!(recount::<u8, u32>(8, 4).unwrap(), (2, 1));
        assert_eq!(recount::<f64, bf16>(3, 2).unwrap(), (12, 8));
        assert!(recount::<u8, u32>(2, 4).is_err());
        assert!(recount::<u8, u32>(4, 3).is_err());
    }
}
