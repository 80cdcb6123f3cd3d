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

/// The group that a subgroup is made from: members that are threads of one process have no lives to watch, but they
/// leave the parent when they end.
pub(crate) struct Parent {
    pub(crate) inner: Arc<Inner>,
    /// Its ranks that are to be members, in the order of the new group.
    pub(crate) members: Vec<usize>,
}

impl Parent {
    /// The first member that will not come, as a rank of the new group.
    fn find_gone(&self) -> Option<Stop> {
        let inner = &self.inner;
        // Who has left the parent did so outside of `subgroup`. If all members are on this host it has not joined either:
        // a join only succeeds after all have met in memory, and nobody who still watches has been there.
        let local = self.members.iter().all(|member| inner.controls[*member].is_some());
        let left = |member: &usize| local && *member != inner.rank && inner.has_left(*member);
        let left = self.members.iter().copied().find(left);
        // The first cause stands in the parent's verdict, so that nobody blames who leaves because of it.
        let first = left.is_some_and(|culprit| inner.convict(Verdict { culprit, cause: Cause::Left }).1);
        let verdict = inner.verdict().filter(|verdict| match verdict.cause {
            Cause::Died | Cause::Panicked => true,
            cause => cause == Cause::Left && local && !first,
        });
        let named = |verdict: Verdict| Some(Verdict { culprit: self.place(verdict.culprit)?, ..verdict });
        verdict.and_then(named).map(Stop::Verdict).or_else(|| self.place(left?).map(Stop::Left))
    }

    fn place(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|member| *member == rank)
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
                Some(Stop::Died(rank)) => self.lost(*rank),
                Some(Stop::Left(rank)) => Error::PeerLeft { context, rank: *rank },
                Some(Stop::Verdict(Verdict { culprit, cause })) => {
                    Error::GroupFailed { context, culprit: *culprit, cause: *cause, reason: String::new() }
                }
                None => Error::Rank { context, rank: self.join.rank, message: cause.to_string() },
            },
        }
    }

    fn lost(&self, rank: usize) -> Error {
        Error::PeerLost { context: self.context(), rank, pid: self.pids[rank] }
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
            other => {
                let member = || first_dead(&self.lives).map(Some);
                // Whoever served the store need not be a member: who makes the subgroup will explain.
                let outsider = || self.join.parent.as_ref()?.inner.find_dead().map(|_| None);
                let dead = wait_for_a_death(|| member().or_else(outsider)).flatten();
                dead.map_or(other.into(), |rank| self.lost(rank))
            }
        }
    }

    fn no_watch(&self) -> JoinWatch<'_> {
        JoinWatch { joining: self, gave_up: &|| false }
    }

    /// The first member that will not come.
    fn find_gone(&self) -> Option<Stop> {
        let dead = first_dead(&self.lives).map(Stop::Died);
        dead.or_else(|| self.join.parent.as_ref()?.find_gone())
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
