//! The Python class `Group`: how it is made, what it knows, and how it ends. Its other methods are where
//! their work is: those on arrays in [`collectives`](super::collectives), of objects, messages and parts of a
//! group in files of their own.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::{PyGeneratorExit, PySystemExit};
use pyo3::prelude::*;
use pyo3::types::PyString;
use symmem::Deadline;

use super::{Membership, bound, join, lock, source};
use crate::Any;
use crate::collectives::{self, Maybe};
use crate::context::{self, Context};
use crate::cuda::Private;
use crate::error::raise;
use crate::interrupt::blocking;
use crate::operand::{Operand, Place};
use crate::pending::{Pending, Started};
use crate::store;

/// This rank's membership in an ordered set of ranks that meet in a store.
///
/// Making one is collective. Every wait ends at a deadline (`timeout` seconds, 300 unless told otherwise), on
/// Ctrl-C, or when a peer dies or leaves. One operation at a time: a second thread gets `Busy`; `clone` gives
/// a group for it.
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
}

#[pymethods]
impl Group {
    /// Collective. Joins `size` ranks that meet in `store` under `name`: one of symmem's stores or any object
    /// with the methods of PyTorch's. `timeout` in seconds is for the join and for every later wait.
    #[new]
    #[pyo3(signature = (store, rank, size, name = "default", *, timeout = None, context = None))]
    fn new(
        store: &Any<'_>,
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

    /// Collective. Joins the group that the environment describes, as `torchrun` sets it: `RANK`,
    /// `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`.
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

    /// Collective. The ranks of a torch process group (by default torch's default one, also by name), who
    /// meet in its store.
    #[staticmethod]
    #[pyo3(signature = (process_group = None, *, timeout = None, context = None))]
    fn from_torch(
        py: Python<'_>,
        process_group: Maybe<'_, '_>,
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
        let pending = group.start().barrier().map_err(raise)?;
        Ok(Pending::new(Started::boxed(pending, |py, ()| Ok(py.None()))))
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

    /// Declares the group failed: everybody's running and later operations raise `GroupFailed` with this rank
    /// as the culprit and `reason` as its words. Never blocks; on a group that was closed it does nothing,
    /// for this rank has left it.
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

    /// The same membership, whose calls wait for at most `seconds` each. As a block it makes the group the
    /// current one, and bounds every call of this thread on it and its handles that does not say another
    /// `timeout_ms`; its end closes nothing.
    ///
    ///     group.within(5).barrier()
    ///     with group.within(0.5):
    ///         symmem.barrier()
    fn within(&self, seconds: f64) -> PyResult<Self> {
        let timeout = Some(join::seconds(seconds)?);
        Ok(Self::of(Membership { timeout, ..self.membership.clone() }))
    }

    /// The same membership, whose collectives compare numbers of elements, as those of torch do: arrays of
    /// other shapes are not a `Mismatch` where they are as long. All ranks must say so.
    ///
    ///     group.any_shape().all_reduce(x)
    fn any_shape(&self) -> Self {
        Self::of(Membership { any_shape: true, ..self.membership.clone() })
    }

    /// Leaves the group; local. Peers that still need this rank get `PeerLeft`. Later methods, also of
    /// handles made on the group, raise `Closed`; arrays stay valid. The end of the outermost `with group:`
    /// calls it.
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
        kind: &Any<'_>,
        exception: &Any<'_>,
        _traceback: &Any<'_>,
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

    fn __eq__(&self, other: &Any<'_>) -> bool {
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

    /// The group's work on the device `ordinal` will go through the NCCL communicator at `address`, which
    /// `keep` keeps: that of the NCCL in use, of the group's ranks in their order. Nobody else makes calls on
    /// it meanwhile.
    fn _adopt_nccl(&self, address: usize, ordinal: usize, keep: Py<PyAny>) -> PyResult<()> {
        self.membership.engines().set_foreign(ordinal, address, Arc::new(keep)).map_err(raise)
    }

    /// Undoes `_adopt_nccl`. What works on it already keeps it.
    fn _disown_nccl(&self, address: usize, ordinal: usize) {
        self.membership.engines().forget_foreign(ordinal, address);
    }

    /// Collective, in place of a collective with `x` that this rank cannot make: the others raise
    /// `RankFailed` with these words, where they can be told. For code around this package that checks more
    /// than it does.
    #[pyo3(signature = (words, x = None, *, timeout_ms = 0))]
    fn _refuse(
        &self,
        words: &Bound<'_, PyString>,
        x: Maybe<'_, '_>,
        timeout_ms: u64,
        py: Python<'_>,
    ) -> PyResult<()> {
        let error = crate::error::refused(words.to_string_lossy());
        let raised = match x.map_or(Ok(None), |x| collectives::symmetric(&self.membership, x, timeout_ms)) {
            // A group that was closed.
            Err(_) => return Ok(()),
            Ok(Some(memory)) => memory.handle().refuse(error, memory.terms(py, timeout_ms, None)),
            Ok(None) => match x.map(Operand::any) {
                Some(Ok(x @ Operand { device: Place::Cuda(ordinal), .. })) => {
                    Private::refuse(py, &self.membership, ordinal, &x, error)
                }
                _ if x.is_none_or(|x| self.membership.is_on_host(x)) => {
                    self.membership.refuse(py, timeout_ms, error)
                }
                _ => return Ok(()),
            },
        };
        // The caller has an error of its own to raise, but a signal is not to be forgotten.
        if crate::error::is_own(py, &raised) { Ok(()) } else { Err(raised) }
    }
}
