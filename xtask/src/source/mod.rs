//! The source of a crate as tokens, for lints that no compiler has: `layers` and `fences` read it.
//!
//! Comments and strings are no tokens, so a word in them is never found; what macros are given is read as any
//! other code.

mod file;
mod marked;
mod tests_cut;
mod token;

pub(crate) use file::{File, Sources};
pub(crate) use marked::{check as check_block, write as write_block};
pub(crate) use token::{Token, closing, tokens};
