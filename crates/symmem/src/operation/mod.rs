//! Operations as data: their names, the algorithms that carry them, and what ranks say of a call to be compared.
//!
//! Used by whatever announces, compares, chooses, records or shows operations. Nothing here runs one or knows of a group, so every
//! room above may use it.

mod algorithm;
mod named;
mod op;
mod shape;
pub(crate) mod signature;
#[cfg(test)]
mod tests;
mod words;

pub use self::algorithm::Algorithm;
pub(crate) use self::algorithm::each_forced;
pub(crate) use self::named::{find_named, named};
#[cfg(feature = "faults")]
pub use self::op::calls_of_all;
pub use self::op::{Collective, Output, ROWS, Row};
pub(crate) use self::op::{Flow, Kind, Op};
pub(crate) use self::shape::Shape;
pub(crate) use self::signature::{
    Agreed, Announced, MAX_BYTES, MAX_NUMBER, MAX_ROOTS, announced, describe, is_refusal, signature,
};
pub(crate) use self::words::{SHAPED, Signature};
