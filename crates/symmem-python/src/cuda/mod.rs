//! Memory of CUDA devices in Python.
//!
//! `empty` and `rendezvous` come here for device memory ([`empty`], [`DeviceHandle`]), `Array` for DLPack's
//! streams ([`hand_over`]), a group object holds its [`Engines`]. What it guarantees: no call waits for a
//! device or a peer, except making and closing handles, and `sync`; every pointer that leaves is kept mapped
//! by the array it is in.
//!
//! | file | what it is |
//! |---|---|
//! | `device.rs` | the devices of this process; links and multicast |
//! | `allocation.rs` | arrays, persistent ones too |
//! | `engine.rs` | what a group has on devices |
//! | `core.rs`, `parts.rs`, `reduced.rs`, `moved.rs` | one rank's end of symmetric memory, and what it does |
//! | `handle.rs`, `fast.rs` | the ways to it: the handle of `memory`, and `DeviceMemory` for `symmem.torch` |
//! | `pool.rs` | what torch's memory pools call |
//! | `private.rs` | collectives of a group on memory that is not symmetric |
//! | `norm.rs` | all_reduce, residual and norm |
//! | `stream.rs` | the `stream` argument |
//! | `words.rs` | memset32, stream_write_value32 |

mod allocation;
mod core;
mod device;
mod engine;
mod fast;
mod handle;
mod moved;
mod norm;
mod parts;
mod pool;
mod private;
mod reduced;
mod stream;
mod words;

use pyo3::prelude::*;

pub(crate) use self::allocation::{allocate, empty};
pub(crate) use self::core::DeviceMemoryEnd;
pub(crate) use self::device::device;
pub(crate) use self::engine::Engines;
pub(crate) use self::handle::DeviceHandle;
pub(crate) use self::norm::DeviceNormPlan;
pub(crate) use self::private::{Private, device_room, meet, refuse_growth};
pub(crate) use self::reduced::{Choice, ReducedElements};
pub(crate) use self::stream::{adopt, hand_over, stream};

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    device::register(module)?;
    pool::register(module)?;
    words::register(module)?;
    fast::register(module)
}
