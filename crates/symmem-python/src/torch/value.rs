//! Arguments and results of an operator: torch's values of 64 bits, each of a kind that the operator's schema
//! says.
//!
//! A kernel owns what it is given, so [`take`] makes every argument an [`Argument`] before anything can fail,
//! and dropping those gives back what torch made for them.

use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use symmem::DType;

use super::abi::{Abi, TorchHandle, WRITTEN_FOR};
use crate::array::{self, Keep};
use crate::error::invalid;
use crate::operand::Place;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tensor,
    Int,
    Float,
    Bool,
    Text,
}

/// How a schema has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    One(Kind),
    Optional(Kind),
    List(Kind),
    OptionalList(Kind),
}

impl Slot {
    /// From Python's words: `Tensor`, `int`, `float`, `bool`, `str`, with `?`, `[]` or `[]?` behind.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let kind = |text: &str| match text {
            "Tensor" => Some(Kind::Tensor),
            "int" => Some(Kind::Int),
            "float" => Some(Kind::Float),
            "bool" => Some(Kind::Bool),
            "str" => Some(Kind::Text),
            _ => None,
        };
        if let Some(text) = text.strip_suffix("[]?") {
            return kind(text).map(Self::OptionalList);
        }
        if let Some(text) = text.strip_suffix("[]") {
            return kind(text).map(Self::List);
        }
        match text.strip_suffix('?') {
            Some(text) => kind(text).map(Self::Optional),
            None => kind(text).map(Self::One),
        }
    }
}

/// A tensor that this process has a reference to.
#[derive(Debug)]
pub(super) struct Tensor {
    abi: &'static Abi,
    handle: TorchHandle,
}

// SAFETY: a counted reference, which any thread may use and give back; torch's counts are atomic.
unsafe impl Send for Tensor {}
// SAFETY: as above; nothing here changes what it refers to.
unsafe impl Sync for Tensor {}

impl std::fmt::Debug for Abi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Abi")
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the one reference that this is.
        unsafe { (self.abi.delete_tensor)(self.handle) };
    }
}

/// What is known of a tensor.
#[derive(Debug)]
pub(super) struct TensorFacts<'a> {
    pub(super) address: usize,
    pub(super) sizes: &'a [i64],
    /// In elements.
    pub(super) strides: &'a [i64],
    /// Torch's number.
    pub(super) number: i32,
    /// None for types that there are not here.
    pub(super) dtype: Option<DType>,
    /// None for devices that there are not here.
    pub(super) place: Option<Place>,
}

impl TensorFacts<'_> {
    /// Whether the elements follow each other in C order.
    pub(super) fn is_dense(&self) -> bool {
        let mut expected = 1;
        for (side, stride) in self.sizes.iter().zip(self.strides).rev() {
            if *side != 1 && *stride != expected {
                return self.sizes.contains(&0);
            }
            expected *= *side;
        }
        true
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.iter().product::<i64>().max(0) as usize
    }
}

impl Tensor {
    /// What is known of it. A failed question leaves what no tensor has, and is then no fact.
    pub(super) fn facts(&self) -> TensorFacts<'_> {
        let (abi, handle) = (self.abi, self.handle);
        let (mut address, mut dims, mut sizes, mut strides) =
            (std::ptr::null_mut(), 0, std::ptr::null(), std::ptr::null());
        let (mut number, mut device, mut index) = (-1, -1, -1);
        // SAFETY: a live tensor, and room for what each call tells; sizes and strides are the tensor's, and
        // stay while nobody resizes it, which torch forbids during an operator.
        unsafe {
            (abi.data)(handle, &mut address);
            (abi.dims)(handle, &mut dims);
            (abi.sizes)(handle, &mut sizes);
            (abi.strides)(handle, &mut strides);
            (abi.dtype)(handle, &mut number);
            (abi.device_type)(handle, &mut device);
            (abi.device_index)(handle, &mut index);
        }
        let numbers = |pointer: *const i64| match pointer.is_null() || dims <= 0 {
            true => &[][..],
            // SAFETY: as many numbers as the tensor has dimensions.
            false => unsafe { slice::from_raw_parts(pointer, dims as usize) },
        };
        let [cpu, cuda] = abi.kinds;
        let place = match device {
            device if device == cpu => Some(Place::Cpu),
            device if device == cuda => Some(Place::Cuda(index)),
            _ => None,
        };
        TensorFacts {
            address: address as usize,
            sizes: numbers(sizes),
            strides: numbers(strides),
            number,
            dtype: abi.element(number),
            place,
        }
    }

    /// A new dense tensor of the same sizes, type and device. None where torch could not make it.
    pub(super) fn empty_like(&self) -> Option<Self> {
        let facts = self.facts();
        let mut strides = vec![1; facts.sizes.len()];
        for at in (1..strides.len()).rev() {
            strides[at - 1] = strides[at] * facts.sizes[at].max(1);
        }
        let (mut device, mut index, mut handle) = (-1, -1, std::ptr::null_mut());
        // SAFETY: a live tensor; as many sizes and strides as said; room for the answers.
        let code = unsafe {
            (self.abi.device_type)(self.handle, &mut device);
            (self.abi.device_index)(self.handle, &mut index);
            let (sizes, dims) = (facts.sizes.as_ptr(), strides.len() as i64);
            (self.abi.empty)(dims, sizes, strides.as_ptr(), facts.number, device, index, &mut handle)
        };
        (code == 0 && !handle.is_null()).then_some(Self { abi: self.abi, handle })
    }

    /// Another reference to the same tensor.
    fn again(&self) -> Option<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live tensor, and room for the answer.
        let code = unsafe { (self.abi.another_handle)(self.handle, &mut handle) };
        (code == 0 && !handle.is_null()).then_some(Self { abi: self.abi, handle })
    }

    /// The value of it, whose reference is the receiver's.
    fn into_value(self) -> u64 {
        let value = self.handle as u64;
        std::mem::forget(self);
        value
    }

    /// The value of another reference to it.
    pub(super) fn another_value(&self) -> Option<u64> {
        self.again().map(Self::into_value)
    }

    /// Tells autograd that the elements were written: what was saved for a backward pass is stale.
    ///
    /// There is no function for it in the stable interface. Where torch has another one, that is called; else
    /// `transpose_` of a dimension with itself, which touches nothing and counts as a write, but takes a
    /// microsecond. Without gradients it may be done to a leaf that wants one, too.
    pub(super) fn written(&self) {
        // SAFETY: a live tensor.
        if unsafe { self.abi.count_write(self.handle) } {
            return;
        }
        let Some(value) = self.another_value() else { return };
        let (abi, mut stack) = (self.abi, [value, 0, 0]);
        // SAFETY: the stack is as long as the call's arguments, which it takes, and the tensor that it leaves
        // is dropped; the mode is this thread's, and is as it was before.
        unsafe {
            let graphs = (abi.makes_graphs)();
            (abi.make_graphs)(false);
            let code =
                (abi.call)(c"aten::transpose_".as_ptr(), c"".as_ptr(), stack.as_mut_ptr(), WRITTEN_FOR);
            (abi.make_graphs)(graphs);
            if code == 0 {
                drop(Self { abi, handle: stack[0] as TorchHandle });
            }
        }
    }

    /// The elements as a symmem array, which keeps the tensor.
    pub(super) fn array(self: &Arc<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let facts = self.facts();
        let (Some(dtype), Some(place)) = (facts.dtype, facts.place) else {
            return Err(invalid(
                "tensor",
                "there are no elements of its type, or no memory of its device, here",
            ));
        };
        let shape: Vec<usize> = facts.sizes.iter().map(|side| *side as usize).collect();
        let strides: Vec<isize> =
            facts.strides.iter().map(|stride| *stride as isize * dtype.size() as isize).collect();
        let keep: Keep = Arc::clone(self) as Keep;
        array::make_strided(py, facts.address, keep, &shape, &strides, dtype, place)
    }
}

/// An argument.
#[derive(Debug)]
pub(super) enum Argument {
    Tensor(Arc<Tensor>),
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    None,
    List(Vec<Argument>),
}

/// The argument that `value` is.
///
/// # Safety
/// Torch made the value, of this kind, for the caller, who uses it no more.
pub(super) unsafe fn take(abi: &'static Abi, slot: Slot, value: u64) -> Argument {
    // SAFETY: as the caller promises, for each of the four.
    unsafe {
        match slot {
            Slot::One(kind) => take_one(abi, kind, value),
            Slot::List(kind) => take_list(abi, kind, value as TorchHandle),
            Slot::Optional(_) | Slot::OptionalList(_) if value == 0 => Argument::None,
            Slot::Optional(kind) => take_one(abi, kind, unbox(abi, value)),
            Slot::OptionalList(kind) => take_list(abi, kind, unbox(abi, value) as TorchHandle),
        }
    }
}

/// What an optional value that is there holds; frees its box.
///
/// # Safety
/// As for [`take`]: a value that torch made as an optional one.
unsafe fn unbox(abi: &Abi, value: u64) -> u64 {
    let pointer = value as *mut u64;
    // SAFETY: torch made the box by C++'s `new`, for this one use.
    unsafe {
        let inner = pointer.read();
        (abi.delete_box)(pointer as *mut c_void);
        inner
    }
}

/// # Safety
/// As for [`take`].
unsafe fn take_one(abi: &'static Abi, kind: Kind, value: u64) -> Argument {
    match kind {
        Kind::Tensor => Argument::Tensor(Arc::new(Tensor { abi, handle: value as TorchHandle })),
        Kind::Int => Argument::Int(value as i64),
        Kind::Float => Argument::Float(f64::from_bits(value)),
        // Only the lowest byte is said.
        Kind::Bool => Argument::Bool(value & 0xff != 0),
        Kind::Text => {
            let (handle, mut length, mut bytes) = (value as TorchHandle, 0, std::ptr::null());
            // SAFETY: a string of torch's, as the caller promises; its bytes are its own until it is deleted,
            // at the end.
            unsafe {
                (abi.string_length)(handle, &mut length);
                (abi.string_bytes)(handle, &mut bytes);
                let bytes =
                    if bytes.is_null() { &[] } else { slice::from_raw_parts(bytes.cast::<u8>(), length) };
                let text = String::from_utf8_lossy(bytes).into_owned();
                (abi.delete_string)(handle);
                Argument::Text(text)
            }
        }
    }
}

/// # Safety
/// As for [`take`]: a list.
unsafe fn take_list(abi: &'static Abi, kind: Kind, list: TorchHandle) -> Argument {
    // SAFETY: a list of torch's, as the caller promises, of which each item is taken once.
    unsafe {
        let mut count = 0;
        (abi.list_size)(list, &mut count);
        let item = |at: usize| {
            let mut value = 0;
            ((abi.list_item)(list, at, &mut value) == 0).then(|| take_one(abi, kind, value))
        };
        let items = (0..count).filter_map(item).collect();
        (abi.delete_list)(list);
        Argument::List(items)
    }
}

impl Argument {
    /// What a function of Python gets for it.
    pub(super) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Tensor(tensor) => tensor.array(py)?.into_bound(py).call_method0(intern!(py, "torch")),
            Self::Int(number) => number.into_bound_py_any(py),
            Self::Float(number) => number.into_bound_py_any(py),
            Self::Bool(truth) => truth.into_bound_py_any(py),
            Self::Text(text) => Ok(PyString::new(py, text).into_any()),
            Self::None => Ok(py.None().into_bound(py)),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(|item| item.to_python(py)).collect::<PyResult<_>>()?;
                Ok(PyList::new(py, items)?.into_any())
            }
        }
    }

    /// Every tensor in it.
    pub(super) fn tensors(&self) -> Vec<&Arc<Tensor>> {
        match self {
            Self::Tensor(tensor) => vec![tensor],
            Self::List(items) => items.iter().flat_map(Self::tensors).collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_schemas_are_read() {
        assert_eq!(Slot::parse("Tensor"), Some(Slot::One(Kind::Tensor)));
        assert_eq!(Slot::parse("float"), Some(Slot::One(Kind::Float)));
        assert_eq!(Slot::parse("str?"), Some(Slot::Optional(Kind::Text)));
        assert_eq!(Slot::parse("Tensor[]"), Some(Slot::List(Kind::Tensor)));
        assert_eq!(Slot::parse("int[]?"), Some(Slot::OptionalList(Kind::Int)));
        assert_eq!(Slot::parse("Scalar"), None);
    }

    #[test]
    fn density_is_of_strides() {
        let facts = |sizes: &'static [i64], strides: &'static [i64]| TensorFacts {
            address: 0,
            sizes,
            strides,
            number: 0,
            dtype: None,
            place: None,
        };
        assert!(facts(&[2, 3], &[3, 1]).is_dense() && facts(&[], &[]).is_dense());
        assert!(facts(&[2, 1], &[1, 7]).is_dense() && facts(&[0, 3], &[9, 9]).is_dense());
        assert!(!facts(&[2, 3], &[1, 2]).is_dense());
    }
}
