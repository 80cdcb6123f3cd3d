//! How the library sees this machine: what `symmem doctor` asks, so that it finds what the library would
//! find.
//!
//! Not part of the interface: only the program `symmem` may call this. Everything here only looks.

pub mod gpu;

pub use crate::sys::cores::{Core, usable as cores};
pub use crate::sys::life::{boot_time_is_shifted, proc_is_ours};
pub use crate::sys::limits::{
    CgroupMemory, CgroupTasks, cgroup_cores, cgroup_memory, cgroup_tasks, usable_cores,
};
pub use crate::sys::user::uid_is_proof;

use crate::Result;
use crate::config::Provider;
use crate::provider::registry;

/// Bytes that this process can still get without being refused or killed, and what limits them.
pub fn memory_left() -> (u64, String) {
    let found = crate::sys::limits::memory_left();
    (found.left, found.limit)
}

/// What stands in the way of `ranks` ranks on this machine that would have memory of `provider`, if something
/// does.
pub fn obstacle(provider: Provider, ranks: usize) -> Result<Option<String>> {
    registry::obstacle(provider, ranks)
}

/// The instructions that reductions use on this processor, in words.
pub fn instruction_set() -> &'static str {
    crate::numeric::Isa::best().name()
}
