//! The fused operations of `Group`: on symmetric memory of the group where it lies, and on any other through
//! a workspace that the group keeps.

use pyo3::prelude::*;
use symmem::erased::Side;

use super::{Group, Membership, given};
use crate::Any;
use crate::collectives::{Maybe, op_name, symmetric};
use crate::cuda::{DeviceNormPlan, Private, device_room};
use crate::error::invalid;
use crate::fused::{AskedNorm, Elements, FusedPlan, NORM};
use crate::memory::{Bytes, Terms, room};
use crate::operand::{Operand, Place, is_tensor};
use crate::private::are_apart;

/// This rank's elements are `x`: its operation, and that nothing which it writes overlaps them.
fn on_private<'py>(
    membership: &Membership,
    op: &'static str,
    x: &Any<'py>,
    plan: impl FnOnce(&Elements<'_>) -> PyResult<FusedPlan<'py>>,
) -> PyResult<(Operand<'py>, FusedPlan<'py>)> {
    let (torch, x) = (is_tensor(x)?, Operand::input_or_copy(x)?);
    if x.device != Place::Cpu {
        return Err(invalid(op, format!("it is on {}, and this is done on the host", x.device)));
    }
    let plan = plan(&Elements { shape: &x.shape, dtype: x.dtype, torch, world: membership.size() })?;
    match plan.outputs().iter().find(|(_, out)| !are_apart(&x, out)) {
        None => Ok((x, plan)),
        Some((what, _)) => Err(invalid(*what, "it overlaps the input. Hint: pass memory of its own")),
    }
}

impl Group {
    /// Runs `plan` on the first `bytes` of the group's workspace, where `fill` puts this rank's elements.
    fn run_in_room<'py>(
        &self,
        py: Python<'py>,
        plan: FusedPlan<'py>,
        (bytes, timeout_ms): (usize, u64),
        fill: impl FnOnce(&mut Bytes) -> symmem::Result<()> + Send,
    ) -> PyResult<Py<PyAny>> {
        let (membership, op) = (self.membership(), plan.name());
        let room = room(py, membership, (op, Place::Cpu), (bytes, timeout_ms))?;
        let host = room.handle.as_host().ok_or_else(|| invalid("room", "it is not on the host"))?;
        let group = membership.group(op, timeout_ms)?;
        // SAFETY: other Python threads race with it as they do with numpy; nobody has addresses of the room,
        // which is this call's until it is dropped.
        let job = unsafe { plan.job(membership) };
        host.wait(op, Terms { py, timeout: None, stream: None }, |memory| {
            let mut memory = memory.on_terms_of(&group).slice(..bytes)?;
            fill(&mut memory)?;
            job(&memory)
        })?;
        plan.done()
    }

    /// Runs the operation `op` that `plan` makes of the private array `x`.
    fn run_private<'py>(
        &self,
        op: &'static str,
        x: &Any<'py>,
        timeout_ms: u64,
        plan: impl FnOnce(&Elements<'_>) -> PyResult<FusedPlan<'py>>,
    ) -> PyResult<Py<PyAny>> {
        let (py, membership) = (x.py(), self.membership());
        membership.group(op, timeout_ms)?;
        let (x, plan) = membership.told(py, timeout_ms, on_private(membership, op, x, plan))?;
        // SAFETY: on the host; other Python threads race with it as they do with numpy.
        let bytes = unsafe { x.bytes_of() };
        self.run_in_room(py, plan, (bytes.len(), timeout_ms), |memory| {
            // All ranks have read what was there: every use ends with a meeting. And the room is taken until
            // they have read this, too.
            memory.local_mut()?.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// A norm of the private array `x` on the device `ordinal`, in a room of the group's there.
    fn norm_on_device<'py>(
        &self,
        ordinal: i32,
        (x, operand): (&Any<'py>, &Operand<'py>),
        asked: &AskedNorm<'_, 'py>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let (py, membership, place) = (x.py(), self.membership(), Place::Cuda(ordinal));
        membership.group(NORM, timeout_ms)?;
        let (shape, dtype, torch) = (&*operand.shape, operand.dtype, is_tensor(x)?);
        let of = Elements { shape, dtype, torch, world: membership.size() };
        let plan = DeviceNormPlan::new(py, (&of, place), Some(x), asked)
            .map_err(|error| Private::refuse(py, membership, ordinal, operand, error))?;
        let room = device_room(py, membership, (NORM, ordinal), operand.bytes())?;
        let device = room.handle.as_device().ok_or_else(|| invalid("room", "it is not on a device"))?;
        device.norm(plan, Terms { py, timeout: given(timeout_ms), stream: None })
    }

    fn gather_products<'py>(
        &self,
        x: &Any<'py>,
        how: (Side, bool),
        weights: &Any<'py>,
        outs: (Maybe<'_, 'py>, Maybe<'_, 'py>),
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let py = x.py();
        if let Some(memory) = symmetric(self.membership(), x, timeout_ms)? {
            return memory.run_gather(memory.terms(py, timeout_ms, None), how, weights, outs);
        }
        let plan = |of: &Elements<'_>| FusedPlan::gather(py, of, how, weights, outs);
        self.run_private(how.0.gather_name(), x, timeout_ms, plan)
    }

    fn scatter_product<'py>(
        &self,
        how: (Side, bool),
        (a, b): (&Any<'py>, &Any<'py>),
        to: (&str, Maybe<'_, 'py>),
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let (py, membership) = (a.py(), self.membership());
        membership.group(how.0.scatter_name(), timeout_ms)?;
        let plan = FusedPlan::scatter(py, membership.size(), how, (a, b), to);
        let plan = membership.told(py, timeout_ms, plan)?;
        let bytes = plan.workspace();
        self.run_in_room(py, plan, (bytes, timeout_ms), |_| Ok(()))
    }
}

#[pymethods]
impl Group {
    /// Collective. The product of everybody's `x`, along the first dimension in rank order, and `weights`: a
    /// matrix of this rank's own, or a list of them, for which there is a list of products. Into `out` (new
    /// arrays by default); `rows` is an array that takes everybody's `x`. float32, bfloat16 and float16, on
    /// the host.
    ///
    /// The product begins with this rank's rows and goes on with those of each other rank as soon as it has
    /// come. With `fused=False` all rows are gathered first; the bits are the same. An `x` that is not
    /// symmetric is copied into a workspace, which the group keeps.
    ///
    ///     y = group.all_gather_matmul(x, weights)
    #[pyo3(signature = (x, weights, out = None, rows = None, *, fused = true, timeout_ms = 0))]
    fn all_gather_matmul(
        &self,
        x: &Any<'_>,
        weights: &Any<'_>,
        out: Maybe<'_, '_>,
        rows: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.gather_products(x, (Side::Rows, fused), weights, (out, rows), timeout_ms)
    }

    /// Collective. `all_gather_matmul` of columns: everybody's `x` side by side along the last dimension, in
    /// rank order, times `weights`, which have as many rows as all ranks have columns.
    #[pyo3(signature = (x, weights, out = None, *, fused = true, timeout_ms = 0))]
    fn all_gather_columns_matmul(
        &self,
        x: &Any<'_>,
        weights: &Any<'_>,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.gather_products(x, (Side::Columns, fused), weights, (out, None), timeout_ms)
    }

    /// Collective. This rank's rows of the reduction by `op` ("sum" or "avg") of everybody's `a @ b`: the
    /// first dimension is divided among the ranks. float32, bfloat16 and float16, on the host; products and
    /// sums are made in float32 and rounded once, into `out` (a new array by default).
    ///
    /// A rank makes the parts of the others first, in a workspace that the group keeps. With `fused=False`
    /// all of it is made and then reduced; the bits are the same.
    #[pyo3(signature = (a, b, op = "sum", out = None, *, fused = true, timeout_ms = 0))]
    fn matmul_reduce_scatter(
        &self,
        a: &Any<'_>,
        b: &Any<'_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.scatter_product((Side::Rows, fused), (a, b), (op, out), timeout_ms)
    }

    /// Collective. `matmul_reduce_scatter` that divides the columns of the product: this rank's columns of
    /// all rows.
    #[pyo3(signature = (a, b, op = "sum", out = None, *, fused = true, timeout_ms = 0))]
    fn matmul_reduce_scatter_columns(
        &self,
        a: &Any<'_>,
        b: &Any<'_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.scatter_product((Side::Columns, fused), (a, b), (op, out), timeout_ms)
    }

    /// Collective. Adds the sum of everybody's `x` to `residual`, in place, and gives the RMSNorm of that, in
    /// `out` (a new array by default): each row over the root of `epsilon` and the mean of its squares, times
    /// `weight`. Rows are along the last dimension. All ranks that give the same get the same bits: those of
    /// the three steps one by one.
    ///
    /// On a device it is on the current stream, and has `op`, `scale`, `scales` and `fused` as the method of
    /// symmetric memory has.
    #[pyo3(signature = (
        x, residual, weight, epsilon = 1e-6, out = None, *, op = "sum", scale = None, scales = None, fused = true, timeout_ms = 0
    ))]
    #[allow(clippy::too_many_arguments)] // A keyword each.
    fn all_reduce_rms_norm(
        &self,
        x: &Any<'_>,
        residual: Maybe<'_, '_>,
        weight: Maybe<'_, '_>,
        epsilon: f32,
        out: Maybe<'_, '_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        scale: Maybe<'_, '_>,
        scales: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let py = x.py();
        let asked = AskedNorm { residual, weight, epsilon, op, out, scale, scales, x: None, fused };
        if let Some(memory) = symmetric(self.membership(), x, timeout_ms)? {
            return memory.run_norm(memory.terms(py, timeout_ms, None), &asked);
        }
        if let Ok(operand) = Operand::any(x)
            && let Place::Cuda(ordinal) = operand.device
        {
            return self.norm_on_device(ordinal, (x, &operand), &asked, timeout_ms);
        }
        self.run_private(NORM, x, timeout_ms, |of: &Elements<'_>| FusedPlan::norm(py, of, &asked))
    }
}
