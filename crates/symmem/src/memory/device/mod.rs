//! Memory on devices: what only the [`Allocation`] and the handle [`SymmetricMemory`] of devices can do, and
//! what they are made of.
//!
//! Users find both in `symmem::cuda`. The handle holds the engine that works on it; operations are in
//! `collective/device`.

mod allocation;
mod handle;
mod rendezvous;

pub use self::allocation::Allocation;
pub use self::handle::SymmetricMemory;
