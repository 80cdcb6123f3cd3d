//! Collectives of a group on private memory of a device: they go through a room, symmetric memory that the
//! group keeps there.
//!
//! Called by `private` for arrays that are on a device and not symmetric on the group. What it guarantees:
//! everything is in the order of the current stream, and operations of several streams take turns in the
//! room; nothing waits, except where the room has to grow, which is collective and cannot be part of a graph.

use std::time::Duration;

use pyo3::prelude::*;
use symmem::cuda::Stream;
use symmem::erased::Call;
use symmem::{DType, Error, Result};

use super::core::DeviceMemoryEnd;
use super::device::device;
use super::stream::{refuse_capture, stream};
use crate::error::{invalid, raise};
use crate::group::Membership;
use crate::memory::{Purpose, Room, has_to_grow, outgrow, room, room_handle};
use crate::operand::{Operand, Place};

/// A collective on private memory of the device `ordinal`. Input and output are addresses and numbers of
/// elements; in place, both are one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Private<'a> {
    pub(crate) ordinal: i32,
    pub(crate) call: Call<'a>,
    pub(crate) dtype: DType,
    pub(crate) input: Option<(u64, usize)>,
    pub(crate) out: Option<(u64, usize)>,
}

impl Private<'_> {
    /// Puts it on the current stream.
    ///
    /// # Safety
    /// Input and output are there, apart or one, until the stream has done the work.
    pub(crate) unsafe fn run(
        &self,
        py: Python<'_>,
        membership: &Membership,
        timeout_ms: u64,
    ) -> PyResult<()> {
        let len = self.len(membership.size());
        let bytes = len.saturating_mul(self.dtype.size());
        let room = device_room(py, membership, (self.call.name(), self.ordinal), bytes)?;
        let core = &room.handle.as_device().ok_or_else(|| invalid("room", "it is not on a device"))?.core;
        let stream = stream(py, &core.device, None)?;
        let within = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        // SAFETY: as the caller promises.
        py.detach(|| unsafe { core.run_private(self, len, within, &stream) }).map_err(raise)
    }

    /// Tells the others about `error` in place of a collective with `x`, an array on the device `ordinal`,
    /// where they will be; what to raise.
    pub(crate) fn refuse(
        py: Python<'_>,
        membership: &Membership,
        ordinal: i32,
        x: &Operand<'_>,
        error: PyErr,
    ) -> PyErr {
        let place = Place::Cuda(ordinal);
        // Theirs is as long, as far as can be known here.
        let bytes = x.len.saturating_mul(x.dtype.size()).max(1);
        if has_to_grow(membership, place, Purpose::Private, bytes) {
            // They are about to make a larger room, together; or have an error of their own, if they capture
            // as this rank does.
            return match refuse_growth(py, ordinal, "refusal", bytes)
                .and_then(|()| outgrow(py, membership, place))
            {
                Ok(()) => membership.refuse(py, 0, error),
                Err(_) => error,
            };
        }
        let told = || {
            let handle = room_handle(py, membership, place, (1, 0))?;
            let core = &handle.as_device().ok_or_else(|| invalid("room", "it is not on a device"))?.core;
            let stream = stream(py, &core.device, None)?;
            py.detach(|| core.refuse(&stream)).map_err(raise)
        };
        // What cannot be told is seen by their deadlines.
        let _: PyResult<()> = told();
        error
    }

    /// An error if lengths do not fit that nobody else compares, for a room with `len` elements, or if
    /// devices do not reduce such elements.
    pub(super) fn check(&self, len: usize) -> Result<()> {
        let wrong = |what: &str, problem: String| Err(Error::Invalid { what: what.to_owned(), problem });
        match (self.call, self.input, self.out) {
            (Call::AllReduce(_), _, Some((_, out))) if out != len => {
                wrong("out", format!("it has {out} elements, the input {len}"))
            }
            (Call::AllReduce(_), ..) if !matches!(self.dtype, DType::BF16 | DType::F16 | DType::F32) => {
                let problem = "is not reduced on devices. Hint: bf16, f16 and f32 are; convert, or reduce in host memory";
                wrong("all_reduce", format!("{} {problem}", self.dtype))
            }
            (Call::Scatter(_), Some((_, input)), _) if input != len => {
                wrong("scatter", format!("the root has {input} elements, and all ranks together take {len}"))
            }
            _ => Ok(()),
        }
    }

    /// Elements that the room has of each rank.
    fn len(&self, world: usize) -> usize {
        let len = |side: Option<(u64, usize)>| side.map_or(0, |(_, len)| len);
        match self.call {
            Call::Scatter(_) => len(self.out).saturating_mul(world),
            _ => len(self.input.or(self.out)),
        }
    }
}

/// Collective where it has to grow, which cannot be part of a graph. The group's room on the device `ordinal`
/// for the call `op`, of at least `bytes`.
pub(crate) fn device_room<'a>(
    py: Python<'_>,
    membership: &'a Membership,
    (op, ordinal): (&'static str, i32),
    bytes: usize,
) -> PyResult<Room<'a>> {
    // Also for nothing: other ranks may have something, and would wait for this one.
    let (place, bytes) = (Place::Cuda(ordinal), bytes.max(1));
    if has_to_grow(membership, place, Purpose::Private, bytes) {
        refuse_growth(py, ordinal, op, bytes)?;
    }
    room(py, membership, (op, place), (bytes, 0))
}

/// In the order of the current stream: every rank is here, with the memory of `core`.
pub(crate) fn meet(py: Python<'_>, core: &DeviceMemoryEnd) -> PyResult<()> {
    let stream = stream(py, &core.device, None)?;
    py.detach(|| core.barrier(0, None, &stream)).map_err(raise)
}

/// An error if the current stream of the device `ordinal` is captured: `what` needs a room of `bytes`, and
/// there is a smaller one or none.
pub(crate) fn refuse_growth(py: Python<'_>, ordinal: i32, what: &str, bytes: usize) -> PyResult<()> {
    let device = device(ordinal).map_err(raise)?;
    let stream: Stream = stream(py, &device, None)?;
    refuse_capture(&stream, what).map_err(|_| {
        let problem = format!(
            "it needs a workspace of {bytes} bytes, which cannot be made during graph capture. Hint: call it once with as many elements \
             before the capture"
        );
        invalid(what, problem)
    })
}
