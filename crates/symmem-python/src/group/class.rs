//! The Python class `Group`. Its collectives are in `collectives` and `private`; this is their face.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use pyo3::exceptions::{PyGeneratorExit, PySystemExit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use symmem::Deadline;

use super::parts::Part;
use super::{Membership, bound, join, lock, objects, source};
use crate::collectives::{self, op_name, reduce_op, reduce_to, root_of};
use crate::context::{self, Context};
use crate::error::raise;
use crate::interrupt::blocking;
use crate::mail::Envelope;
use crate::memory::Call;
use crate::pending::{Pending, Started};
use crate::private;
use crate::store;

/// This rank's membership in an ordered set of ranks that meet in a store.
///
/// Making one is collective. Every wait ends at a deadline (`timeout` seconds, 300 unless told otherwise), on Ctrl-C, or when a
/// peer dies or leaves. One operation at a time: a second thread gets `Busy`; `clone` gives a group for it.
///
///     group = symmem.Group(symmem.TcpStore("host", 29500, rank == 0), rank, size)
///     with group:                       # the current group, left at the end
///         group.barrier()
#[pyclass(frozen, subclass, weakref, module = "symmem")]
pub(crate) struct Group {
    membership: Membership,
}

impl Group {
    pub(crate) fn of(membership: Membership) -> Self {
        Self { membership }
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Runs a collective on `x`, by its handle where it is symmetric on this group.
    fn run<'py>(
        &self,
        call: PyResult<Call>,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        collectives::run_on_group(&self.membership, call, x, out, timeout_ms)
    }

    fn start<'py>(
        &self,
        call: PyResult<Call>,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        collectives::start_on_group(&self.membership, call, x, out, timeout_ms)
    }
}

#[pymethods]
impl Group {
    /// Collective. Joins `size` ranks that meet in `store` under `name`: one of symmem's stores or any object with the methods
    /// of PyTorch's. `timeout` in seconds is for the join and for every later wait.
    #[new]
    #[pyo3(signature = (store, rank, size, name = "default", *, timeout = None, context = None))]
    fn new(
        store: &Bound<'_, PyAny>,
        rank: usize,
        size: usize,
        name: &str,
        timeout: Option<f64>,
        context: Option<&Context>,
    ) -> PyResult<Self> {
        let py = store.py();
        let context = context.map_or_else(|| context::current(py), |context| Ok(context.inner.clone()))?;
        let joined = join::with_timeout(&context, timeout)?;
        let group = join::in_store(py, joined, store::from_python(store)?, (rank, size), name)?;
        Membership::new(&group, &context, Some(store.clone().unbind())).with_mail(py).map(Self::of)
    }

    /// Collective. Joins the group that the environment describes, as `torchrun` sets it: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
    /// `MASTER_PORT`.
    #[staticmethod]
    #[pyo3(signature = (name = "default", timeout = None, *, context = None))]
    fn from_env(
        py: Python<'_>,
        name: &str,
        timeout: Option<f64>,
        context: Option<&Context>,
    ) -> PyResult<Self> {
        let context = context.map_or_else(|| context::current(py), |context| Ok(context.inner.clone()))?;
        let second = (name != join::DEFAULT_NAME).then(|| name.to_owned());
        let group = join::from_env(py, join::with_timeout(&context, timeout)?, second)?;
        Membership::new(&group, &context, None).with_mail(py).map(Self::of)
    }

    /// Collective. The ranks of a torch process group (by default torch's default one, also by name), who meet in its store.
    #[staticmethod]
    #[pyo3(signature = (process_group = None, *, timeout = None, context = None))]
    fn from_torch(
        py: Python<'_>,
        process_group: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        context: Option<&Context>,
    ) -> PyResult<Self> {
        let torch = source::read(py, process_group)?;
        Self::new(&torch.store, torch.rank, torch.size, &torch.name, timeout, context)
    }

    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> usize {
        self.membership.rank()
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.membership.size()
    }

    /// Number of ranks.
    #[getter]
    fn world_size(&self) -> usize {
        self.membership.size()
    }

    /// The group's name. Names may recur; `id` does not.
    #[getter]
    fn name(&self) -> &str {
        self.membership.name()
    }

    /// The group's unique id.
    #[getter]
    fn id(&self) -> &str {
        self.membership.id()
    }

    /// The rank after this one, cyclically.
    #[getter]
    fn next(&self) -> usize {
        (self.rank() + 1) % self.size()
    }

    /// The rank before this one, cyclically.
    #[getter]
    fn prev(&self) -> usize {
        (self.rank() + self.size() - 1) % self.size()
    }

    /// The process of each rank.
    #[getter]
    fn pids(&self) -> Vec<u32> {
        self.membership.shared.pids.clone()
    }

    /// The store that the ranks met in.
    #[getter]
    fn store(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.membership.shared.store {
            Some(store) => Ok(store.clone_ref(py)),
            None => store::to_python(py, self.membership.group("store", 0)?.store()),
        }
    }

    /// Where this rank's allocations, settings and persistent ids live.
    #[getter]
    fn context(&self) -> Context {
        Context { inner: self.membership.context().clone() }
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.membership.is_closed()
    }

    /// The rank that made the group fail and how, or None while the group is whole.
    #[getter]
    fn failure(&self) -> PyResult<Option<(usize, String)>> {
        let failure = self.membership.group("failure", 0)?.failure();
        Ok(failure.map(|(culprit, cause)| (culprit, cause.to_string())))
    }

    /// Collective. Returns once every rank is here.
    #[pyo3(signature = (timeout_ms = 0))]
    fn barrier(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        let group = self.membership.group("barrier", timeout_ms)?;
        blocking(py, || group.barrier())
    }

    /// Starts a barrier.
    fn barrier_start(&self) -> PyResult<Pending> {
        let group = self.membership.group("barrier", 0)?.cancelled_by(&symmem::CancelToken::new());
        let pending = group.barrier_start().map_err(raise)?;
        Ok(Pending::new(Started::boxed(pending, |py, ()| Ok(py.None()))))
    }

    /// Collective over `ranks` only: a group of these ranks of this group, in this order. For a rank that is not among them the
    /// call is local and gives a `NonMember`, which is falsy and refused by every call.
    ///
    ///     even = group.subgroup(range(0, group.size, 2))
    #[pyo3(signature = (ranks, name = ""))]
    fn subgroup(&self, ranks: &Bound<'_, PyAny>, name: &str) -> PyResult<Part> {
        let found = ranks.try_iter()?.map(|rank| rank?.extract()).collect::<PyResult<Vec<usize>>>()?;
        self.part(ranks.py(), &found, name)
    }

    /// Collective. One group per `color`, of the ranks that name it, in the order of `key` and then of rank. A rank that passes None is
    /// in none of them, and gets a `NonMember`.
    ///
    ///     row = group.split(group.rank // 4)
    #[pyo3(signature = (color, key = 0, *, timeout_ms = 0))]
    fn split(&self, py: Python<'_>, color: Option<i64>, key: i64, timeout_ms: u64) -> PyResult<Part> {
        self.part_of_color(py, color, key, timeout_ms)
    }

    /// Collective. A second group of the same ranks, for a parallel stream of operations.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let group = self.membership.group("clone", 0)?;
        self.related(py, "clone", 0, &blocking(py, || group.try_clone())?)
    }

    /// Collective. The group of the ranks on this machine.
    fn local(&self, py: Python<'_>) -> PyResult<Self> {
        let group = self.membership.group("local", 0)?;
        self.related(py, "local", 0, &blocking(py, || group.local())?)
    }

    /// Declares the group failed: everybody's running and later operations raise `GroupFailed` with this rank as the culprit and
    /// `reason` as its words. Never blocks; on a group that was closed it does nothing, for this rank has left it.
    #[pyo3(signature = (reason = ""))]
    fn abort(&self, reason: &str) {
        if let Ok(group) = self.membership.group("abort", 0) {
            group.abort(reason);
        }
    }

    /// Collective over whoever is still alive: a new group of the living ranks, in their old order.
    #[pyo3(signature = (timeout_ms = 0))]
    fn survivors(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Self> {
        let group = self.membership.group("survivors", 0)?;
        let timeout = self.membership.patience(timeout_ms).or_else(|| join::default_timeout(group.context()));
        let deadline = timeout.map_or(Deadline::never(), Deadline::after);
        self.related(py, "survivors", timeout_ms, &blocking(py, || group.survivors(deadline))?)
    }

    /// The same membership, whose calls wait for at most `seconds` each. As a block it makes the group the current one, and
    /// bounds every call of this thread on it and its handles that does not say another `timeout_ms`; its end closes nothing.
    ///
    ///     group.within(5).barrier()
    ///     with group.within(0.5):
    ///         symmem.barrier()
    fn within(&self, seconds: f64) -> PyResult<Self> {
        let timeout = Some(join::seconds(seconds)?);
        Ok(Self::of(Membership { timeout, ..self.membership.clone() }))
    }

    /// The same membership, whose collectives compare numbers of elements, as those of torch do: arrays of other shapes are not a
    /// `Mismatch` where they are as long. All ranks must say so.
    ///
    ///     group.any_shape().all_reduce(x)
    fn any_shape(&self) -> Self {
        Self::of(Membership { any_shape: true, ..self.membership.clone() })
    }

    /// Leaves the group; local. Peers that still need this rank get `PeerLeft`. Later methods, also of handles made on the
    /// group, raise `Closed`; arrays stay valid. The end of the outermost `with group:` calls it.
    fn close(&self) {
        self.membership.close();
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().membership.group("with", 0)?;
        slf.py().import("symmem._groups")?.call_method1("enter", (slf,))?;
        let membership = &slf.get().membership;
        match membership.timeout {
            Some(timeout) => bound::enter(&membership.shared, timeout),
            None => *lock(&membership.shared.entered) += 1,
        }
        Ok(slf.clone())
    }

    /// A block that ends with an exception aborts the group, so that peers learn why.
    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: &Bound<'_, PyAny>,
        exception: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let membership = &slf.get().membership;
        slf.py().import("symmem._groups")?.call_method1("leave", (slf,))?;
        if let Some(timeout) = membership.timeout {
            bound::leave(&membership.shared, timeout);
            return Ok(());
        }
        let mut entered = lock(&membership.shared.entered);
        *entered = entered.saturating_sub(1);
        let is_outermost = *entered == 0;
        drop(entered);
        if !is_outermost || membership.is_closed() {
            return Ok(());
        }
        let is_exit =
            exception.is_instance_of::<PySystemExit>() || exception.is_instance_of::<PyGeneratorExit>();
        if !exception.is_none() && !is_exit {
            let name = kind.getattr("__name__")?;
            membership.group("abort", 0)?.abort(&format!("{name}: {exception}"));
        }
        membership.close();
        Ok(())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let key = |group: &Self| (group.membership.id().to_owned(), group.rank());
        other.cast::<Self>().is_ok_and(|other| key(other.get()) == key(self))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Ranks that are threads share the id.
        (self.membership.id(), self.rank()).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<symmem.Group {:?}: rank {} of {}{state}>", self.name(), self.rank(), self.size())
    }

    /// Collective. Everybody's picklable `obj`, in rank order.
    #[pyo3(signature = (obj, *, timeout_ms = 0))]
    fn all_gather_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let call = objects::Call::everywhere("all_gather_object");
        objects::gather(&self.membership, call, obj, timeout_ms)
    }

    /// Collective. At `root` everybody's picklable `obj`, in rank order; None elsewhere.
    #[pyo3(signature = (obj, root = 0, *, timeout_ms = 0))]
    fn gather_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let call = objects::Call::rooted("gather_object", root);
        objects::gather(&self.membership, call, obj, timeout_ms)
    }

    /// Collective. This rank's one of the picklable `objs` of `root`, which has one for each rank; what the others pass is ignored.
    #[pyo3(signature = (objs, root = 0, *, timeout_ms = 0))]
    fn scatter_object<'py>(
        &self,
        objs: &Bound<'py, PyAny>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = objects::Call::rooted("scatter_object", root);
        objects::scatter(&self.membership, call, objs, timeout_ms)
    }

    /// Collective. At `root` everybody's picklable `obj` reduced by the function `op` of two objects (None adds them), in rank order; None
    /// elsewhere.
    #[pyo3(signature = (obj, op = None, root = 0, *, timeout_ms = 0))]
    fn reduce_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        op: Option<&Bound<'py, PyAny>>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let call = objects::Call::rooted("reduce_object", root);
        objects::reduce(&self.membership, call, obj, op, timeout_ms)
    }

    /// Collective. `reduce_object` whose result every rank works out for itself.
    #[pyo3(signature = (obj, op = None, *, timeout_ms = 0))]
    fn all_reduce_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        op: Option<&Bound<'py, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let call = objects::Call::everywhere("all_reduce_object");
        objects::reduce(&self.membership, call, obj, op, timeout_ms)
    }

    /// Collective. The picklable `obj` of `root`; what the others pass is ignored.
    #[pyo3(signature = (obj, root = 0, *, timeout_ms = 0))]
    fn broadcast_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        root: isize,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = objects::Call::rooted("broadcast_object", root);
        objects::broadcast(&self.membership, call, obj, timeout_ms)
    }

    /// Collective. The reduction of everybody's `x` by `op` ("sum", "avg", "min", "max", "prod", "and", "or", "xor"), with the
    /// same bits on every rank: in place, or into `out`. Returns where it is.
    ///
    ///     group.all_reduce(x)
    #[pyo3(signature = (x, op = "sum", out = None, *, timeout_ms = 0))]
    fn all_reduce(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(reduce_op(op).map(Call::AllReduce), x, out, timeout_ms)
    }

    /// Starts `all_reduce`.
    #[pyo3(signature = (x, op = "sum", out = None, *, timeout_ms = 0))]
    fn all_reduce_start(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(reduce_op(op).map(Call::AllReduce), x, out, timeout_ms)
    }

    /// Collective. The reduction of everybody's `x`, at `root`, into `out` (a new array by default). None elsewhere.
    #[pyo3(signature = (x, op = "sum", root = 0, out = None, *, timeout_ms = 0))]
    fn reduce(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(reduce_to(op, root), x, out, timeout_ms)
    }

    /// Starts `reduce`.
    #[pyo3(signature = (x, op = "sum", root = 0, out = None, *, timeout_ms = 0))]
    fn reduce_start(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(reduce_to(op, root), x, out, timeout_ms)
    }

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives the reduction of the parts for this rank.
    #[pyo3(signature = (x, op = "sum", out = None, *, timeout_ms = 0))]
    fn reduce_scatter(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(reduce_op(op).map(Call::ReduceScatter), x, out, timeout_ms)
    }

    /// Starts `reduce_scatter`.
    #[pyo3(signature = (x, op = "sum", out = None, *, timeout_ms = 0))]
    fn reduce_scatter_start(
        &self,
        x: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = op_name)] op: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(reduce_op(op).map(Call::ReduceScatter), x, out, timeout_ms)
    }

    /// Collective. Everybody's `x` along the first dimension, in rank order.
    #[pyo3(signature = (x, out = None, *, timeout_ms = 0))]
    fn all_gather(
        &self,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(Ok(Call::AllGather), x, out, timeout_ms)
    }

    /// Starts `all_gather`.
    #[pyo3(signature = (x, out = None, *, timeout_ms = 0))]
    fn all_gather_start(
        &self,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(Ok(Call::AllGather), x, out, timeout_ms)
    }

    /// Collective. Everybody's `x` becomes that of `root`, in place. Returns `x`.
    #[pyo3(signature = (x, root = 0, *, timeout_ms = 0))]
    fn broadcast(&self, x: &Bound<'_, PyAny>, root: isize, timeout_ms: u64) -> PyResult<Py<PyAny>> {
        self.run(root_of(root).map(Call::Broadcast), x, None, timeout_ms)
    }

    /// Starts `broadcast`.
    #[pyo3(signature = (x, root = 0, *, timeout_ms = 0))]
    fn broadcast_start(&self, x: &Bound<'_, PyAny>, root: isize, timeout_ms: u64) -> PyResult<Pending> {
        self.start(root_of(root).map(Call::Broadcast), x, None, timeout_ms)
    }

    /// Collective. Everybody's `x` is one part per rank along the first dimension; gives, in rank order, the parts for this rank.
    #[pyo3(signature = (x, out = None, *, timeout_ms = 0))]
    fn all_to_all(
        &self,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(Ok(Call::AllToAll), x, out, timeout_ms)
    }

    /// Starts `all_to_all`.
    #[pyo3(signature = (x, out = None, *, timeout_ms = 0))]
    fn all_to_all_start(
        &self,
        x: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(Ok(Call::AllToAll), x, out, timeout_ms)
    }

    /// Collective. At `root` everybody's `x` along the first dimension, in rank order; None elsewhere.
    #[pyo3(signature = (x, root = 0, out = None, *, timeout_ms = 0))]
    fn gather(
        &self,
        x: &Bound<'_, PyAny>,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(root_of(root).map(Call::Gather), x, out, timeout_ms)
    }

    /// Starts `gather`.
    #[pyo3(signature = (x, root = 0, out = None, *, timeout_ms = 0))]
    fn gather_start(
        &self,
        x: &Bound<'_, PyAny>,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(root_of(root).map(Call::Gather), x, out, timeout_ms)
    }

    /// Collective. The `x` of `root` is one part per rank along the first dimension; gives this rank's part. Where `x` is not
    /// symmetric, ranks other than the root pass None and `out`.
    #[pyo3(signature = (x, root = 0, out = None, *, timeout_ms = 0))]
    fn scatter(
        &self,
        x: &Bound<'_, PyAny>,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        self.run(root_of(root).map(Call::Scatter), x, out, timeout_ms)
    }

    /// Starts `scatter`.
    #[pyo3(signature = (x, root = 0, out = None, *, timeout_ms = 0))]
    fn scatter_start(
        &self,
        x: &Bound<'_, PyAny>,
        root: isize,
        out: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        self.start(root_of(root).map(Call::Scatter), x, out, timeout_ms)
    }

    /// Collective. The first `sends[0]` rows of `x` go to rank 0, the next `sends[1]` to rank 1, and so on; `out` takes `receives[rank]`
    /// rows of each rank, in rank order. Rows are along the first dimension. Returns `out`.
    #[pyo3(signature = (x, sends, out, receives, *, timeout_ms = 0))]
    fn all_to_all_v(
        &self,
        x: &Bound<'_, PyAny>,
        sends: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        receives: &Bound<'_, PyAny>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let (py, group) = (x.py(), self.membership.group("all_to_all_v", timeout_ms)?);
        let rows = private::Rows::new((x, sends), (out, receives));
        self.membership.told(py, timeout_ms, rows)?.run(py, &group)
    }

    /// Collective, in place of a collective with `x` that this rank cannot make: the others raise `RankFailed` with these
    /// words, where they can be told. For code around this package that checks more than it does.
    #[pyo3(signature = (words, x = None, *, timeout_ms = 0))]
    fn _refuse(
        &self,
        words: &str,
        x: Option<&Bound<'_, PyAny>>,
        timeout_ms: u64,
        py: Python<'_>,
    ) -> PyResult<()> {
        let error = crate::error::refused(words);
        let known = x.map_or(Ok(None), |x| collectives::symmetric(&self.membership, x, timeout_ms))?;
        match known {
            Some(memory) => drop(memory.handle().refuse(py, error, memory.terms(timeout_ms, None))),
            None if x.is_none_or(|x| self.membership.is_on_host(x)) => {
                drop(self.membership.refuse(py, timeout_ms, error));
            }
            None => {}
        }
        Ok(())
    }

    /// Sends `x` to rank `dst`, which must `recv` it with the same tag. Returns when it is on its way and `x` may change.
    #[pyo3(signature = (x, dst, tag = 0, *, timeout_ms = 0))]
    fn send(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let asked = self.membership.asked("send", timeout_ms);
        self.membership.mail(x.py(), asked.op)?.get().send_array(asked, x, (dst, tag))
    }

    /// Receives into `x` what rank `src` sends with the same tag; None is anybody, and any tag. Returns `x`. Without an `x` it returns a
    /// new numpy array of what came, however long: its elements in one dimension.
    #[pyo3(
        signature = (x = None, src = None, tag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, x=None, src=None, tag=0, *, timeout_ms=0)"
    )]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        x: Option<&Bound<'py, PyAny>>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.membership.recv(py, self.membership.asked("recv", timeout_ms), x, (src, tag))
    }

    /// Starts a `send`. `x` must not change until it has ended.
    #[pyo3(signature = (x, dst, tag = 0))]
    fn isend(&self, x: &Bound<'_, PyAny>, dst: usize, tag: u64) -> PyResult<Pending> {
        self.membership.start_send(self.membership.asked("isend", 0), x, (dst, tag))
    }

    /// Starts a `recv` into `x`. Waiting for it gives `x`.
    #[pyo3(signature = (x, src = None, tag = Some(0)), text_signature = "($self, x, src=None, tag=0)")]
    fn irecv(&self, x: &Bound<'_, PyAny>, src: Option<usize>, tag: Option<u64>) -> PyResult<Pending> {
        self.membership.start_receive(self.membership.asked("irecv", 0), x, (src, tag))
    }

    /// Sends `x` to rank `dst` and receives from rank `src`, or anybody, at once, so that ranks can exchange in a ring. Returns as `recv`
    /// does: `out`, or a new array of what came.
    #[pyo3(
        signature = (x, dst, out = None, src = None, sendtag = 0, recvtag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, x, dst, out=None, src=None, sendtag=0, recvtag=0, *, timeout_ms=0)"
    )]
    #[allow(clippy::too_many_arguments)] // Those of both.
    fn sendrecv<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        dst: usize,
        out: Option<&Bound<'py, PyAny>>,
        src: Option<usize>,
        sendtag: u64,
        recvtag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = self.membership.asked("sendrecv", timeout_ms);
        self.membership.send_and_receive(asked, (x, (dst, sendtag)), (out, (src, recvtag)))
    }

    /// Sends a picklable object to rank `dst`, which takes it with `recv_object`.
    #[pyo3(signature = (obj, dst, tag = 0, *, timeout_ms = 0))]
    fn send_object(&self, obj: &Bound<'_, PyAny>, dst: usize, tag: u64, timeout_ms: u64) -> PyResult<()> {
        let asked = self.membership.asked("send_object", timeout_ms);
        self.membership.mail(obj.py(), asked.op)?.get().send_pickled(asked, obj, (dst, tag))
    }

    /// The object that rank `src` sent with the same tag; None is anybody, and any tag.
    #[pyo3(
        signature = (src = None, tag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, src=None, tag=0, *, timeout_ms=0)"
    )]
    fn recv_object<'py>(
        &self,
        py: Python<'py>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = self.membership.asked("recv_object", timeout_ms);
        self.membership.mail(py, asked.op)?.get().receive_pickled(py, asked, (src, tag))
    }

    /// `sendrecv` of objects.
    #[pyo3(
        signature = (obj, dst, src = None, sendtag = 0, recvtag = Some(0), *, timeout_ms = 0),
        text_signature = "($self, obj, dst, src=None, sendtag=0, recvtag=0, *, timeout_ms=0)"
    )]
    fn sendrecv_object<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        dst: usize,
        src: Option<usize>,
        sendtag: u64,
        recvtag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let asked = self.membership.asked("sendrecv_object", timeout_ms);
        self.membership.send_and_receive_object(asked, (obj, (dst, sendtag)), (src, recvtag))
    }

    /// Waits for a message and says what it is; it stays there for a receive. By default one from anybody, with any tag.
    ///
    ///     found = group.probe()
    ///     x = group.recv(None, found.source, found.tag)
    #[pyo3(signature = (src = None, tag = None, *, timeout_ms = 0))]
    fn probe(
        &self,
        py: Python<'_>,
        src: Option<usize>,
        tag: Option<u64>,
        timeout_ms: u64,
    ) -> PyResult<Envelope> {
        let asked = self.membership.asked("probe", timeout_ms);
        self.membership.mail(py, asked.op)?.get().wait_for_any(py, asked, (src, tag))
    }

    /// `probe` without waiting: None if there is no message.
    #[pyo3(signature = (src = None, tag = None))]
    fn iprobe(&self, py: Python<'_>, src: Option<usize>, tag: Option<u64>) -> PyResult<Option<Envelope>> {
        let asked = self.membership.asked("iprobe", 0);
        self.membership.mail(py, asked.op)?.get().look_for_any(asked, (src, tag))
    }
}
