//! Memory on devices: a local [`Allocation`], and after a collective rendezvous the handle
//! [`SymmetricMemory`].
//!
//! Users find both in `symmem::cuda`. The handle holds the engine that works on it; operations are above
//! both, in `collective/device`.

mod allocation;
mod handle;
mod rendezvous;

pub use self::allocation::Allocation;
pub use self::handle::SymmetricMemory;
