//! What a message is besides its bytes: an array of some type, or an object. It travels as the message's
//! note.

use pyo3::prelude::*;
use symmem::{DType, Delivery};

use crate::dtype;
use crate::error::mismatched;

/// What the note of a message says: nothing, that it is a pickled object, or its element type, as `ARRAY` and
/// the type's place in [`DType::ALL`].
pub(super) const OBJECT: u64 = 1;
const ARRAY: u64 = 2;

pub(super) fn note_of(dtype: DType) -> u64 {
    DType::ALL.iter().position(|known| *known == dtype).map_or(0, |at| ARRAY + at as u64)
}

/// The type of the elements of a message, bytes if it does not say.
pub(super) fn dtype_of(note: u64) -> DType {
    let known = note.checked_sub(ARRAY).and_then(|at| DType::ALL.get(usize::try_from(at).ok()?));
    known.copied().unwrap_or(DType::U8)
}

/// An error if an object came where an array was expected, or the other way round.
pub(super) fn check_kind(op: &str, delivery: &Delivery, object: bool) -> PyResult<()> {
    let Delivery { source, tag, .. } = delivery;
    let (sent, hint) = match delivery.note {
        OBJECT => ("an object", "recv_object"),
        _ => ("an array", "recv"),
    };
    if (delivery.note == OBJECT) == object {
        return Ok(());
    }
    Err(mismatched(format!(
        "{op}: rank {source} sent {sent} with tag {tag}, which is gone now. Hint: {hint} takes it; probe says what is there"
    )))
}

/// What a message is that is there to be received. Made by `probe` and `iprobe`.
#[pyclass(frozen, module = "symmem")]
pub(crate) struct Envelope(pub(super) Delivery);

#[pymethods]
impl Envelope {
    /// The rank that sent it.
    #[getter]
    fn source(&self) -> usize {
        self.0.source
    }

    /// Its tag.
    #[getter]
    fn tag(&self) -> u64 {
        self.0.tag
    }

    /// Its bytes: of the elements of an array, or of a pickled object.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes
    }

    /// Whether it is an object, for `recv_object`.
    #[getter]
    fn is_object(&self) -> bool {
        self.0.note == OBJECT
    }

    /// The element type of an array; None for an object.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        (!self.is_object()).then(|| dtype::numpy_dtype(py, dtype_of(self.0.note))).transpose()
    }

    fn __repr__(&self) -> String {
        let Delivery { source, tag, bytes, .. } = self.0;
        let kind = if self.is_object() { "object" } else { dtype::name(dtype_of(self.0.note)) };
        format!("<symmem.Envelope: {bytes} bytes ({kind}) from rank {source} with tag {tag}>")
    }
}
