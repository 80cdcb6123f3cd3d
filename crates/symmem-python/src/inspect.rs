//! `symmem.inspect`: what groups look like from outside. `python/symmem/_inspect.py` makes objects of it.

use pyo3::prelude::*;

use crate::error::{invalid, raise};

/// The groups of the processes `pids` or below, else all, as JSON.
#[pyfunction]
#[pyo3(signature = (pids = None))]
fn _inspect(py: Python<'_>, pids: Option<Vec<u32>>) -> PyResult<String> {
    let groups = py.detach(|| match pids {
        Some(pids) => symmem::inspect::groups_of(&pids),
        None => symmem::inspect::groups(),
    });
    serde_json::to_string(&groups.map_err(raise)?).map_err(|error| invalid("inspect", error.to_string()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_inspect, module)?)
}
