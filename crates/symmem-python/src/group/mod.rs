//! Groups: ranks that know each other.
//!
//! [`Group`] is the Python class. What all its copies share is a [`Membership`]: the Rust group, which
//! carries the token that makes waits end on Ctrl-C, and what was made on it. Closing gives all of that up at
//! once, so that peers learn that this rank has left without waiting for Python's garbage collector.

mod bound;
mod class;
mod collectives;
mod fused;
mod join;
mod mail;
pub(crate) mod objects;
mod outside;
mod parts;
mod source;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use symmem::{Error, RankContext};

use crate::cuda::Engines;
use crate::error::{busy, raise};
use crate::interrupt;
use crate::mail::Mailbox;
use crate::memory::{Handle, Workspace};
use crate::operand::Place;
use crate::registry::AllocatedBlock;

pub(crate) use self::class::Group;
pub(crate) use self::join::default_timeout;
pub(crate) use self::outside::NonMember;

/// A rank's place in a group, and how long its calls wait.
#[derive(Clone)]
pub(crate) struct Membership {
    shared: Arc<SharedMembership>,
    /// What `within` said; else the group's default.
    timeout: Option<Duration>,
    /// Whether collectives compare numbers of elements only, and not shapes.
    any_shape: bool,
}

struct SharedMembership {
    rank: usize,
    size: usize,
    name: String,
    id: String,
    pids: Vec<u32>,
    context: RankContext,
    /// The store the user passed.
    store: Option<Py<PyAny>>,
    /// `None` once closed.
    group: Mutex<Option<Arc<symmem::Group>>>,
    /// Allocations that were rendezvoused on the group, by address.
    known: Mutex<HashMap<usize, Weak<AllocatedBlock>>>,
    /// Handles that still hold the membership.
    handles: Mutex<Vec<Weak<dyn Handle>>>,
    workspaces: Mutex<Vec<Workspace>>,
    /// Where a call has the group's own workspace for itself.
    rooms_in_use: Mutex<Vec<Place>>,
    /// What the group has on devices.
    engines: Engines,
    /// The group's `Mailbox`.
    mail: Mutex<Option<Py<Mailbox>>>,
    /// How many `with` blocks of this group are open.
    entered: Mutex<usize>,
}

/// The group's own workspace at a place, for one call until dropped.
pub(crate) struct RoomTurn<'a> {
    membership: &'a Membership,
    place: Place,
}

impl Drop for RoomTurn<'_> {
    fn drop(&mut self) {
        lock(&self.membership.shared.rooms_in_use).retain(|place| *place != self.place);
    }
}

/// Which group something belongs to, without keeping it.
pub(crate) struct Whose(Weak<SharedMembership>);

impl Whose {
    /// As [`Membership::bound`].
    pub(crate) fn bound(&self) -> Option<Duration> {
        bound::of(self.0.as_ptr())
    }
}

/// A `timeout_ms=` argument: 0 says nothing.
pub(crate) fn given(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Membership {
    /// The membership that `group` is, made by a rank in `context`.
    pub(crate) fn new(group: &symmem::Group, context: &RankContext, store: Option<Py<PyAny>>) -> Self {
        let group = group.cancelled_by(&interrupt::token());
        let shared = SharedMembership {
            rank: group.rank(),
            size: group.size(),
            name: group.name().to_owned(),
            id: group.id().to_owned(),
            pids: group.pids(),
            context: context.clone(),
            store,
            group: Mutex::new(Some(Arc::new(group))),
            known: Mutex::default(),
            handles: Mutex::default(),
            workspaces: Mutex::default(),
            rooms_in_use: Mutex::default(),
            engines: Engines::default(),
            mail: Mutex::default(),
            entered: Mutex::default(),
        };
        Self { shared: Arc::new(shared), timeout: None, any_shape: false }
    }

    pub(crate) fn rank(&self) -> usize {
        self.shared.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.shared.size
    }

    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    pub(crate) fn id(&self) -> &str {
        &self.shared.id
    }

    /// Where this rank's allocations for the group come from.
    pub(crate) fn context(&self) -> &RankContext {
        &self.shared.context
    }

    /// The group, for `op`. Calls on it wait for `timeout_ms`, or for 0 as long as this membership says.
    #[inline]
    pub(crate) fn group(&self, op: &'static str, timeout_ms: u64) -> PyResult<Arc<symmem::Group>> {
        self.open(op, self.patience(timeout_ms))
    }

    /// The group on the terms of what is made by a call that was given `timeout_ms`, which end with the call.
    /// `None` if there are no such terms.
    pub(crate) fn lasting(&self, op: &'static str, timeout_ms: u64) -> PyResult<Option<Arc<symmem::Group>>> {
        let of_the_call = given(timeout_ms).or_else(|| self.bound());
        of_the_call.map(|_| self.open(op, self.timeout)).transpose()
    }

    fn open(&self, op: &'static str, timeout: Option<Duration>) -> PyResult<Arc<symmem::Group>> {
        let group = lock(&self.shared.group).clone().ok_or_else(|| raise(Error::Closed { op }))?;
        Ok(match timeout {
            None => group,
            Some(timeout) => Arc::new(group.within(timeout)),
        })
    }

    /// `group`, on which collectives say that this rank's array has `shape`; none if this membership does not
    /// care.
    #[inline]
    pub(crate) fn shaped(&self, group: &symmem::Group, shape: &[usize]) -> Option<symmem::Group> {
        self.compares_shapes().then(|| group.shaped(shape))
    }

    /// Whether collectives compare the shapes of arrays.
    pub(crate) fn compares_shapes(&self) -> bool {
        !self.any_shape
    }

    /// How long a call waits that was given `timeout_ms`, if not as the group's default says.
    #[inline]
    pub(crate) fn patience(&self, timeout_ms: u64) -> Option<Duration> {
        given(timeout_ms).or(self.timeout).or_else(|| self.bound())
    }

    /// What `within` said when this was made.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// What the `with group.within(...):` that this thread is in says of the group.
    #[inline]
    pub(crate) fn bound(&self) -> Option<Duration> {
        bound::of(Arc::as_ptr(&self.shared))
    }

    /// The group, for what must not keep it.
    pub(crate) fn downgrade(&self) -> Whose {
        Whose(Arc::downgrade(&self.shared))
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.shared.group).is_none()
    }

    /// Whether `block` was rendezvoused on this group.
    pub(crate) fn knows(&self, block: &Arc<AllocatedBlock>) -> bool {
        let known = lock(&self.shared.known);
        known.get(&block.address()).is_some_and(|known| known.as_ptr() == Arc::as_ptr(block))
    }

    /// `block` was rendezvoused on this group, and `handle` holds the membership. Where a rank brought
    /// nothing, the memory is private as far as collectives of the group go.
    pub(crate) fn remember(&self, block: &Arc<AllocatedBlock>, handle: &Arc<dyn Handle>) {
        let mut known = lock(&self.shared.known);
        known.retain(|_, block| block.strong_count() > 0);
        if handle.ranks_without_memory().is_empty() {
            known.insert(block.address(), Arc::downgrade(block));
        }
        drop(known);
        self.remember_handle(handle);
    }

    /// `handle` holds the membership.
    pub(crate) fn remember_handle(&self, handle: &Arc<dyn Handle>) {
        let mut handles = lock(&self.shared.handles);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(handle));
    }

    /// The allocation at `address` is no longer used on this group.
    pub(crate) fn forget(&self, address: usize) {
        lock(&self.shared.known).remove(&address);
    }

    /// The workspaces that the group has.
    pub(crate) fn workspaces(&self) -> MutexGuard<'_, Vec<Workspace>> {
        lock(&self.shared.workspaces)
    }

    /// Takes the group's own workspace at `place` for the call `op`; `Busy` while another call has it.
    pub(crate) fn take_room(&self, op: &'static str, place: Place) -> PyResult<RoomTurn<'_>> {
        let mut in_use = lock(&self.shared.rooms_in_use);
        if in_use.contains(&place) {
            // Not under the lock: an exception may give up the interpreter.
            drop(in_use);
            return Err(busy(op, &self.shared.name, (self.shared.rank, self.shared.size)));
        }
        in_use.push(place);
        Ok(RoomTurn { membership: self, place })
    }

    /// What the group has on devices.
    pub(crate) fn engines(&self) -> &Engines {
        &self.shared.engines
    }

    /// Local; never blocks. Gives up everything that makes this rank a member.
    pub(crate) fn close(&self) {
        let workspaces = std::mem::take(&mut *self.workspaces());
        let handles = std::mem::take(&mut *lock(&self.shared.handles));
        handles.iter().filter_map(Weak::upgrade).for_each(|handle| handle.leave());
        lock(&self.shared.known).clear();
        self.shared.engines.clear();
        self.close_mail();
        let group = lock(&self.shared.group).take();
        drop((workspaces, group));
    }
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Group>()?;
    module.add_class::<NonMember>()
}
