//! The state that belongs to a rank rather than to a process: configuration, groups, and what rooms above keep for it.
//!
//! Threads can be ranks, so none of it is global. What a rank allocates is in `memory`, which keeps it here without this room
//! knowing what it is.

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::Inner;
use crate::config::{Config, is_pad_size};
use crate::sys::ids;
use crate::{Error, Result};

/// A rank's own state: where allocations come from, with or without a group. Cheap to clone; clones share everything.
///
/// ```
/// let context = symmem::RankContext::from_env()?;
/// let x = context.alloc::<f32>(1000)?; // local: no group, no communication
/// assert!(context.is_symmetric(x.as_ptr()));
/// assert!(!context.is_symmetric(&0f32));
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RankContext {
    rank: Arc<Rank>,
}

#[derive(Debug)]
struct Rank {
    config: Config,
    signal_pad_size: AtomicUsize,
    groups: Mutex<Vec<Weak<Inner>>>,
    /// What `memory` keeps.
    above: OnceLock<Box<dyn Above>>,
}

/// What a room above can keep for a rank.
trait Above: Any + Debug + Send + Sync {}

impl<T: Any + Debug + Send + Sync> Above for T {}

impl RankContext {
    /// A context with the environment's configuration.
    pub fn from_env() -> Result<Self> {
        Ok(Self::new(Config::from_env()?))
    }

    /// A context with `config`, on host shared memory.
    pub fn new(config: Config) -> Self {
        let rank = Rank {
            signal_pad_size: AtomicUsize::new(*config.signal_pad_size),
            config,
            groups: Mutex::default(),
            above: OnceLock::new(),
        };
        Self { rank: Arc::new(rank) }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.rank.config
    }

    /// Bytes of the signal pads of later allocations.
    pub fn signal_pad_size(&self) -> usize {
        self.rank.signal_pad_size.load(Ordering::Relaxed)
    }

    /// Sets the bytes of the signal pads of later allocations: a multiple of 8, at most 2^30.
    pub fn set_signal_pad_size(&self, bytes: usize) -> Result<()> {
        if !is_pad_size(bytes) {
            return Err(Error::invalid(
                "signal pad size",
                format!("{bytes} is not a multiple of 8 from 8 to 2^30"),
            ));
        }
        self.rank.signal_pad_size.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Whether this rank is a member of a live group called `name`.
    pub fn has_group(&self, name: &str) -> bool {
        self.groups().iter().filter_map(Weak::upgrade).any(|group| group.name == name)
    }

    pub(super) fn remember_group(&self, group: &Arc<Inner>) {
        let mut groups = self.groups();
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Weak<Inner>>> {
        self.rank.groups.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// What the room above keeps for this rank, made when first asked for. There is one such room, so one `T`.
    pub(crate) fn above<T: Any + Debug + Send + Sync>(&self, make: impl FnOnce(&Config) -> T) -> &T {
        let above = self.rank.above.get_or_init(|| Box::new(make(&self.rank.config)));
        let above: &dyn Any = &**above;
        above.downcast_ref().unwrap_or_else(|| unreachable!("two rooms keep something for one rank"))
    }

    /// What ranks on one host have in common: the configured id, or the kernel's boot id.
    pub(super) fn host(&self) -> Result<String> {
        match self.config().host_id.as_deref() {
            Some(id) => Ok(id.to_owned()),
            None => Ok(ids::hex(&ids::boot_id()?)),
        }
    }
}
