//! The neutral form of device memory: each call waits for its work.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use symmem::cuda::{Algorithm, Allocation, Buffer, DeviceSlice, Status, SymmetricMemory};
use symmem::{Cause, DType, Group, ReduceOp, Result, Symmetric};

use crate::cuda;
use crate::suite::device::rank::Rank;
use crate::suite::run::patience;
use crate::suite::seat::{Block, Memory, Seat};
use crate::suite::stage::Place;
use crate::suite::value::Value;

impl Seat for Rank {
    type Block<T: Value> = DeviceBlock<T>;
    type Memory<T: Value> = DeviceMemory<T>;

    fn soon(&self) -> Duration {
        // An engine on a GPU loads kernels.
        if self.stage.place == Place::Fakes { Duration::from_millis(700) } else { Duration::from_secs(4) }
    }

    fn group(&self) -> &Group {
        &self.group
    }

    fn again(&self) -> Result<Self> {
        Rank::again(self)
    }

    fn with_deadline(&self, deadline: Duration) -> Result<Self> {
        self.by(deadline)
    }

    fn among(&self, group: Group, members: &[usize]) -> Result<Self> {
        Rank::among(self, group, members)
    }

    fn alloc<T: Value>(&self, len: usize) -> Result<DeviceBlock<T>> {
        Ok(DeviceBlock { block: self.engine.alloc(len)?, stream: self.stream.clone() })
    }

    fn reaches(&self, peer: usize) -> bool {
        Rank::reaches(self, peer)
    }

    fn reaches_pad(&self, peer: usize) -> bool {
        // Pads are the driver's memory, whatever the data is.
        self.is_direct() || Rank::reaches(self, peer)
    }

    fn works(&self) -> bool {
        // The fake driver runs no kernels, so there NCCL has to carry all of them.
        self.stage.place != Place::Fakes || !self.is_direct()
    }

    fn meet(&self) -> Result<()> {
        self.end()
    }

    fn failure(&self) -> Option<(usize, Cause)> {
        match self.engine.status() {
            Status::Failed { culprit, cause, .. } => Some((culprit, cause)),
            _ => None,
        }
    }

    fn reduces(&self, dtype: DType, op: ReduceOp) -> Option<bool> {
        let by_kernels = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
        let by_nccl = matches!(
            dtype,
            DType::U8 | DType::I8 | DType::U32 | DType::I32 | DType::U64 | DType::I64 | DType::F64
        );
        let is_arithmetic =
            matches!(op, ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Prod | ReduceOp::Avg);
        match dtype {
            _ if self.is_direct() => Some(by_kernels && matches!(op, ReduceOp::Sum | ReduceOp::Avg)),
            DType::F8E4M3 | DType::F8E5M2 if is_arithmetic => None,
            _ => Some(is_arithmetic && (by_kernels || by_nccl)),
        }
    }

    fn reduces_columns(&self) -> bool {
        self.is_direct()
    }

    fn channels(&self, pad_bytes: usize) -> usize {
        // NCCL has one, where it carries signals.
        if self.is_direct() { pad_bytes / 4 / Seat::world(self) } else { 1 }
    }

    fn algorithms(&self) -> Vec<&'static str> {
        Algorithm::EVERY.iter().map(|algorithm| algorithm.name()).collect()
    }

    fn is_choosy(&self) -> bool {
        self.is_direct()
    }

    fn has_multicast(&self) -> bool {
        // Ranks of one device have none, and the fakes have none unless they are told.
        false
    }

    fn slack(&self) -> usize {
        // A real driver and a real NCCL keep a few things for later.
        if self.stage.place == Place::Fakes { 0 } else { 4 }
    }

    fn fail_call(&self, number: u64) {
        assert_eq!(self.stage.place, Place::Fakes, "only the fake driver fails on demand");
        cuda::fail(number);
    }

    fn fail_no_more(&self) {
        cuda::fail(0);
    }
}

/// An allocation, and the stream that fills it.
pub(crate) struct DeviceBlock<T: Value> {
    block: Allocation<T>,
    stream: symmem::cuda::Stream,
}

impl<T: Value> DeviceBlock<T> {
    fn on<U: Value>(&self, seat: &Rank, memory: SymmetricMemory<U>) -> Result<DeviceMemory<U>> {
        if seat.stage.place == Place::Fakes {
            // What is to fail is to fail in the rendezvous.
            cuda::fail(0);
        }
        let room = Buffer::new(&seat.device, memory.buffer_size() / size_of::<U>() + MARGIN)?;
        Ok(DeviceMemory { memory, stream: seat.stream.clone(), room: Arc::new(Mutex::new(room)) })
    }
}

impl<T: Value> Block<T, Rank> for DeviceBlock<T> {
    fn len(&self) -> usize {
        self.block.len()
    }

    fn write(&mut self, values: &[T]) -> Result<()> {
        self.block.write(values, &self.stream)
    }

    fn read(&self) -> Result<Vec<T>> {
        self.block.read(&self.stream)
    }

    fn salvage(&self) -> Result<Vec<T>> {
        self.block.salvage(&self.stream)
    }

    fn rendezvous(&self, seat: &Rank) -> Result<DeviceMemory<T>> {
        self.on(seat, self.block.rendezvous(&seat.engine)?)
    }

    fn rendezvous_at(&self, seat: &Rank, offset: usize) -> Result<DeviceMemory<T>> {
        self.on(seat, self.block.rendezvous_at(&seat.engine, offset)?)
    }

    fn rendezvous_as<U: Value>(&self, seat: &Rank, offset: usize, len: usize) -> Result<DeviceMemory<U>> {
        self.on(seat, self.block.rendezvous_as(&seat.engine, offset, len)?)
    }
}

/// More elements than behaviours ask for beyond the end.
const MARGIN: usize = 64;

/// A handle, the stream that its operations are on, and room for what is read of peers. The room is there
/// from the start: making it may wait for the device, where the kernel of a rank that is ahead may wait for
/// this one's.
#[derive(Debug)]
pub(crate) struct DeviceMemory<T: Value> {
    memory: SymmetricMemory<T>,
    stream: symmem::cuda::Stream,
    room: Arc<Mutex<Buffer<T>>>,
}

impl<T: Value> Deref for DeviceMemory<T> {
    type Target = SymmetricMemory<T>;

    fn deref(&self) -> &SymmetricMemory<T> {
        &self.memory
    }
}

impl<T: Value> DeviceMemory<T> {
    /// Waits for what was just launched.
    fn done(&self, launched: Result<()>) -> Result<()> {
        launched?;
        self.memory.engine().sync(&self.stream, patience())
    }

    /// The output of `len` elements of an operation that `launch` launches.
    fn output(
        &self,
        len: usize,
        launch: impl FnOnce(&SymmetricMemory<T>, &mut Buffer<T>) -> Result<()>,
    ) -> Result<Vec<T>> {
        let mut out = Buffer::new(self.memory.device(), len)?;
        self.memory.group().barrier()?;
        self.done(launch(&self.memory, &mut out))?;
        let found = out.read(&self.stream)?;
        // Freeing waits for the device, where a slower rank's work may still wait for this one's.
        self.memory.group().barrier()?;
        Ok(found)
    }

    fn of(&self, memory: SymmetricMemory<T>) -> Self {
        Self { memory, stream: self.stream.clone(), room: Arc::clone(&self.room) }
    }
}

impl<T: Value> Memory<T> for DeviceMemory<T> {
    fn rank(&self) -> usize {
        self.memory.rank()
    }

    fn world_size(&self) -> usize {
        self.memory.world_size()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn offset(&self) -> usize {
        self.memory.offset()
    }

    fn buffer_size(&self) -> usize {
        self.memory.buffer_size()
    }

    fn signal_pad_size(&self) -> usize {
        self.memory.signal_pad_size()
    }

    fn peer_ptr(&self, peer: usize) -> Result<u64> {
        self.memory.peer_ptr(peer)
    }

    fn pad_ptr(&self, peer: usize) -> Result<u64> {
        self.memory.pad_ptr(peer)
    }

    fn reaches(&self, peer: usize) -> Result<bool> {
        self.memory.reaches(peer)
    }

    fn multicast_ptr(&self) -> Option<u64> {
        self.memory.multicast_ptr()
    }

    fn anywhere(&mut self) -> impl Symmetric<Element = T> {
        self.memory.on(&self.stream)
    }

    fn same(&self) -> Self {
        self.of(self.memory.clone())
    }

    fn slice(&self, start: usize, len: usize) -> Result<Self> {
        Ok(self.of(self.memory.slice(start..start.saturating_add(len))?))
    }

    fn write(&mut self, values: &[T]) -> Result<()> {
        self.memory.write(values, &self.stream)
    }

    fn read(&self) -> Result<Vec<T>> {
        self.memory.read(&self.stream)
    }

    fn salvage(&self) -> Result<Vec<T>> {
        self.memory.salvage(&self.stream)
    }

    fn get(&self, peer: usize, start: usize, len: usize) -> Result<Vec<T>> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let mut whole = room.as_slice_mut();
        self.done(self.memory.get(peer, start, whole.slice_mut(..len)?, &self.stream))?;
        let mut found = room.read(&self.stream)?;
        found.truncate(len);
        Ok(found)
    }

    fn pad(&self) -> Result<Vec<u32>> {
        let (device, len) = (self.memory.device(), self.memory.signal_pad_size() / 4);
        // SAFETY: this rank's own pad, of that many bytes, which lives as long as the handle.
        let pad =
            unsafe { DeviceSlice::<u32>::from_raw(self.memory.pad_ptr(self.memory.rank())?, len, device) }?;
        // By way of symmetric memory, which can be read.
        let room = self.memory.engine().alloc::<u32>(len)?.rendezvous(self.memory.engine())?;
        room.put(room.rank(), 0, pad, &self.stream)?;
        let found = room.read(&self.stream)?;
        self.memory.group().barrier()?;
        Ok(found)
    }

    fn put_signal(&self, peer: usize, channel: usize) -> Result<()> {
        self.done(self.memory.put_signal(peer, channel, &self.stream))
    }

    fn wait_signal(&self, peer: usize, channel: usize) -> Result<()> {
        self.done(self.memory.wait_signal(peer, channel, &self.stream))
    }

    fn barrier(&self, channel: usize) -> Result<()> {
        self.done(self.memory.barrier(channel, &self.stream))
    }

    fn using(&self, algorithm: &str) -> Self {
        self.of(self.memory.using(algorithm.parse().expect("an algorithm of the table")))
    }

    fn carries(&self, algorithm: &str, collective: &str) -> bool {
        // By the switch only where there is multicast memory.
        let is_reduction = collective.starts_with("all_reduce");
        is_reduction && (algorithm != "multimem" || self.memory.multicast_ptr().is_some())
    }

    fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        self.done(self.memory.all_reduce(op, &self.stream))
    }

    fn all_reduce_out(&mut self, op: ReduceOp) -> Result<Vec<T>> {
        self.output(self.memory.len(), |memory, out| memory.all_reduce_out(op, out, &self.stream))
    }

    fn all_reduce_private(&mut self, op: ReduceOp, own: &[T]) -> Result<Vec<T>> {
        let own = Buffer::from_slice(self.memory.device(), own, &self.stream)?;
        self.output(own.len(), |memory, out| memory.all_reduce_from(op, &own, out, &self.stream))
    }

    fn reduce(&mut self, op: ReduceOp, root: usize) -> Result<Option<Vec<T>>> {
        let is_root = self.memory.rank() == root;
        let launch = |memory: &SymmetricMemory<T>, out: &mut Buffer<T>| {
            memory.reduce(op, root, is_root.then(|| out.as_slice_mut()), &self.stream)
        };
        Ok(Some(self.output(self.memory.len(), launch)?).filter(|_| is_root))
    }

    fn reduce_scatter(&mut self, op: ReduceOp) -> Result<Vec<T>> {
        let chunk = self.memory.len() / self.memory.world_size();
        self.output(chunk, |memory, out| memory.reduce_scatter(op, out, &self.stream))
    }

    fn reduce_scatter_columns(&mut self, op: ReduceOp, width: usize) -> Result<Vec<T>> {
        let chunk = self.memory.len() / self.memory.world_size();
        self.output(chunk, |memory, out| memory.reduce_scatter_columns(op, width, out, &self.stream))
    }

    fn all_gather(&mut self) -> Result<Vec<T>> {
        let len = self.memory.len() * self.memory.world_size();
        self.output(len, |memory, out| memory.all_gather(out, &self.stream))
    }

    fn all_to_all(&mut self) -> Result<Vec<T>> {
        self.output(self.memory.len(), |memory, out| memory.all_to_all(out, &self.stream))
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        self.done(self.memory.broadcast(root, &self.stream))
    }

    fn gather(&mut self, root: usize) -> Result<Option<Vec<T>>> {
        let is_root = self.memory.rank() == root;
        let len = self.memory.len() * self.memory.world_size();
        let launch = |memory: &SymmetricMemory<T>, out: &mut Buffer<T>| {
            memory.gather(root, is_root.then(|| out.as_slice_mut()), &self.stream)
        };
        Ok(Some(self.output(len, launch)?).filter(|_| is_root))
    }

    fn scatter(&mut self, root: usize) -> Result<Vec<T>> {
        let chunk = self.memory.len() / self.memory.world_size();
        self.output(chunk, |memory, out| memory.scatter(root, out, &self.stream))
    }

    fn close(self) -> Result<()> {
        self.memory.close()
    }
}
