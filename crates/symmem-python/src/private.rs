//! Collectives on memory that is not symmetric: numpy arrays, torch tensors, on the host or on a device.
//!
//! Called by `collectives` where an array is not symmetric on the group. The library copies through the
//! group's staging, so nothing needs to be allocated or rendezvoused before; on a device `cuda::private`
//! copies through a room of the group's. Strided arrays are copied in, and out again where they are written.
//! Complex numbers are pairs of real ones: they move, and sum and avg reduce the parts by themselves.

use std::borrow::Cow;

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use symmem::erased::Call;
use symmem::{DType, Group, ReduceOp};

use crate::Any;
use crate::collectives::{
    check_parts, check_writes, has_output, in_rows, is_in_place, new_output, output_shape,
};
use crate::cuda;
use crate::error::{invalid, raise};
use crate::group::{self, Membership};
use crate::interrupt::blocking;
use crate::operand::{Operand, Place, is_tensor};
use crate::pending::Pending;

/// A collective, ready to run.
pub(crate) struct PrivateCall<'a, 'py> {
    call: Call<'a>,
    dtype: DType,
    /// Absent in place, and where only the root has one.
    input: Option<Operand<'py>>,
    /// In place: input and output. Absent where only the root has one.
    out: Option<Operand<'py>>,
    result: Py<PyAny>,
}

impl<'a, 'py> PrivateCall<'a, 'py> {
    /// `call` on dense elements of the host, in place.
    pub(crate) fn in_place(call: Call<'a>, out: Operand<'py>) -> Self {
        let result = out.object.clone().unbind();
        Self { call, dtype: out.dtype, input: None, out: Some(out), result }
    }

    /// `call` on dense elements of the host, of one type and apart.
    pub(crate) fn apart(call: Call<'a>, input: Operand<'py>, out: Operand<'py>) -> Self {
        let result = out.object.clone().unbind();
        Self { call, dtype: input.dtype, input: Some(input), out: Some(out), result }
    }

    /// `call` on `x`, into `out` or a new array. `seen` is `x` as an operand, if somebody has looked already.
    pub(crate) fn new(
        group: &Group,
        call: Call<'a>,
        (x, seen): (&Any<'py>, Option<Operand<'py>>),
        out: Option<&Any<'py>>,
    ) -> PyResult<Self> {
        let py = x.py();
        if let Call::ReduceScatterColumns(..) = call {
            return Err(invalid(call.name(), "columns are reduced in symmetric memory only"));
        }
        // Reducing into the same array is reducing in place.
        let same = || out.is_none_or(|out| out.is(x));
        if is_in_place(call) && (same() || !matches!(call, Call::AllReduce(_))) {
            let out = seen.map_or_else(|| Operand::any(x), Ok)?;
            check_writes(call, &out)?;
            check_complex(call, &out)?;
            return Ok(Self::in_place(call, out.or_copy()?));
        }
        let reads = call.row().is_to_root() || call.root().is_none_or(|root| root == group.rank());
        let input = match (reads, seen) {
            (false, _) => None,
            (true, Some(seen)) => Some(seen),
            (true, None) => Some(Operand::any(x)?.or_copy()?),
        };
        if let Some(input) = &input {
            check_complex(call, input)?;
            check_parts(call, &input.shape, group.size())?;
        }
        let place = input.as_ref().map_or(Place::Cpu, |input| input.device);
        if place != Place::Cpu && !call.row().devices {
            return Err(invalid(call.name(), "devices do not have it. Hint: use memory of the host"));
        }
        let out = output(group, call, input.as_ref(), out)?;
        check_apart(input.as_ref(), out.as_ref())?;
        let Some(dtype) = input.as_ref().or(out.as_ref()).map(|operand| operand.dtype) else {
            return Err(invalid(call.name(), "there is neither an input nor an output"));
        };
        let of = input.as_ref().or(out.as_ref());
        let call = of.map_or(Ok(call), |of| in_rows(call, &of.shape, 1 + usize::from(of.complex)))?;
        let result = out.as_ref().map_or_else(|| py.None(), |out| out.object.clone().unbind());
        Ok(Self { call, dtype, input, out, result })
    }

    /// The group whose ranks compare their shapes, if they do; counts are compared in the place of shapes.
    pub(crate) fn shaped(&self, membership: &Membership, group: &Group) -> Option<Group> {
        if self.call.rows().is_some() {
            return None;
        }
        membership.shaped(group, &self.shape(membership.size()))
    }

    /// The shape that all ranks must have alike: that of the input, which only the root of a scatter has, so
    /// that it is made of everybody's part there. Complex numbers are two elements each.
    fn shape(&self, world: usize) -> Cow<'_, [usize]> {
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

    /// The bytes of input and output.
    ///
    /// # Safety
    /// Nobody else uses the elements.
    #[allow(clippy::mut_from_ref)] // The elements are not part of the job; who else has them is the caller's duty.
    unsafe fn bytes(&self) -> (Option<&[u8]>, &mut [u8]) {
        let (input, out) = (self.input.as_ref(), self.out.as_ref());
        // SAFETY: on the host, and apart from each other, as `new` saw; else the caller's duty.
        unsafe { (input.map(|x| x.bytes_of()), out.map_or(&mut [], |out| out.bytes_of_mut())) }
    }

    /// Where the memory is.
    pub(crate) fn place(&self) -> Place {
        self.input.as_ref().or(self.out.as_ref()).map_or(Place::Cpu, |operand| operand.device)
    }

    /// Collective. Puts it on the current stream of the device `ordinal`, where its memory is; gives where
    /// the result will be.
    pub(crate) fn run_on(
        self,
        py: Python<'_>,
        membership: &Membership,
        ordinal: i32,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let side = |operand: &Option<Operand<'_>>| operand.as_ref().map(|x| (x.address as u64, x.len));
        let (call, dtype, input, out) = (self.call, self.dtype, side(&self.input), side(&self.out));
        // SAFETY: memory of Python objects, which is there as long as their library says; libraries order
        // frees by streams.
        unsafe { cuda::Private { ordinal, call, dtype, input, out }.run(py, membership, timeout_ms) }?;
        self.out.as_ref().map_or(Ok(()), Operand::land)?;
        Ok(self.result)
    }

    /// Collective. Runs it; gives where the result is.
    pub(crate) fn run(self, py: Python<'_>, group: &Group) -> PyResult<Py<PyAny>> {
        // SAFETY: other Python threads race with it as they do with numpy.
        let (input, out) = unsafe { self.bytes() };
        let (dtype, call) = (self.dtype, self.call);
        blocking(py, || group.run_as(dtype, call, input, out))?;
        self.out.as_ref().map_or(Ok(()), Operand::land)?;
        Ok(self.result)
    }

    /// Starts it.
    pub(crate) fn start(self, group: &Group) -> PyResult<Pending> {
        if let place @ Place::Cuda(_) = self.place() {
            let name = self.call.name();
            let problem = format!(
                "work on {place} never waits: it is in the order of a stream. Hint: {name}(), and an event"
            );
            return Err(invalid(format!("{name}_start"), problem));
        }
        // SAFETY: copied before Python runs again.
        let (input, out) = unsafe { self.bytes() };
        let pending = group.start_as(self.dtype, self.call, input, out).map_err(raise)?;
        Ok(Pending::landing(pending, self.dtype, self.out.is_some(), self.result))
    }
}

fn on_host<'py>(call: &str, operand: Operand<'py>) -> PyResult<Operand<'py>> {
    match operand.device {
        Place::Cpu => Ok(operand),
        place => Err(invalid(call, format!("it is not done on {place}. Hint: all_to_all is"))),
    }
}

/// Where the result goes on this rank: what was passed, or a new array; `None` where only the root has one.
fn output<'py>(
    group: &Group,
    call: Call<'_>,
    input: Option<&Operand<'py>>,
    out: Option<&Any<'py>>,
) -> PyResult<Option<Operand<'py>>> {
    if !has_output(call, group.rank(), out.is_some()) {
        return Ok(None);
    }
    let object = match (out, input) {
        (Some(out), _) => out.clone(),
        (None, Some(input)) => {
            let shape = output_shape(call, &input.shape, (group.rank(), group.size()))?;
            let (py, torch) = (input.object.py(), is_tensor(&input.object)?);
            match input.complex {
                false => new_output(py, torch, input.device, &shape, input.dtype)?,
                true => new_complex(&input.object, torch, &shape, input.type_name())?,
            }
        }
        (None, None) => return Err(invalid(call.name(), "a rank without an input needs out=")),
    };
    let out = Operand::any_output(&object)?;
    if let Some(input) = input {
        check_same_type(input, &out)?;
        if input.device != out.device {
            return Err(invalid("out", format!("it is on {}, the input on {}", out.device, input.device)));
        }
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
fn check_complex(call: Call<'_>, operand: &Operand<'_>) -> PyResult<()> {
    let Some(op) = call.reduction() else { return Ok(()) };
    if !operand.complex || matches!(op, ReduceOp::Sum | ReduceOp::Avg) {
        return Ok(());
    }
    Err(invalid("op", format!("{} of complex numbers is not supported; there are sum, avg", op.name())))
}

/// A new array of complex numbers where `like` is: torch's for torch, else numpy's.
fn new_complex<'py>(like: &Any<'py>, torch: bool, shape: &[usize], name: &str) -> PyResult<Any<'py>> {
    let py = like.py();
    let module = py.import(if torch { "torch" } else { "numpy" })?;
    let arguments = [("dtype", module.getattr(name)?)].into_py_dict(py)?;
    if torch {
        arguments.set_item("device", like.getattr("device")?)?;
    }
    module.call_method("empty", (shape.to_vec(),), Some(&arguments))
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

/// Elements of each number of `rows`, along the first dimension of `of`. Ranks may have no rows at all, but
/// agree on how long one is.
fn in_elements(rows: &Any<'_>, of: &Operand<'_>) -> PyResult<Vec<usize>> {
    let row = of.shape.iter().skip(1).product::<usize>() << u32::from(of.complex);
    Ok(rows.extract::<Vec<usize>>()?.into_iter().map(|rows| rows.saturating_mul(row)).collect())
}

#[pymethods]
impl group::Group {
    /// Collective. The first `sends[0]` rows of `x` go to rank 0, the next `sends[1]` to rank 1, and so on;
    /// `out` takes `receives[rank]` rows of each rank, in rank order. Rows are along the first dimension.
    /// Returns `out`.
    #[pyo3(signature = (x, sends, out, receives, *, timeout_ms = 0))]
    fn all_to_all_v(
        &self,
        x: &Any<'_>,
        sends: &Any<'_>,
        out: &Any<'_>,
        receives: &Any<'_>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let (py, group) = (x.py(), self.membership().group("all_to_all_v", timeout_ms)?);
        let rows = || {
            let input = on_host("all_to_all_v", Operand::any(x)?.or_copy()?)?;
            let out = on_host("all_to_all_v", Operand::any_output(out)?)?;
            check_same_type(&input, &out)?;
            check_apart(Some(&input), Some(&out))?;
            Ok((in_elements(sends, &input)?, in_elements(receives, &out)?, input, out))
        };
        let (sends, receives, input, out) = self.membership().told(py, timeout_ms, rows())?;
        // SAFETY: both are on the host, of one type, and apart.
        let (dtype, from, to) = unsafe { (input.dtype, input.bytes_of(), out.bytes_of_mut()) };
        blocking(py, || group.all_to_all_v_as(dtype, (from, &sends), (to, &receives)))?;
        out.land()?;
        Ok(out.object.unbind())
    }
}
