//! One rank of a stage in a neutral form: what behaviours of every memory are written over.
//!
//! Calls return when their work is done, on devices too, and by a deadline. What a memory has that this form
//! lacks is for the behaviours of its own kind, which see the real types.

use std::fmt::Debug;
use std::time::Duration;

use symmem::{Cause, DType, Group, ReduceOp, Result, Symmetric};

use super::value::Value;

/// A rank: its group, and where its memory comes from.
pub(crate) trait Seat: Sized {
    type Block<T: Value>: Block<T, Self>;
    type Memory<T: Value>: Memory<T>;

    /// Long enough for ranks that come to make a seat and a rendezvous, short for those that wait in vain.
    fn soon(&self) -> Duration;

    fn group(&self) -> &Group;

    /// Collective. The same ranks with a group (and an engine) of their own, which may be ruined.
    fn again(&self) -> Result<Self>;

    /// Collective. The same, whose waits end after `deadline`.
    fn with_deadline(&self, deadline: Duration) -> Result<Self>;

    /// Collective over `group`, whose ranks are these of this one's.
    fn among(&self, group: Group, members: &[usize]) -> Result<Self>;

    /// Local.
    fn alloc<T: Value>(&self, len: usize) -> Result<Self::Block<T>>;

    /// Whether loads and stores reach the memory of `peer`.
    fn reaches(&self, peer: usize) -> bool;

    /// Whether they reach its pad.
    fn reaches_pad(&self, peer: usize) -> bool;

    /// Whether operations are carried out here.
    fn works(&self) -> bool;

    /// Collective. All work is done, and everybody is here.
    fn meet(&self) -> Result<()>;

    /// Local. Culprit and cause, if the group has failed.
    fn failure(&self) -> Option<(usize, Cause)>;

    /// Whether this stage reduces elements of `dtype` by `op`, or refuses; `None`: a foreign library decides,
    /// by its version.
    fn reduces(&self, dtype: DType, op: ReduceOp) -> Option<bool>;

    /// Whether this stage reduces columns; else it refuses.
    fn reduces_columns(&self) -> bool;

    /// How many channels signals have on a pad of so many bytes.
    fn channels(&self, pad_bytes: usize) -> usize;

    /// The names of the engine's algorithms, of its own table.
    fn algorithms(&self) -> Vec<&'static str>;

    /// Whether algorithms refuse lengths and forms that they cannot carry.
    fn is_choosy(&self) -> bool;

    /// Whether there is memory that reaches everybody's at once.
    fn has_multicast(&self) -> bool;

    /// How many descriptors, threads and mappings foreign libraries may keep for themselves: fewer than
    /// rounds that would each leave one.
    fn slack(&self) -> usize;

    /// Local. Lets the call of this number fail that this rank makes below its provider from here on.
    fn fail_call(&self, number: u64);

    /// Local. What did not come to fail is forgotten.
    fn fail_no_more(&self);

    fn rank(&self) -> usize {
        self.group().rank()
    }

    fn world(&self) -> usize {
        self.group().size()
    }

    /// Collective. Symmetric memory of `len` zeros.
    fn memory<T: Value>(&self, len: usize) -> Result<Self::Memory<T>> {
        self.alloc(len)?.rendezvous(self)
    }
}

/// An allocation.
pub(crate) trait Block<T: Value, S: Seat> {
    fn len(&self) -> usize;
    fn write(&mut self, values: &[T]) -> Result<()>;
    fn read(&self) -> Result<Vec<T>>;
    /// Whatever the state of the memory.
    fn salvage(&self) -> Result<Vec<T>>;
    /// Collective.
    fn rendezvous(&self, seat: &S) -> Result<S::Memory<T>>;
    /// Collective. From element `offset` on, which may differ by rank.
    fn rendezvous_at(&self, seat: &S, offset: usize) -> Result<S::Memory<T>>;
    /// Collective. `len` elements of another type, from byte `offset` on.
    fn rendezvous_as<U: Value>(&self, seat: &S, offset: usize, len: usize) -> Result<S::Memory<U>>;
}

/// A handle. What is collective says so.
pub(crate) trait Memory<T: Value>: Debug + Sized {
    fn rank(&self) -> usize;
    fn world_size(&self) -> usize;
    fn len(&self) -> usize;
    fn offset(&self) -> usize;
    fn buffer_size(&self) -> usize;
    fn signal_pad_size(&self) -> usize;
    /// Where the memory of `peer` is for this rank, from the handle's offset on.
    fn peer_ptr(&self, peer: usize) -> Result<u64>;
    fn pad_ptr(&self, peer: usize) -> Result<u64>;
    fn reaches(&self, peer: usize) -> Result<bool>;
    /// The address that reaches everybody's memory at once, where there is one.
    fn multicast_ptr(&self) -> Option<u64>;
    /// The memory for code that knows no place.
    fn anywhere(&mut self) -> impl Symmetric<Element = T>;
    /// Another handle of the same.
    fn same(&self) -> Self;
    fn slice(&self, start: usize, len: usize) -> Result<Self>;
    fn write(&mut self, values: &[T]) -> Result<()>;
    fn read(&self) -> Result<Vec<T>>;
    /// Whatever the state of the memory.
    fn salvage(&self) -> Result<Vec<T>>;
    /// `len` elements of `peer` from `start` on.
    fn get(&self, peer: usize, start: usize, len: usize) -> Result<Vec<T>>;
    /// Collective. This rank's own pad.
    fn pad(&self) -> Result<Vec<u32>>;
    fn put_signal(&self, peer: usize, channel: usize) -> Result<()>;
    fn wait_signal(&self, peer: usize, channel: usize) -> Result<()>;
    /// Collective.
    fn barrier(&self, channel: usize) -> Result<()>;
    /// The same memory, whose operations are carried by the algorithm of this name.
    fn using(&self, algorithm: &str) -> Self;
    /// Whether the algorithm of this name can carry the collective of that name on this memory, by the
    /// engine's own tables.
    fn carries(&self, algorithm: &str, collective: &str) -> bool;
    /// Collective. All reductions and movements.
    fn all_reduce(&mut self, op: ReduceOp) -> Result<()>;
    fn all_reduce_out(&mut self, op: ReduceOp) -> Result<Vec<T>>;
    /// The reduction of memory that is everybody's own.
    fn all_reduce_private(&mut self, op: ReduceOp, own: &[T]) -> Result<Vec<T>>;
    fn reduce(&mut self, op: ReduceOp, root: usize) -> Result<Option<Vec<T>>>;
    fn reduce_scatter(&mut self, op: ReduceOp) -> Result<Vec<T>>;
    fn reduce_scatter_columns(&mut self, op: ReduceOp, width: usize) -> Result<Vec<T>>;
    fn all_gather(&mut self) -> Result<Vec<T>>;
    fn all_to_all(&mut self) -> Result<Vec<T>>;
    fn broadcast(&mut self, root: usize) -> Result<()>;
    fn gather(&mut self, root: usize) -> Result<Option<Vec<T>>>;
    fn scatter(&mut self, root: usize) -> Result<Vec<T>>;
    /// Collective. Ends the use of the memory in this group.
    fn close(self) -> Result<()>;
}

/// "At once" for people, on a machine that is busy with other tests.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(2);
