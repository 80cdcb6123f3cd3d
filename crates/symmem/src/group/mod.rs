//! Groups: ordered ranks that know each other, meet, exchange plain data, and notice when one of them is
//! gone.
//!
//! A [`Group`] comes from the environment, from a store, or from [`spawn`](crate::spawn); subgroups are made
//! by their members only. What ranks do together on memory is in `memory`.

mod env;
mod exchange;
mod fds;
mod handles;
mod join;
mod membership;
mod notice;
mod pending;
mod rank;
mod reading;
pub(crate) mod recording;
mod refusal;
mod running;
mod seal;
mod spawn;
mod subgroup;
mod survivors;
mod vote;
pub(crate) mod watch;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use symmem_store::{CancelToken, Store};

#[cfg(feature = "faults")]
pub use self::handles::advance_tag;
pub(crate) use self::handles::{Proposal, SetupRefusal};
#[cfg(feature = "fuzzing")]
pub(crate) use self::join::fuzz_values;
pub(crate) use self::membership::Membership;
pub(crate) use self::notice::{Notice, list_ranks};
pub use self::pending::Pending;
pub use self::rank::RankContext;
pub(crate) use self::running::{Running, Stop};
pub use self::spawn::{
    Launcher, Pin, Placement, ProcessSpawner, Seat, ThreadSpawner, spawn, spawn_processes,
};
use crate::error::Cause;
use crate::operation::Shape;
use crate::sync::control::{CounterWords, Verdict};
use crate::{Error, Result};

use self::join::Join;

/// Until when blocking calls wait, and what else ends them.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) timeout: Option<Duration>,
    pub(crate) cancel: Option<CancelToken>,
}

/// What this rank has done on a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Operations started.
    pub ops: u64,
    /// Polls that found nothing yet.
    pub spins: u64,
    /// Times the core was given to somebody else.
    pub yields: u64,
    /// Times the rank slept.
    pub sleeps: u64,
    /// Bytes sent or copied.
    pub bytes: u64,
}

impl From<&CounterWords> for Counters {
    fn from(words: &CounterWords) -> Self {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Self {
            ops: read(&words.ops),
            spins: read(&words.spins),
            yields: read(&words.yields),
            sleeps: read(&words.sleeps),
            bytes: read(&words.bytes),
        }
    }
}

/// This rank's membership in an ordered set of ranks.
///
/// Blocking calls wait for at most the group's timeout ([`Config::timeout`](crate::Config::timeout)), or what
/// [`Group::within`] says, and end early on a cancel token, an abort, or a peer's death.
///
/// One operation at a time: a second thread of the same rank gets [`Error::Busy`]. Parallel streams of
/// operations use [`Group::try_clone`]. Dropping the last handle of a group (memory handles included) leaves
/// it: ranks that still need this one get [`Error::PeerLeft`].
///
/// ```
/// let sums = symmem::spawn(4, |group| {
///     group.barrier()?;
///     Ok(group.all_gather(&group.rank())?.iter().sum::<usize>())
/// })?;
/// assert_eq!(sums, [6, 6, 6, 6]);
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Debug)]
pub struct Group {
    pub(crate) inner: Arc<Membership>,
    pub(crate) terms: Terms,
    /// What `busy` is when an operation of this handle may begin: idle, or, for the helper thread, started.
    pub(crate) base: u8,
    /// What collectives say of the shape of this rank's array.
    pub(crate) shape: Shape,
}

impl Group {
    /// Collective. Joins `world` ranks that meet in `store` under `name`.
    ///
    /// Keys that an earlier attempt left under the same name do no harm.
    pub fn from_store(store: Arc<dyn Store>, rank: usize, world: usize, name: &str) -> Result<Self> {
        Self::from_store_in(&RankContext::from_env()?, store, rank, world, name)
    }

    /// Collective. [`Group::from_store`] with a context (configuration, allocations) of one's own.
    pub fn from_store_in(
        context: &RankContext,
        store: Arc<dyn Store>,
        rank: usize,
        world: usize,
        name: &str,
    ) -> Result<Self> {
        Join::new(context, store, rank, world, name, format!("symmem/{name}")).run()
    }

    /// This rank, from 0.
    #[inline]
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Number of ranks.
    #[inline]
    pub fn size(&self) -> usize {
        self.inner.world
    }

    /// The rank after this one, cyclically.
    pub fn next(&self) -> usize {
        (self.rank() + 1) % self.size()
    }

    /// The rank before this one, cyclically.
    pub fn prev(&self) -> usize {
        (self.rank() + self.size() - 1) % self.size()
    }

    /// The group's name. Names may recur; [`Group::id`] does not.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The group's unique id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Where this rank's allocations, settings and persistent ids live.
    pub fn context(&self) -> &RankContext {
        &self.inner.context
    }

    /// The store the group meets in.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Whether all ranks are on this host, so that they can share memory.
    pub fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    /// The process of each rank.
    pub fn pids(&self) -> Vec<u32> {
        self.inner.members.iter().map(|member| member.process.pid).collect()
    }

    /// Whether every rank has proven that it belongs to this job: all are on this host, where the kernel says
    /// so, or the job secret does. False only for a group that spans hosts under
    /// [`Config::allow_unauthenticated_hosts`](crate::Config::allow_unauthenticated_hosts): what comes from
    /// such a group may be anybody's, and must not be taken for code. The same on every rank.
    pub fn is_authenticated(&self) -> bool {
        self.inner.is_proven()
    }

    /// An error unless every rank has proven that it belongs to this job, for `op` that takes what ranks send
    /// for more than data.
    #[doc(hidden)]
    pub fn check_authenticated(&self, op: &'static str) -> Result<()> {
        if self.is_authenticated() {
            return Ok(());
        }
        let inner = &self.inner;
        let context = crate::error::Context::new(op, &inner.name, inner.rank, inner.world);
        let ranks = (0..inner.world).filter(|rank| inner.controls[*rank].is_none()).collect();
        let problem = "the group was made without a job secret, so what they send may be anybody's and is not \
                       unpickled. Hint: set SYMMEM_SECRET_FILE on every rank";
        Err(Error::Unproven { context, ranks, problem: problem.to_owned() })
    }

    /// The same membership, whose blocking calls wait for at most `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// symmem::spawn(2, |group| group.within(Duration::from_secs(5)).barrier())?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn within(&self, timeout: Duration) -> Self {
        self.with_terms(Terms { timeout: Some(timeout), cancel: self.terms.cancel.clone() })
    }

    /// The same membership, whose blocking calls end when `token` is cancelled.
    pub fn cancelled_by(&self, token: &CancelToken) -> Self {
        self.with_terms(Terms { timeout: self.terms.timeout, cancel: Some(token.clone()) })
    }

    /// The same membership, whose collectives on memory compare `shape` too: ranks whose arrays have other
    /// shapes get [`Error::Mismatch`], even if they are as long. Without it ranks agree on the number of
    /// elements. For callers whose arrays have shapes; `all_to_all_v`, whose arrays differ, does not look at
    /// it.
    ///
    /// ```
    /// use symmem::{Error, ReduceOp};
    /// symmem::spawn(2, |group| {
    ///     let shape = if group.rank() == 0 { [3, 4] } else { [2, 6] };
    ///     let sum = group.shaped(&shape).all_reduce(ReduceOp::Sum, &mut [1.0f32; 12]);
    ///     assert!(sum.unwrap_err().to_string().contains("rank 0: (3, 4) x f32; rank 1: (2, 6) x f32"));
    ///     group.all_reduce(ReduceOp::Sum, &mut [1.0f32; 12])
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn shaped(&self, shape: &[usize]) -> Self {
        Self { shape: Shape::of(shape), ..self.share() }
    }

    /// [`Group::shaped`], or without a shape the same membership that compares none.
    pub(crate) fn of_shape(&self, shape: Option<&[usize]>) -> Self {
        Self { shape: shape.map_or(Shape::ANY, Shape::of), ..self.share() }
    }

    /// The same membership, for an array that is so many rows and columns: its own shape is compared if that
    /// is of as many rows, else these two are.
    pub(crate) fn in_rows(&self, rows: [usize; 2]) -> Self {
        Self { shape: self.shape.of_rows(rows), ..self.share() }
    }

    /// The same membership, whose collectives on memory compare `counts` in the place of a shape.
    pub(crate) fn counted(&self, counts: &[usize]) -> Self {
        Self { shape: Shape::of_counts(counts), ..self.share() }
    }

    /// The same membership, whose blocking calls wait as those of `other` do: as long, and ended by the same
    /// token.
    pub fn on_terms_of(&self, other: &Self) -> Self {
        self.with_terms(other.terms.clone())
    }

    /// Another handle of the same membership.
    pub(crate) fn share(&self) -> Self {
        self.with_terms(self.terms.clone())
    }

    fn with_terms(&self, terms: Terms) -> Self {
        Self { inner: Arc::clone(&self.inner), terms, base: self.base, shape: self.shape }
    }

    /// Declares the group failed: every rank's running and later operations return [`Error::GroupFailed`]
    /// with this rank as the culprit and `reason` as its words. Never blocks. A group that has failed already
    /// stays as it is. Ranks on other hosts share no memory with this one: they learn of it at their own
    /// deadline.
    pub fn abort(&self, reason: &str) {
        // The words of an earlier abort of this rank stand too.
        if crate::sys::fork::is_child() || self.failure().is_some() {
            return;
        }
        self.inner.own().set_reason(reason);
        self.inner.convict(Verdict { culprit: self.rank(), cause: Cause::Aborted });
    }

    /// The rank that made the group fail and how, or `None` while the group is whole. Cheap; never blocks.
    pub fn failure(&self) -> Option<(usize, Cause)> {
        self.inner.verdict().map(|verdict| (verdict.culprit, verdict.cause))
    }

    /// What this rank has done on the group so far.
    pub fn counters(&self) -> Counters {
        Counters::from(&self.inner.own().counters)
    }

    pub(crate) fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::RankOutOfRange { op, rank, world: self.size() })
    }
}
