//! cuBLASLt: products of matrices in device memory, in the order of a stream.
//!
//! Called by engines. It knows no ranks and waits for nothing. Nothing here needs the library to build: it is
//! looked for when the first [`Multiplier`] is made, and where there is none, or one that is too old, that
//! call returns [`Error::NoLibrary`](crate::Error::NoLibrary) or
//! [`Error::LibraryTooOld`](crate::Error::LibraryTooOld). What all calls guarantee: the caller's current
//! context is what it was before, and nothing is a panic. Sums are made in f32, those of f32 without TF32,
//! and are rounded once.
//!
//! | file | what it is |
//! |---|---|
//! | `library.rs` | which cuBLASLt, and its C interface, by hand: cudarc's layer panics where it is missing |
//! | `product.rs` | a product: what it is, and the algorithm that is chosen for it once |

mod library;
mod product;

pub(crate) use self::library::version;
pub(crate) use self::product::{Multiplier, Product, ProductShape, WORKSPACE};
