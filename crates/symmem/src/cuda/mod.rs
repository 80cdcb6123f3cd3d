//! CUDA: devices, streams, graphs, memory that GPUs share, and the engine that works on it.
//!
//! Nothing here needs CUDA to build: the driver is looked for when the first [`Device`] is asked for, and where there
//! is none that call returns [`Error::NoCuda`](crate::Error::NoCuda). What all calls guarantee: the caller's current
//! context is what it was before, nothing is a panic, and a forked child gets
//! [`Error::Forked`](crate::Error::Forked).
//!
//! ```no_run
//! # fn main() -> symmem::Result<()> {
//! use symmem::cuda::{Buffer, Device, Stream};
//! let device = Device::new(0)?;
//! let stream = Stream::new(&device)?;
//! let numbers = Buffer::from_slice(&device, &[1.0f32, 2.0, 3.0], &stream)?;
//! assert_eq!(numbers.read(&stream)?, [1.0, 2.0, 3.0]);
//! # Ok(())
//! # }
//! ```

pub(crate) mod allocation;
#[doc(hidden)]
pub mod bench_support;
pub(crate) mod buffer;
pub(crate) mod cache;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod exchange;
pub(crate) mod graph;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod nvrtc;
pub(crate) mod nvtx;
pub(crate) mod owner;
pub(crate) mod queues;
pub(crate) mod stream;

#[cfg(test)]
mod testing;

pub use cudarc;

pub use self::allocation::Allocation;
pub use self::buffer::{Buffer, DeviceSlice, DeviceSliceMut};
pub use self::device::{Device, Fabric};
pub use self::driver::driver_version;
pub use self::event::Event;
pub use self::graph::Graph;
pub use self::memory::SymmetricMemory;
pub use self::module::{Function, Module, device_headers};
pub use self::owner::Owner;
pub use self::stream::{Capture, Stream};
pub use crate::engine::cuda::{Algorithm, Engine, Form, LocalRanks, OnError, Plan, Settings, Status, Tune};
pub use crate::provider::device::Provider;
pub use crate::topology;
