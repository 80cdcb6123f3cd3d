//! Copies between this rank's memory and a peer's, from one side: by the copy engine, or by threads.

use crate::Result;
use crate::cuda::owner::OwnedAddress;
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::ops::By;
use crate::memory::device::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Op;

impl<T: Element> SymmetricMemory<T> {
    /// In the order of `stream`: reads `out.len()` elements of rank `rank` from `start` on, by the copy
    /// engine, beside whatever kernels run. Not ordered with what `rank` does; use signals or a barrier for
    /// that.
    pub fn get<'a>(
        &self,
        rank: usize,
        start: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.read_from(By::Engine, rank, start, out.into(), stream)
    }

    /// [`SymmetricMemory::get`] by threads of a kernel, which has less to set up: for small copies, and any
    /// alignment.
    pub fn copy<'a>(
        &self,
        rank: usize,
        start: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.read_from(By::Threads, rank, start, out.into(), stream)
    }

    /// In the order of `stream`: writes `input` to the elements of rank `rank` from `start` on, by the copy
    /// engine. Not ordered with what `rank` does; use signals or a barrier for that.
    pub fn put<'a>(
        &self,
        rank: usize,
        start: usize,
        input: impl Into<DeviceSlice<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        let theirs = self.part_of(Op::Put, rank, start, input.len(), input.device(), stream)?;
        let (places, bytes) = ((input.place(), OwnedAddress::bare(theirs)), input.len() * size_of::<T>());
        self.region().copy(Op::Put, By::Engine, places, bytes, stream)
    }

    /// In the order of this handle's lane, on any stream: copies `input` into this rank's own elements, from
    /// `start` on. Nobody else takes part. Memory that collectives work on one after the other is filled so
    /// for the next one, which may be on another stream.
    pub fn copy_in<'a>(
        &self,
        start: usize,
        input: impl Into<DeviceSlice<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        let (input, rank) = (input.into(), self.group().rank());
        let own = self.part_of(Op::Copy, rank, start, input.len(), input.device(), stream)?;
        let (places, bytes) = ((input.place(), OwnedAddress::bare(own)), input.len() * size_of::<T>());
        self.region().copy(Op::Copy, By::EngineInTurn, places, bytes, stream)
    }

    /// In the order of this handle's lane: copies this rank's own elements, from `start` on, to `out`. The
    /// way back of [`SymmetricMemory::copy_in`].
    pub fn copy_out<'a>(
        &self,
        start: usize,
        out: impl Into<DeviceSliceMut<'a, T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.read_from(By::EngineInTurn, self.group().rank(), start, out.into(), stream)
    }

    /// What `stream` gets from now on comes after the operations of this handle's lane so far, on any stream;
    /// `put`, `get` and `copy` are on none. For work of others, that writes this rank's elements for the next
    /// operation.
    pub fn order_behind(&self, stream: &Stream) -> Result<()> {
        self.check_open(Op::Copy.name())?;
        self.engine().check(Op::Copy, None, stream)?;
        self.region().order_behind(stream)
    }

    fn read_from(
        &self,
        by: By,
        rank: usize,
        start: usize,
        out: DeviceSliceMut<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let theirs = self.part_of(Op::Copy, rank, start, out.len(), out.device(), stream)?;
        let (places, bytes) = ((OwnedAddress::bare(theirs), out.place()), out.len() * size_of::<T>());
        self.region().copy(Op::Copy, by, places, bytes, stream)
    }

    /// Where `len` elements of `rank` from `start` on are, once everything is checked.
    #[inline]
    fn part_of(
        &self,
        op: Op,
        rank: usize,
        start: usize,
        len: usize,
        device: &Device,
        stream: &Stream,
    ) -> Result<u64> {
        self.group().check_rank(op.name(), rank)?;
        let (offset, _) = self.span(op.name(), start, len)?;
        self.engine().check_memory("private memory", device)?;
        self.check_open(op.name())?;
        self.engine().check(op, None, stream)?;
        match self.region().data[rank] {
            0 => Err(self.region().out_of_reach(rank)),
            address => Ok(address + offset),
        }
    }
}
