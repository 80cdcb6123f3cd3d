//! Fused products and norms: which arrays they read and write, and whether these fit.
//!
//! Called by the methods of `SymmetricMemory`, on its own elements, and of `Group`, on any array. What is
//! wrong with this rank's arguments is found here and told by who calls; what ranks may disagree on is the
//! library's to compare. Strided arrays are copied in, and out again where they are written.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use symmem::erased::{BytesMatrix, Side};
use symmem::{DType, ReduceOp};

use crate::Any;
use crate::collectives::{Maybe, new_output, reduce_op};
use crate::dtype;
use crate::error::invalid;
use crate::group::Membership;
use crate::memory::Bytes;
use crate::operand::{Operand, Place, is_tensor};
use crate::private::are_apart;

/// What the norm is called.
pub(crate) const NORM: &str = "all_reduce_rms_norm";

/// This rank's elements, wherever they are.
pub(crate) struct Elements<'a> {
    pub(crate) shape: &'a [usize],
    pub(crate) dtype: DType,
    /// Whether new outputs are torch's.
    pub(crate) torch: bool,
    /// Number of ranks.
    pub(crate) world: usize,
}

/// What is asked of a norm besides its elements. The host has some of it only: [`AskedNorm::on_host`].
pub(crate) struct AskedNorm<'a, 'py> {
    pub(crate) residual: Maybe<'a, 'py>,
    pub(crate) weight: Maybe<'a, 'py>,
    pub(crate) epsilon: f32,
    pub(crate) op: &'a str,
    pub(crate) out: Maybe<'a, 'py>,
    /// A scale for all of an output of fp8, which is read.
    pub(crate) scale: Maybe<'a, 'py>,
    /// A scale for each row of an output of fp8, which are written.
    pub(crate) scales: Maybe<'a, 'py>,
    /// Private elements in place of those of the symmetric memory.
    pub(crate) x: Maybe<'a, 'py>,
    pub(crate) fused: bool,
}

impl<'a, 'py> AskedNorm<'a, 'py> {
    /// The residual and the weight, if there is nothing that the host does not have.
    fn on_host(&self) -> PyResult<(&'a Any<'py>, &'a Any<'py>)> {
        let is_plain = self.scale.is_none() && self.scales.is_none() && self.x.is_none();
        check(NORM, is_plain && self.fused && reduce_op(self.op)? == ReduceOp::Sum, || {
            "on the host it is a fused sum, written as it is. Hint: op, scale, scales, x and fused are for devices".to_owned()
        })?;
        match (self.residual, self.weight) {
            (Some(residual), Some(weight)) => Ok((residual, weight)),
            _ => Err(invalid(NORM, "on the host it has a residual and a weight. Hint: zeros, and ones")),
        }
    }
}

/// An error unless a weight of `shape` is as long as the rows of elements of the shape `of`.
pub(crate) fn check_width(shape: &[usize], of: &[usize]) -> PyResult<()> {
    check(NORM, shape.len() == 1 && of.last() == shape.first(), || {
        format!("a weight of shape {shape:?} for elements of shape {of:?}")
    })
}

/// Which operation, and what it is told besides arrays.
#[derive(Clone, Copy, Debug)]
enum FusedKind {
    /// With so many products.
    Gather(Side, usize),
    Scatter(Side, ReduceOp),
    Norm(f32),
}

/// An array, and what it is in errors.
type Named<'py> = (&'static str, Operand<'py>);

/// A fused operation, ready to run.
pub(crate) struct FusedPlan<'py> {
    kind: FusedKind,
    dtype: DType,
    fused: bool,
    /// What all ranks must have alike: the shape of their elements, or of the product that is scattered.
    shape: Vec<usize>,
    /// Weights; or the two sides of a product; or the weight of a norm.
    inputs: Vec<Named<'py>>,
    /// Products, and the rows if they are wanted; or the part of the product; or the residual and the norm.
    outputs: Vec<Named<'py>>,
    result: Py<PyAny>,
}

impl<'py> FusedPlan<'py> {
    /// Everybody's elements and their products with `weights`, a matrix or several.
    pub(crate) fn gather(
        py: Python<'py>,
        of: &Elements<'_>,
        (side, fused): (Side, bool),
        weights: &Any<'py>,
        (out, rows): (Maybe<'_, 'py>, Maybe<'_, 'py>),
    ) -> PyResult<Self> {
        let op = side.gather_name();
        check_type(op, of.dtype)?;
        let [lead @ .., columns] = of.shape else { return Err(no_matrix(op, of.shape)) };
        let [first, others @ ..] = lead else { return Err(no_matrix(op, of.shape)) };
        // The library counts rows by their elements.
        check(op, *columns > 0, || format!("elements of shape {:?} have no columns", of.shape))?;
        let depth = if side == Side::Columns { columns * of.world } else { *columns };
        let (weights, several) = each_of(weights)?;
        let inputs =
            weights.iter().map(|one| input("weights", one, of.dtype)).collect::<PyResult<Vec<_>>>()?;
        for (_, one) in &inputs {
            let fits = matches!(*one.shape, [rows, _] if rows == depth);
            check(op, fits, || {
                format!("weights of shape {:?}: {depth} rows of some columns are needed", one.shape)
            })?;
        }
        let first = if side == Side::Columns { *first } else { first * of.world };
        let shape = |columns| [&[first], others, &[columns]].concat();
        let given = match out {
            None => vec![None; inputs.len()],
            Some(out) if several => listed(out)?.into_iter().map(Some).collect(),
            Some(out) => vec![Some(out.clone())],
        };
        check(op, given.len() == inputs.len(), || {
            format!("{} outputs for {} products", given.len(), inputs.len())
        })?;
        let mut outputs = Vec::new();
        for (out, (_, weights)) in given.into_iter().zip(&inputs) {
            let made = || new_output(py, of.torch, Place::Cpu, &shape(weights.shape[1]), of.dtype);
            outputs.push(output("out", &out.map_or_else(made, Ok)?, of.dtype)?);
        }
        let products: Vec<_> = outputs.iter().map(|(_, out)| out.object.clone()).collect();
        let result = match &*products {
            [one] if !several => one.clone().unbind(),
            _ => PyList::new(py, &products)?.into_any().unbind(),
        };
        if let Some(rows) = rows {
            outputs.push(output("rows", rows, of.dtype)?);
        }
        let kind = FusedKind::Gather(side, products.len());
        let shape = of.shape.to_vec();
        Self { kind, dtype: of.dtype, fused, shape, inputs, outputs, result }.apart()
    }

    /// This rank's part of the reduction of everybody's `a @ b`.
    pub(crate) fn scatter(
        py: Python<'py>,
        world: usize,
        (side, fused): (Side, bool),
        (a, b): (&Any<'py>, &Any<'py>),
        (op, out): (&str, Maybe<'_, 'py>),
    ) -> PyResult<Self> {
        let name = side.scatter_name();
        let reduce = reduce_op(op)?;
        let torch = is_tensor(a)?;
        let a = Operand::any(a)?.or_copy()?;
        check_type(name, a.dtype)?;
        let (dtype, b) = (a.dtype, input("b", b, a.dtype)?);
        let inputs = vec![("a", on_host("a", a, dtype)?), b];
        let (a, b) = (&*inputs[0].1.shape, &*inputs[1].1.shape);
        let ([lead @ .., k], [rows, columns]) = (a, b) else {
            return Err(invalid(name, format!("{a:?} times {b:?} is no product of matrices")));
        };
        let [first, others @ ..] = lead else { return Err(no_matrix(name, a)) };
        check(name, k == rows, || format!("{a:?} times {b:?} is no product of matrices"))?;
        let (what, divided) = if side == Side::Rows { ("rows", first) } else { ("columns", columns) };
        check(name, divided.is_multiple_of(world), || {
            format!("{divided} {what} are not divisible by {world} ranks")
        })?;
        let shape = [lead, &[*columns]].concat();
        let made = || {
            let (first, columns) = match side {
                Side::Rows => (first / world, *columns),
                Side::Columns => (*first, columns / world),
            };
            new_output(py, torch, Place::Cpu, &[&[first], others, &[columns]].concat(), dtype)
        };
        let out = output("out", &out.map_or_else(made, |out| Ok(out.clone()))?, dtype)?;
        let (result, kind) = (out.1.object.clone().unbind(), FusedKind::Scatter(side, reduce));
        Self { kind, dtype, fused, shape, inputs, outputs: vec![out], result }.apart()
    }

    /// Everybody's sum added to `residual`, and the RMSNorm of that.
    pub(crate) fn norm(py: Python<'py>, of: &Elements<'_>, asked: &AskedNorm<'_, 'py>) -> PyResult<Self> {
        check_type(NORM, of.dtype)?;
        let ((residual, weight), out) = (asked.on_host()?, asked.out);
        let (residual, weight) =
            (output("residual", residual, of.dtype)?, input("weight", weight, of.dtype)?);
        check_width(&weight.1.shape, of.shape)?;
        let made = || new_output(py, of.torch, Place::Cpu, of.shape, of.dtype);
        let out = output("out", &out.map_or_else(made, |out| Ok(out.clone()))?, of.dtype)?;
        let result = out.1.object.clone().unbind();
        let (inputs, outputs) = (vec![weight], vec![residual, out]);
        let (kind, shape) = (FusedKind::Norm(asked.epsilon), of.shape.to_vec());
        Self { kind, dtype: of.dtype, fused: true, shape, inputs, outputs, result }.apart()
    }

    /// Itself, unless something that it writes has bytes in common with another array of its.
    fn apart(self) -> PyResult<Self> {
        for (index, (what, out)) in self.outputs.iter().enumerate() {
            for (other, operand) in self.inputs.iter().chain(&self.outputs[..index]) {
                if !are_apart(operand, out) {
                    return Err(invalid(*what, format!("it overlaps {other}. Hint: pass memory of its own")));
                }
            }
        }
        Ok(self)
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            FusedKind::Gather(side, _) => side.gather_name(),
            FusedKind::Scatter(side, _) => side.scatter_name(),
            FusedKind::Norm(_) => NORM,
        }
    }

    /// What it writes, with what each is in errors.
    pub(crate) fn outputs(&self) -> &[Named<'py>] {
        &self.outputs
    }

    /// What it reads besides this rank's elements.
    pub(crate) fn inputs(&self) -> &[Named<'py>] {
        &self.inputs
    }

    /// Bytes of the workspace that a scatter needs: its product in float32.
    pub(crate) fn workspace(&self) -> usize {
        let [(_, a), (_, b)] = &*self.inputs else { return 0 };
        let rows: usize = a.shape.iter().rev().skip(1).product();
        rows.saturating_mul(b.shape[1]).saturating_mul(size_of::<f32>())
    }

    /// What it does with the memory of all ranks of the group, which compare shapes unless this rank's
    /// `membership` does not care.
    ///
    /// # Safety
    /// Nobody else uses the elements of its arrays, and the memory is none of what it writes.
    pub(crate) unsafe fn job(
        &self,
        membership: &Membership,
    ) -> impl FnOnce(&Bytes) -> symmem::Result<()> + Send + '_ {
        let (kind, dtype, fused) = (self.kind, self.dtype, self.fused);
        let shape = membership.compares_shapes().then_some(&*self.shape);
        // SAFETY: on the host, as all operands here; what is written is writable, and apart from each other
        // and from what is read (`apart`); else the caller's duty.
        let (inputs, mut outs): (Vec<_>, Vec<_>) = unsafe {
            let inputs = self.inputs.iter().map(|(_, one)| matrix(one, one.bytes_of())).collect();
            (inputs, self.outputs.iter().map(|(_, out)| out.bytes_of_mut()).collect())
        };
        move |memory| {
            let memory = memory.of_shape(shape);
            match kind {
                FusedKind::Gather(side, products) => {
                    let rows = outs.drain(products..).next();
                    memory.all_gather_matmul_as((dtype, side, fused), &inputs, outs, rows)
                }
                FusedKind::Scatter(side, reduce) => match (&*inputs, &mut *outs) {
                    ([a, b], [out]) => {
                        memory.matmul_reduce_scatter_as((dtype, side, fused), reduce, (*a, *b), out)
                    }
                    _ => Ok(()),
                },
                FusedKind::Norm(epsilon) => match (&*inputs, &mut *outs) {
                    ([weight], [residual, out]) => {
                        memory.all_reduce_rms_norm_as(dtype, residual, (weight.bytes, epsilon), out)
                    }
                    _ => Ok(()),
                },
            }
        }
    }

    /// After it has run: puts outputs where they belong, and gives what it returns.
    pub(crate) fn done(self) -> PyResult<Py<PyAny>> {
        self.outputs.iter().try_for_each(|(_, out)| out.land())?;
        Ok(self.result)
    }
}

/// `bytes`, which are all elements of `of`, as a matrix whose columns are along the last dimension.
fn matrix<'a>(of: &Operand<'_>, bytes: &'a [u8]) -> BytesMatrix<'a> {
    let [lead @ .., columns] = &*of.shape else { return BytesMatrix { bytes, rows: 1, columns: of.len } };
    BytesMatrix { bytes, rows: lead.iter().product(), columns: *columns }
}

/// A matrix, or several in a list or tuple; and whether it was one of these.
fn each_of<'py>(weights: &Any<'py>) -> PyResult<(Vec<Any<'py>>, bool)> {
    match weights.is_instance_of::<PyList>() || weights.is_instance_of::<PyTuple>() {
        true => Ok((listed(weights)?, true)),
        false => Ok((vec![weights.clone()], false)),
    }
}

fn listed<'py>(arrays: &Any<'py>) -> PyResult<Vec<Any<'py>>> {
    arrays.try_iter()?.collect()
}

/// An array that is read, of this type; a copy of it where it is strided.
fn input<'py>(what: &'static str, array: &Any<'py>, dtype: DType) -> PyResult<Named<'py>> {
    Ok((what, on_host(what, Operand::any(array)?.or_copy()?, dtype)?))
}

/// An array that is written, of this type; a copy of it where it is strided.
fn output<'py>(what: &'static str, array: &Any<'py>, dtype: DType) -> PyResult<Named<'py>> {
    Ok((what, on_host(what, Operand::any_output(array)?, dtype)?))
}

fn on_host<'py>(what: &'static str, operand: Operand<'py>, dtype: DType) -> PyResult<Operand<'py>> {
    let (theirs, ours) = (operand.type_name(), dtype::name(dtype));
    check(what, theirs == ours, || format!("its elements are {theirs}, but the others are {ours}"))?;
    match operand.device {
        Place::Cpu => Ok(operand),
        place => Err(invalid(what, format!("it is on {place}, and this is done on the host"))),
    }
}

/// An error unless products are made of this type.
fn check_type(op: &'static str, dtype: DType) -> PyResult<()> {
    check(op, matches!(dtype, DType::F32 | DType::BF16 | DType::F16), || {
        format!("elements of {}: there are float32, bfloat16 and float16", dtype::name(dtype))
    })
}

fn no_matrix(op: &'static str, shape: &[usize]) -> PyErr {
    invalid(op, format!("elements of shape {shape:?} are no rows of a matrix"))
}

fn check(what: &'static str, fits: bool, problem: impl FnOnce() -> String) -> PyResult<()> {
    if fits { Ok(()) } else { Err(invalid(what, problem())) }
}
