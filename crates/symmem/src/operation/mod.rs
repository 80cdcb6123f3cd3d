//! Operations as data: their names, the algorithms that carry them, and what ranks say of a call to be
//! compared.
//!
//! Used by anything that announces, compares, chooses, records or shows operations. Nothing here runs one or
//! knows of a group, so every room above may use it.

mod algorithm;
mod op;
mod shape;
pub(crate) mod signature;
#[cfg(test)]
mod tests;
mod words;

pub use self::algorithm::Algorithm;
pub(crate) use self::algorithm::forced;
#[cfg(feature = "faults")]
pub use self::op::calls_of_all;
pub use self::op::{Collective, CollectiveRow, Output, ROWS};
pub(crate) use self::op::{Flow, Op, OpKind};
pub(crate) use self::shape::Shape;
pub(crate) use self::signature::{
    AgreedCall, Announced, MAX_BYTES, MAX_NUMBER, MAX_ROOTS, announced, describe, signature,
};
pub(crate) use self::words::{SHAPED, Signature};
