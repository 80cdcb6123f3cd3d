//! Python objects between ranks: pickled, and sent as bytes.
//!
//! A pickle is code. So objects travel in groups only whose ranks have all proven that they belong to the
//! job: to the kernel of their host, or with the job secret, which then seals every part. Other groups
//! refuse, on every rank alike.
//!
//! To the library all of these are exchanges of bytes. Which of them a rank has called goes before its bytes,
//! so that ranks that disagree get a `Mismatch` and not each other's objects.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Group;
use crate::Any;
use crate::collectives::root_of;
use crate::error::{invalid, mismatched, raise};
use crate::interrupt::blocking;
use crate::refusal;

/// The pickle of `object`.
pub(crate) fn pickle<'py>(object: &Any<'py>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(object.py().import("pickle")?.call_method1("dumps", (object,))?.cast_into()?)
}

pub(crate) fn dump(object: &Any<'_>) -> PyResult<Vec<u8>> {
    pickle(object).map(|pickle| pickle.as_bytes().to_vec())
}

pub(crate) fn load<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Any<'py>> {
    py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))
}

/// A collective of objects: its name, and the root of those that have one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ObjectCall {
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

impl ObjectCall {
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

/// A call that has begun.
struct Begun<'py> {
    py: Python<'py>,
    call: ObjectCall,
    group: std::sync::Arc<symmem::Group>,
    root: usize,
}

impl<'py> Begun<'py> {
    /// What this rank brings; what is wrong with it is told to the others.
    fn told<R>(&self, brought: PyResult<R>) -> PyResult<R> {
        brought.map_err(|error| refusal::tell(self.py, &self.group, error))
    }

    fn is_root(&self) -> bool {
        self.root == self.group.rank()
    }

    /// Everybody's objects in rank order, at the root or, of a call without one, everywhere.
    fn gathered(&self, object: &Any<'py>) -> PyResult<Option<Vec<Any<'py>>>> {
        let mine = [&self.call.head()[..], &self.told(dump(object))?].concat();
        let group = &self.group;
        let parts = blocking(self.py, || group.all_gather_bytes(&mine))?;
        let bodies = self.call.bodies(parts.iter().enumerate())?;
        if self.call.root.is_some() && !self.is_root() {
            return Ok(None);
        }
        bodies.into_iter().map(|body| load(self.py, body)).collect::<PyResult<_>>().map(Some)
    }

    /// The same reduced by the function `op`, in rank order; as Python adds where there is none.
    fn reduced(&self, object: &Any<'py>, op: Option<&Any<'py>>) -> PyResult<Option<Any<'py>>> {
        let add = self.py.import("operator")?.getattr("add")?;
        let op = op.unwrap_or(&add);
        if !op.is_callable() {
            let (name, kind) = (self.call.name, op.get_type().name()?);
            let problem = format!("{name}: op must be a function of two objects, not {kind}");
            return self.told(Err(PyTypeError::new_err(problem)));
        }
        let Some(objects) = self.gathered(object)? else { return Ok(None) };
        let mut objects = objects.into_iter();
        let first = objects.next().unwrap_or_else(|| self.py.None().into_bound(self.py));
        objects.try_fold(first, |sum, object| op.call1((sum, object))).map(Some)
    }

    /// The bytes that the root has for everybody.
    fn spread(&self, mine: impl FnOnce() -> PyResult<Vec<u8>>) -> PyResult<Vec<u8>> {
        let mine = if self.is_root() { self.told(mine())? } else { Vec::new() };
        let mine = [&self.call.head()[..], &mine].concat();
        let (group, root) = (&self.group, self.root);
        let bytes = blocking(self.py, || group.broadcast_bytes(root, &mine))?;
        self.call.bodies([(root, &bytes)].into_iter()).map(|bodies| bodies.concat())
    }
}

/// Lengths first, then what is that long.
fn packed(parts: &[Vec<u8>]) -> Vec<u8> {
    let lens = parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes());
    lens.chain(parts.iter().flatten().copied()).collect()
}

/// Part `index` of the `count` that were packed.
fn part(packed: &[u8], count: usize, index: usize) -> Option<&[u8]> {
    let (lens, rest) = packed.split_at_checked(count * 8)?;
    let lens: Vec<usize> = lens.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len) as usize).collect();
    let start: usize = lens[..index].iter().sum();
    rest.get(start..start.saturating_add(lens[index]))
}

impl Group {
    fn begin<'py>(
        &self,
        py: Python<'py>,
        name: &'static str,
        root: Option<isize>,
        timeout_ms: u64,
    ) -> PyResult<Begun<'py>> {
        let group = self.membership().group(name, timeout_ms)?;
        group.check_authenticated(name).map_err(raise)?;
        let begun = Begun { py, call: ObjectCall { name, root }, group, root: 0 };
        let world = begun.group.size();
        let root = root_of(root.unwrap_or(0)).and_then(|rank| match rank < world {
            true => Ok(rank),
            false => Err(raise(symmem::Error::RankOutOfRange { op: name, rank, world })),
        });
        Ok(Begun { root: begun.told(root)?, ..begun })
    }
}

#[pymethods]
impl Group {
    /// Collective. Everybody's picklable `obj`, in rank order.
    #[pyo3(signature = (obj, *, timeout_ms = 0))]
    fn all_gather_object<'py>(&self, obj: &Any<'py>, timeout_ms: u64) -> PyResult<Option<Vec<Any<'py>>>> {
        self.begin(obj.py(), "all_gather_object", None, timeout_ms)?.gathered(obj)
    }

    /// Collective. At `root` everybody's picklable `obj`, in rank order; None elsewhere.
    #[pyo3(signature = (obj, root = 0, *, timeout_ms = 0))]
    fn gather_object<'py>(
        &self,
        obj: &Any<'py>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Option<Vec<Any<'py>>>> {
        self.begin(obj.py(), "gather_object", Some(root), timeout_ms)?.gathered(obj)
    }

    /// Collective. This rank's one of the picklable `objs` of `root`, which has one for each rank; what the
    /// others pass is ignored.
    #[pyo3(signature = (objs, root = 0, *, timeout_ms = 0))]
    fn scatter_object<'py>(&self, objs: &Any<'py>, root: isize, timeout_ms: u64) -> PyResult<Any<'py>> {
        let begun = self.begin(objs.py(), "scatter_object", Some(root), timeout_ms)?;
        let (name, world) = (begun.call.name, begun.group.size());
        let bytes = begun.spread(|| {
            let parts = objs.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            if parts.len() != world {
                return Err(invalid(name, format!("the root has {} objects for {world} ranks", parts.len())));
            }
            Ok(packed(&parts.iter().map(dump).collect::<PyResult<Vec<_>>>()?))
        })?;
        match part(&bytes, world, begun.group.rank()) {
            Some(part) => load(objs.py(), part),
            None => Err(invalid(name, "the root sent less than it said")),
        }
    }

    /// Collective. At `root` everybody's picklable `obj` reduced by the function `op` of two objects (None
    /// adds them), in rank order; None elsewhere.
    #[pyo3(signature = (obj, op = None, root = 0, *, timeout_ms = 0))]
    fn reduce_object<'py>(
        &self,
        obj: &Any<'py>,
        op: Option<&Any<'py>>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Option<Any<'py>>> {
        self.begin(obj.py(), "reduce_object", Some(root), timeout_ms)?.reduced(obj, op)
    }

    /// Collective. `reduce_object` whose result every rank works out for itself.
    #[pyo3(signature = (obj, op = None, *, timeout_ms = 0))]
    fn all_reduce_object<'py>(
        &self,
        obj: &Any<'py>,
        op: Option<&Any<'py>>,
        timeout_ms: u64,
    ) -> PyResult<Option<Any<'py>>> {
        self.begin(obj.py(), "all_reduce_object", None, timeout_ms)?.reduced(obj, op)
    }

    /// Collective. The picklable `obj` of `root`; what the others pass is ignored.
    #[pyo3(signature = (obj, root = 0, *, timeout_ms = 0))]
    fn broadcast_object<'py>(&self, obj: &Any<'py>, root: isize, timeout_ms: u64) -> PyResult<Any<'py>> {
        let begun = self.begin(obj.py(), "broadcast_object", Some(root), timeout_ms)?;
        let bytes = begun.spread(|| dump(obj))?;
        if begun.is_root() { Ok(obj.clone()) } else { load(obj.py(), &bytes) }
    }
}
