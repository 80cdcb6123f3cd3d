//! The short way of the reductions: from a tensor's address to the handle's method, with nothing of Python's
//! in between. On a device it does not even hold Python's lock.
//!
//! It does the work and says so, or says that it cannot, having done nothing: then something is wrong or
//! unusual, and Python's function explains or does it. Handles are remembered by address, as long as the
//! allocation they are of: `registry` says when it goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use pyo3::{IntoPyObjectExt, intern};
use symmem::{DType, Error, ReduceOp};

use super::abi;
use super::value::{Argument, Tensor, TensorFacts};
use crate::cuda::{self, Choice, DeviceMemoryEnd, ReducedElements};
use crate::error::{invalid, raise};
use crate::memory::SymmetricMemory;
use crate::operand::Place;
use crate::registry::{self, AllocatedBlock};

/// How many handles are remembered.
const MOST: usize = 4096;

/// A reduction of a symmetric tensor: which arguments are what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fast {
    input: usize,
    /// A sum without one.
    op: Option<usize>,
    group: usize,
    /// In place without one. [`Fast::MADE`]: the new tensor that the operator returns.
    out: Option<usize>,
    /// What is reduced in place of the input, which then is a place to work in. On devices only.
    source: Option<usize>,
    /// Whether multicast is wanted, where there is any.
    multicast: bool,
    /// Each rank gets its part of the flat tensor only, unless this argument says that it is to be split by
    /// columns.
    columns: Option<usize>,
}

/// A call of it, whose tensors fit together.
struct FastCall<'a> {
    key: Key,
    group: &'a str,
    input: &'a Arc<Tensor>,
    place: Place,
    op: &'a str,
    out: Option<&'a Arc<Tensor>>,
    /// Address and elements of the output.
    to: Option<(u64, usize)>,
    /// Address of what is reduced, if that is elsewhere.
    source: Option<u64>,
    /// How many elements are reduced.
    len: usize,
}

/// What is remembered of a tensor's elements on a group.
struct KnownTensor {
    block: Weak<AllocatedBlock>,
    memory: KnownMemory,
}

/// A handle, by its place; on the host with the number of ranks.
#[derive(Clone)]
enum KnownMemory {
    Host(Arc<Py<PyAny>>, usize),
    Device(Arc<DeviceMemoryEnd>),
}

impl KnownMemory {
    fn ranks(&self) -> usize {
        match self {
            Self::Host(_, ranks) => *ranks,
            Self::Device(memory) => memory.facts.buffers.len(),
        }
    }
}

/// The elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: usize,
    len: usize,
    dtype: DType,
}

/// By elements and then by group, of which they hardly ever have more than one.
type KnownTensors = HashMap<Key, Vec<(String, KnownTensor)>>;

static KNOWN: Mutex<Option<KnownTensors>> = Mutex::new(None);

fn known() -> MutexGuard<'static, Option<KnownTensors>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocation of `bytes` at `address` is gone: so is what was remembered of it.
pub(super) fn forget(address: usize, bytes: usize) {
    let mut known = known();
    let Some(table) = known.as_mut() else { return };
    let is_in = |key: &Key| key.address.wrapping_sub(address) < bytes.max(1);
    let gone: Vec<_> = table.extract_if(|key, _| is_in(key)).collect();
    // A handle that is the last of its memory unmaps it: not under the lock.
    drop(known);
    drop(gone);
}

/// Python's function that finds the handle of a tensor on a group by its name; collective for new memory.
fn find(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    static FIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FIND.get_or_try_init(py, || Ok(PyModule::import(py, "symmem.torch._memory")?.getattr("find")?.unbind()))
}

impl Fast {
    /// Stands for the new tensor that an operator returns.
    const MADE: usize = usize::MAX;

    /// From the numbers of the arguments: `input=0 group=1`, and what there is of `op=2`, `out=3`,
    /// `source=4`, `columns=5` and `multicast`. `out=+` is the tensor that is returned; without one the
    /// reduction is in place.
    pub(super) fn parse(text: &str) -> PyResult<Self> {
        let wrong = || invalid("operator", format!("{text:?} is not a short way"));
        let [mut input, mut op, mut group, mut out, mut source, mut columns] = [None; 6];
        let mut multicast = false;
        for part in text.split(' ') {
            let (name, number) = part.split_once('=').unwrap_or((part, "0"));
            let field = match name {
                "input" => &mut input,
                "op" => &mut op,
                "group" => &mut group,
                "out" => &mut out,
                "source" => &mut source,
                "columns" => &mut columns,
                "multicast" => {
                    multicast = true;
                    continue;
                }
                _ => return Err(wrong()),
            };
            *field = Some(if number == "+" { Self::MADE } else { number.parse().map_err(|_| wrong())? });
        }
        let (input, group) = (input.ok_or_else(wrong)?, group.ok_or_else(wrong)?);
        Ok(Self { input, op, group, out, source, multicast, columns })
    }

    /// Does the reduction and says true, or false.
    pub(super) fn run(&self, arguments: &[Argument], made: Option<&Arc<Tensor>>) -> Result<bool, FastError> {
        let Some(call) = self.call(arguments, made) else { return Ok(false) };
        let memory = match remembered(&call) {
            Some(memory) => memory,
            None => {
                let Some((block, _)) = registry::find(call.key.address) else { return Ok(false) };
                attached(|py| learn(py, &call, &block))?
            }
        };
        let is_divided = |(_, part): (u64, usize)| part.checked_mul(memory.ranks()) == Some(call.key.len);
        if self.columns.is_some() && !call.to.is_some_and(is_divided) {
            return Ok(false);
        }
        let done = match &memory {
            KnownMemory::Host(memory, _) => attached(|py| self.on_host(py, memory, &call)),
            KnownMemory::Device(memory) => self.on_device(memory, &call),
        };
        match done {
            // The process group was destroyed, and there may be a new one of its name. Nothing was done.
            Err(FastError::Closed) => {
                drop(take(&call));
                Ok(false)
            }
            done => done,
        }
    }

    /// The call that these arguments make; none where the short way is not for them.
    fn call<'a>(&self, arguments: &'a [Argument], made: Option<&'a Arc<Tensor>>) -> Option<FastCall<'a>> {
        let tensor = |at: usize| match arguments.get(at) {
            _ if at == Self::MADE => made,
            Some(Argument::Tensor(tensor)) => Some(tensor),
            _ => None,
        };
        let text = |at: usize| match arguments.get(at) {
            Some(Argument::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let (input, group) = (tensor(self.input)?, text(self.group)?);
        let op = self.op.map_or(Some("sum"), text)?;
        let facts = input.facts();
        let (dtype, place) = (facts.dtype?, facts.place?);
        if self.source.is_some() && place == Place::Cpu {
            return None;
        }
        let source = self.source.map_or(Some(input), tensor)?;
        let from = source.facts();
        let is_part = match self.columns.map(|at| arguments.get(at)) {
            None => false,
            Some(Some(Argument::Bool(false))) if facts.sizes.len() == 1 => true,
            Some(_) => return None,
        };
        if !(is_plain(&facts) && is_plain(&from) && is_of_kind(&from, &facts) && from.len() <= facts.len()) {
            return None;
        }
        let out = match self.out {
            Some(at) => Some(tensor(at)?),
            None => None,
        };
        let to = out.map(|out| out.facts());
        let fits = |to: &TensorFacts<'_>| {
            is_plain(to)
                && is_of_kind(to, &from)
                && (to.sizes == from.sizes || is_part && to.sizes.len() == 1)
        };
        if !to.as_ref().is_none_or(fits) {
            return None;
        }
        let key = Key { address: facts.address, len: facts.len(), dtype };
        let to = to.map(|to| (to.address as u64, to.len()));
        let source = self.source.map(|_| from.address as u64);
        Some(FastCall { key, group, input, place, op, out, to, source, len: from.len() })
    }

    fn on_device(&self, memory: &DeviceMemoryEnd, call: &FastCall<'_>) -> Result<bool, FastError> {
        let op = ReduceOp::ALL.into_iter().find(|known| known.name() == call.op);
        let stream = abi::current_stream(memory.ordinal());
        let (Some(op), Some(stream)) = (op, stream) else { return Ok(false) };
        let range = memory.range(call.key.address, call.len, call.key.dtype);
        // SAFETY: torch's current stream, which it keeps; its tensors have as many elements as they say.
        let done = unsafe {
            cuda::adopt(&memory.device, stream).and_then(|stream| match (self.columns, call.to) {
                (Some(_), Some(out)) => memory.reduce_scatter(range, op, out, &stream),
                (_, to) => {
                    let elements = match (call.source, to) {
                        (_, None) => ReducedElements::InPlace,
                        (None, Some((to, _))) => ReducedElements::Out(to),
                        (Some(from), Some((to, _))) => ReducedElements::Private(from, to),
                    };
                    let choice = if self.multicast { Choice::TryMultimem } else { Choice::Table };
                    memory.all_reduce(range, op, elements, choice, None, &stream)
                }
            })
        };
        done.map(|()| true).map_err(FastError::from)
    }

    fn on_host(&self, py: Python<'_>, memory: &Py<PyAny>, call: &FastCall<'_>) -> Result<bool, FastError> {
        let name = if self.columns.is_some() { "reduce_scatter" } else { "all_reduce" };
        let done = match call.out {
            None => memory.call_method1(py, name, (call.op,)),
            Some(out) => memory.call_method1(py, name, (call.op, out.array(py)?)),
        };
        match done {
            Ok(_) => Ok(true),
            Err(error) if error.get_type(py).name()?.to_str()? == "Closed" => Err(FastError::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why the short way failed.
pub(super) enum FastError {
    /// The handle is closed; nothing was done.
    Closed,
    Library(Error),
    Python(PyErr),
}

impl From<Error> for FastError {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed { .. } => Self::Closed,
            error => Self::Library(error),
        }
    }
}

impl From<PyErr> for FastError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl FastError {
    /// As Python raises it.
    pub(super) fn raised(self) -> PyErr {
        match self {
            Self::Closed => raise(Error::Closed { op: "all_reduce" }),
            Self::Library(error) => raise(error),
            Self::Python(error) => error,
        }
    }
}

/// `work` with Python's lock.
fn attached<R>(work: impl FnOnce(Python<'_>) -> Result<R, FastError>) -> Result<R, FastError> {
    Python::try_attach(work)
        .unwrap_or_else(|| Err(invalid("operator", "the interpreter is going away").into()))
}

/// Whether there is something to reduce, and it lies side by side.
fn is_plain(facts: &TensorFacts<'_>) -> bool {
    facts.len() > 0 && facts.address != 0 && facts.is_dense()
}

/// Whether both have elements of one type in one place.
fn is_of_kind(one: &TensorFacts<'_>, other: &TensorFacts<'_>) -> bool {
    one.number == other.number && one.place == other.place
}

/// The handle of before. While its allocation is there no other one has these addresses.
fn remembered(call: &FastCall<'_>) -> Option<KnownMemory> {
    let known = known();
    let groups = known.as_ref()?.get(&call.key)?;
    let (_, found) = groups.iter().find(|(group, _)| group == call.group)?;
    (found.block.strong_count() > 0).then(|| found.memory.clone())
}

/// What was remembered of it is forgotten.
fn take(call: &FastCall<'_>) -> Option<KnownTensor> {
    let mut known = known();
    let groups = known.as_mut()?.get_mut(&call.key)?;
    let at = groups.iter().position(|(group, _)| group == call.group)?;
    Some(groups.swap_remove(at).1)
}

/// Finds the handle, collectively if the memory is new to the group.
fn learn(py: Python<'_>, call: &FastCall<'_>, block: &Arc<AllocatedBlock>) -> Result<KnownMemory, FastError> {
    let tensor = call.input.array(py)?.call_method0(py, intern!(py, "torch"))?;
    let group = call.group.into_bound_py_any(py)?;
    let handle = find(py)?.call1(py, (tensor, group))?;
    let memory = match call.place {
        Place::Cpu => {
            let ranks = handle.getattr(py, intern!(py, "world_size"))?.extract(py)?;
            KnownMemory::Host(Arc::new(handle), ranks)
        }
        Place::Cuda(_) => {
            let handle = handle.bind(py).cast::<SymmetricMemory>().map_err(PyErr::from)?.get();
            let device = handle.handle().as_device();
            let device =
                device.ok_or_else(|| invalid("handle", "its memory is on the host, not on a device"))?;
            KnownMemory::Device(Arc::clone(&device.core))
        }
    };
    let replaced = take(call);
    let entry = KnownTensor { block: Arc::downgrade(block), memory: memory.clone() };
    let mut known = known();
    let table = known.get_or_insert_default();
    let old = if table.len() >= MOST { std::mem::take(table) } else { HashMap::new() };
    table.entry(call.key).or_default().push((call.group.to_owned(), entry));
    drop(known);
    drop((old, replaced));
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_short_ways_are_read() {
        let copy = Fast::parse("input=0 source=1 op=2 group=3 out=+").unwrap();
        assert_eq!((copy.input, copy.source, copy.op, copy.group), (0, Some(1), Some(2), 3));
        assert_eq!((copy.out, copy.columns, copy.multicast), (Some(Fast::MADE), None, false));
        let part = Fast::parse("input=0 group=1 columns=2 out=3 multicast").unwrap();
        assert_eq!((part.op, part.columns, part.out, part.multicast), (None, Some(2), Some(3), true));
    }
}
