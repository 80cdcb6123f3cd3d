//! Communicators: those that a caller makes and passes, and those that are kept for lists of devices.
//!
//! As in the reference, one that is forgotten is not ended: work may be under way, and at exit the driver may
//! be gone. Callers end theirs by `finish` or `abort`.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use symmem::cuda::Device;
use symmem::nccl::{self, UniqueId};
use symmem::{Error, Result};

use crate::cuda::device;
use crate::error::{invalid, raise, refused};
use crate::interrupt::blocking;
use crate::operand::Place;

/// One rank of those that communicate through NCCL. Made by `init_rank`.
#[pyclass(frozen, module = "symmem.nccl", name = "Communicator")]
#[derive(Debug)]
pub(super) struct Communicator {
    inner: ManuallyDrop<nccl::Communicator>,
}

#[pymethods]
impl Communicator {
    /// This rank.
    #[getter]
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.inner.size()
    }

    /// The device, as "cuda:N".
    #[getter]
    fn device(&self) -> String {
        place(self.inner.device()).to_string()
    }

    /// Collective: waits until every rank is here and all work is done, for at most `timeout` seconds, and
    /// ends it.
    #[pyo3(signature = (timeout = 300.0))]
    fn finish(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let within = seconds(timeout)?;
        blocking(py, || self.inner.finish(within))
    }

    /// Ends it, and what is under way on it. Waits for no other rank.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| self.inner.abort());
    }

    fn __repr__(&self) -> String {
        let ended = if self.inner.raw().is_null() { ", ended" } else { "" };
        format!("Communicator(rank={}, size={}, device={:?}{ended})", self.rank(), self.size(), self.device())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.inner.raw().is_null() {
            // SAFETY: dropped once, here, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

fn place(device: &Device) -> Place {
    Place::Cuda(device.ordinal() as i32)
}

fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout).map_err(|problem| invalid("timeout", problem.to_string()))
}

/// Collective over `num_ranks` ranks with the same `uid`: this one is `rank`, on `device` (none: the current
/// one).
#[pyfunction]
#[pyo3(signature = (num_ranks, uid, rank, *, device = None, timeout = 300.0))]
pub(super) fn _nccl_init_rank(
    py: Python<'_>,
    num_ranks: i64,
    uid: &[u8],
    rank: i64,
    device: Option<&Bound<'_, PyAny>>,
    timeout: f64,
) -> PyResult<Communicator> {
    if uid.len() != UniqueId::BYTES {
        let (expected, got) = (UniqueId::BYTES, uid.len());
        // The reference's spelling.
        return Err(refused(format!("invalid unqiue_id (expected {expected} bytes, got {got})")));
    }
    let timeout = seconds(timeout)?;
    let place = match device {
        Some(device) => Place::parse(device)?,
        None => Place::parse(&pyo3::types::PyString::new(py, "cuda"))?,
    };
    let Place::Cuda(ordinal) = place else {
        return Err(refused(format!("NCCL only supports CUDA devices, not {place}")));
    };
    let (Ok(world), Ok(rank)) = (usize::try_from(num_ranks), usize::try_from(rank)) else {
        return Err(refused(format!("there is no rank {rank} of {num_ranks}")));
    };
    let made = blocking(py, || {
        // First, so that whoever has neither hears of NCCL.
        let id = nccl::library().and_then(|_| UniqueId::from_bytes(uid))?;
        let device = crate::cuda::device(ordinal)?;
        nccl::Communicator::with_id_within(&id, rank, world, &device, timeout)
    })?;
    Ok(Communicator { inner: ManuallyDrop::new(made) })
}

/// The communicators of a `comms` argument, which is one or a sequence, for `count` inputs. All are of one
/// set of ranks.
pub(super) fn unpack(comms: &Bound<'_, PyAny>, count: usize) -> PyResult<Vec<nccl::Communicator>> {
    let communicators = match comms.cast::<Communicator>() {
        Ok(one) => vec![alive(one.get())?],
        Err(_) => {
            let iterator = comms.try_iter().map_err(|_| PyTypeError::new_err("comm is not a sequence"))?;
            iterator.enumerate().map(|(at, one)| unpack_one(&one?, at)).collect::<PyResult<Vec<_>>>()?
        }
    };
    if communicators.len() != count {
        let detail = format!("{} and {count}", communicators.len());
        return Err(refused(format!("number of communicators is not equal to number of inputs: {detail}")));
    }
    for (at, one) in communicators.iter().enumerate() {
        let odd = |other: &nccl::Communicator| other.size() != one.size() || other.rank() == one.rank();
        if communicators[..at].iter().any(odd) {
            return Err(refused("the communicators are not different ranks of one set"));
        }
    }
    Ok(communicators)
}

fn unpack_one(object: &Bound<'_, PyAny>, at: usize) -> PyResult<nccl::Communicator> {
    match object.cast::<Communicator>() {
        Ok(one) => alive(one.get()),
        Err(_) => {
            let kind = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("expected Communicator at {at} (got {kind})")))
        }
    }
}

/// A handle to it; one that has ended must be found out before the others of the call have begun.
fn alive(communicator: &Communicator) -> PyResult<nccl::Communicator> {
    if communicator.inner.raw().is_null() {
        return Err(raise(Error::Closed { op: "NCCL communicator" }));
    }
    Ok(nccl::Communicator::clone(&communicator.inner))
}

type Kept = HashMap<Vec<i32>, Vec<nccl::Communicator>>;

/// Runs `work` with the communicators that are kept for `ordinals`, in that order; makes them the first time.
///
/// One thread at a time: two that began on the same devices in another order would wait for each other. All
/// ranks are in this call, so whoever is inside needs nobody who is outside.
pub(super) fn with_cached(
    ordinals: &[i32],
    work: impl FnOnce(&[nccl::Communicator]) -> Result<()>,
) -> Result<()> {
    static KEPT: Mutex<Option<Kept>> = Mutex::new(None);
    // First, so that whoever has neither hears of NCCL.
    nccl::library()?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if !kept.contains_key(ordinals) {
        let devices = ordinals.iter().map(|ordinal| device(*ordinal)).collect::<Result<Vec<_>>>()?;
        kept.insert(ordinals.to_vec(), nccl::Communicator::for_devices(&devices)?);
    }
    let communicators = &kept[ordinals];
    let done = work(communicators);
    if done.is_err() && communicators.iter().any(|communicator| communicator.poll().is_err()) {
        // Broken ones are of no use to the next call.
        kept.remove(ordinals);
    }
    done
}
