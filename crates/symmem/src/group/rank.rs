//! The state that belongs to a rank rather than to a process: configuration, groups, and what rooms above
//! keep for it.
//!
//! Threads can be ranks, so none of it is global. What a rank allocates is in `memory`, which keeps it here
//! without this room knowing what it is.

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::Membership;
use crate::config::{Config, PlaceKind, Provider, check_pad_size};
use crate::sys::ids;
use crate::{Error, Result};

/// A rank's own state: where allocations come from, with or without a group. Cheap to clone; clones share
/// everything.
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
    rank: Arc<SharedRank>,
}

#[derive(Debug)]
struct SharedRank {
    config: Config,
    signal_pad_size: AtomicUsize,
    /// One with those that were made of it by [`RankContext::with_config`].
    devices: Arc<Mutex<Chosen>>,
    groups: Mutex<Vec<Weak<Membership>>>,
    /// What `memory` keeps.
    above: OnceLock<Box<dyn Above>>,
}

/// Where memory of devices comes from.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    provider: Provider,
    /// In code, so that what an environment prefers counts no more.
    in_code: bool,
    /// Memory or an engine was made by it, so that it stays.
    used: bool,
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
        let provider = config.provider.or_default_of(PlaceKind::Device);
        Self::with_devices(config, Arc::new(Mutex::new(Chosen { provider, in_code: false, used: false })))
    }

    /// A context of the same rank with another configuration. Where memory of devices comes from is chosen
    /// for both at once, by what this one has chosen: the groups of either work on the other's.
    pub fn with_config(&self, config: Config) -> Self {
        Self::with_devices(config, Arc::clone(&self.rank.devices))
    }

    fn with_devices(config: Config, devices: Arc<Mutex<Chosen>>) -> Self {
        let rank = SharedRank {
            signal_pad_size: AtomicUsize::new(*config.signal_pad_size),
            config,
            devices,
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
        self.rank.signal_pad_size.store(check_pad_size(bytes)?, Ordering::Relaxed);
        Ok(())
    }

    /// Where later memory of devices comes from: what the configuration says, or
    /// [`RankContext::set_device_provider`].
    pub fn device_provider(&self) -> Provider {
        self.devices().provider
    }

    /// Chooses where memory of devices comes from: for [`RankContext::alloc_on`] and for the engines of this
    /// rank's groups, on all ranks alike. An error after the first of them, unless it is what they used.
    ///
    /// ```
    /// use symmem::cuda::Provider;
    /// let context = symmem::RankContext::from_env()?;
    /// context.set_device_provider(Provider::Nccl)?;
    /// assert_eq!(context.device_provider(), Provider::Nccl);
    /// assert!(context.set_device_provider(Provider::Shm).is_err(), "it is the host's");
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn set_device_provider(&self, provider: Provider) -> Result<()> {
        self.choose(provider, true)
    }

    /// [`RankContext::set_device_provider`] for what an environment says: what was set in code stays.
    pub fn prefer_device_provider(&self, provider: Provider) -> Result<()> {
        self.choose(provider, false)
    }

    fn choose(&self, provider: Provider, in_code: bool) -> Result<()> {
        if provider.place() != PlaceKind::Device {
            return Err(Error::invalid("provider", format!("{provider} has no memory of devices")));
        }
        let mut chosen = self.devices();
        if chosen.in_code && !in_code {
            return Ok(());
        }
        if chosen.used && chosen.provider != provider {
            let problem = format!(
                "the backend can not be changed after use: this rank has memory or an engine by {} on a device. Hint: choose {provider} \
                 before the first allocation there",
                chosen.provider
            );
            return Err(Error::invalid("provider", problem));
        }
        *chosen = Chosen { provider, in_code, ..*chosen };
        Ok(())
    }

    /// Makes something by [`RankContext::device_provider`], which stays once that is made.
    pub(crate) fn with_device_provider<T>(&self, make: impl FnOnce(Provider) -> Result<T>) -> Result<T> {
        let provider = self.device_provider();
        let made = make(provider)?;
        let mut chosen = self.devices();
        (chosen.provider, chosen.used) = (provider, true);
        Ok(made)
    }

    fn devices(&self) -> MutexGuard<'_, Chosen> {
        self.rank.devices.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Whether this rank is a member of a live group called `name`.
    pub fn has_group(&self, name: &str) -> bool {
        self.groups().iter().filter_map(Weak::upgrade).any(|group| group.name == name)
    }

    pub(super) fn remember_group(&self, group: &Arc<Membership>) {
        let mut groups = self.groups();
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Weak<Membership>>> {
        self.rank.groups.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// What the room above keeps for this rank, made when first asked for. There is one such room, so one
    /// `T`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_of_devices_stays_once_it_is_used() {
        let context = RankContext::new(Config::from_env().unwrap());
        context.prefer_device_provider(Provider::Nccl).unwrap();
        assert_eq!(context.device_provider(), Provider::Nccl);
        context.set_device_provider(Provider::Vmm).unwrap();
        context.prefer_device_provider(Provider::Nccl).unwrap();
        assert_eq!(context.device_provider(), Provider::Vmm, "code wins");
        let failed = context.with_device_provider(|_| Err::<(), _>(Error::invalid("x", "y")));
        assert!(failed.is_err());
        context.set_device_provider(Provider::Nccl).expect("nothing was made");
        context.set_device_provider(Provider::Vmm).unwrap();
        assert_eq!(context.with_device_provider(Ok).unwrap(), Provider::Vmm);
        context.set_device_provider(Provider::Vmm).unwrap();
        let late = context.set_device_provider(Provider::Nccl).unwrap_err().to_string();
        assert!(late.contains("can not be changed after use"), "{late}");
        let other = context.with_config(Config::from_env().unwrap());
        assert_eq!(other.device_provider(), Provider::Vmm);
        assert!(other.set_device_provider(Provider::Nccl).is_err());
    }
}
