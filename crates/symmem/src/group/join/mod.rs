//! How ranks that know nothing but a store become a group.
//!
//! 1. Each rank publishes a *hello* with a random nonce under the boot name. Rank 0 collects them and
//!    publishes an *answer*: a fresh group id and all hellos. A rank accepts only an answer that holds its
//!    own nonce, so keys left over from an earlier attempt cannot fool it; rank 0 answers again when a hello
//!    changes under it.
//! 2. Each rank publishes where its fd channel listens under the group id; once all have, all have accepted.
//! 3. Ranks on one host send each other their control segment and a pidfd of themselves, map, and vote
//!    through the store: either all succeed or all get the same error.
//!
//! Ranks that disagree on protocol, version or world size all get the same refusal from rank 0.
//!
//! What is in the store is a claim: strangers may be able to write it. What makes a rank a member is a proof.
//! Ranks of this host prove themselves over the fd channel, to each other, all of them (`sys::channel`).
//! Ranks of other hosts prove that they hold the job secret: with one, everything below is sealed
//! (`group::seal`), and what is not sealed right is ignored. Without one, and unless a setting allows it, a
//! group that claims to span hosts is refused (`proof.rs`). Members of a group that exists are known to it:
//! where they are and which process they are is taken from there, not from the store.

mod agree;
mod connect;
mod proof;

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem_store::{Deadline, Interrupt, Store, StoreError, TcpStoreServer, Wait, Watch};

use self::agree::Hello;
pub(super) use self::agree::{GONE, Gone};
use super::membership::{Member, Membership, wait_for_a_death};
use super::running::Stop;
use super::seal::{Claim, SealKind, Sealer, Unsealed};
use super::vote::GaveUp;
use super::{Group, Notice, Terms};
use crate::error::{Cause, Context, Halt};
use crate::group::RankContext;
use crate::operation::Op;
use crate::sync::control::{MAX_WORLD, Verdict};
use crate::sys::fault::{self, Point};
use crate::sys::fork;
use crate::sys::life::{self, ProcessLife};
use crate::{Error, Result};

/// How long a rank that has failed waits for the others to learn of it. Its own error is not to be lost for
/// that.
const LAST_WORDS: Duration = Duration::from_secs(5);

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
    /// Whether nobody can have used `boot` before: then a hello of a dead process is proof that the rank
    /// died.
    pub(crate) fresh: bool,
    /// The members, when they are members of a group already.
    pub(crate) known: Option<Vec<Member>>,
    /// The group this one is made from, when it is a subgroup.
    pub(crate) parent: Option<Parent>,
    /// The failed group whose survivors these are.
    pub(crate) former: Option<Parent>,
    pub(crate) context: RankContext,
    pub(crate) terms: Terms,
}

/// The group that a subgroup is made from. Making one is an operation of the parent: it ends when the parent
/// fails, whoever the culprit is, because members may have noticed that before they came here and will never
/// come.
pub(crate) struct Parent {
    pub(crate) inner: Arc<Membership>,
    /// Its ranks that are to be members.
    pub(crate) members: Vec<usize>,
}

impl Parent {
    // Who has left the parent did so outside of `subgroup`. If all members are on this host it has not joined
    // either: a join only succeeds after all have met in memory, and nobody who still watches has been there.

    /// One look at the parent, in whose ranks the answer is.
    fn look(&self) -> Result<(), Stop> {
        let local = self.members.iter().all(|member| self.inner.controls[*member].is_some());
        self.inner.look(&|rank| local && self.members.contains(&rank))
    }

    /// The member of the new group that has left this one, whose ranks are all on this host.
    fn find_left(&self) -> Option<usize> {
        self.members.iter().position(|member| self.inner.has_left(*member))
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
        context.group_failed = true;
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
    notice: Notice,
}

impl Watch for JoinWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        if let Some(stop) = self.joining.find_gone() {
            return Err(Box::new(stop));
        }
        if (self.gave_up)() { Err(Box::new(GaveUp)) } else { Ok(()) }
    }

    fn still_waiting(&self, elapsed: Duration) {
        let Join { rank, world, name, .. } = self.joining.join;
        self.notice.say(elapsed, || {
            format!(
                "rank {rank} of {world} has waited to join group {name:?}, whose ranks are not all there,"
            )
        });
    }
}

fn first_dead(lives: &[Arc<ProcessLife>]) -> Option<usize> {
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
        let terms = Terms { timeout: *context.config().timeout, cancel: None };
        Self {
            store,
            server: None,
            rank,
            world,
            name: name.to_owned(),
            boot,
            fresh: false,
            known: None,
            parent: None,
            former: None,
            context: context.clone(),
            terms,
        }
    }

    /// Runs the whole join.
    pub(crate) fn run(self) -> Result<Group> {
        let span =
            tracing::debug_span!("symmem.join", group = self.name, rank = self.rank, world = self.world);
        let _entered = span.enter();
        // Before anything is published: a child cannot finish the join, and the others would wait for it.
        if fork::is_child() {
            return Err(Error::Forked { op: Op::Join.name() });
        }
        self.check()?;
        fork::arm();
        // A member of a subgroup keeps the rank of its first group.
        if self.known.is_none() {
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
    sealer: Sealer,
    /// Whose last value of which kind in the store was not believed, and why.
    doubts: Mutex<BTreeMap<(usize, SealKind), Unsealed>>,
    entered: Instant,
    /// Known lives, by rank: the parent group's, or what the hellos say once they are trusted.
    lives: Vec<Arc<ProcessLife>>,
    pids: Vec<u32>,
}

impl<'a> Joining<'a> {
    fn new(join: &'a Join) -> Result<Self> {
        let hello = Hello::new(join)?;
        let unknown = || (0..join.world).map(|_| Arc::new(ProcessLife::unknown())).collect();
        let lives = |known: &Vec<Member>| known.iter().map(|member| Arc::clone(&member.life)).collect();
        Ok(Self {
            join,
            hello,
            sealer: Sealer::new(join.context.config()),
            doubts: Mutex::default(),
            entered: Instant::now(),
            lives: join.known.as_ref().map_or_else(unknown, lives),
            pids: vec![0; join.world],
        })
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

    /// The terms of a wait of a rank that has failed: the others get a while to learn of it.
    fn last_terms<'b>(&'b self, watch: &'b JoinWatch<'b>) -> Wait<'b> {
        let soon = Instant::now() + LAST_WORDS;
        self.ending(Some(self.end().map_or(soon, |end| end.min(soon)))).with_watch(watch)
    }

    /// The terms of a call that waits for no rank.
    fn unwatched(&self) -> Wait<'_> {
        self.ending(self.end())
    }

    fn end(&self) -> Option<Instant> {
        self.join.terms.timeout.and_then(|timeout| self.entered.checked_add(timeout))
    }

    fn ending(&self, end: Option<Instant>) -> Wait<'_> {
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
            Interrupt::Expired => self.doubted().unwrap_or(Error::Timeout { context, missing }),
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

    fn watch<'b>(&'b self, gave_up: &'b dyn Fn() -> bool) -> JoinWatch<'b> {
        let notice = Notice::new(*self.join.context.config().wait_notice);
        JoinWatch { joining: self, gave_up, notice }
    }

    fn no_watch(&self) -> JoinWatch<'_> {
        self.watch(&|| false)
    }

    /// Why this join cannot succeed, if it cannot: in ranks of the parent if there is one.
    fn find_gone(&self) -> Option<Stop> {
        match &self.join.parent {
            Some(parent) => parent.look().err(),
            None => {
                let left = || self.join.former.as_ref()?.find_left();
                left().map(Stop::Left).or_else(|| first_dead(&self.lives).map(Stop::Died))
            }
        }
    }

    fn set(&self, key: &str, claim: &Claim<'_>, value: &impl Serialize) -> Result<()> {
        let bytes = serde_json::to_vec(value).map_err(|error| Error::invalid(key, error.to_string()))?;
        self.publish(key, claim, &bytes)
    }

    fn publish(&self, key: &str, claim: &Claim<'_>, bytes: &[u8]) -> Result<()> {
        let sealed = self.sealer.seal(claim, bytes);
        // Others may act on the value, and end, before the store has confirmed it: that is no reason to fail.
        self.join.store.set(key, &sealed, &self.unwatched()).map_err(|error| self.store_failed(error))
    }

    /// The value of `key` if it is there now, is what it claims to be, and can be read; else it is somebody's
    /// leftover.
    fn peek<T: for<'de> Deserialize<'de>>(&self, key: &str, claim: &Claim<'_>) -> Result<Option<T>> {
        let body = self.peek_sealed(key, claim)?;
        Ok(body.and_then(|body| serde_json::from_slice(&body).ok()))
    }

    /// The bytes of `key` if they are there now and are what they claim to be.
    fn peek_sealed(&self, key: &str, claim: &Claim<'_>) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.peek_bytes(key)? else { return Ok(None) };
        let opened = self.sealer.open(claim, &value);
        self.note(claim, opened.err());
        Ok(opened.ok().map(<[u8]>::to_vec))
    }

    fn peek_bytes(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let watch = self.no_watch();
        let terms = self.terms(&watch);
        let failed = |error| self.store_failed(error);
        if !self.join.store.check(&[key], &terms).map_err(failed)? {
            return Ok(None);
        }
        self.join.store.get(key, &terms).map(Some).map_err(failed)
    }

    /// Sleeps at most `slice`, less if all `keys` come to exist meanwhile.
    fn nap(&self, keys: &[&str], slice: Duration) -> Result<()> {
        match self.join.store.wait(keys, &Wait::for_at_most(slice)) {
            Ok(()) | Err(StoreError::Timeout { .. }) => Ok(()),
            Err(error) => Err(self.store_failed(error)),
        }
    }
}

/// Reads any bytes as each of the values that ranks leave in a store.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_values(bytes: &[u8]) {
    fn read<T: Serialize + for<'de> Deserialize<'de>>(bytes: &[u8]) {
        // What was read can be written, and reads the same again.
        let Ok(value) = serde_json::from_slice::<T>(bytes) else { return };
        let again = serde_json::to_vec(&value).expect("what was read can be written");
        serde_json::from_slice::<T>(&again).expect("what was written can be read");
    }
    read::<Hello>(bytes);
    read::<agree::Answer>(bytes);
    read::<Gone>(bytes);
    read::<Result<String, String>>(bytes);
    read::<super::vote::Vote>(bytes);
    super::vote::Vote::is_secondary(bytes);
    super::vote::Vote::tally(&[bytes.to_vec()]);
}
