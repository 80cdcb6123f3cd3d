//! The short way of the reductions: from a tensor's address to the handle's method, with nothing of Python's
//! in between.
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
use symmem::{DType, ReduceOp};

use super::value::{Argument, Tensor, TensorFacts};
use crate::error::invalid;
use crate::operand::Place;
use crate::registry::{self, AllocatedBlock};

/// How many handles are remembered.
const MOST: usize = 4096;

/// An all-reduce of a symmetric tensor: which arguments are what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fast {
    input: usize,
    op: usize,
    group: usize,
    /// In place without one. [`Fast::MADE`]: the new tensor that the operator returns.
    out: Option<usize>,
    /// Whether multicast is wanted, where there is any.
    multicast: bool,
}

/// What is remembered of a tensor's elements on a group.
struct KnownTensor {
    block: Weak<AllocatedBlock>,
    /// The handle; on a device the short way to it.
    memory: Py<PyAny>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: usize,
    len: usize,
    dtype: DType,
    group: String,
}

static KNOWN: Mutex<Option<HashMap<Key, KnownTensor>>> = Mutex::new(None);

fn known() -> MutexGuard<'static, Option<HashMap<Key, KnownTensor>>> {
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

/// What this asks of Python.
struct Helpers {
    /// Collective for new memory: the handle of a tensor on a group by its name.
    find: Py<PyAny>,
    /// The short way to a device's handle.
    device_memory: Py<PyAny>,
    /// The handle of a device's current stream.
    current_stream: Py<PyAny>,
    by_size: u8,
    by_multicast: u8,
}

fn helpers(py: Python<'_>) -> PyResult<&Helpers> {
    static HELPERS: PyOnceLock<Helpers> = PyOnceLock::new();
    HELPERS.get_or_try_init(py, || {
        let memory = PyModule::import(py, "symmem.torch._memory")?;
        let device = PyModule::import(py, "symmem.torch._device")?;
        Ok(Helpers {
            find: memory.getattr("find")?.unbind(),
            device_memory: memory.getattr("_device_memory")?.unbind(),
            current_stream: memory.getattr("current_stream")?.unbind(),
            by_size: device.getattr("BY_SIZE")?.extract()?,
            by_multicast: device.getattr("BY_MULTICAST")?.extract()?,
        })
    })
}

impl Fast {
    /// Stands for the new tensor that an operator returns.
    const MADE: usize = usize::MAX;

    /// From the numbers of the arguments: `input op group out how`. `out` may be `-`, in place, or `+`, the
    /// tensor that is returned; `how` is `size` or `multicast`.
    pub(super) fn parse(text: &str) -> PyResult<Self> {
        let parse = || {
            let [input, op, group, out, how] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
            let out = match out {
                "-" => None,
                "+" => Some(Self::MADE),
                out => Some(out.parse().ok()?),
            };
            let multicast = how == "multicast";
            let (input, op, group) = (input.parse().ok()?, op.parse().ok()?, group.parse().ok()?);
            (multicast || how == "size").then_some(Self { input, op, group, out, multicast })
        };
        parse().ok_or_else(|| invalid("operator", format!("{text:?} is not a short way")))
    }

    /// Does the reduction and says true, or false.
    pub(super) fn run(
        &self,
        py: Python<'_>,
        arguments: &[Argument],
        made: Option<&Arc<Tensor>>,
    ) -> PyResult<bool> {
        let (Some(Argument::Tensor(input)), Some(Argument::Text(op)), Some(Argument::Text(group))) =
            (arguments.get(self.input), arguments.get(self.op), arguments.get(self.group))
        else {
            return Ok(false);
        };
        let out = match self.out {
            None => None,
            Some(Self::MADE) => made,
            Some(at) => match arguments.get(at) {
                Some(Argument::Tensor(out)) => Some(out),
                _ => return Ok(false),
            },
        };
        if self.out.is_some() != out.is_some() {
            return Ok(false);
        }
        let facts = input.facts();
        let (Some(dtype), Some(place), true) = (facts.dtype, facts.place, is_plain(&facts)) else {
            return Ok(false);
        };
        if !out.is_none_or(|out| is_like(&out.facts(), &facts)) {
            return Ok(false);
        }
        let Some((block, _)) = registry::find(facts.address) else { return Ok(false) };
        let key = Key { address: facts.address, len: facts.len(), dtype, group: group.clone() };
        let memory = match remembered(py, &key, &block) {
            Some(memory) => memory,
            None => learn(py, key.clone(), &block, input, place)?,
        };
        let done = match place {
            Place::Cpu => on_host(py, &memory, op, out),
            Place::Cuda(ordinal) => self.on_device(py, &memory, &facts, op, out, ordinal),
        };
        match done {
            Ok(done) => Ok(done),
            // The process group was destroyed, and there may be a new one of its name. Nothing was done.
            Err(error) if error.get_type(py).name()?.to_str()? == "Closed" => {
                let gone = known().as_mut().and_then(|table| table.remove(&key));
                drop(gone);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn on_device(
        &self,
        py: Python<'_>,
        memory: &Py<PyAny>,
        facts: &TensorFacts<'_>,
        op: &str,
        out: Option<&Arc<Tensor>>,
        ordinal: i32,
    ) -> PyResult<bool> {
        let helpers = helpers(py)?;
        let op = ReduceOp::ALL.into_iter().position(|known| known.name() == op);
        let dtype = DType::ALL.iter().position(|known| Some(*known) == facts.dtype);
        let (Some(op), Some(dtype)) = (op, dtype) else { return Ok(false) };
        let how = if self.multicast { helpers.by_multicast } else { helpers.by_size };
        let stream: usize = helpers.current_stream.call1(py, (ordinal,))?.extract(py)?;
        let to = out.map_or(0, |out| out.facts().address);
        let arguments = (facts.address, 0, to, facts.len(), dtype, op, how, stream);
        memory.call_method1(py, intern!(py, "all_reduce_ptr"), arguments)?;
        Ok(true)
    }
}

fn on_host(py: Python<'_>, memory: &Py<PyAny>, op: &str, out: Option<&Arc<Tensor>>) -> PyResult<bool> {
    let name = intern!(py, "all_reduce");
    match out {
        None => memory.call_method1(py, name, (op,))?,
        Some(out) => memory.call_method1(py, name, (op, out.array(py)?))?,
    };
    Ok(true)
}

/// Whether there is something to reduce, and it lies side by side.
fn is_plain(facts: &TensorFacts<'_>) -> bool {
    facts.len() > 0 && facts.address != 0 && facts.is_dense()
}

/// Whether an output fits.
fn is_like(out: &TensorFacts<'_>, input: &TensorFacts<'_>) -> bool {
    out.sizes == input.sizes && out.number == input.number && out.place == input.place && is_plain(out)
}

/// The handle of before, if it is of this allocation.
fn remembered(py: Python<'_>, key: &Key, block: &Arc<AllocatedBlock>) -> Option<Py<PyAny>> {
    let known = known();
    let found = known.as_ref()?.get(key)?;
    (found.block.as_ptr() == Arc::as_ptr(block)).then(|| found.memory.clone_ref(py))
}

/// Finds the handle, collectively if the memory is new to the group.
fn learn(
    py: Python<'_>,
    key: Key,
    block: &Arc<AllocatedBlock>,
    input: &Arc<Tensor>,
    place: Place,
) -> PyResult<Py<PyAny>> {
    let helpers = helpers(py)?;
    let tensor = input.array(py)?.call_method0(py, intern!(py, "torch"))?;
    let group = key.group.as_str().into_bound_py_any(py)?;
    let handle = helpers.find.call1(py, (tensor, group))?;
    let memory = match place {
        Place::Cpu => handle,
        Place::Cuda(_) => helpers.device_memory.call1(py, (handle,))?,
    };
    let entry = KnownTensor { block: Arc::downgrade(block), memory: memory.clone_ref(py) };
    let mut known = known();
    let table = known.get_or_insert_default();
    let old = if table.len() >= MOST { std::mem::take(table) } else { HashMap::new() };
    let replaced = table.insert(key, entry);
    drop(known);
    drop((old, replaced));
    Ok(memory)
}
