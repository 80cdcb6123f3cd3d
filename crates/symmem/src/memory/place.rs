//! Where memory is: what the one allocation and the one handle need to know of the host and of devices.
//!
//! Users name a [`Place`], and cannot add one. `host/` and `device/` say what allocations and handles are
//! made of. What it guarantees: what both places can do is written once, over [`Place`], and so has one name
//! and one meaning.

use std::fmt::Debug;
use std::sync::Arc;

use super::MemoryBlock;
use super::rendezvous::Covered;
use crate::group::Group;
use crate::{Error, Result};

/// Where symmetric memory is: on the [`Host`] or on [`Cuda`] devices. There are no others.
///
/// [`Allocation`](crate::Allocation) and [`SymmetricMemory`](crate::SymmetricMemory) have one method for what
/// both places can do. Collectives and signals are methods of each place: on the host they block, on a device
/// they take a stream. Code for both calls them by the trait [`Symmetric`](crate::Symmetric).
///
/// ```
/// use symmem::{Allocation, Place, Result, SymmetricMemory};
///
/// /// The second half of everybody's allocation, wherever it is.
/// fn second_half<P: Place>(x: &Allocation<f32, P>, group: &P::Group) -> Result<SymmetricMemory<f32, P>> {
///     let mem = x.rendezvous(group)?;
///     mem.slice(mem.len() / 2..)
/// }
///
/// symmem::spawn(2, |group| {
///     let half = second_half(&group.alloc(10)?, &group)?;
///     assert_eq!((half.offset(), half.len()), (5, 5));
///     half.close()
/// })?;
/// # use symmem::cuda::{self, Engine};
/// # fn on_a_gpu(x: &cuda::Allocation<f32>, engine: &Engine) -> Result<cuda::SymmetricMemory<f32>> {
/// // On a GPU an engine stands for the group:
/// second_half(x, engine)
/// # }
/// # Ok::<(), symmem::Error>(())
/// ```
///
/// Nobody else can add a place:
///
/// ```compile_fail,E0277
/// #[derive(Debug)]
/// enum Moon {}
/// impl symmem::Place for Moon {
///     type Group = symmem::Group;
///     type Algorithm = ();
///     type Pointer = u64;
///     type Block = <symmem::Host as symmem::Place>::Block;
///     type Parts = <symmem::Host as symmem::Place>::Parts;
/// }
/// ```
pub trait Place: Debug + Sized + 'static {
    /// What ranks rendezvous on: a [`Group`], or an [`Engine`](crate::cuda::Engine), which is a group on a
    /// device.
    type Group;
    /// What [`using`](crate::SymmetricMemory::using) chooses among.
    type Algorithm: Copy + Debug + Eq;
    /// An address, as code of this place uses it.
    type Pointer: Copy + Debug + Eq;
    #[doc(hidden)]
    type Block: PlaceBlock + Send + Sync;
    #[doc(hidden)]
    type Parts: PlaceParts<Self> + Send + Sync;
}

/// Memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Host {}

/// Memory of NVIDIA GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cuda {}

/// The memory behind an allocation.
pub trait PlaceBlock: Debug {
    /// What ranks make of it together.
    type Table;

    /// What blocks of all places have.
    fn state(&self) -> &MemoryBlock<Self::Table>;
}

/// What a handle is made of.
pub trait PlaceParts<P: Place>: Debug + Sized {
    /// A handle of the whole of `block` by the table that this rank has of it on `on`, if it has one that
    /// needs no other rank.
    fn kept(block: &Arc<P::Block>, on: &P::Group) -> Result<Option<Self>>;

    /// Collective: a handle of what is `covered` of `block`. A rank whose own arguments are wrong tells the
    /// others instead of staying away.
    fn meet(block: &Arc<P::Block>, on: &P::Group, covered: Result<Covered>) -> Result<Self>;

    /// The group.
    fn group(&self) -> &Group;

    /// The first byte in this rank's allocation.
    fn start(&self) -> usize;

    /// Bytes from there on.
    fn bytes(&self) -> usize;

    /// Where the handles of ranks begin in their allocations, without those that begin where another does.
    fn starts(&self) -> impl Iterator<Item = usize>;

    /// Bytes of each rank's allocation.
    fn buffer_size(&self) -> usize;

    /// Bytes of each rank's signal pad.
    fn pad_size(&self) -> usize;

    /// `bytes` from byte `start` of the handle on, which has them.
    fn cut(&self, start: usize, bytes: usize) -> Self;

    /// The same, by `algorithm` and no other.
    fn using(&self, algorithm: P::Algorithm) -> Self;

    /// Whether this rank can load and store the memory of `rank`, which is a rank of the group.
    fn reaches(&self, op: &'static str, rank: usize) -> Result<bool>;

    /// The first element of `rank`'s handle, which is a rank of the group.
    fn peer_ptr(&self, op: &'static str, rank: usize) -> Result<P::Pointer>;

    /// The signal pad of `rank`, which is a rank of the group.
    fn pad_ptr(&self, op: &'static str, rank: usize) -> Result<P::Pointer>;

    /// The address that reaches the first element of all ranks at once.
    fn multicast_ptr(&self) -> Option<u64>;

    /// Collective: ends the use of the memory on the group.
    fn close(&self) -> Result<()>;

    /// An error unless the pads have this channel.
    #[inline]
    fn check_channel(&self, op: &'static str, channel: usize) -> Result<()> {
        let channels = self.pad_size() / (size_of::<u32>() * self.group().size());
        if channel < channels {
            return Ok(());
        }
        Err(Error::ChannelOutOfRange { op, channel, channels })
    }
}
