//! Python objects between ranks: pickled, and sent as bytes.
//!
//! A pickle is code. So objects travel in groups only whose ranks have all proven that they belong to the job: to the kernel
//! of their host, or with the job secret, which then seals every part. Other groups refuse, on every rank alike.
//!
//! To the library all of these are exchanges of bytes. Which of them a rank has called goes before its bytes, so that ranks that
//! disagree get a `Mismatch` and not each other's objects.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::Membership;
use crate::collectives::root_of;
use crate::error::{invalid, mismatched, raise};
use crate::interrupt::blocking;
use crate::refusal;

/// The pickle of `object`.
pub(crate) fn pickle<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(object.py().import("pickle")?.call_method1("dumps", (object,))?.cast_into()?)
}

pub(crate) fn dump(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    pickle(object).map(|pickle| pickle.as_bytes().to_vec())
}

pub(crate) fn load<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))
}

/// A collective of objects: its name, and the root of those that have one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    name: &'static str,
    root: Option<isize>,
}

/// The names, whose places travel.
const NAMES: [&str; 6] = [
    "all_gather_object",
    "gather_object",
    "reduce_object",
    "all_reduce_object",
    "broadcast_object",
    "scatter_object",
];
/// Bytes of what travels of a call.
const HEAD: usize = 9;

impl Call {
    pub(super) fn everywhere(name: &'static str) -> Self {
        Self { name, root: None }
    }

    pub(super) fn rooted(name: &'static str, root: isize) -> Self {
        Self { name, root: Some(root) }
    }

    fn head(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[0] = NAMES.iter().position(|name| *name == self.name).map_or(u8::MAX, |at| at as u8);
        head[1..].copy_from_slice(&(self.root.unwrap_or(0) as u64).to_le_bytes());
        head
    }

    /// What a rank that sent `bytes` has called, in words.
    fn words(bytes: &[u8]) -> String {
        let name = bytes.first().and_then(|at| NAMES.get(usize::from(*at))).unwrap_or(&"another call");
        match bytes.get(1..HEAD).and_then(|root| root.try_into().ok()).map(u64::from_le_bytes) {
            Some(root) if !name.starts_with("all_") => format!("{name} with root {root}"),
            _ => (*name).to_owned(),
        }
    }

    /// What `bytes` of the ranks `from` hold, if all of them made this call.
    fn bodies<'a>(self, from: impl Iterator<Item = (usize, &'a Vec<u8>)>) -> PyResult<Vec<&'a [u8]>> {
        let (head, parts) = (self.head(), from.collect::<Vec<_>>());
        if parts.iter().all(|(_, bytes)| bytes.starts_with(&head)) {
            return Ok(parts.into_iter().map(|(_, bytes)| &bytes[HEAD..]).collect());
        }
        let said: Vec<String> =
            parts.iter().map(|(rank, bytes)| format!("rank {rank}: {}", Self::words(bytes))).collect();
        let name = self.name;
        Err(mismatched(format!("{name}: the ranks disagree on the operation: {}", said.join("; "))))
    }
}

/// What a call needs to begin.
struct Begun {
    group: std::sync::Arc<symmem::Group>,
    root: usize,
}

fn begin(py: Python<'_>, membership: &Membership, call: Call, timeout_ms: u64) -> PyResult<Begun> {
    let group = membership.group(call.name, timeout_ms)?;
    group.check_authenticated(call.name).map_err(raise)?;
    let root = match root_of(call.root.unwrap_or(0)) {
        Ok(root) if root < group.size() => Ok(root),
        Ok(rank) => Err(raise(symmem::Error::RankOutOfRange { op: call.name, rank, world: group.size() })),
        Err(error) => Err(error),
    };
    match root {
        Ok(root) => Ok(Begun { group, root }),
        Err(error) => Err(refusal::tell(py, &group, error)),
    }
}

/// Everybody's objects in rank order, at the root or, of a call without one, everywhere.
fn gathered<'py>(
    membership: &Membership,
    call: Call,
    object: &Bound<'py, PyAny>,
    timeout_ms: u64,
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let py = object.py();
    let Begun { group, root } = begin(py, membership, call, timeout_ms)?;
    let mine = dump(object).map_err(|error| refusal::tell(py, &group, error))?;
    let mine = [&call.head()[..], &mine].concat();
    let parts = blocking(py, || group.all_gather_bytes(&mine))?;
    let bodies = call.bodies(parts.iter().enumerate())?;
    if call.root.is_some() && root != group.rank() {
        return Ok(None);
    }
    bodies.into_iter().map(|body| load(py, body)).collect::<PyResult<_>>().map(Some)
}

/// The bytes that the root has for everybody.
fn spread(
    py: Python<'_>,
    call: Call,
    begun: &Begun,
    mine: impl FnOnce() -> PyResult<Vec<u8>>,
) -> PyResult<Vec<u8>> {
    let Begun { group, root } = begun;
    let mine = match *root == group.rank() {
        true => mine().map_err(|error| refusal::tell(py, group, error))?,
        false => Vec::new(),
    };
    let mine = [&call.head()[..], &mine].concat();
    let bytes = blocking(py, || group.broadcast_bytes(*root, &mine))?;
    call.bodies([(*root, &bytes)].into_iter()).map(|bodies| bodies.concat())
}

pub(super) fn gather<'py>(
    membership: &Membership,
    call: Call,
    object: &Bound<'py, PyAny>,
    timeout_ms: u64,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let objects = gathered(membership, call, object, timeout_ms)?;
    objects.map(|objects| PyList::new(object.py(), objects)).transpose()
}

/// The objects of all ranks reduced by the function `op`, in rank order; as Python adds where there is none.
pub(super) fn reduce<'py>(
    membership: &Membership,
    call: Call,
    object: &Bound<'py, PyAny>,
    op: Option<&Bound<'py, PyAny>>,
    timeout_ms: u64,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    if let Some(op) = op
        && !op.is_callable()
    {
        let kind = op.get_type().name()?;
        let problem = format!("{}: op must be a function of two objects, not {kind}", call.name);
        let group = membership.group(call.name, timeout_ms)?;
        return Err(refusal::tell(py, &group, PyTypeError::new_err(problem)));
    }
    let add = py.import("operator")?.getattr("add")?;
    let op = op.unwrap_or(&add);
    let Some(objects) = gathered(membership, call, object, timeout_ms)? else { return Ok(None) };
    let mut objects = objects.into_iter();
    let first = objects.next().unwrap_or_else(|| py.None().into_bound(py));
    objects.try_fold(first, |sum, object| op.call1((sum, object))).map(Some)
}

pub(super) fn broadcast<'py>(
    membership: &Membership,
    call: Call,
    object: &Bound<'py, PyAny>,
    timeout_ms: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let begun = begin(py, membership, call, timeout_ms)?;
    let bytes = spread(py, call, &begun, || dump(object))?;
    if begun.root == begun.group.rank() { Ok(object.clone()) } else { load(py, &bytes) }
}

/// This rank's one of the `objects` of the root.
pub(super) fn scatter<'py>(
    membership: &Membership,
    call: Call,
    objects: &Bound<'py, PyAny>,
    timeout_ms: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = objects.py();
    let begun = begin(py, membership, call, timeout_ms)?;
    let size = begun.group.size();
    // Lengths first, then what is that long.
    let packed = || {
        let found = objects.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if found.len() != size {
            let problem = format!("the root has {} objects for {size} ranks", found.len());
            return Err(invalid(call.name, problem));
        }
        let parts = found.iter().map(dump).collect::<PyResult<Vec<_>>>()?;
        let lens = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes());
        Ok(lens.chain(parts.iter().flatten().copied()).collect::<Vec<u8>>())
    };
    let bytes = spread(py, call, &begun, packed)?;
    let (lens, rest) = bytes.split_at_checked(size * 8).unwrap_or_default();
    let lens: Vec<usize> = lens.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len) as usize).collect();
    let mine = begun.group.rank();
    let start: usize = lens.iter().take(mine).sum();
    let len = lens.get(mine).copied().unwrap_or(0);
    match rest.get(start..start.saturating_add(len)) {
        Some(part) => load(py, part),
        None => Err(invalid(call.name, "the root sent less than it said")),
    }
}
