//! Stores: where ranks meet. symmem's own as Python classes, and anybody else's as one of ours.
//!
//! Called by users, and by `group` through [`from_python`]. Calls that wait do so without the interpreter and
//! end on Ctrl-C.

mod class;
mod foreign;

use std::sync::Arc;

use pyo3::prelude::*;

use self::class::{FileStore, HashStore, PrefixStore, Store, TcpStore};
use self::foreign::Foreign;

/// `object` as a store: one of ours, or anything with the methods of PyTorch's stores.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn symmem::store::Store>> {
    if let Ok(store) = object.cast::<Store>() {
        return Ok(store.get().inner());
    }
    Ok(Arc::new(Foreign::new(object)?))
}

/// A Rust store as a Python object.
pub(crate) fn to_python(py: Python<'_>, store: &Arc<dyn symmem::store::Store>) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Store::new(Arc::clone(store)))?.into_any())
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Store>()?;
    module.add_class::<HashStore>()?;
    module.add_class::<FileStore>()?;
    module.add_class::<PrefixStore>()?;
    module.add_class::<TcpStore>()
}
