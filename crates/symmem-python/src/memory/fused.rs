//! The fused operations of `SymmetricMemory`.

use pyo3::prelude::*;
use symmem::DType;
use symmem::erased::Side;

use super::{SymmetricMemory, Terms};
use crate::Any;
use crate::collectives::{Maybe, op_name};
use crate::cuda::DeviceNormPlan;
use crate::error::invalid;
use crate::fused::{AskedNorm, Elements, FusedPlan, NORM};

impl SymmetricMemory {
    /// What this rank has.
    fn elements(&self) -> Elements<'_> {
        let span = self.span();
        let (torch, world) = (self.is_torch(), self.membership().size());
        Elements { shape: &span.shape, dtype: span.dtype, torch, world }
    }

    /// Runs the operation `op` that `plan` makes. Of a workspace it writes this rank's elements too.
    fn run_fused<'py>(
        &self,
        op: &'static str,
        terms: Terms<'_, 'py>,
        is_workspace: bool,
        plan: impl FnOnce() -> PyResult<FusedPlan<'py>>,
    ) -> PyResult<Py<PyAny>> {
        self.handle().as_host().map_or(Ok(()), |host| host.check_open(op))?;
        self.check_whole(op)?;
        let checked = plan().and_then(|plan| {
            plan.outputs().iter().try_for_each(|(what, out)| self.check_apart_from(what, out))?;
            if is_workspace {
                plan.inputs().iter().try_for_each(|(what, input)| self.check_apart_from(what, input))?;
            }
            let problem = "devices do not have it. Hint: use memory of the host";
            Ok((self.handle().as_host().ok_or_else(|| invalid(op, problem))?, plan))
        });
        let (host, plan) = self.told(terms, checked)?;
        // SAFETY: other Python threads race with it as they do with numpy; what it writes is apart from the
        // memory, as was just seen, and so is what it reads where the memory is written.
        host.wait(op, terms, unsafe { plan.job(self.membership()) })?;
        plan.done()
    }

    pub(crate) fn run_gather<'py>(
        &self,
        terms: Terms<'_, 'py>,
        how: (Side, bool),
        weights: &Any<'py>,
        outs: (Maybe<'_, 'py>, Maybe<'_, 'py>),
    ) -> PyResult<Py<PyAny>> {
        let plan = || FusedPlan::gather(terms.py, &self.elements(), how, weights, outs);
        self.run_fused(how.0.gather_name(), terms, false, plan)
    }

    fn run_scatter<'py>(
        &self,
        terms: Terms<'_, 'py>,
        how: (Side, bool),
        sides: (&Any<'py>, &Any<'py>),
        to: (&str, Maybe<'_, 'py>),
    ) -> PyResult<Py<PyAny>> {
        let op = how.0.scatter_name();
        self.run_fused(op, terms, true, || match self.span().dtype {
            DType::F32 => FusedPlan::scatter(terms.py, self.membership().size(), how, sides, to),
            _ => Err(invalid(op, "the memory is the workspace, whose elements must be float32")),
        })
    }

    pub(crate) fn run_norm<'py>(
        &self,
        terms: Terms<'_, 'py>,
        asked: &AskedNorm<'_, 'py>,
    ) -> PyResult<Py<PyAny>> {
        if let Some(device) = self.handle().as_device() {
            self.check_whole(NORM)?;
            let place = self.place();
            let plan = DeviceNormPlan::new(terms.py, (&self.elements(), place), None, asked);
            let plan = plan.and_then(|plan| {
                plan.outputs.iter().try_for_each(|(what, out)| self.check_apart_from(what, out))?;
                Ok(plan)
            });
            return device.norm(self.told(terms, plan)?, terms);
        }
        let plan = || FusedPlan::norm(terms.py, &self.elements(), asked);
        self.run_fused(NORM, terms, false, plan)
    }
}

#[pymethods]
impl SymmetricMemory {
    /// Collective. The product of everybody's rows, along the first dimension in rank order, and `weights`:
    /// a matrix of this rank's own, or a list of them, for which there is a list of products. Into `out` (new
    /// arrays by default); `rows` is an array that takes everybody's rows. float32, bfloat16 and float16, on
    /// the host.
    ///
    /// The product begins with this rank's rows and goes on with those of each other rank as soon as it has
    /// come, read where they lie. With `fused=False` all rows are gathered first; the bits are the same.
    ///
    ///     y = mem.all_gather_matmul(weights)
    #[pyo3(signature = (weights, out = None, rows = None, *, fused = true, timeout_ms = 0))]
    fn all_gather_matmul(
        &self,
        py: Python<'_>,
        weights: &Any<'_>,
        out: Maybe<'_, '_>,
        rows: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run_gather(self.terms(py, timeout_ms, None), (Side::Rows, fused), weights, (out, rows))
    }

    /// Collective. `all_gather_matmul` of columns: everybody's elements side by side along the last
    /// dimension, in rank order, times `weights`, which have as many rows as all ranks have columns.
    #[pyo3(signature = (weights, out = None, *, fused = true, timeout_ms = 0))]
    fn all_gather_columns_matmul(
        &self,
        py: Python<'_>,
        weights: &Any<'_>,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run_gather(self.terms(py, timeout_ms, None), (Side::Columns, fused), weights, (out, None))
    }

    /// Collective. This rank's rows of the reduction by `op` ("sum" or "avg") of everybody's `a @ b`: the
    /// first dimension is divided among the ranks. `a` and `b` are float32, bfloat16 or float16; products and
    /// sums are made in float32 and rounded once, into `out` (a new array by default).
    ///
    /// The memory is the workspace, float32 and as large as the product; what is in it afterwards means
    /// nothing. A rank makes the parts of the others first. With `fused=False` all of it is made and then
    /// reduced; the bits are the same. `group.matmul_reduce_scatter` uses a workspace of the group's.
    #[pyo3(signature = (a, b, op = "sum", out = None, *, fused = true, timeout_ms = 0))]
    #[allow(clippy::too_many_arguments)] // A keyword each.
    fn matmul_reduce_scatter(
        &self,
        py: Python<'_>,
        a: &Any<'_>,
        b: &Any<'_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run_scatter(self.terms(py, timeout_ms, None), (Side::Rows, fused), (a, b), (op, out))
    }

    /// Collective. `matmul_reduce_scatter` that divides the columns of the product: this rank's columns of
    /// all rows.
    #[pyo3(signature = (a, b, op = "sum", out = None, *, fused = true, timeout_ms = 0))]
    #[allow(clippy::too_many_arguments)] // A keyword each.
    fn matmul_reduce_scatter_columns(
        &self,
        py: Python<'_>,
        a: &Any<'_>,
        b: &Any<'_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run_scatter(self.terms(py, timeout_ms, None), (Side::Columns, fused), (a, b), (op, out))
    }

    /// Collective. Adds the sum of everybody's elements to `residual`, in place, and gives the RMSNorm of
    /// that, in `out` (a new array by default): each row over the root of `epsilon` and the mean of its
    /// squares, times `weight`. Rows are along the last dimension. All ranks that give the same get the same
    /// bits: those of the three steps one by one.
    ///
    /// On a device it is on `stream`, `residual` and `weight` may be None, and `op` "avg". fp8 is written
    /// (`out` is float8_e4m3fn then) with `scale`, one float32 that is read, or with `scales`, one of each
    /// row, which are written. `x` is private memory in place of the symmetric one, which holds nothing of
    /// use afterwards. With `fused=False` it is an all_reduce and another kernel; the bits are the same.
    #[pyo3(signature = (
        residual, weight, epsilon = 1e-6, out = None, *, op = "sum", scale = None, scales = None, x = None, fused = true,
        timeout_ms = 0, stream = None
    ))]
    #[allow(clippy::too_many_arguments)] // A keyword each.
    fn all_reduce_rms_norm(
        &self,
        py: Python<'_>,
        residual: Maybe<'_, '_>,
        weight: Maybe<'_, '_>,
        epsilon: f32,
        out: Maybe<'_, '_>,
        #[pyo3(from_py_with = op_name)] op: &str,
        scale: Maybe<'_, '_>,
        scales: Maybe<'_, '_>,
        x: Maybe<'_, '_>,
        fused: bool,
        timeout_ms: u64,
        stream: Maybe<'_, '_>,
    ) -> PyResult<Py<PyAny>> {
        let asked = AskedNorm { residual, weight, epsilon, op, out, scale, scales, x, fused };
        self.run_norm(self.terms(py, timeout_ms, stream), &asked)
    }
}
