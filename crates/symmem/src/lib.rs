//! Symmetric memory: every rank allocates the same buffer, and after one collective rendezvous every rank can
//! load, store, signal and reduce over everybody's.
//!
//! Ranks are threads ([`spawn`]), processes ([`spawn_processes`]), or what a launcher like `torchrun` started
//! ([`Group::from_env`]). Memory is shared memory of the host, which has no name and is gone with the last
//! process, or memory of NVIDIA GPUs ([`cuda`]). Where GPUs cannot reach each other, [`nccl`] carries the
//! collectives. The Python package `symmem` is made of this crate.
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
//!
//! # Where to look
//!
//! | you want to | look at |
//! |---|---|
//! | start ranks, or join those of a launcher | [`spawn`], [`spawn_processes`], [`ProcessSpawner`], [`Group::from_env`], [`Launcher`] |
//! | allocate and rendezvous memory | [`Group::alloc`], [`Allocation`], [`SymmetricMemory`], [`PeerView`] |
//! | reduce, gather and scatter symmetric memory | methods of [`SymmetricMemory`]; [`ReduceOp`], [`Element`] |
//! | the same on any slice | methods of [`Group`] |
//! | multiply while ranks gather or scatter, normalise while they reduce | [`SymmetricMemory::all_gather_matmul`], [`SymmetricMemory::matmul_reduce_scatter`], [`SymmetricMemory::all_reduce_rms_norm`]; [`MatrixView`] |
//! | start an operation and wait for it later | [`SymmetricMemory::start`], [`Group::start`]; [`Pending`], which is a future |
//! | send messages with tags | [`Mailbox`] |
//! | go on after a rank died | [`Error::culprit`], [`Group::survivors`] |
//! | share memory with a process that is no rank | [`Allocation::share`], [`SharedView`] |
//! | use GPUs: memory, collectives on streams and in graphs, kernels of your own | [`cuda`]: `Device`, `Engine`, `SymmetricMemory`, `Module` |
//! | write one function for the host and for GPUs | [`Symmetric`], [`cuda::SymmetricMemory::on`]; [`Place`], [`Host`], [`Cuda`] |
//! | call NCCL, or have it carry what ranks cannot reach | [`nccl`] |
//! | know how GPUs are connected | [`topology`] |
//! | look at jobs that run, and record them | [`inspect`], [`trace`] |
//! | choose settings and algorithms | [`Config`], [`RankContext`], [`tuning`] |
//! | meet without a launcher | [`store`]: in memory, in a file, over TCP |
//!
//! CUDA and NCCL are found at run time. Nothing needs them to build.
//!
//! # Modules
//!
//! | module | what it has |
//! |---|---|
//! | the root | groups, allocations and handles, collectives and messages on the host, errors, settings |
//! | [`cuda`] | devices, streams, graphs, memory that GPUs share, the engine that works on it, kernels of your own |
//! | [`nccl`] | NCCL's communicators and collectives, with deadlines |
//! | [`store`] | where ranks find each other; the crate `symmem-store`, useful alone |
//! | [`tuning`] | which algorithm runs at which size, and what `symmem tune` measured |
//! | [`topology`] | how GPUs are connected |
//! | [`inspect`], [`trace`] | what ranks of this machine do now, and what they did |
//!
//! # Python, the program, the book
//!
//! The Python package has the same for numpy, torch, jax and cupy: `pip install .` in a checkout. The program
//! `symmem` runs, inspects, traces and benches jobs.
//!
//! The book is the folder `docs` of the repository, and `cargo xtask book` builds it:
//!
//! | part | pages |
//! |---|---|
//! | tutorials | `docs/tutorials`: Rust, numpy, torch, jax |
//! | concepts, with drawings | `docs/concepts`: rendezvous, pads and signals, meetings, failure and survivors, lanes on a GPU |
//! | guides | `docs/guides`: a rank died, a stuck job, inference on CPUs, fused layers, kernels of your own, torch, NCCL |
//! | reference | `docs/errors.md`, `settings.md`, `numerics.md`, `memory-model.md`, `collectives.md`, `benchmarks.md` |
#![cfg_attr(doctest, doc = include_str!("../../../docs/tutorials/rust.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/concepts/signals.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/concepts/lanes.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/guides/rank-died.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/guides/inference-cpu.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/guides/fused-layers.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/guides/cuda-kernels.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/guides/nccl.md"))]
// A file that needs it allows it at its head; `cargo xtask fences` keeps the list.
#![deny(unsafe_code)]

mod collective;
mod config;
mod cublas;
mod device;
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
mod named;
pub mod nccl;
mod numeric;
mod operation;
mod provider;
mod sync;
mod sys;
mod table;
pub mod topology;
pub mod trace;
pub mod tuning;

pub use collective::{MatrixView, Received, Starter, Strided, Symmetric};
pub use config::{Config, ConfigRow, DEFAULT_SIGNAL_PAD_SIZE, Origin};
pub use error::{Cause, Context, Error, Result};
pub use group::{
    Counters, Group, Launcher, Pending, Pin, Placement, ProcessSpawner, RankContext, Seat, ThreadSpawner,
    spawn, spawn_processes,
};
pub use mail::{Delivery, Mailbox, PendingReceive, PendingSend};
pub use memory::{
    Allocation, AtomicElement, Atomics, Cuda, Host, Layout, Local, LocalMut, PadView, PeerView, Place, Pool,
    PoolUsage, ShareHandle, SharedView, SymmetricMemory,
};
pub use numeric::{Bool, DType, Element, F8E4M3, F8E5M2, ReduceOp, bf16, f16};
pub use symmem_store as store;
pub use symmem_store::{CancelToken, Deadline};

/// The one table of collectives, for the program, the Python package and tests. Not part of the interface.
#[doc(hidden)]
pub mod collectives {
    pub use crate::operation::{CollectiveRow, Output, ROWS};
}

pub mod cuda {
    //! CUDA: devices, streams, graphs, memory that GPUs share, and the engine that works on it.
    //!
    //! Nothing here needs CUDA to build: the driver is looked for when the first [`Device`] is asked for, and
    //! where there is none that call returns [`Error::NoCuda`](crate::Error::NoCuda). What all calls
    //! guarantee: the caller's current context is what it was before, nothing is a panic, and a forked child
    //! gets [`Error::Forked`](crate::Error::Forked).
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

    pub(crate) mod activity;
    pub(crate) mod buffer;
    pub(crate) mod cache;
    pub(crate) mod capture;
    pub(crate) mod deferred;
    pub(crate) mod device;
    pub(crate) mod driver;
    pub(crate) mod event;
    pub(crate) mod graph;
    pub(crate) mod library;
    pub(crate) mod module;
    pub(crate) mod nvrtc;
    pub(crate) mod nvtx;
    pub(crate) mod owner;
    pub(crate) mod queues;
    pub(crate) mod stream;

    #[cfg(test)]
    mod testing;

    pub use cudarc;

    pub use self::buffer::{Buffer, DeviceSlice, DeviceSliceMut};
    pub use self::device::{Device, Fabric};
    pub use self::driver::driver_version;
    pub use self::event::Event;
    pub use self::graph::Graph;
    pub use self::module::{Function, Module, device_headers};
    pub use self::owner::Owner;
    pub use self::stream::{Capture, Stream};
    pub use crate::collective::device::{DeviceMatrix, LocalRanks, Normed, OnStream, RmsNorm};
    pub use crate::config::{PlaceKind, Provider};
    pub use crate::device::status::Status;
    #[doc(hidden)]
    #[cfg(feature = "bench-support")]
    pub use crate::engine::cuda::bench_support::{self, Tune};
    pub use crate::engine::cuda::ops::FusedWay;
    pub use crate::engine::cuda::{Algorithm, Engine, Form, OnError, Plan, Settings};
    pub use crate::memory::device::{Allocation, SymmetricMemory};
    pub use crate::topology;
}

/// Collectives as data, for the Python bindings.
#[doc(hidden)]
pub mod erased {
    pub use crate::collective::erased::{Call, ErasedBuffer, Rows};
    pub use crate::collective::{BytesMatrix, Side};
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Whether this process was forked from one that had made a group. It is none of its ranks, and calls on what
/// they have give [`Error::Forked`].
pub fn is_forked_rank() -> bool {
    sys::fork::is_child()
}

/// Crash points and injected failures, for fault tests.
#[cfg(feature = "faults")]
pub mod fault {
    pub use crate::engine::cuda::recorder::{RecordedOperation, record_operations, recorded_operations};
    pub use crate::group::advance_tag;
    pub use crate::operation::calls_of_all;
    pub use crate::sys::fault::*;
}
