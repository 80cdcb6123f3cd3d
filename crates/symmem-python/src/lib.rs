//! The extension module `symmem._symmem`: everything of the Python package that is hot or unsafe.
//!
//! Only `python/symmem` imports it; users import that package. What it guarantees: no call blocks on a peer
//! while it holds the interpreter (`interrupt`), every failure is a typed exception (`error`), and memory
//! lives as long as any Python object that shows it (`array`).

use pyo3::prelude::*;

mod array;
mod atomics;
mod backend;
mod collectives;
mod context;
mod cuda;
mod dlpack;
mod dtype;
mod error;
mod exit;
mod fork;
mod fused;
mod group;
mod inspect;
mod interrupt;
mod mail;
mod memory;
mod nccl;
mod operand;
mod pending;
mod place;
mod private;
mod refusal;
mod registry;
mod share;
mod store;
mod torch;
mod turn;
mod words;

/// Any Python object, as arguments and results are.
type Any<'py> = Bound<'py, PyAny>;

/// Symmetric memory: the compiled part of the package `symmem`.
#[pymodule]
fn _symmem(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    fork::arm();
    exit::register(module)?;
    error::register(module)?;
    dtype::register(module)?;
    array::register(module)?;
    atomics::register(module)?;
    context::register(module)?;
    store::register(module)?;
    group::register(module)?;
    inspect::register(module)?;
    mail::register(module)?;
    memory::register(module)?;
    share::register(module)?;
    pending::register(module)?;
    place::register(module)?;
    torch::register(module)?;
    turn::register(module)?;
    cuda::register(module)?;
    nccl::register(module)
}
