//! Memory: a local [`Allocation`], and after a collective rendezvous the handle [`SymmetricMemory`]. Both are
//! of a [`Place`]: the host or devices.
//!
//! Borrow state and poison belong to the allocation's [`MemoryBlock`]. All handles, groups and offsets of the
//! allocation share them.

mod allocation;
mod atomics;
mod bases;
mod block;
mod context;
pub(crate) mod device;
mod handle;
mod hold;
mod host;
mod nothing;
mod offsets;
mod one_sided;
mod peers;
mod place;
mod pool;
mod rendezvous;
mod share;
mod signals;
mod tables;
mod view;

pub use self::allocation::{Allocation, Local, LocalMut};
pub use self::atomics::{AtomicElement, Atomics};
pub(crate) use self::block::MemoryBlock;
pub use self::handle::SymmetricMemory;
pub(crate) use self::hold::Hold;
pub use self::place::{Cuda, Host, Place};
pub use self::pool::{Pool, PoolUsage};
pub use self::rendezvous::Layout;
#[cfg(feature = "fuzzing")]
pub(crate) use self::rendezvous::fuzz_request;
pub use self::share::{ShareHandle, SharedView};
pub(crate) use self::tables::Tables;
pub use self::view::{PadView, PeerView};
