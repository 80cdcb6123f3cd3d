//! The state that belongs to a rank rather than to a process: configuration, allocations, persistent ids, groups.
//!
//! Threads can be ranks, so none of it is global. Cheap to clone; clones share everything.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::config::is_pad_size;
use crate::group::Inner as GroupInner;
use crate::memory::{Allocation, Block, Element};
use crate::provider::{Provider, Shm};
use crate::sys::ids;
use crate::{Config, Error, Result};

/// A rank's own state: where allocations come from, with or without a group.
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
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    config: Config,
    provider: Arc<dyn Provider>,
    signal_pad_size: AtomicUsize,
    /// Live blocks by address, for look-up by pointer.
    blocks: Mutex<BTreeMap<usize, Weak<Block>>>,
    persistent: Mutex<HashMap<String, Arc<Block>>>,
    groups: Mutex<Vec<Weak<GroupInner>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl RankContext {
    /// A context with the environment's configuration.
    pub fn from_env() -> Result<Self> {
        Ok(Self::new(Config::from_env()?))
    }

    /// A context with `config`, on host shared memory.
    pub fn new(config: Config) -> Self {
        let state = State {
            provider: Arc::new(Shm::new(&config)),
            signal_pad_size: AtomicUsize::new(config.get_signal_pad_size()),
            config,
            blocks: Mutex::default(),
            persistent: Mutex::default(),
            groups: Mutex::default(),
        };
        Self { state: Arc::new(state) }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.state.config
    }

    /// The name of the provider that memory comes from.
    pub fn backend(&self) -> &'static str {
        self.state.provider.name()
    }

    /// Whether this provider has addresses that reach all ranks at once.
    pub fn has_multicast_support(&self) -> bool {
        self.state.provider.has_multicast()
    }

    /// Bytes of the signal pads of later allocations.
    pub fn signal_pad_size(&self) -> usize {
        self.state.signal_pad_size.load(Ordering::Relaxed)
    }

    /// Sets the bytes of the signal pads of later allocations: a multiple of 8, at most 2^30.
    pub fn set_signal_pad_size(&self, bytes: usize) -> Result<()> {
        if !is_pad_size(bytes) {
            return Err(Error::invalid(
                "signal pad size",
                format!("{bytes} is not a multiple of 8 from 8 to 2^30"),
            ));
        }
        self.state.signal_pad_size.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Local. Allocates `len` zeroed elements that can be rendezvoused later.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Allocation<T>> {
        let block = self.new_block(bytes_of::<T>(len)?)?;
        Ok(Allocation::new(block, len))
    }

    /// Local. The persistent allocation `id`: the same memory each time, and so the same cached rendezvous. Made at
    /// the first call; later calls must ask for the same size while no earlier handle of it is alive. Kept until
    /// [`RankContext::release_persistent`].
    pub fn alloc_persistent<T: Element>(&self, id: &str, len: usize) -> Result<Allocation<T>> {
        let bytes = bytes_of::<T>(len)?;
        let mut persistent = lock(&self.state.persistent);
        let problem = |problem: String| Error::Persistent { id: id.to_owned(), problem };
        let Some(block) = persistent.get(id) else {
            let block = self.new_block(bytes)?;
            persistent.insert(id.to_owned(), Arc::clone(&block));
            return Ok(Allocation::new(block, len));
        };
        if block.is_in_use() {
            return Err(problem(
                "an earlier allocation with this id is still active. Hint: drop it first".to_owned(),
            ));
        }
        if block.bytes() != bytes {
            return Err(problem(format!("asked for {bytes} bytes, but it has {}", block.bytes())));
        }
        Ok(Allocation::new(Arc::clone(block), len))
    }

    /// Local. Forgets the persistent allocation `id`; its memory goes when the last handle does. True if there was one.
    pub fn release_persistent(&self, id: &str) -> bool {
        lock(&self.state.persistent).remove(id).is_some()
    }

    /// Whether `pointer` points into a live allocation of this rank.
    pub fn is_symmetric<T>(&self, pointer: *const T) -> bool {
        let address = pointer as usize;
        let blocks = lock(&self.state.blocks);
        let block = blocks.range(..=address).next_back().and_then(|(_, block)| block.upgrade());
        block.is_some_and(|block| address - block.address() < block.bytes().max(1))
    }

    /// Whether this rank is a member of a live group called `name`.
    pub fn has_group(&self, name: &str) -> bool {
        lock(&self.state.groups).iter().filter_map(Weak::upgrade).any(|group| group.name == name)
    }

    pub(crate) fn remember_group(&self, group: &Arc<GroupInner>) {
        let mut groups = lock(&self.state.groups);
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.state.provider
    }

    /// What ranks on one host have in common: the configured id, or the kernel's boot id.
    pub(crate) fn host(&self) -> Result<String> {
        match self.config().get_host_id() {
            Some(id) => Ok(id.to_owned()),
            None => Ok(ids::hex(&ids::boot_id()?)),
        }
    }

    fn new_block(&self, bytes: usize) -> Result<Arc<Block>> {
        let memory = self.state.provider.alloc(bytes)?;
        let block = Arc::new(Block::new(memory, bytes, self.signal_pad_size()));
        let mut blocks = lock(&self.state.blocks);
        blocks.retain(|_, block| block.strong_count() > 0);
        blocks.insert(block.address(), Arc::downgrade(&block));
        Ok(block)
    }
}

fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(|| {
        Error::invalid(
            "allocation",
            format!("{len} elements of {} bytes are more than there is address space", size_of::<T>()),
        )
    })
}
