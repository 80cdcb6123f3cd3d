//! The `stream` argument, and the streams that this process has seen.
//!
//! What it guarantees: one raw handle is one [`Stream`] as long as it is the same stream, so that the engine
//! does not order operations of one stream by events; a handle that came back as another stream is told apart
//! by its id.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyInt};
use symmem::cuda::cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureStatus};
use symmem::cuda::{Capture, Device, Event, Stream};
use symmem::{Error, Result};

use super::device::device;
use crate::error::{invalid, raise};

/// The legacy default stream has two handles, of which this is the one that is used here.
const LEGACY: usize = 0;
const LEGACY_TOO: usize = 1;
/// Handles up to this one are those of default streams.
const LAST_DEFAULT: usize = 2;
/// Streams that are remembered. Programs have a few; those that make and destroy them do not fill the memory.
const MOST: usize = 1024;

/// A stream of somebody else's, by what was its id when it was first seen.
struct KnownStream {
    id: u64,
    stream: Stream,
}

/// By ordinal of the device, and handle.
type Streams = HashMap<(usize, usize), KnownStream>;

fn streams() -> MutexGuard<'static, Streams> {
    static STREAMS: OnceLock<Mutex<Streams>> = OnceLock::new();
    STREAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stream with the handle `raw` on `device`. One look-up where it was seen before.
///
/// # Safety
/// `raw` is a stream of the device's primary context, or a default one, and lives until the work it is given
/// is done.
#[inline]
pub(crate) unsafe fn adopt(device: &Device, raw: usize) -> Result<Stream> {
    let raw = if raw == LEGACY_TOO { LEGACY } else { raw };
    // SAFETY: a live stream, as the caller promises.
    let id = unsafe { id_of(raw) };
    let key = (device.ordinal(), raw);
    if let Some(known) = streams().get(&key).filter(|known| id.is_none_or(|id| known.id == id)) {
        return Ok(known.stream.clone());
    }
    // SAFETY: as the caller promises.
    let stream = unsafe { Stream::from_raw(device, raw as CUstream) }?;
    // A stream that is first seen in a capture has no id to be known by.
    let Some(id) = id else { return Ok(stream) };
    let mut streams = streams();
    if streams.len() >= MOST {
        streams.clear();
    }
    streams.insert(key, KnownStream { id, stream: stream.clone() });
    Ok(stream)
}

type StreamId = unsafe extern "C" fn(CUstream, *mut u64) -> CUresult;

/// What tells a stream apart from an earlier one with the same handle. 0 for default streams, and where
/// drivers do not tell: then it is on the caller that handles are not reused while work is under way. `None`
/// while it is captured: the question itself would break the capture.
///
/// # Safety
/// `raw` is a live stream.
unsafe fn id_of(raw: usize) -> Option<u64> {
    static FUNCTION: OnceLock<Option<StreamId>> = OnceLock::new();
    if raw <= LAST_DEFAULT {
        return Some(0);
    }
    let function = FUNCTION.get_or_init(|| {
        // SAFETY: whoever has a device has the driver, so this finds it; the type is that of cuda.h.
        unsafe { sys::culib().get::<StreamId>(b"cuStreamGetId\0").ok().map(|function| *function) }
    });
    let Some(function) = function else { return Some(0) };
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut id = 0;
    // SAFETY: a live stream; writes one status and one number, and nothing where it is given null.
    unsafe {
        let code = sys::cuStreamGetCaptureInfo_v3(
            raw as CUstream,
            &mut status,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        );
        if code == CUresult::CUDA_SUCCESS && status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return None;
        }
        Some(if function(raw as CUstream, &mut id) == CUresult::CUDA_SUCCESS { id } else { 0 })
    }
}

/// The handle that a `stream` argument means, for the device `ordinal`: an int, a stream of torch or cupy, or
/// anything with `__cuda_stream__`; `None`: torch's current stream, else cupy's, else the legacy default one.
pub(crate) fn handle(py: Python<'_>, ordinal: i32, argument: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
    let Some(stream) = argument.filter(|stream| !stream.is_none()) else {
        return current(py, ordinal);
    };
    if stream.is_instance_of::<PyInt>() && !stream.is_instance_of::<PyBool>() {
        return stream
            .extract()
            .map_err(|_| invalid("stream", format!("{stream} is not a handle of a stream")));
    }
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
        if let Some(handle) = stream.getattr_opt(name)? {
            return handle.extract();
        }
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let (_version, handle): (i32, usize) = protocol.call0()?.extract()?;
        return Ok(handle);
    }
    let kind = stream.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "stream must be None, an int, or have .cuda_stream (torch), .ptr (cupy) or __cuda_stream__, not {kind}"
    )))
}

/// The stream that a `stream` argument means.
pub(crate) fn stream(
    py: Python<'_>,
    device: &Device,
    argument: Option<&Bound<'_, PyAny>>,
) -> PyResult<Stream> {
    let raw = handle(py, ordinal_of(device), argument)?;
    // SAFETY: whoever passes a stream to an operation keeps it until the work is done, as with every library.
    unsafe { adopt(device, raw) }.map_err(raise)
}

/// The ordinal as Python and its libraries count.
pub(crate) fn ordinal_of(device: &Device) -> i32 {
    device.ordinal() as i32
}

/// torch's current stream if torch is imported, else cupy's, else the legacy default one.
fn current(py: Python<'_>, ordinal: i32) -> PyResult<usize> {
    static TORCH: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(function) = TORCH.get(py) {
        return function.bind(py).call1((ordinal,))?.extract();
    }
    if let Some(function) = torch_function(py)? {
        let raw = function.call1((ordinal,))?.extract();
        // Another thread may have been first, with the same.
        let _ = TORCH.set(py, function.unbind());
        return raw;
    }
    match cupy_stream(py)? {
        Some(stream) => stream.getattr(intern!(py, "ptr"))?.extract(),
        None => Ok(LEGACY),
    }
}

/// What torch has for those who are in a hurry; nothing in a torch that is not imported, or was built without
/// CUDA.
fn torch_function<'py>(py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = imported(py, "torch")? else { return Ok(None) };
    let Some(inner) = torch.getattr_opt(intern!(py, "_C"))? else { return Ok(None) };
    inner.getattr_opt(intern!(py, "_cuda_getCurrentRawStream"))
}

fn cupy_stream<'py>(py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(cupy) = imported(py, "cupy")? else { return Ok(None) };
    let Some(cuda) = cupy.getattr_opt(intern!(py, "cuda"))? else { return Ok(None) };
    let Some(function) = cuda.getattr_opt(intern!(py, "get_current_stream"))? else { return Ok(None) };
    function.call0().map(Some)
}

/// The module, if somebody has imported it already.
fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        Ok::<_, PyErr>(modules.cast_into::<PyDict>()?.unbind())
    })?;
    Ok(modules.bind(py).get_item(name)?.filter(|module| !module.is_none()))
}

/// Makes memory of the device `ordinal` safe to use on a consumer's stream, as DLPack wants it: that stream
/// waits for the current one, on which operations are unless they were told otherwise. The host does not
/// wait.
///
/// `consumer` is what `__dlpack__` was given: `None` and 1 for the legacy default stream, 2 for the
/// per-thread default one, -1 for a consumer that takes care of itself.
pub(crate) fn hand_over(py: Python<'_>, ordinal: i32, consumer: Option<i64>) -> PyResult<()> {
    let consumer = match consumer {
        Some(-1) => return Ok(()),
        None => LEGACY,
        Some(0) => {
            return Err(invalid(
                "stream",
                "0 is ambiguous. Hint: DLPack has 1 for the legacy default stream, 2 for the per-thread one",
            ));
        }
        Some(raw) => usize::try_from(raw)
            .map_err(|_| invalid("stream", format!("{raw} is not a handle of a stream")))?,
    };
    let device = device(ordinal).map_err(raise)?;
    let producer = current(py, ordinal)?;
    // SAFETY: the consumer's stream is what the consumer says; the current one is alive while its library
    // says so.
    let (consumer, producer) =
        unsafe { (adopt(&device, consumer).map_err(raise)?, adopt(&device, producer).map_err(raise)?) };
    if consumer.raw() == producer.raw() {
        return Ok(());
    }
    py.detach(|| match consumer.capture()? {
        Capture::None => wait_for(&consumer, &producer),
        // Work outside of a capture cannot be waited for in it; who captures has ordered that before.
        _ => Ok(()),
    })
    .map_err(raise)
}

/// Lets later work of `stream` wait for what is on `other` now.
fn wait_for(stream: &Stream, other: &Stream) -> Result<()> {
    let event = Event::new(stream.device())?;
    event.record(other)?;
    stream.wait(&event)
}

/// An error if `stream` is being captured: `what` cannot be part of a graph.
pub(crate) fn refuse_capture(stream: &Stream, what: &str) -> Result<()> {
    match stream.capture()? {
        Capture::None => Ok(()),
        _ => Err(Error::Invalid {
            what: what.to_owned(),
            problem: "the stream is being captured. Hint: do it before or after the capture".to_owned(),
        }),
    }
}
