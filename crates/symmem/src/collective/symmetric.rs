//! What symmetric memory does alike on the host and on devices, as a trait: code over it knows no place.
//!
//! Public. The host's handle implements it, and so does a device's on a stream
//! ([`cuda::SymmetricMemory::on`](crate::cuda::SymmetricMemory::on), `collective/device/on_stream.rs`). Both
//! call the methods of their handle: a collective means what it means there, and costs nothing more.

use crate::memory::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};
use crate::{Error, Result};

/// Symmetric memory, wherever it is: a [`SymmetricMemory`] of the host, or one of devices
/// [`on`](crate::cuda::SymmetricMemory::on) a stream.
///
/// On the host a call returns when its work is done. On a device it returns when the work is on the stream;
/// [`finish`](Symmetric::finish) waits for it. Results are in arrays of the same place
/// ([`Array`](Symmetric::Array)): make them before the first operation, because making and dropping one may
/// wait for the whole device.
///
/// ```
/// use symmem::{ReduceOp, Result, Symmetric};
///
/// /// The mean of everybody's elements, wherever they are.
/// fn mean(memory: &mut impl Symmetric<Element = f32>) -> Result<Vec<f32>> {
///     let mut out = memory.array(memory.len())?;
///     memory.all_reduce_out(ReduceOp::Avg, &mut out)?;
///     memory.finish()?;
///     memory.read_array(&out)
/// }
///
/// symmem::spawn(2, |group| {
///     let mut memory = group.alloc::<f32>(4)?.rendezvous(&group)?;
///     memory.fill(group.rank() as f32)?;
///     assert_eq!(mean(&mut memory)?, [0.5; 4]);
///     Ok(())
/// })?;
/// # use symmem::cuda::{Engine, Stream, SymmetricMemory};
/// # fn device(memory: &SymmetricMemory<f32>, stream: &Stream) -> Result<Vec<f32>> {
/// // The same on a GPU, where `memory` is a `cuda::SymmetricMemory`:
/// mean(&mut memory.on(stream))
/// # }
/// # Ok::<(), symmem::Error>(())
/// ```
pub trait Symmetric {
    /// What it holds.
    type Element: Element;
    /// Private memory at the same place: a `Vec` on the host, a [`cuda::Buffer`](crate::cuda::Buffer) on a
    /// device.
    type Array;

    /// This rank in the group.
    fn rank(&self) -> usize;
    /// Ranks of the group.
    fn world_size(&self) -> usize;
    /// Elements of each rank.
    fn len(&self) -> usize;
    /// Whether a rank has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An array of `len` zeros.
    fn array(&self, len: usize) -> Result<Self::Array>;
    /// What is in `array`, once all operations so far are done.
    fn read_array(&self, array: &Self::Array) -> Result<Vec<Self::Element>>;
    /// Writes all elements of this rank's memory.
    fn write(&mut self, elements: &[Self::Element]) -> Result<()>;
    /// All elements of this rank's memory, once all operations so far are done.
    fn read(&self) -> Result<Vec<Self::Element>>;

    /// Collective. Nobody goes on before everybody is here.
    fn barrier(&self, channel: usize) -> Result<()>;
    /// Raises this rank's signal on `channel` at `rank`, once the one before was consumed.
    fn put_signal(&self, rank: usize, channel: usize) -> Result<()>;
    /// Consumes the signal on `channel` from `rank`, once it is there.
    fn wait_signal(&self, rank: usize, channel: usize) -> Result<()>;

    /// Collective. Every rank's memory becomes the reduction of everybody's.
    fn all_reduce(&mut self, op: ReduceOp) -> Result<()>;
    /// Collective. `out` becomes the reduction of everybody's memory.
    fn all_reduce_out(&self, op: ReduceOp, out: &mut Self::Array) -> Result<()>;
    /// Collective. `out` of rank `root` becomes the reduction of everybody's memory; the others' is left
    /// alone.
    fn reduce(&self, op: ReduceOp, root: usize, out: &mut Self::Array) -> Result<()>;
    /// Collective. `out` becomes the reduction of everybody's chunk for this rank.
    fn reduce_scatter(&self, op: ReduceOp, out: &mut Self::Array) -> Result<()>;
    /// Collective. `out` becomes everybody's memory, in rank order.
    fn all_gather(&self, out: &mut Self::Array) -> Result<()>;
    /// Collective. `out` becomes everybody's chunk for this rank, in rank order.
    fn all_to_all(&self, out: &mut Self::Array) -> Result<()>;
    /// Collective. Everybody's memory becomes that of rank `root`.
    fn broadcast(&mut self, root: usize) -> Result<()>;
    /// Collective. `out` of rank `root` becomes everybody's memory, in rank order; the others' is left alone.
    fn gather(&self, root: usize, out: &mut Self::Array) -> Result<()>;
    /// Collective. `out` becomes this rank's chunk of the memory of rank `root`.
    fn scatter(&self, root: usize, out: &mut Self::Array) -> Result<()>;

    /// Waits until all operations so far are done, for at most the group's timeout; an error if the group has
    /// failed.
    fn finish(&self) -> Result<()>;
}

impl<T: Element> Symmetric for SymmetricMemory<T> {
    type Element = T;
    type Array = Vec<T>;

    fn rank(&self) -> usize {
        self.rank()
    }

    fn world_size(&self) -> usize {
        self.world_size()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn array(&self, len: usize) -> Result<Vec<T>> {
        Ok(vec![T::zeroed(); len])
    }

    fn read_array(&self, array: &Vec<T>) -> Result<Vec<T>> {
        Ok(array.clone())
    }

    fn write(&mut self, elements: &[T]) -> Result<()> {
        if elements.len() != self.len() {
            let problem = format!("{} elements for a memory of {}", elements.len(), self.len());
            return Err(Error::invalid("write", problem));
        }
        self.local_mut()?.copy_from_slice(elements);
        Ok(())
    }

    fn read(&self) -> Result<Vec<T>> {
        Ok(self.local()?.to_vec())
    }

    fn barrier(&self, channel: usize) -> Result<()> {
        self.barrier(channel)
    }

    fn put_signal(&self, rank: usize, channel: usize) -> Result<()> {
        self.put_signal(rank, channel)
    }

    fn wait_signal(&self, rank: usize, channel: usize) -> Result<()> {
        self.wait_signal(rank, channel)
    }

    fn all_reduce(&mut self, op: ReduceOp) -> Result<()> {
        self.all_reduce(op)
    }

    fn all_reduce_out(&self, op: ReduceOp, out: &mut Vec<T>) -> Result<()> {
        self.all_reduce_out(op, out)
    }

    fn reduce(&self, op: ReduceOp, root: usize, out: &mut Vec<T>) -> Result<()> {
        self.reduce(op, root, out)
    }

    fn reduce_scatter(&self, op: ReduceOp, out: &mut Vec<T>) -> Result<()> {
        self.reduce_scatter(op, out)
    }

    fn all_gather(&self, out: &mut Vec<T>) -> Result<()> {
        self.all_gather(out)
    }

    fn all_to_all(&self, out: &mut Vec<T>) -> Result<()> {
        self.all_to_all(out)
    }

    fn broadcast(&mut self, root: usize) -> Result<()> {
        self.broadcast(root)
    }

    fn gather(&self, root: usize, out: &mut Vec<T>) -> Result<()> {
        self.gather(root, out)
    }

    fn scatter(&self, root: usize, out: &mut Vec<T>) -> Result<()> {
        self.scatter(root, out)
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
