//! The handle of symmetric memory, on the host and on devices: what it is and what it can do at both.
//!
//! Public. `host/handle.rs`, `signals.rs`, `one_sided.rs` and `device/handle.rs` have what only one place can
//! do; collectives are in `collective`. What it guarantees: all calls here but `close` are local, and mean the same at every
//! place.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use super::place::{Host, Parts, Place};
use crate::Result;
use crate::cuda::buffer;
use crate::group::Group;
use crate::numeric::{Element, element};

/// Memory that every rank of a group maps: an [`Allocation`](crate::Allocation) after its rendezvous, on the
/// host or, as [`cuda::SymmetricMemory`](crate::cuda::SymmetricMemory), on devices.
///
/// ```
/// use symmem::ReduceOp;
/// symmem::spawn(2, |group| {
///     let mut mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
///     mem.fill(group.rank() as f32)?; //                      this rank's elements
///     mem.barrier(0)?;
///     let theirs = mem.peer(group.next())?.read(7)?; //       another rank's
///     mem.barrier(0)?;
///     mem.all_reduce(ReduceOp::Sum)?; //                      everybody's
///     assert_eq!((theirs, mem.local()?[7]), (group.next() as f32, 1.0));
///     mem.close()
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
///
/// | to | on the host | on a device |
/// |---|---|---|
/// | use this rank's elements | `local`, `local_mut`, `fill` | `read`, `write`, `local` |
/// | use another rank's | `peer`, `get`, `put` | `peer_ptr`, `get`, `put` |
/// | take part in a collective | `all_reduce`, `all_gather` and the others | the same on a stream: `on` |
/// | start one and go on | `start` | each does |
/// | signal | `put_signal`, `wait_signal`, `barrier` | the same on a stream: `on` |
/// | work on a part, as other elements, by a given algorithm | `slice`, `cast`, `using` | `slice`, `cast`, `using` |
/// | end | `close` | `close` |
///
/// A light handle: it keeps the mappings and the membership alive, and goes without a word to the peers. End
/// with [`close`](SymmetricMemory::close) where all ranks end together.
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

    /// Local. A part of this memory. Operations work on what the handle covers, so all ranks must cut alike.
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

    /// Local. The same memory as elements of `U`: everybody's first byte and the length must be multiples of
    /// their size. Ranks may differ in what they make of the memory, but not in one collective.
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

    /// Local. The same memory, whose collectives go by `algorithm`. All ranks must choose alike.
    ///
    /// On the host they go by it and no other: a collective that does not have it among its
    /// [`algorithms`](crate::tuning::Collective::algorithms), or whose message is too large for it, is an
    /// error on all ranks, before anything changes. What has no such list (`gather`, `scatter`,
    /// `all_to_all_v` and the like) has one way, and takes it. [`Config::algorithm`](crate::Config::algorithm)
    /// is for whole programs, and a wish: it gives way where it cannot carry a message.
    ///
    /// On devices it is what [`Engine::using`](crate::cuda::Engine::using) says: all-reduces go by it.
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

    /// Whether this rank can load and store the memory of rank `rank`: not where it brought none, nor where
    /// devices do not reach each other.
    pub fn reaches(&self, rank: usize) -> Result<bool> {
        const OP: &str = "reaches";
        self.group().check_rank(OP, rank)?;
        self.parts.reaches(OP, rank)
    }

    /// Where the handle's first element of rank `rank` is, for code of your own: at its address in this
    /// process, or on this rank's device. An error where this rank does not reach it, and where the handle
    /// has more elements than that rank's memory behind its offset. Valid as long as any handle.
    pub fn peer_ptr(&self, rank: usize) -> Result<P::Pointer> {
        const OP: &str = "peer_ptr";
        self.group().check_rank(OP, rank)?;
        self.parts.peer_ptr(OP, rank)
    }

    /// Where rank `rank`'s signal pad is, as [`SymmetricMemory::peer_ptr`] says it.
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
    /// only. `None` on the host, where devices or ranks have none, and where the ranks' offsets differ.
    pub fn multicast_ptr(&self) -> Option<u64> {
        self.parts.multicast_ptr()
    }

    /// Collective, on the host: ranks wait for each other, and not for streams. Ends the use of the memory on
    /// this group, or engine: all its handles there give [`Error::Closed`](crate::Error::Closed) from here
    /// on. The bytes stay, and the allocation can be rendezvoused again. Views that exist stay valid; work
    /// that was launched goes on, and the mappings stay until it is done, and until handles and graphs of it
    /// are gone.
    pub fn close(self) -> Result<()> {
        self.parts.close()
    }
}
