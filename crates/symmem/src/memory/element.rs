//! What can be an element of symmetric memory: plain data, any bits valid, no padding.

use std::fmt;

use bytemuck::Pod;

use crate::numeric::{Bool, F8E4M3, F8E5M2, bf16, f16};

/// The type of an element, as ranks compare it at rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F8E4M3,
    F8E5M2,
    F16,
    BF16,
    F32,
    F64,
    Bool,
}

impl DType {
    /// Every one.
    pub const ALL: [Self; 15] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::Bool,
    ];

    /// Its name in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F8E4M3 => "f8e4m3",
            Self::F8E5M2 => "f8e5m2",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
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

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type that symmetric memory can hold.
pub trait Element: Pod + Send + Sync {
    /// Its name among the ranks.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        })*

        #[cfg(test)]
        #[test]
        fn sizes_agree() {
            $(assert_eq!(<$type as Element>::DTYPE.size(), size_of::<$type>());)*
        }
    };
}

elements!(
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    F8E4M3 => F8E4M3, F8E5M2 => F8E5M2, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, Bool => Bool
);
