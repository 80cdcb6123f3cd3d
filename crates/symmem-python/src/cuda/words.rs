//! Single words in the order of a stream, on any flat uint32 memory of a device.

use pyo3::prelude::*;
use symmem::DType;
use symmem::cuda::DeviceSliceMut;

use super::device::device;
use super::stream::stream;
use crate::error::{invalid, raise};
use crate::operand::{Operand, Place};
use crate::registry::Registered;

/// Sets `count` words of `x` from `offset` on to `val`, in the order of a stream. Can be captured into a
/// graph.
#[pyfunction]
#[pyo3(signature = (x, offset, val, count = 1, *, stream = None))]
fn memset32(
    x: &Bound<'_, PyAny>,
    offset: i64,
    val: i64,
    count: i64,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let words = Words::of("memset32", x)?;
    words.write(x.py(), stream, |slice, stream| slice.memset32(offset, val, count, stream))
}

/// Writes `val` to word `offset` of `x`, in the order of a stream and after a fence for the whole system.
/// Cannot be captured; `memset32` can.
#[pyfunction]
#[pyo3(signature = (x, offset, val, *, stream = None))]
fn stream_write_value32(
    x: &Bound<'_, PyAny>,
    offset: i64,
    val: i64,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let words = Words::of("stream_write_value32", x)?;
    words.write(x.py(), stream, |slice, stream| slice.stream_write_value32(offset, val, stream))
}

/// Flat uint32 memory.
struct Words {
    address: u64,
    len: usize,
    ordinal: i32,
}

impl Words {
    fn of(op: &'static str, x: &Bound<'_, PyAny>) -> PyResult<Self> {
        let operand = Operand::output(x)?;
        if operand.dtype != DType::U32 || operand.shape.len() != 1 {
            let problem = format!(
                "input must be a flat, contiguous uint32 tensor, not one of {} with {} dimensions",
                operand.dtype,
                operand.shape.len()
            );
            return Err(invalid(op, problem));
        }
        let Place::Cuda(ordinal) = operand.device else {
            return Err(invalid(op, "it is for memory of devices. Hint: write host memory as an array"));
        };
        Ok(Self { address: operand.address as u64, len: operand.len, ordinal })
    }

    fn write(
        &self,
        py: Python<'_>,
        argument: Option<&Bound<'_, PyAny>>,
        write: impl FnOnce(&mut DeviceSliceMut<'_, u32>, &symmem::cuda::Stream) -> symmem::Result<()> + Send,
    ) -> PyResult<()> {
        let device = device(self.ordinal).map_err(raise)?;
        let stream = stream(py, &device, argument)?;
        let owner = Registered(self.address);
        // SAFETY: memory of a Python object, which is there as long as its library says; libraries order
        // frees by streams.
        let slice = unsafe { DeviceSliceMut::<u32>::from_owner(self.address, self.len, &device, &owner) };
        let mut slice = slice.map_err(raise)?;
        py.detach(|| write(&mut slice, &stream)).map_err(raise)
    }
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(memset32, module)?)?;
    module.add_function(wrap_pyfunction!(stream_write_value32, module)?)
}
