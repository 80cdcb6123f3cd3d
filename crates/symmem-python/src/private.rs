//! Collectives on memory that is not symmetric: numpy arrays, torch tensors, whatever lies on the host.
//!
//! Called by `collectives` where an array is not symmetric on the group. The library copies through the group's staging, so
//! nothing needs to be allocated or rendezvoused before. Strided arrays are copied in, and out again where they are written. Complex
//! numbers are pairs of real ones: they move, and sum and avg reduce the parts by themselves.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use symmem::{DType, Element, Group, ReduceOp};

use crate::collectives::new_output;
use crate::dtype::dispatch;
use crate::error::{invalid, raise};
use crate::interrupt::blocking;
use crate::memory::{Call, land};
use crate::operand::{Operand, Place, is_tensor};
use crate::pending::{Pending, Running, Started};

/// A collective, ready to run.
pub(crate) struct Job<'py> {
    call: Call,
    dtype: DType,
    /// Absent in place, and where only the root has one.
    input: Option<Operand<'py>>,
    /// In place: input and output. Absent where only the root has one.
    out: Option<Operand<'py>>,
    result: Py<PyAny>,
}

impl<'py> Job<'py> {
    /// `call` on dense elements of the host, in place.
    pub(crate) fn in_place(call: Call, out: Operand<'py>) -> Self {
        let result = out.object.clone().unbind();
        Self { call, dtype: out.dtype, input: None, out: Some(out), result }
    }

    /// `call` on dense elements of the host, of one type and apart.
    pub(crate) fn apart(call: Call, input: Operand<'py>, out: Operand<'py>) -> Self {
        let result = out.object.clone().unbind();
        Self { call, dtype: input.dtype, input: Some(input), out: Some(out), result }
    }

    /// `call` on `x`, into `out` or a new array. `seen` is `x` as an operand, if somebody has looked already.
    pub(crate) fn new(
        group: &Group,
        call: Call,
        (x, seen): (&Bound<'py, PyAny>, Option<Operand<'py>>),
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = x.py();
        if let Call::ReduceScatterColumns(..) = call {
            return Err(invalid(call.name(), "columns are reduced in symmetric memory only"));
        }
        // Reducing into the same array is reducing in place.
        let same = || out.is_none_or(|out| out.is(x));
        if matches!(call, Call::Broadcast(_)) || matches!(call, Call::AllReduce(_)) && same() {
            let out = on_host(call, seen.map_or_else(|| Operand::any(x), Ok)?)?;
            call.check_writes(&out)?;
            check_complex(call, &out)?;
            return Ok(Self::in_place(call, out.or_copy()?));
        }
        let reads = !matches!(call, Call::Scatter(root) if root != group.rank());
        let input = match (reads, seen) {
            (false, _) => None,
            (true, Some(seen)) => Some(on_host(call, seen)?),
            (true, None) => Some(on_host(call, Operand::any(x)?.or_copy()?)?),
        };
        if let Some(input) = &input {
            check_complex(call, input)?;
            call.check_parts(&input.shape, group.size())?;
        }
        let out = output(group, call, input.as_ref(), out)?;
        check_apart(input.as_ref(), out.as_ref())?;
        let Some(dtype) = input.as_ref().or(out.as_ref()).map(|operand| operand.dtype) else {
            return Err(invalid(call.name(), "there is neither an input nor an output"));
        };
        let result = out.as_ref().map_or_else(|| py.None(), |out| out.object.clone().unbind());
        Ok(Self { call, dtype, input, out, result })
    }

    /// The shape that all ranks must have alike: that of the input, which only the root of a scatter has, so that it is made of
    /// everybody's part there. Complex numbers are two elements each.
    pub(crate) fn shape(&self, world: usize) -> Cow<'_, [usize]> {
        let scatters = matches!(self.call, Call::Scatter(_));
        let operands = if scatters { [&self.out, &self.input] } else { [&self.input, &self.out] };
        let Some(operand) = operands.into_iter().flatten().next() else { return Cow::Borrowed(&[]) };
        let mut shape = Cow::Borrowed(&*operand.shape);
        if scatters && let Some(first) = shape.to_mut().first_mut() {
            *first *= world;
        }
        if operand.complex {
            shape.to_mut().push(2);
        }
        shape
    }

    /// Input and output.
    ///
    /// # Safety
    /// `T` is the type of `dtype`; nobody else uses the elements.
    #[allow(clippy::mut_from_ref)] // The elements are not part of the job; who else has them is the caller's duty.
    unsafe fn slices<T: Element>(&self) -> (&[T], &mut [T]) {
        let input = self.input.as_ref();
        // SAFETY: on the host, of one type, and apart from each other, as `new` saw; else the caller's duty.
        unsafe {
            let out = self.out.as_ref();
            (input.map_or(&[], |x| x.slice()), out.map_or(&mut [], |out| out.slice_mut()))
        }
    }
}

fn on_host<'py>(call: Call, operand: Operand<'py>) -> PyResult<Operand<'py>> {
    match operand.device {
        Place::Cpu => Ok(operand),
        place => {
            let problem = format!(
                "memory on {place} must be symmetric on the group. Hint: symmem.empty(..., device={place:?}), then rendezvous"
            );
            Err(invalid(call.name(), problem))
        }
    }
}

/// Where the result goes on this rank: what was passed, or a new array; `None` where only the root has one.
fn output<'py>(
    group: &Group,
    call: Call,
    input: Option<&Operand<'py>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Operand<'py>>> {
    if !call.has_output(group.rank(), out.is_some()) {
        return Ok(None);
    }
    let object = match (out, input) {
        (Some(out), _) => out.clone(),
        (None, Some(input)) => {
            let shape = call.output_shape(&input.shape, group.size())?;
            let (py, torch) = (input.object.py(), is_tensor(&input.object)?);
            match input.complex {
                false => new_output(py, torch, Place::Cpu, &shape, input.dtype)?,
                true => new_complex(py, torch, &shape, input.type_name())?,
            }
        }
        (None, None) => return Err(invalid(call.name(), "a rank without an input needs out=")),
    };
    let out = on_host(call, Operand::any_output(&object)?)?;
    if let Some(input) = input {
        check_same_type(input, &out)?;
    }
    Ok(Some(out))
}

fn check_same_type(input: &Operand<'_>, out: &Operand<'_>) -> PyResult<()> {
    let (theirs, ours) = (input.type_name(), out.type_name());
    if theirs == ours {
        return Ok(());
    }
    Err(invalid("out", format!("its elements are {ours}, those of the input {theirs}")))
}

/// An error if `call` reduces complex numbers in a way that their parts cannot be by themselves.
fn check_complex(call: Call, operand: &Operand<'_>) -> PyResult<()> {
    let (Call::AllReduce(op) | Call::Reduce(op, _) | Call::ReduceScatter(op)) = call else { return Ok(()) };
    if !operand.complex || matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        return Ok(());
    }
    Err(invalid("op", format!("{} of complex numbers is not supported; there are sum, avg", op.name())))
}

/// A new array of complex numbers on the host: torch's for torch, else numpy's.
fn new_complex<'py>(
    py: Python<'py>,
    torch: bool,
    shape: &[usize],
    name: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import(if torch { "torch" } else { "numpy" })?;
    let dtype = [("dtype", module.getattr(name)?)].into_py_dict(py)?;
    module.call_method("empty", (shape.to_vec(),), Some(&dtype))
}

/// Whether they have no byte in common.
pub(crate) fn are_apart(input: &Operand<'_>, out: &Operand<'_>) -> bool {
    let apart = input.address + input.bytes() <= out.address || out.address + out.bytes() <= input.address;
    apart || input.len == 0 || out.len == 0
}

fn check_apart(input: Option<&Operand<'_>>, out: Option<&Operand<'_>>) -> PyResult<()> {
    let (Some(input), Some(out)) = (input, out) else { return Ok(()) };
    if are_apart(input, out) {
        return Ok(());
    }
    Err(invalid("out", "it overlaps the input. Hint: leave it out to work in place"))
}

/// Collective. Runs `job`; gives where the result is.
pub(crate) fn run(py: Python<'_>, group: &Group, job: Job<'_>) -> PyResult<Py<PyAny>> {
    dispatch!(job.dtype, T => {
        // SAFETY: the type of the job; other Python threads race with it as they do with numpy.
        let (input, out) = unsafe { job.slices::<T>() };
        let in_place = job.input.is_none();
        let call = job.call;
        blocking(py, || run_typed(group, call, in_place, input, out))
    })?;
    if let Some(out) = &job.out {
        out.land()?;
    }
    Ok(job.result)
}

fn run_typed<T: Element>(
    group: &Group,
    call: Call,
    in_place: bool,
    input: &[T],
    out: &mut [T],
) -> symmem::Result<()> {
    match call {
        Call::AllReduce(op) if in_place => group.all_reduce(op, out),
        Call::AllReduce(op) => group.all_reduce_out(op, input, out),
        Call::Reduce(op, root) => group.reduce_out(op, root, input, out),
        Call::ReduceScatter(op) | Call::ReduceScatterColumns(op, _) => group.reduce_scatter(op, input, out),
        Call::AllGather => group.all_gather_into(input, out),
        Call::Broadcast(root) => group.broadcast_into(root, out),
        Call::AllToAll => group.all_to_all(input, out),
        Call::Gather(root) => group.gather(root, input, out),
        Call::Scatter(root) => group.scatter(root, input, out),
    }
}

/// An exchange of rows, ready to run.
pub(crate) struct Rows<'py> {
    input: Operand<'py>,
    sends: Vec<usize>,
    out: Operand<'py>,
    receives: Vec<usize>,
}

impl<'py> Rows<'py> {
    /// The first `sends[0]` rows of `x` go to rank 0, the next to rank 1 ...; `out` takes `receives[rank]` rows of each.
    pub(crate) fn new(
        (x, sends): (&Bound<'py, PyAny>, &Bound<'py, PyAny>),
        (out, receives): (&Bound<'py, PyAny>, &Bound<'py, PyAny>),
    ) -> PyResult<Self> {
        let input = on_host(Call::AllToAll, Operand::any(x)?.or_copy()?)?;
        let out = on_host(Call::AllToAll, Operand::any_output(out)?)?;
        check_same_type(&input, &out)?;
        check_apart(Some(&input), Some(&out))?;
        // Ranks may have no rows at all, but agree on how long one is.
        let row = |of: &Operand<'_>| of.shape.iter().skip(1).product::<usize>() << u32::from(of.complex);
        let sends = in_elements(&sends.extract::<Vec<usize>>()?, row(&input));
        let receives = in_elements(&receives.extract::<Vec<usize>>()?, row(&out));
        Ok(Self { input, sends, out, receives })
    }

    /// Collective. Exchanges them; gives where the result is.
    pub(crate) fn run(self, py: Python<'_>, group: &Group) -> PyResult<Py<PyAny>> {
        let Self { input, sends, out, receives } = self;
        dispatch!(input.dtype, T => {
            // SAFETY: both are on the host, of this type, and apart.
            let (from, to) = unsafe { (input.slice::<T>(), out.slice_mut::<T>()) };
            blocking(py, || group.all_to_all_v(from, &sends, to, &receives))
        })?;
        out.land()?;
        Ok(out.object.unbind())
    }
}

fn in_elements(rows: &[usize], row: usize) -> Vec<usize> {
    rows.iter().map(|rows| rows.saturating_mul(row)).collect()
}

/// Starts what [`run`] runs.
pub(crate) fn start(py: Python<'_>, group: &Group, job: &Job<'_>) -> PyResult<Pending> {
    let started = dispatch!(job.dtype, T => start_typed::<T>(group, job, py))?;
    Ok(Pending::new(started))
}

fn start_typed<T: Element>(group: &Group, job: &Job<'_>, py: Python<'_>) -> PyResult<Box<dyn Running>> {
    // SAFETY: the type of the job; copied before Python runs again.
    let (input, out) = unsafe { job.slices::<T>() };
    let pending = match job.call {
        Call::AllReduce(op) if job.input.is_none() => group.all_reduce_start(op, out.to_vec()),
        Call::AllReduce(op) => group.all_reduce_start(op, input.to_vec()),
        Call::Reduce(op, root) => group.reduce_start(op, root, input.to_vec()),
        Call::ReduceScatter(op) => group.reduce_scatter_start(op, input.to_vec(), out.to_vec()),
        Call::AllGather => group.all_gather_into_start(input.to_vec(), out.to_vec()),
        Call::Broadcast(root) => group.broadcast_into_start(root, out.to_vec()),
        Call::AllToAll => group.all_to_all_start(input.to_vec(), out.to_vec()),
        Call::ReduceScatterColumns(..) | Call::Gather(_) | Call::Scatter(_) => {
            let problem = "it has no started form. Hint: call it in a thread of its own";
            return Err(invalid(job.call.name(), problem));
        }
    };
    let (pending, lands, result) = (pending.map_err(raise)?, job.out.is_some(), job.result.clone_ref(py));
    Ok(Started::boxed(pending, move |py, data| {
        if lands {
            land(py, &result, &data)?;
        }
        Ok(result)
    }))
}
