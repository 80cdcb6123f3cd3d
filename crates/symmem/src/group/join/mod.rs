//! How ranks that know nothing but a store become a group.
//!
//! 1. Each rank publishes a *hello* with a random nonce under the boot name. Rank 0 collects them and publishes an
//!    *answer*: a fresh group id and all hellos. A rank accepts only an answer that holds its own nonce, so keys left
//!    over from an earlier attempt cannot fool it; rank 0 answers anew when a hello changes under it.
//! 2. Each rank publishes where its fd channel listens under the group id; once all have, all have accepted.
//! 3. Ranks on one host send each other their control segment and a pidfd of themselves, map, and vote through
//!    the store: either all succeed or all get the same error.
//!
//! Ranks that disagree on protocol, version or world size all get the same refusal from rank 0.

mod agree;
mod connect;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem_store::{Deadline, Interrupt, Store, StoreError, TcpStoreServer, Wait, Watch};

use self::agree::Hello;
pub(super) use self::agree::{GONE, Gone};
use super::inner::{Inner, wait_for_a_death};
use super::running::Stop;
use super::vote::GaveUp;
use super::{Group, Terms};
use crate::context::RankContext;
use crate::error::{Cause, Context, Halt};
use crate::op::Op;
use crate::sync::control::{MAX_WORLD, Verdict};
use crate::sys::fault::{self, Point};
use crate::sys::fork;
use crate::sys::life::{self, Life};
use crate::{Error, Result};

/// Everything a rank brings to a join.
pub(crate) struct Join {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) server: Option<Arc<TcpStoreServer>>,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// The group's name, for people.
    pub(crate) name: String,
    /// The key prefix all ranks of this join share.
    pub(crate) boot: String,
    /// Whether nobody can have used `boot` before: then a hello of a dead process is proof that the rank died.
    pub(crate) fresh: bool,
    /// The members' lives, when they are members of a group already.
    pub(crate) lives: Option<Vec<Arc<Life>>>,
    /// The group this one is made from, when it is a subgroup.
    pub(crate) parent: Option<Parent>,
    pub(crate) context: RankContext,
    pub(crate) terms: Terms,
}

/// The group that a subgroup is made from. Making one is an operation of the parent: it ends when the parent fails,
/// whoever the culprit is, because members may have noticed that before they came here and will never come.
pub(crate) struct Parent {
    pub(crate) inner: Arc<Inner>,
    /// Its ranks that are to be members.
    pub(crate) members: Vec<usize>,
}

impl Parent {
    /// One look at the parent, in whose ranks the answer is.
    fn look(&self) -> Result<(), Stop> {
        // Who has left the parent did so outside of `subgroup`. If all members are on this host it has not joined either:
        // a join only succeeds after all have met in memory, and nobody who still watches has been there.
        let local = self.members.iter().all(|member| self.inner.controls[*member].is_some());
        self.inner.look(&|rank| local && self.members.contains(&rank))
    }

    /// Fails the parent, so that nobody blames who leaves because of it, and returns the error to give.
    fn fail(&self, stop: Stop, elapsed: Duration) -> Error {
        let inner = &self.inner;
        let mut context = Context::new(Op::Subgroup.name(), &inner.name, inner.rank, inner.world);
        context.elapsed = elapsed;
        let (culprit, cause) = match stop {
            Stop::Verdict(Verdict { culprit, cause }) => (culprit, cause),
            Stop::Left(rank) => (rank, Cause::Left),
            Stop::Died(rank) => (rank, Cause::Died),
        };
        let (standing, ours) = inner.convict(Verdict { culprit, cause });
        match stop {
            Stop::Left(rank) if ours => Error::PeerLeft { context, rank },
            Stop::Died(rank) if ours => Error::PeerLost { context, rank, pid: inner.pid(rank) },
            _ => Error::GroupFailed {
                context,
                culprit: standing.culprit,
                cause: standing.cause,
                reason: inner.reason(standing.culprit),
            },
        }
    }
}

/// Watches the members, as far as they are known, and one more condition.
struct JoinWatch<'a> {
    joining: &'a Joining<'a>,
    gave_up: &'a dyn Fn() -> bool,
}

impl Watch for JoinWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        if let Some(stop) = self.joining.find_gone() {
            return Err(Box::new(stop));
        }
        if (self.gave_up)() { Err(Box::new(GaveUp)) } else { Ok(()) }
    }
}

fn first_dead(lives: &[Arc<Life>]) -> Option<usize> {
    life::any_dead(&lives.iter().map(|life| &**life).collect::<Vec<_>>())
}

impl Join {
    /// A join with the context's terms, of a boot name that others may have used before.
    pub(crate) fn new(
        context: &RankContext,
        store: Arc<dyn Store>,
        rank: usize,
        world: usize,
        name: &str,
        boot: String,
    ) -> Self {
        let terms = Terms { timeout: context.config().get_timeout(), cancel: None };
        Self {
            store,
            server: None,
            rank,
            world,
            name: name.to_owned(),
            boot,
            fresh: false,
            lives: None,
            parent: None,
            context: context.clone(),
            terms,
        }
    }

    /// Runs the whole join.
    pub(crate) fn run(self) -> Result<Group> {
        let span =
            tracing::debug_span!("symmem.join", group = self.name, rank = self.rank, world = self.world);
        let _entered = span.enter();
        self.check()?;
        fork::arm();
        // A member of a subgroup keeps the rank of its first group.
        if self.lives.is_none() {
            fault::set_rank(self.rank);
        }
        let mut joining = Joining::new(&self)?;
        let accepted = joining.agree()?;
        let group = joining.connect(accepted)?;
        fault::point(Point::JoinDone);
        Ok(group)
    }

    fn check(&self) -> Result<()> {
        if self.world == 0 || self.world > MAX_WORLD {
            return Err(Error::invalid("world size", format!("{} is not in [1, {MAX_WORLD}]", self.world)));
        }
        if self.rank >= self.world {
            return Err(Error::RankOutOfRange { op: "join", rank: self.rank, world: self.world });
        }
        Ok(())
    }
}

/// A join under way.
struct Joining<'a> {
    join: &'a Join,
    hello: Hello,
    entered: Instant,
    /// Known lives, by rank: the parent group's, or what the hellos say once they are trusted.
    lives: Vec<Arc<Life>>,
    pids: Vec<u32>,
}

impl<'a> Joining<'a> {
    fn new(join: &'a Join) -> Result<Self> {
        let hello = Hello::new(join)?;
        let unknown = || (0..join.world).map(|_| Arc::new(Life::unknown())).collect();
        let lives = join.lives.clone().unwrap_or_else(unknown);
        Ok(Self { join, hello, entered: Instant::now(), lives, pids: vec![0; join.world] })
    }

    fn context(&self) -> Box<Context> {
        let mut context = Context::new(Op::Join.name(), &self.join.name, self.join.rank, self.join.world);
        context.elapsed = self.entered.elapsed();
        context
    }

    fn key(&self, rest: &str) -> String {
        format!("{}/{rest}", self.join.boot)
    }

    fn hello_key(&self, rank: usize) -> String {
        self.key(&format!("hello/{rank}"))
    }

    /// The terms of the join: its deadline counts from the start.
    fn terms<'b>(&'b self, watch: &'b JoinWatch<'b>) -> Wait<'b> {
        self.unwatched().with_watch(watch)
    }

    /// The terms of a call that waits for no rank.
    fn unwatched(&self) -> Wait<'_> {
        let end = self.join.terms.timeout.and_then(|timeout| self.entered.checked_add(timeout));
        let wait = Wait::new(end.map_or(Deadline::never(), Deadline::at));
        match &self.join.terms.cancel {
            Some(token) => wait.with_cancel(token),
            None => wait,
        }
    }

    /// The error for an interrupted wait.
    fn interrupted(&self, interrupt: Interrupt, missing: Vec<usize>) -> Error {
        let context = self.context();
        match interrupt {
            Interrupt::Expired => Error::Timeout { context, missing },
            Interrupt::Cancelled => Error::Cancelled { context },
            Interrupt::Watch(cause) => match cause.downcast_ref::<Stop>() {
                Some(stop) => self.stopped(*stop),
                None => Error::Rank { context, rank: self.join.rank, message: cause.to_string() },
            },
        }
    }

    /// The error for what [`Joining::find_gone`] found.
    fn stopped(&self, stop: Stop) -> Error {
        let context = self.context();
        match (&self.join.parent, stop) {
            (Some(parent), stop) => parent.fail(stop, self.entered.elapsed()),
            (None, Stop::Died(rank)) => Error::PeerLost { context, rank, pid: self.pids[rank] },
            (None, Stop::Left(rank)) => Error::PeerLeft { context, rank },
            (None, Stop::Verdict(Verdict { culprit, cause })) => {
                Error::GroupFailed { context, culprit, cause, reason: String::new() }
            }
        }
    }

    fn failed(&self, halt: Halt, missing: Vec<usize>) -> Error {
        match halt {
            Halt::Interrupted(interrupt) => self.interrupted(interrupt, missing),
            // The deadline may also pass inside a call of the store, which does not know whom it was for.
            Halt::Failed(Error::Timeout { .. }) => self.interrupted(Interrupt::Expired, missing),
            Halt::Failed(error) => error,
        }
    }

    /// The ranks whose key is not there.
    fn absent(&self, keys: &[&str]) -> Vec<usize> {
        let briefly = Wait::for_at_most(Duration::from_secs(1));
        let is_there = |key: &str| self.join.store.check(&[key], &briefly).unwrap_or(false);
        (0..keys.len()).filter(|rank| !is_there(keys[*rank])).collect()
    }

    /// The error for a failed store call: a death explains more than a broken connection.
    fn store_failed(&self, error: StoreError) -> Error {
        match error {
            StoreError::Timeout { .. } => self.interrupted(Interrupt::Expired, Vec::new()),
            StoreError::Cancelled { .. } => self.interrupted(Interrupt::Cancelled, Vec::new()),
            StoreError::Interrupted { source, .. } => self.interrupted(Interrupt::Watch(source), Vec::new()),
            other => wait_for_a_death(|| self.find_gone()).map_or(other.into(), |stop| self.stopped(stop)),
        }
    }

    fn no_watch(&self) -> JoinWatch<'_> {
        JoinWatch { joining: self, gave_up: &|| false }
    }

    /// Why this join cannot succeed, if it cannot: in ranks of the parent if there is one.
    fn find_gone(&self) -> Option<Stop> {
        match &self.join.parent {
            Some(parent) => parent.look().err(),
            None => first_dead(&self.lives).map(Stop::Died),
        }
    }

    fn set(&self, key: &str, value: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|error| Error::invalid(key, error.to_string()))?;
        // Others may act on the value, and end, before the store has confirmed it: that is no reason to fail.
        self.join.store.set(key, &bytes, &self.unwatched()).map_err(|error| self.store_failed(error))
    }

    /// The value of `key` if it is there now and can be read; what cannot be read is somebody's leftover.
    fn peek<T: for<'de> Deserialize<'de>>(&self, key: &str) -> Result<Option<T>> {
        let watch = self.no_watch();
        let terms = self.terms(&watch);
        let failed = |error| self.store_failed(error);
        if !self.join.store.check(&[key], &terms).map_err(failed)? {
            return Ok(None);
        }
        let bytes = self.join.store.get(key, &terms).map_err(failed)?;
        Ok(serde_json::from_slice(&bytes).ok())
    }

    /// Sleeps at most `slice`, less if all `keys` come to exist meanwhile.
    fn nap(&self, keys: &[&str], slice: Duration) -> Result<()> {
        match self.join.store.wait(keys, &Wait::for_at_most(slice)) {
            Ok(()) | Err(StoreError::Timeout { .. }) => Ok(()),
            Err(error) => Err(self.store_failed(error)),
        }
    }
}
