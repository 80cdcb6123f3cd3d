//! Memory of devices on one stream: the methods of the host's handle, without a stream in each of them.
//!
//! Public, by [`SymmetricMemory::on`]. Every method is the handle's with that stream.

use std::time::Duration;

use super::DeviceMatrix;
use crate::Result;
use crate::collective::Symmetric;
use crate::cuda::{Buffer, DeviceSliceMut, Stream};
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};

/// Symmetric memory of devices, whose operations go on one stream. Its methods are those of [`Symmetric`],
/// and products.
#[derive(Clone, Copy, Debug)]
pub struct OnStream<'a, T: Element> {
    memory: &'a SymmetricMemory<T>,
    stream: &'a Stream,
}

impl<T: Element> SymmetricMemory<T> {
    /// This memory with its operations on `stream`: the same names, arguments and meanings as on the host
    /// ([`Symmetric`]), also for code that is generic over both.
    ///
    /// ```no_run
    /// use symmem::{ReduceOp, Symmetric};
    /// # fn sum(memory: &symmem::cuda::SymmetricMemory<f32>, stream: &symmem::cuda::Stream) -> symmem::Result<()> {
    /// let mut memory = memory.on(stream);
    /// memory.all_reduce(ReduceOp::Sum)?;
    /// memory.finish()
    /// # }
    /// ```
    pub fn on<'a>(&'a self, stream: &'a Stream) -> OnStream<'a, T> {
        OnStream { memory: self, stream }
    }
}

/// What is not the same on the host, where matrices are in its memory.
impl<T: Element> OnStream<'_, T> {
    /// [`SymmetricMemory::all_gather_matmul`](SymmetricMemory::all_gather_matmul).
    pub fn all_gather_matmul(
        &self,
        weights: &[DeviceMatrix<'_, T>],
        outs: &mut [DeviceSliceMut<'_, T>],
    ) -> Result<()> {
        self.memory.all_gather_matmul(weights, outs, self.stream)
    }

    /// [`SymmetricMemory::all_gather_matmul_and_rows`](SymmetricMemory::all_gather_matmul_and_rows).
    pub fn all_gather_matmul_and_rows<'a>(
        &self,
        weights: &[DeviceMatrix<'_, T>],
        outs: &mut [DeviceSliceMut<'_, T>],
        gathered: impl Into<DeviceSliceMut<'a, T>>,
    ) -> Result<()> {
        self.memory.all_gather_matmul_and_rows(weights, outs, gathered, self.stream)
    }

    /// [`SymmetricMemory::matmul_reduce_scatter`](SymmetricMemory::matmul_reduce_scatter).
    pub fn matmul_reduce_scatter<'a>(
        &self,
        op: ReduceOp,
        a: DeviceMatrix<'_, T>,
        b: DeviceMatrix<'_, T>,
        out: impl Into<DeviceSliceMut<'a, T>>,
    ) -> Result<()> {
        self.memory.matmul_reduce_scatter(op, a, b, out, self.stream)
    }
}

impl<T: Element> Symmetric for OnStream<'_, T> {
    type Element = T;
    type Array = Buffer<T>;

    fn rank(&self) -> usize {
        self.memory.rank()
    }

    fn world_size(&self) -> usize {
        self.memory.world_size()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn array(&self, len: usize) -> Result<Buffer<T>> {
        let array = Buffer::new(self.memory.device(), len)?;
        array.fill_bytes(0, self.stream)?;
        Ok(array)
    }

    fn read_array(&self, array: &Buffer<T>) -> Result<Vec<T>> {
        self.finish()?;
        array.read(self.stream)
    }

    fn write(&mut self, elements: &[T]) -> Result<()> {
        self.memory.write(elements, self.stream)
    }

    fn read(&self) -> Result<Vec<T>> {
        self.finish()?;
        self.memory.read(self.stream)
    }

    fn barrier(&self, channel: usize) -> Result<()> {
        self.memory.barrier(channel, self.stream)
    }

    fn put_signal(&self, rank: usize, channel: usize) -> Result<()> {
        self.memory.put_signal(rank, channel, self.stream)
    }

    fn wait_signal(&self, rank: usize, channel: usize) -> Result<()> {
        self.memory.wait_signal(rank, channel, self.stream)
    }

    fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        self.memory.all_reduce(op, self.stream)
    }

    fn all_reduce_out(&self, op: ReduceOp, out: &mut Buffer<T>) -> Result<()> {
        self.memory.all_reduce_out(op, out, self.stream)
    }

    fn reduce(&self, op: ReduceOp, root: usize, out: &mut Buffer<T>) -> Result<()> {
        self.memory.reduce(op, root, Some(out.as_slice_mut()), self.stream)
    }

    fn reduce_scatter(&self, op: ReduceOp, out: &mut Buffer<T>) -> Result<()> {
        self.memory.reduce_scatter(op, out, self.stream)
    }

    fn all_gather(&self, out: &mut Buffer<T>) -> Result<()> {
        self.memory.all_gather(out, self.stream)
    }

    fn all_to_all(&self, out: &mut Buffer<T>) -> Result<()> {
        self.memory.all_to_all(out, self.stream)
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        self.memory.broadcast(root, self.stream)
    }

    fn gather(&self, root: usize, out: &mut Buffer<T>) -> Result<()> {
        self.memory.gather(root, Some(out.as_slice_mut()), self.stream)
    }

    fn scatter(&self, root: usize, out: &mut Buffer<T>) -> Result<()> {
        self.memory.scatter(root, out, self.stream)
    }

    fn finish(&self) -> Result<()> {
        let within = self.memory.group().terms.timeout.unwrap_or(Duration::MAX);
        self.memory.engine().sync(self.stream, within)
    }
}
