//! What only `symmem.torch` uses: collectives of plain tensors ([`plain`]), and operators of torch's
//! dispatcher.
//!
//! Operators are registered through libtorch's stable C interface, found at run time in the torch that is
//! imported ([`abi`]): this crate neither links torch nor compiles C++. An operator's arguments are values of
//! 64 bits ([`value`]); its kernel ([`kernel`]) turns them into Python's and calls what
//! `symmem.torch._operators` says, or, for the reductions that programs call most, the handle's method
//! without any Python in between ([`fast`]). [`library`] is what Python registers with.

mod abi;
mod fast;
mod kernel;
mod library;
mod plain;
mod value;

use pyo3::prelude::*;

/// The allocation of `bytes` at `address` is gone.
pub(crate) fn forget(address: usize, bytes: usize) {
    fast::forget(address, bytes);
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    plain::register(module)?;
    library::register(module)
}
