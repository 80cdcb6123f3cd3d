//! Where a group can come from besides a store: torch's process groups.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::invalid;

/// What a torch process group says: its store, this rank, its size, its name.
pub(super) struct Source<'py> {
    pub(super) store: Bound<'py, PyAny>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) name: String,
}

/// Reads `process_group`: a `ProcessGroup`, the name of one, or `None` for the default one.
pub(super) fn read<'py>(py: Python<'py>, process_group: Option<&Bound<'py, PyAny>>) -> PyResult<Source<'py>> {
    let c10d = py.import("torch.distributed.distributed_c10d")?;
    let group = match process_group {
        None => c10d.call_method0("_get_default_group")?,
        Some(name) if name.is_instance_of::<PyString>() => {
            c10d.call_method1("_resolve_process_group", (name,))?
        }
        Some(group) => group.clone(),
    };
    if !group.hasattr("rank")? || !group.hasattr("size")? {
        return Err(invalid("process group", format!("{} is not one of torch's", group.get_type().name()?)));
    }
    let name = match group.getattr("group_name") {
        Ok(name) => name.str()?.extract()?,
        Err(_) => "default".to_owned(),
    };
    Ok(Source {
        store: c10d.call_method1("_get_process_group_store", (&group,))?,
        rank: group.call_method0("rank")?.extract()?,
        size: group.call_method0("size")?.extract()?,
        name: format!("torch/{name}"),
    })
}
