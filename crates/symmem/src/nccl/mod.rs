//! NCCL: communicators, its collectives in the order of a stream, and memory in windows that all ranks have
//! registered.
//!
//! Nothing here needs NCCL to build: the library is looked for when it is first needed, and where there is
//! none, or one that is too old, that call returns [`Error::NoLibrary`](crate::Error::NoLibrary) or
//! [`Error::LibraryTooOld`](crate::Error::LibraryTooOld). What all calls guarantee: the caller's current
//! context is what it was before, nothing is a panic, no call of NCCL blocks (communicators are made
//! non-blocking, and every wait has a deadline), and dropping a communicator waits for nobody.
//!
//! ```no_run
//! use symmem::ReduceOp;
//! use symmem::cuda::{Buffer, Device, Stream};
//! use symmem::nccl::Communicator;
//! # fn main() -> symmem::Result<()> {
//! let group = symmem::Group::from_env()?;
//! let device = Device::new(group.rank())?;
//! let communicator = Communicator::new(&group, &device)?; // collective
//! let stream = Stream::new(&device)?;
//! let mut x = Buffer::from_slice(&device, &[1.0f32; 1024], &stream)?;
//! communicator.all_reduce_in_place(&mut x, ReduceOp::Sum, &stream)?; // returns at once
//! assert_eq!(x.read(&stream)?[0], group.size() as f32);
//! # Ok(())
//! # }
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | `library.rs`, `version.rs` | which NCCL, and why |
//! | `bindings.rs` | its C interface, by hand; what came with which version |
//! | `communicator.rs`, `shared.rs`, `turn.rs` | ranks that know each other: made, watched, ended |
//! | `collectives.rs`, `raw.rs`, `types.rs` | the operations: checked, and as NCCL has them |
//! | `group_call.rs` | several operations as one |
//! | `memory.rs`, `window.rs` | memory that NCCL allocates, and registers with all ranks |

pub(crate) mod bindings;
mod collectives;
mod communicator;
mod ending;
pub(crate) mod error;
mod group_call;
mod library;
pub(crate) mod memory;
mod raw;
mod shared;
mod turn;
mod types;
mod version;
pub(crate) mod window;

pub(crate) use self::collectives::Carried;
pub use self::communicator::{Communicator, UniqueId};
pub use self::group_call::GroupCall;
pub(crate) use self::group_call::is_open as is_group_open;
pub use self::library::{Loaded, Why, is_available, library, version};
pub use self::version::Version;
