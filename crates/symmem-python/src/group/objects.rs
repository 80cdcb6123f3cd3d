//! Python objects between ranks: pickled, and sent as bytes.
//!
//! A pickle is code. So objects travel in groups only whose ranks have all proven that they belong to the job: to the kernel
//! of their host, or with the job secret, which then seals every part. Other groups refuse, on every rank alike.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::Membership;
use crate::collectives::root_of;
use crate::error::raise;
use crate::interrupt::blocking;
use crate::refusal;

fn dump(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    object.py().import("pickle")?.call_method1("dumps", (object,))?.extract()
}

fn load<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))
}

pub(super) fn all_gather<'py>(
    membership: &Membership,
    object: &Bound<'py, PyAny>,
    timeout_ms: u64,
) -> PyResult<Bound<'py, PyList>> {
    let py = object.py();
    let group = membership.group("all_gather_object", timeout_ms)?;
    group.check_authenticated("all_gather_object").map_err(raise)?;
    let mine = dump(object).map_err(|error| refusal::tell(py, &group, error))?;
    let parts = blocking(py, || group.all_gather_bytes(&mine))?;
    let objects = parts.iter().map(|part| load(py, part)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, objects)
}

pub(super) fn broadcast<'py>(
    membership: &Membership,
    object: &Bound<'py, PyAny>,
    root: isize,
    timeout_ms: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let group = membership.group("broadcast_object", timeout_ms)?;
    group.check_authenticated("broadcast_object").map_err(raise)?;
    let brought = || {
        let root = root_of(root)?;
        let is_root = membership.rank() == root;
        Ok((root, is_root, if is_root { dump(object)? } else { Vec::new() }))
    };
    let (root, is_root, mine) = brought().map_err(|error| refusal::tell(py, &group, error))?;
    let theirs = blocking(py, || group.broadcast_bytes(root, &mine))?;
    if is_root { Ok(object.clone()) } else { load(py, &theirs) }
}
