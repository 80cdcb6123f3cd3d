//! All-reduce, residual and norm of a handle on a device: which arrays it takes, and the call, whose element
//! type is known only at run time.
//!
//! Made by `memory` and `group`, which tell the others of what is wrong with this rank's arrays; lengths,
//! places and overlaps are the library's to check, which tells by itself. Nothing waits.

use pyo3::prelude::*;
use symmem::cuda::{DeviceSlice, DeviceSliceMut, Normed, RmsNorm, Stream, SymmetricMemory};
use symmem::{DType, Element, Error, F8E4M3, ReduceOp, Result, bf16, f16};

use crate::Any;
use crate::collectives::{new_output, reduce_op};
use crate::dtype;
use crate::error::invalid;
use crate::fused::{AskedNorm, Elements, NORM, check_width};
use crate::operand::{Operand, Place};
use crate::registry::Registered;

/// Private elements: their device address, and how many there are.
type Part = (u64, usize);

/// How the result is written.
#[derive(Clone, Copy, Debug)]
enum Written {
    Plain,
    /// fp8, by a scale that is read.
    ByTensor(Part),
    /// fp8, by scales that are written.
    ByRow(Part),
}

/// What is normalised, and where it goes. Only a [`DeviceNormPlan`] makes one, of arrays that it has.
#[derive(Debug)]
pub(crate) struct DeviceNorm {
    reduce: ReduceOp,
    dtype: DType,
    /// Elements of all rows, and of one.
    len: usize,
    columns: usize,
    epsilon: f32,
    fused: bool,
    /// In place of the symmetric memory, which then is a place to work in.
    input: Option<Part>,
    residual: Option<Part>,
    weight: Option<Part>,
    out: Part,
    written: Written,
}

/// A norm, ready to run, and the arrays that it is of.
pub(crate) struct DeviceNormPlan<'py> {
    norm: DeviceNorm,
    /// What it writes, with what each is in errors.
    pub(crate) outputs: Vec<(&'static str, Operand<'py>)>,
    /// What keeps copies of strided arrays until the call is on its stream.
    _inputs: Vec<Operand<'py>>,
    pub(crate) result: Py<PyAny>,
}

/// Looks at arrays, which must be at one place.
struct Arrays<'py> {
    place: Place,
    inputs: Vec<Operand<'py>>,
    outputs: Vec<(&'static str, Operand<'py>)>,
}

impl<'py> Arrays<'py> {
    fn read(&mut self, what: &'static str, array: &Any<'py>, dtype: DType) -> PyResult<Part> {
        let operand = Operand::input_or_copy(array)?;
        let part = self.part(what, &operand, dtype)?;
        self.inputs.push(operand);
        Ok(part)
    }

    fn written(&mut self, what: &'static str, array: &Any<'py>, dtype: DType) -> PyResult<Part> {
        let operand = Operand::any_output(array)?;
        let part = self.part(what, &operand, dtype)?;
        self.outputs.push((what, operand));
        Ok(part)
    }

    fn part(&self, what: &'static str, operand: &Operand<'py>, dtype: DType) -> PyResult<Part> {
        let (theirs, needed) = (operand.type_name(), dtype::name(dtype));
        if theirs != needed {
            return Err(invalid(what, format!("its elements are {theirs}, and {needed} are needed")));
        }
        if operand.device != self.place {
            let problem = format!("it is on {}, the memory on {}", operand.device, self.place);
            return Err(invalid(what, problem));
        }
        Ok((operand.address as u64, operand.len))
    }
}

impl<'py> DeviceNormPlan<'py> {
    /// What `asked` says of the elements `of` at `place`: of symmetric memory, or private ones, `given`.
    pub(crate) fn new(
        py: Python<'py>,
        (of, place): (&Elements<'_>, Place),
        given: Option<&Any<'py>>,
        asked: &AskedNorm<'_, 'py>,
    ) -> PyResult<Self> {
        let mut arrays = Arrays { place, inputs: Vec::new(), outputs: Vec::new() };
        let Some(columns) = of.shape.last().copied() else {
            return Err(invalid(NORM, "a scalar has no rows"));
        };
        let reduce = reduce_op(asked.op)?;
        let input = given.or(asked.x).map(|x| arrays.read("x", x, of.dtype)).transpose()?;
        let residual = asked.residual.map(|one| arrays.written("residual", one, of.dtype)).transpose()?;
        let weight = match asked.weight {
            None => None,
            Some(weight) => {
                let part = arrays.read("weight", weight, of.dtype)?;
                check_width(arrays.inputs.last().map_or(&[], |weight| &weight.shape), of.shape)?;
                Some(part)
            }
        };
        let written = match (asked.scale, asked.scales) {
            (None, None) => Written::Plain,
            (Some(scale), None) => Written::ByTensor(arrays.read("scale", scale, DType::F32)?),
            (None, Some(scales)) => Written::ByRow(arrays.written("scales", scales, DType::F32)?),
            (Some(_), Some(_)) => {
                let problem = "there is a scale too. Hint: scale= is one that is read, scales= one of each row that is written";
                return Err(invalid("scales", problem));
            }
        };
        let dtype = if matches!(written, Written::Plain) { of.dtype } else { DType::F8E4M3 };
        let made = || new_output(py, of.torch, place, of.shape, dtype);
        let object = asked.out.map_or_else(made, |out| Ok(out.clone()))?;
        let out = arrays.written("out", &object, dtype)?;
        let (len, epsilon, fused) = (of.shape.iter().product(), asked.epsilon, asked.fused);
        let norm = DeviceNorm {
            reduce,
            dtype: of.dtype,
            len,
            columns,
            epsilon,
            fused,
            input,
            residual,
            weight,
            out,
            written,
        };
        Ok(Self { norm, outputs: arrays.outputs, _inputs: arrays.inputs, result: object.unbind() })
    }
}

impl DeviceNormPlan<'_> {
    /// What is to be done, as long as this lives.
    pub(super) fn norm(&self) -> &DeviceNorm {
        &self.norm
    }
}

impl DeviceNorm {
    /// Bytes of the symmetric memory that it is of.
    pub(super) fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.size())
    }

    /// An error where devices do not have it, whose arguments the library could not even look at.
    pub(super) fn check(&self) -> Result<()> {
        match self.dtype {
            DType::BF16 | DType::F16 | DType::F32 => Ok(()),
            other => Err(Error::Invalid {
                what: NORM.to_owned(),
                problem: format!("{other} is not reduced on devices. Hint: bf16, f16 and f32 are; convert"),
            }),
        }
    }

    /// Puts it on `stream`, with `memory` as the symmetric memory.
    pub(super) fn run(&self, memory: &SymmetricMemory<u8>, stream: &Stream) -> Result<()> {
        match self.dtype {
            DType::BF16 => self.run_as(&memory.cast::<bf16>()?, stream),
            DType::F16 => self.run_as(&memory.cast::<f16>()?, stream),
            _ => self.run_as(&memory.cast::<f32>()?, stream),
        }
    }

    fn run_as<T: Element>(&self, memory: &SymmetricMemory<T>, stream: &Stream) -> Result<()> {
        let device = memory.device();
        let owner = |part: Option<Part>| Registered(part.map_or(0, |(address, _)| address));
        let scale = match self.written {
            Written::Plain => None,
            Written::ByTensor(part) | Written::ByRow(part) => Some(part),
        };
        let owners = [self.weight, self.input, self.residual, Some(self.out), scale].map(owner);
        let [weight, input, residual, out, scales] = &owners;
        let mut norm = RmsNorm::<T>::new(self.columns, self.epsilon).reduce(self.reduce);
        if !self.fused {
            norm = norm.unfused();
        }
        // SAFETY: memory of Python objects, which the plan that this is of has seen; it is there as long as
        // their library says, and libraries order frees by streams.
        unsafe {
            if let Some((address, len)) = self.weight {
                norm = norm.weight(DeviceSlice::from_owner(address, len, device, weight)?);
            }
            if let Some((address, len)) = self.input {
                norm = norm.input(DeviceSlice::from_owner(address, len, device, input)?);
            }
            if let Some((address, len)) = self.residual {
                norm = norm.residual(DeviceSliceMut::from_owner(address, len, device, residual)?);
            }
            let (address, len) = self.out;
            let fp8 = || DeviceSliceMut::<F8E4M3>::from_owner(address, len, device, out);
            let normed = match self.written {
                Written::Plain => Normed::from(DeviceSliceMut::from_owner(address, len, device, out)?),
                Written::ByTensor((at, count)) => {
                    Normed::fp8(fp8()?, DeviceSlice::from_owner(at, count, device, scales)?)
                }
                Written::ByRow((at, count)) => {
                    Normed::fp8_by_row(fp8()?, DeviceSliceMut::from_owner(at, count, device, scales)?)
                }
            };
            memory.all_reduce_rms_norm_with(norm, normed, stream)
        }
    }
}
