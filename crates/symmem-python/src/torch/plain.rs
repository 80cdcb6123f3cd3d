//! Collectives of plain torch tensors: what the c10d backend calls first, one call from Python to the loop.
//!
//! Only `symmem.torch.c10d` uses these functions. Each does its work and says True, or says False without
//! having done anything: then the tensors are not plain, or something is wrong with them, and the backend's
//! longer way copies or explains. Both ways announce the same call, because what is plain on one rank need
//! not be on another: reductions see elements, anything that only moves sees bytes.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use symmem::erased::Call;

use crate::collectives::reduce_op;
use crate::dtype;
use crate::group::Group;
use crate::memory::find_known;
use crate::operand::Operand;
use crate::private::{self, PrivateCall};
use crate::turn::Turn;

/// Torch's classes and constants that plain tensors are compared with.
struct Torch {
    tensor: Py<PyAny>,
    parameter: Py<PyAny>,
    strided: Py<PyAny>,
}

fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        Ok(Torch {
            tensor: torch.getattr("Tensor")?.unbind(),
            parameter: torch.getattr("nn")?.getattr("Parameter")?.unbind(),
            strided: torch.getattr("strided")?.unbind(),
        })
    })
}

/// `tensor`, if its elements lie side by side on the host, as its memory has them, and are of a type that
/// there is here.
fn plain<'py>(group: &Group, tensor: &Bound<'py, PyAny>) -> PyResult<Option<Operand<'py>>> {
    let py = tensor.py();
    let torch = torch(py)?;
    let class = tensor.get_type();
    // Subclasses may be anything.
    let is_one = (class.is(&torch.tensor) || class.is(&torch.parameter))
        && tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()?
        && tensor.getattr(intern!(py, "layout"))?.is(&torch.strided)
        && dtype::of_torch(&tensor.getattr(intern!(py, "dtype"))?)?.is_some();
    if !is_one {
        return Ok(None);
    }
    // What cannot be seen the longer way explains, and tells.
    let Ok(operand) = Operand::view(tensor) else { return Ok(None) };
    // Symmetric memory has a better way.
    Ok((operand.is_dense() && find_known(&operand, group.membership(), 0)?.is_none()).then_some(operand))
}

/// Runs `call`; where `out` is none, in place.
fn run(group: &Group, call: Call<'_>, input: Operand<'_>, out: Option<Operand<'_>>) -> PyResult<bool> {
    let py = input.object.py();
    let inner = group.membership().group(call.name(), 0)?;
    let job = match out {
        None => PrivateCall::in_place(call, input),
        Some(out) => PrivateCall::apart(call, input, out),
    };
    job.run(py, &inner).map(|_| true)
}

/// Whether the output, of `of_out` parts, goes with the input, of `of_input` as long ones; and they are
/// apart.
fn fit(input: &Operand<'_>, of_input: usize, out: &Operand<'_>, of_out: usize) -> bool {
    let long_enough = input.len.checked_mul(of_out) == out.len.checked_mul(of_input);
    long_enough && input.dtype == out.dtype && private::are_apart(input, out)
}

/// Everybody's `tensor` becomes the reduction of all.
#[pyfunction]
fn _tensor_all_reduce(group: &Group, tensor: &Bound<'_, PyAny>, op: &str) -> PyResult<bool> {
    match plain(group, tensor)? {
        Some(operand) => run(group, Call::AllReduce(reduce_op(op)?), operand, None),
        None => Ok(false),
    }
}

/// [`_tensor_all_reduce`], if nobody has the turn and nothing waits for it.
#[pyfunction]
fn _tensor_all_reduce_now(turn: &Turn, group: &Group, tensor: &Bound<'_, PyAny>, op: &str) -> PyResult<bool> {
    let Some(_taken) = turn.take_if_idle() else { return Ok(false) };
    _tensor_all_reduce(group, tensor, op)
}

/// Everybody's `tensor` becomes that of `root`.
#[pyfunction]
fn _tensor_broadcast(group: &Group, tensor: &Bound<'_, PyAny>, root: isize) -> PyResult<bool> {
    match (plain(group, tensor)?, usize::try_from(root)) {
        (Some(operand), Ok(root)) => run(group, Call::Broadcast(root), operand.into_bytes(), None),
        _ => Ok(false),
    }
}

/// `out` becomes everybody's `tensor`, in rank order.
#[pyfunction]
fn _tensor_all_gather(group: &Group, out: &Bound<'_, PyAny>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    match (plain(group, tensor)?, plain(group, out)?) {
        (Some(input), Some(out)) if fit(&input, 1, &out, group.membership().size()) => {
            run(group, Call::AllGather, input.into_bytes(), Some(out.into_bytes()))
        }
        _ => Ok(false),
    }
}

/// `out` becomes the reduction of this rank's part of everybody's `tensor`.
#[pyfunction]
fn _tensor_reduce_scatter(
    group: &Group,
    out: &Bound<'_, PyAny>,
    tensor: &Bound<'_, PyAny>,
    op: &str,
) -> PyResult<bool> {
    match (plain(group, tensor)?, plain(group, out)?) {
        (Some(input), Some(out)) if fit(&input, group.membership().size(), &out, 1) => {
            run(group, Call::ReduceScatter(reduce_op(op)?), input, Some(out))
        }
        _ => Ok(false),
    }
}

/// `out` becomes everybody's part for this rank, each of `tensor` going to one rank.
#[pyfunction]
fn _tensor_all_to_all(group: &Group, out: &Bound<'_, PyAny>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    match (plain(group, tensor)?, plain(group, out)?) {
        (Some(input), Some(out))
            if fit(&input, 1, &out, 1) && input.len.is_multiple_of(group.membership().size()) =>
        {
            run(group, Call::AllToAll, input.into_bytes(), Some(out.into_bytes()))
        }
        _ => Ok(false),
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_tensor_all_reduce, module)?)?;
    module.add_function(wrap_pyfunction!(_tensor_all_reduce_now, module)?)?;
    module.add_function(wrap_pyfunction!(_tensor_broadcast, module)?)?;
    module.add_function(wrap_pyfunction!(_tensor_all_gather, module)?)?;
    module.add_function(wrap_pyfunction!(_tensor_reduce_scatter, module)?)?;
    module.add_function(wrap_pyfunction!(_tensor_all_to_all, module)?)
}
