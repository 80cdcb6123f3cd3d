//! The handle of symmetric memory: what it is, and what it can do both on the host and on devices.
//!
//! Public. What only the host can do is in `host/handle.rs`, `signals.rs` and `one_sided.rs`, what only
//! devices can do in `device/handle.rs`; collectives are in `collective`. What it guarantees: all calls here
//! but `close` are local, and mean the same at both places.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use super::place::{Host, Place, PlaceParts};
use crate::Result;
use crate::cuda::buffer;
use crate::group::Group;
use crate::numeric::{Element, element};

/// A handle of memory that every rank of a group has mapped. Each rank brings elements of its own
/// ([`Allocation::rendezvous`](crate::Allocation::rendezvous) gives the handle), and reaches everybody's.
///
/// `T` is the type of the elements. `P` is the place of the memory: [`Host`], where none is named, or
/// [`Cuda`](crate::Cuda) ([`cuda::SymmetricMemory`](crate::cuda::SymmetricMemory) is short for that).
///
/// ```
/// use symmem::ReduceOp;
/// symmem::spawn(2, |group| {
///     let mut mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
///     mem.fill(group.rank() as f32)?; // this rank's elements
///     mem.barrier(0)?; // everybody has filled its own
///     let theirs = mem.peer(group.next())?.read(7)?; // another rank's element
///     mem.barrier(0)?; // everybody has read it
///     mem.all_reduce(ReduceOp::Sum)?; // everybody's elements become the sum
///     assert_eq!((theirs, mem.local()?[7]), (group.next() as f32, 1.0));
///     mem.close()
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
///
/// | to | on the host | on a device |
/// |---|---|---|
/// | use this rank's elements | `local`, `local_mut`, `fill` | `read`, `write`, `local` |
/// | read another rank's | [`peer`](Self::peer), `get` | `get`, `copy`; in a kernel [`peer_ptr`](Self::peer_ptr) |
/// | write another rank's | `put`, which is `unsafe` | `put`; in a kernel [`peer_ptr`](Self::peer_ptr) |
/// | order what ranks do | `barrier`, `put_signal`, `wait_signal` | the same, with a stream |
/// | take part in a collective | `all_reduce`, `all_gather` and others | the same, with a stream |
/// | start a collective and go on | [`start`](Self::start) | every call returns before its work is done |
/// | cover fewer elements, or see them as another type | [`slice`](Self::slice), [`cast`](Self::cast) | the same |
/// | choose the algorithm of collectives | [`using`](Self::using) | the same |
/// | end, with all ranks | [`close`](Self::close) | the same |
///
/// Below, methods of `SymmetricMemory<T>` are those of the host, of `SymmetricMemory<T, Cuda>` those of
/// devices, and of `SymmetricMemory<T, P>` those of both. A call whose text begins with "Collective" is made
/// by all ranks of the group, in the same order. Code for both places is written over
/// [`Symmetric`](crate::Symmetric) (collectives and signals) or over [`Place`](crate::Place) (the rest).
///
/// Dropping a handle is local. While one lives, everybody's memory stays mapped here, and this rank stays in
/// the group. [`close`](Self::close) is for the end that all ranks reach together.
#[derive(Debug)]
pub struct SymmetricMemory<T: Element, P: Place = Host> {
    pub(crate) parts: P::Parts,
    element: PhantomData<T>,
}

impl<T: Element, P: Place> SymmetricMemory<T, P> {
    /// Of `parts`, whose bytes are elements of `T`.
    pub(super) fn new(parts: P::Parts) -> Self {
        Self { parts, element: PhantomData }
    }

    /// This rank in the group.
    #[inline]
    pub fn rank(&self) -> usize {
        self.group().rank()
    }

    /// Number of ranks.
    #[inline]
    pub fn world_size(&self) -> usize {
        self.group().size()
    }

    /// The group.
    #[inline]
    pub fn group(&self) -> &Group {
        self.parts.group()
    }

    /// Number of elements that the handle covers, from its offset on.
    #[inline]
    pub fn len(&self) -> usize {
        self.parts.bytes() / size_of::<T>()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.parts.bytes() == 0
    }

    /// The handle's first element in this rank's allocation.
    #[inline]
    pub fn offset(&self) -> usize {
        self.parts.start() / size_of::<T>()
    }

    /// Bytes of the whole allocation, the same on every rank that brought one.
    pub fn buffer_size(&self) -> usize {
        self.parts.buffer_size()
    }

    /// Bytes of each rank's signal pad.
    pub fn signal_pad_size(&self) -> usize {
        self.parts.pad_size()
    }

    /// Local. A handle of the elements in `range`, of every rank's. Operations work on what a handle covers,
    /// so all ranks take the same range for a collective.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<i32>(8)?.rendezvous(&group)?;
    ///     let middle = mem.slice(2..6)?;
    ///     assert_eq!((middle.offset(), middle.len()), (2, 4));
    ///     assert!(mem.slice(5..9).is_err());
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let (start, len) = buffer::part::<T>(range, self.len())?;
        Ok(Self::new(self.parts.cut(start * size_of::<T>(), len * size_of::<T>())))
    }

    /// Local. The same memory as elements of `U`. The first byte on every rank, and the length in bytes, must
    /// be multiples of the size of `U`. Ranks may see the memory as different types, but not in one
    /// collective.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<u8>(16)?.rendezvous(&group)?;
    ///     let mut words = mem.cast::<u32>()?;
    ///     words.fill(1)?;
    ///     words.all_reduce(symmem::ReduceOp::Sum)?;
    ///     assert_eq!(*words.local()?, [2; 4]);
    ///     assert!(mem.slice(1..9)?.cast::<u32>().is_err());
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn cast<U: Element>(&self) -> Result<SymmetricMemory<U, P>> {
        let bytes = self.parts.bytes();
        self.parts.starts().try_for_each(|start| element::recount::<u8, U>(start, bytes).map(drop))?;
        Ok(SymmetricMemory::new(self.parts.cut(0, bytes)))
    }

    /// Local. The same memory, whose collectives use `algorithm`. All ranks must choose the same one.
    ///
    /// On the host they use no other. A collective that does not have it among its
    /// [`algorithms`](crate::tuning::Collective::algorithms), or whose message is too large for it, is an
    /// error on all ranks, before anything changes. Collectives without such a list (`gather`, `scatter`,
    /// `all_to_all_v` and the like) have one algorithm, and use that.
    /// [`Config::algorithm`](crate::Config::algorithm) is for whole programs, and a wish: where it cannot
    /// carry a message, another algorithm is used.
    ///
    /// On devices, [`Engine::using`](crate::cuda::Engine::using) says which operations go by it.
    ///
    /// ```
    /// use symmem::{ReduceOp, tuning::Algorithm};
    /// symmem::spawn(2, |group| {
    ///     let mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
    ///     mem.using(Algorithm::Staged).all_reduce(ReduceOp::Sum)?;
    ///     assert!(mem.using(Algorithm::Push).all_reduce(ReduceOp::Sum).is_err(), "4000 bytes are too many");
    ///     mem.using(Algorithm::Push).slice(..4)?.all_reduce(ReduceOp::Sum)?;
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn using(&self, algorithm: P::Algorithm) -> Self {
        Self::new(self.parts.using(algorithm))
    }

    /// Whether this rank can load and store the memory of rank `rank`. It cannot if that rank brought none,
    /// or if the devices of the two do not reach each other.
    pub fn reaches(&self, rank: usize) -> Result<bool> {
        const OP: &str = "reaches";
        self.group().check_rank(OP, rank)?;
        self.parts.reaches(OP, rank)
    }

    /// The address of the handle's first element of rank `rank`, for code of your own: in this process, or on
    /// this rank's device. An error where this rank does not reach it, or where that rank's memory ends
    /// before the handle does. Valid as long as any handle of this memory.
    pub fn peer_ptr(&self, rank: usize) -> Result<P::Pointer> {
        const OP: &str = "peer_ptr";
        self.group().check_rank(OP, rank)?;
        self.parts.peer_ptr(OP, rank)
    }

    /// The address of rank `rank`'s signal pad; otherwise as [`SymmetricMemory::peer_ptr`].
    pub fn pad_ptr(&self, rank: usize) -> Result<P::Pointer> {
        const OP: &str = "pad_ptr";
        self.group().check_rank(OP, rank)?;
        self.parts.pad_ptr(OP, rank)
    }

    /// An error unless the pads have this channel.
    #[inline]
    pub(crate) fn check_channel(&self, op: &'static str, channel: usize) -> Result<()> {
        self.parts.check_channel(op, channel)
    }

    /// The address that reaches the handle's first element of all ranks at once, for multimem instructions
    /// only. `None` on the host, on devices without multicast, and where the ranks' offsets differ.
    pub fn multicast_ptr(&self) -> Option<u64> {
        self.parts.multicast_ptr()
    }

    /// Collective. Ends the use of the memory on this group or engine: all its handles there give
    /// [`Error::Closed`](crate::Error::Closed) from then on. The bytes stay, and the allocation can be
    /// rendezvoused again.
    ///
    /// Ranks wait for each other on the host, and not for streams. Work that was launched goes on, and views
    /// that exist stay valid: the mappings stay until that work is done, and until handles, views and graphs
    /// are gone.
    pub fn close(self) -> Result<()> {
        self.parts.close()
    }
}
