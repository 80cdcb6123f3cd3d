//! What can be an element of symmetric memory: plain data, any bits valid, no padding.

use bytemuck::Pod;

/// The type of an element, as ranks compare it at rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    F32,
    F64,
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
    };
}

elements!(
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64
);
