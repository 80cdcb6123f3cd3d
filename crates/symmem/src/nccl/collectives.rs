//! NCCL's collectives and sends, typed and checked. All return as soon as the work is on its stream.
//!
//! Public. What is checked on this rank before NCCL is called: the communicator lives, memory and stream are
//! on its device, lengths fit, the root is one of its ranks, type and reduction are NCCL's. What a rank
//! refuses it alone has not begun: the others wait for it, so arguments must be right on all ranks. A graph
//! keeps the memory, and the communicator, of what was captured in it.

#![allow(unsafe_code, reason = "calls of NCCL")]

use super::communicator::Communicator;
use super::types::{moved, operation, reduced};
use crate::cuda::owner::Owner;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::numeric::{DType, Element, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// A collective that the engine has NCCL do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub(crate) op: Op,
    pub(crate) reduction: Option<ReduceOp>,
    pub(crate) dtype: DType,
    /// Elements of a rank's part.
    pub(crate) count: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// 0 where there is none.
    pub(crate) root: usize,
}

impl Communicator {
    /// Collective, in the order of `stream`. `out` becomes the reduction of everybody's `input`.
    pub fn all_reduce<'a, 'b, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: impl Into<DeviceSliceMut<'b, T>>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let (input, out) = (input.into(), out.into());
        self.check_input(&input)?;
        self.check_output(&out, input.len(), "as long as the input")?;
        stream.keep_if_captured(&[input.place().owner, out.place().owner])?;
        self.reduce_all(input.device_ptr(), out.device_ptr(), out.len(), T::DTYPE, op, stream)
    }

    /// Collective, in the order of `stream`. Everybody's `data` becomes the reduction of all.
    pub fn all_reduce_in_place<'a, T: Element>(
        &self,
        data: impl Into<DeviceSliceMut<'a, T>>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let data = data.into();
        self.check_output(&data, data.len(), "")?;
        stream.keep_if_captured(&[data.place().owner])?;
        self.reduce_all(data.device_ptr(), data.device_ptr(), data.len(), T::DTYPE, op, stream)
    }

    /// As [`Communicator::all_reduce`], by address; for the engine, whose memory is its own.
    pub(crate) fn reduce_all(
        &self,
        from: u64,
        to: u64,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, op) = (reduced(self.inner.nccl, dtype)?, operation(op)?);
        // SAFETY: memory of that many elements, as the callers checked; whoever made the slices keeps it, and
        // so do graphs.
        unsafe { self.all_reduce_raw(from, to, count, dtype, op, stream) }
    }

    /// Another collective by address; for the engine, which has checked.
    pub(crate) fn carry(&self, work: &Carried, stream: &Stream) -> Result<()> {
        let Carried { op, dtype, count, from, to, root, .. } = *work;
        if let Some(reduction) = work.reduction {
            let (dtype, reduction) = (reduced(self.inner.nccl, dtype)?, operation(reduction)?);
            // SAFETY: memory of that many elements, as the engine checked; it keeps the memory.
            return unsafe {
                match op {
                    Op::Reduce => self.reduce_raw(from, to, count, dtype, reduction, root, stream),
                    _ => self.reduce_scatter_raw(from, to, count, dtype, reduction, stream),
                }
            };
        }
        let size = dtype.size();
        let (dtype, times) = moved(self.inner.nccl, dtype);
        let (count, size) = (count * times, size / times);
        // SAFETY: as above.
        unsafe {
            match op {
                Op::AllGatherMemory | Op::AllGatherMatmul => {
                    self.all_gather_raw(from, to, count, dtype, stream)
                }
                Op::AllToAll => self.all_to_all_raw(from, to, count, dtype, size, stream),
                Op::Gather => self.gather_raw(from, to, count, dtype, size, root, stream),
                Op::Scatter => self.scatter_raw(from, to, count, dtype, size, root, stream),
                _ => self.broadcast_raw(from, to, count, dtype, root, stream),
            }
        }
    }

    /// Collective, in the order of `stream`. `out` of rank `root`, which alone must have one, becomes the
    /// reduction of everybody's `input`.
    pub fn reduce<'a, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: Option<DeviceSliceMut<'_, T>>,
        op: ReduceOp,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        self.check_input(&input)?;
        let to = self.root_output("reduce", out.as_ref(), input.len(), root)?;
        let (dtype, op) = (reduced(self.inner.nccl, T::DTYPE)?, operation(op)?);
        stream.keep_if_captured(&[input.place().owner, owner_of(out.as_ref())])?;
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe { self.reduce_raw(input.device_ptr(), to, input.len(), dtype, op, root, stream) }
    }

    /// Collective, in the order of `stream`. Everybody's `data` becomes that of rank `root`.
    pub fn broadcast<'a, T: Element>(
        &self,
        data: impl Into<DeviceSliceMut<'a, T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let data = data.into();
        self.check_output(&data, data.len(), "")?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        let at = data.device_ptr();
        stream.keep_if_captured(&[data.place().owner])?;
        // SAFETY: as checked; whoever made the slice keeps it.
        unsafe { self.broadcast_raw(at, at, data.len() * times, dtype, root, stream) }
    }

    /// Collective, in the order of `stream`. `out` becomes everybody's `input`, in rank order.
    pub fn all_gather<'a, 'b, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: impl Into<DeviceSliceMut<'b, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, out) = (input.into(), out.into());
        self.check_input(&input)?;
        self.check_output(&out, self.everybodys(input.len())?, "the input for each rank")?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        stream.keep_if_captured(&[input.place().owner, out.place().owner])?;
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe {
            self.all_gather_raw(input.device_ptr(), out.device_ptr(), input.len() * times, dtype, stream)
        }
    }

    /// Collective, in the order of `stream`. `out` becomes this rank's part of the reduction of everybody's
    /// `input`.
    pub fn reduce_scatter<'a, 'b, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: impl Into<DeviceSliceMut<'b, T>>,
        op: ReduceOp,
        stream: &Stream,
    ) -> Result<()> {
        let (input, out) = (input.into(), out.into());
        self.check_input(&input)?;
        self.check_output(&out, out.len(), "")?;
        self.check_parts("input", input.len(), out.len())?;
        let (dtype, op) = (reduced(self.inner.nccl, T::DTYPE)?, operation(op)?);
        stream.keep_if_captured(&[input.place().owner, out.place().owner])?;
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe { self.reduce_scatter_raw(input.device_ptr(), out.device_ptr(), out.len(), dtype, op, stream) }
    }

    /// Collective, in the order of `stream`. Part `r` of `input` goes to rank `r`; `out` becomes what all
    /// ranks sent to this one, in rank order.
    pub fn all_to_all<'a, 'b, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: impl Into<DeviceSliceMut<'b, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, out) = (input.into(), out.into());
        self.check_input(&input)?;
        self.check_output(&out, input.len(), "as long as the input")?;
        let part = input.len() / self.size();
        self.check_parts("input", input.len(), part)?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        let (from, to, size) = (input.device_ptr(), out.device_ptr(), size_of::<T>() / times);
        stream.keep_if_captured(&[input.place().owner, out.place().owner])?;
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe { self.all_to_all_raw(from, to, part * times, dtype, size, stream) }
    }

    /// In the order of `stream`: sends `input` to rank `rank`, which must receive it. Sends and receives that
    /// need each other belong into one [`GroupCall`](super::GroupCall).
    pub fn send<'a, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        rank: usize,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        self.check_input(&input)?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        stream.keep_if_captured(&[input.place().owner])?;
        // SAFETY: as checked; whoever made the slice keeps it.
        unsafe { self.send_raw(input.device_ptr(), input.len() * times, dtype, rank, stream) }
    }

    /// In the order of `stream`: `out` becomes what rank `rank` sends, which must be as much.
    pub fn recv<'a, T: Element>(
        &self,
        out: impl Into<DeviceSliceMut<'a, T>>,
        rank: usize,
        stream: &Stream,
    ) -> Result<()> {
        let out = out.into();
        self.check_output(&out, out.len(), "")?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        stream.keep_if_captured(&[out.place().owner])?;
        // SAFETY: as checked; whoever made the slice keeps it.
        unsafe { self.recv_raw(out.device_ptr(), out.len() * times, dtype, rank, stream) }
    }

    /// Collective, in the order of `stream`. `out` of rank `root`, which alone must have one, becomes
    /// everybody's `input`, in rank order.
    pub fn gather<'a, T: Element>(
        &self,
        input: impl Into<DeviceSlice<'a, T>>,
        out: Option<DeviceSliceMut<'_, T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        self.check_input(&input)?;
        let to = self.root_output("gather", out.as_ref(), self.everybodys(input.len())?, root)?;
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        let (count, size) = (input.len() * times, size_of::<T>() / times);
        stream.keep_if_captured(&[input.place().owner, owner_of(out.as_ref())])?;
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe { self.gather_raw(input.device_ptr(), to, count, dtype, size, root, stream) }
    }

    /// Collective, in the order of `stream`. Part `r` of the `input` of rank `root`, which alone must have
    /// one, becomes `out` of rank `r`.
    pub fn scatter<'a, T: Element>(
        &self,
        input: Option<DeviceSlice<'_, T>>,
        out: impl Into<DeviceSliceMut<'a, T>>,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let out = out.into();
        self.check_output(&out, out.len(), "")?;
        self.check_root("scatter", root)?;
        let input = input.filter(|_| self.rank() == root);
        if self.rank() == root {
            let input = input.as_ref().ok_or_else(|| Error::invalid("input", "the root must have one"))?;
            self.check_input(input)?;
            self.check_parts("input", input.len(), out.len())?;
        }
        stream.keep_if_captured(&[input.and_then(|input| input.place().owner), out.place().owner])?;
        let from = input.map_or(0, |input| input.device_ptr());
        let (dtype, times) = moved(self.inner.nccl, T::DTYPE);
        let (count, size) = (out.len() * times, size_of::<T>() / times);
        // SAFETY: as checked; whoever made the slices keeps them.
        unsafe { self.scatter_raw(from, out.device_ptr(), count, dtype, size, root, stream) }
    }

    /// `count` elements of each rank.
    fn everybodys(&self, count: usize) -> Result<usize> {
        count.checked_mul(self.size()).ok_or_else(|| Error::invalid("input", format!("{count} are too many")))
    }

    fn check_device(&self, what: &'static str, device: &Device) -> Result<()> {
        if device == self.device() {
            return Ok(());
        }
        let problem = format!("it is on {device}, the communicator on {}", self.device());
        Err(Error::invalid(what, problem))
    }

    fn check_input<T: Element>(&self, input: &DeviceSlice<'_, T>) -> Result<()> {
        self.check_device("input", input.device())
    }

    fn check_output<T: Element>(&self, out: &DeviceSliceMut<'_, T>, len: usize, want: &str) -> Result<()> {
        self.check_device("output", out.device())?;
        if out.len() == len {
            return Ok(());
        }
        Err(Error::invalid("output", format!("it has {} elements and must have {len}: {want}", out.len())))
    }

    /// An error unless `whole` is a part of `part` elements for each rank.
    fn check_parts(&self, what: &'static str, whole: usize, part: usize) -> Result<()> {
        if Some(whole) == part.checked_mul(self.size()) {
            return Ok(());
        }
        let problem = format!("{whole} elements are not {part} for each of {} ranks", self.size());
        Err(Error::invalid(what, problem))
    }

    fn check_root(&self, op: &'static str, root: usize) -> Result<()> {
        if root < self.size() {
            return Ok(());
        }
        Err(Error::RankOutOfRange { op, rank: root, world: self.size() })
    }

    /// Where the root's output is; 0 on other ranks, which need none.
    fn root_output<T: Element>(
        &self,
        op: &'static str,
        out: Option<&DeviceSliceMut<'_, T>>,
        len: usize,
        root: usize,
    ) -> Result<u64> {
        self.check_root(op, root)?;
        if self.rank() != root {
            return Ok(0);
        }
        let out = out.ok_or_else(|| Error::invalid("output", "the root must have one"))?;
        self.check_output(out, len, "what the root gets")?;
        Ok(out.device_ptr())
    }
}

fn owner_of<'a, T: Element>(out: Option<&DeviceSliceMut<'a, T>>) -> Option<&'a dyn Owner> {
    out.and_then(|out| out.place().owner)
}
