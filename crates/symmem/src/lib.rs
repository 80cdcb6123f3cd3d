//! Symmetric memory: every rank allocates the same buffer, and after one collective rendezvous every rank can
//! load, store, signal and reduce over everybody's.
//!
//! Ranks are threads ([`spawn`]), processes ([`spawn_processes`]) or whatever a launcher like `torchrun` started
//! ([`Group::from_env`]). Memory is host shared memory: anonymous, sealed, gone when the last process is.
//!
//! ```
//! # fn main() -> symmem::Result<()> {
//! symmem::spawn(4, |group| {
//!     let mut x = group.alloc::<f32>(1 << 10)?; // local: no communication
//!     x.fill(group.rank() as f32)?;
//!     let mem = x.rendezvous(&group)?; // collective, once: now everybody maps everybody
//!     mem.put_signal(group.next(), 0)?;
//!     mem.wait_signal(group.prev(), 0)?; // every wait has a deadline
//!     let theirs = mem.peer(group.prev())?.read(42)?;
//!     assert_eq!(theirs, group.prev() as f32);
//!     mem.close()
//! })?;
//! # Ok(())
//! # }
//! ```

mod collective;
mod config;
mod context;
pub mod cuda;
mod engine;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod inspect;
#[doc(hidden)]
pub mod machine;
mod mail;
mod memory;
pub mod nccl;
mod numeric;
mod op;
mod provider;
mod sync;
mod sys;
pub mod topology;
pub mod trace;
pub mod tuning;

pub use collective::{Received, Strided};
pub use config::{Config, ConfigRow, DEFAULT_SIGNAL_PAD_SIZE, Origin};
pub use context::RankContext;
pub use error::{Cause, Context, Error, Result};
pub use group::{
    Counters, Group, Launcher, Pending, Pin, Placement, ProcessSpawner, Seat, ThreadSpawner, spawn,
    spawn_processes,
};
pub use mail::{Delivery, Mailbox, PendingReceive, PendingSend};
pub use memory::{
    Allocation, DType, Element, Layout, Local, LocalMut, PadView, PeerView, ShareHandle, SharedView,
    SymmetricMemory,
};
pub use numeric::{Bool, F8E4M3, F8E5M2, ReduceOp, bf16, f16};
pub use symmem_store as store;
pub use symmem_store::{CancelToken, Deadline};

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Whether this process was forked from one that had made a group. It is none of its ranks, and calls on what they have
/// give [`Error::Forked`].
pub fn is_forked_rank() -> bool {
    sys::fork::is_child()
}

/// Crash points and injected failures, for fault tests.
#[cfg(feature = "faults")]
pub use sys::fault;
