//! Steps 1 and 2 of a join: hellos, rank 0's answer, and proof that every rank accepted it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem_store::Wait;

use super::{Join, Joining};
use crate::error::Halt;
use crate::sync::control::{self, MAX_WORLD};
use crate::sys::channel::Endpoint;
use crate::sys::fault::{self, Point};
use crate::sys::life::{Life, ProcessId};
use crate::sys::{clock, ids};
use crate::tuning::Tuning;
use crate::{Error, Result};

/// What the ranks' hellos must agree on, in words.
const FINGERPRINT: &str = "world size, version or protocol";
/// How long rank 0 waits for the others once it knows that they disagree, so that all get the same answer. (A death
/// under a fresh name needs no waiting: there, ranks heed a refusal whether it names them or not.)
const GRACE: Duration = Duration::from_secs(2);

/// What a rank says first. Everything the others must know or agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) nonce: String,
    protocol: u32,
    version: String,
    world: usize,
    pub(super) host: String,
    pub(super) pid: u32,
    start_time: u64,
    pid_ns: u64,
    published_ns: u64,
}

impl Hello {
    pub(super) fn new(join: &Join) -> Result<Self> {
        let process = ProcessId::own();
        Ok(Self {
            nonce: ids::hex(&ids::random::<16>()?),
            protocol: control::VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            world: join.world,
            host: join.context.host()?,
            pid: process.pid,
            start_time: process.start_time,
            pid_ns: process.pid_ns,
            published_ns: clock::boottime_ns(),
        })
    }

    pub(super) fn process(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_time: self.start_time, pid_ns: self.pid_ns }
    }

    /// What all ranks must agree on.
    fn fingerprint(&self) -> (u32, &str, usize) {
        (self.protocol, &self.version, self.world)
    }
}

/// Rank 0's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    id: String,
    hellos: Vec<Option<Hello>>,
    tuning: Tuning,
    refusal: Option<Refusal>,
}

impl Answer {
    fn is_for(&self, nonce: &str) -> bool {
        self.hellos.iter().flatten().any(|hello| hello.nonce == nonce)
    }
}

/// Why rank 0 will not make a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Refusal {
    Mismatch { values: Vec<String> },
    Died { rank: usize, pid: u32 },
}

/// Where a launcher says that a rank's process has ended badly, maybe before it said hello.
pub(crate) const GONE: &str = "gone";

/// What it says there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Gone {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
}

/// What all ranks have accepted.
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) hellos: Vec<Hello>,
    /// Rank 0's.
    pub(super) tuning: Tuning,
    /// Where each rank's fd channel listens.
    pub(super) addresses: Vec<String>,
    /// This rank's.
    pub(super) endpoint: Endpoint,
}

impl Joining<'_> {
    /// Steps 1 and 2 of the protocol: an answer that every rank has accepted.
    pub(super) fn agree(&mut self) -> Result<Accepted> {
        self.set(&self.hello_key(self.join.rank), &self.hello)?;
        fault::point(Point::NonceSet);
        let dir = self.join.context.config().get_socket_dir();
        loop {
            let answer = if self.join.rank == 0 { self.answer()? } else { self.accept()? };
            fault::point(Point::Answered);
            let hellos = self.trust(&answer)?;
            let endpoint = Endpoint::bind(token(&answer.id)?, dir);
            // A rank that cannot listen says so instead, or the others would wait for its address.
            let address = endpoint.as_ref().map(Endpoint::address).map_err(Error::to_string);
            if let Some(addresses) = self.all_accepted(&answer, &address)? {
                let Answer { id, tuning, .. } = answer;
                return Ok(Accepted { id, hellos, tuning, addresses, endpoint: endpoint? });
            }
        }
    }

    /// Rank 0: collects the hellos and answers them.
    fn answer(&mut self) -> Result<Answer> {
        let tuning = Tuning::from_config(self.join.context.config(), self.join.world)?;
        let mut hellos: Vec<Option<Hello>> = vec![None; self.join.world];
        hellos[0] = Some(self.hello.clone());
        let grace = self.join.terms.timeout.map_or(GRACE, |timeout| GRACE.min(timeout / 2));
        let mut disagreed = None;
        let watch = self.no_watch();
        let terms = self.terms(&watch);
        let refusal = terms
            .until(|slice| -> Result<_, Halt> {
                self.nap_for_hellos(&hellos, slice)?;
                self.read_hellos(&mut hellos)?;
                let complete = hellos.iter().all(Option::is_some);
                let Some(refusal) = self.refusal(&hellos)? else { return Ok(complete.then_some(None)) };
                // Who says hello later is to get the same answer, so wait a little; a death in a fresh run cannot change.
                let settled = complete || (self.join.fresh && matches!(refusal, Refusal::Died { .. }));
                let patient = !settled && disagreed.get_or_insert_with(Instant::now).elapsed() < grace;
                Ok(if patient { None } else { Some(Some(refusal)) })
            })
            .map_err(|failed| {
                let missing = (0..hellos.len()).filter(|rank| hellos[*rank].is_none()).collect();
                self.failed(failed, missing)
            })?;
        let answer = Answer { id: ids::hex(&ids::random::<16>()?), hellos, tuning, refusal };
        self.set(&self.key("answer"), &answer)?;
        self.heed(answer)
    }

    /// Sleeps at most `slice`, less if a missing hello comes.
    fn nap_for_hellos(&self, hellos: &[Option<Hello>], slice: Duration) -> Result<()> {
        let Some(missing) = hellos.iter().position(Option::is_none).filter(|_| slice > Duration::ZERO) else {
            return Ok(());
        };
        let key = self.hello_key(missing);
        if self.join.store.check(&[&key], &Wait::for_at_most(slice)).unwrap_or(false) {
            // A leftover: it is there, so waiting for it would not sleep.
            std::thread::sleep(slice.min(Duration::from_millis(5)));
            return Ok(());
        }
        self.nap(&[&key], slice)
    }

    /// Reads the hellos that are missing; also those of ranks beyond the end, if any rank thinks that there are some.
    fn read_hellos(&self, hellos: &mut Vec<Option<Hello>>) -> Result<()> {
        if self.read_hello(self.join.world)?.is_some() && hellos.len() == self.join.world {
            hellos.push(None);
        }
        for (rank, hello) in hellos.iter_mut().enumerate().filter(|(_, hello)| hello.is_none()) {
            *hello = self.read_hello(rank)?;
        }
        let claimed = hellos.iter().flatten().map(|hello| hello.world.min(MAX_WORLD)).max().unwrap_or(0);
        if claimed > hellos.len() {
            hellos.resize(claimed, None);
        }
        Ok(())
    }

    /// The hello of `rank`, unless it is what a dead process left: then its successor will replace it.
    fn read_hello(&self, rank: usize) -> Result<Option<Hello>> {
        let hello = self.peek::<Hello>(&self.hello_key(rank))?;
        Ok(hello.filter(|hello| self.is_proof_of_death(hello) || !self.is_dead(hello)))
    }

    /// The rank that the launcher saw die, if it saw one.
    fn gone(&self) -> Result<Option<(usize, u32)>> {
        if !self.join.fresh {
            return Ok(None);
        }
        Ok(self.peek::<Gone>(&self.key(GONE))?.map(|gone| (gone.rank, gone.pid)))
    }

    /// Why the hellos that came so far cannot become a group, if they cannot.
    fn refusal(&self, hellos: &[Option<Hello>]) -> Result<Option<Refusal>> {
        if let Some((rank, pid)) = self.gone()? {
            return Ok(Some(Refusal::Died { rank, pid }));
        }
        let said: Vec<(usize, &Hello)> =
            hellos.iter().enumerate().filter_map(|(rank, hello)| Some((rank, hello.as_ref()?))).collect();
        if said.iter().any(|(_, hello)| hello.fingerprint() != self.hello.fingerprint()) {
            let values = said.iter().map(|(rank, hello)| {
                format!(
                    "rank {rank}: world size {}, version {}, protocol {}",
                    hello.world, hello.version, hello.protocol
                )
            });
            return Ok(Some(Refusal::Mismatch { values: values.collect() }));
        }
        let dead = said.iter().find(|(_, hello)| self.is_proof_of_death(hello));
        Ok(dead.map(|(rank, hello)| Refusal::Died { rank: *rank, pid: hello.pid }))
    }

    /// Whether `hello` belongs to this attempt and its process is dead. A dead process' hello may also be a leftover
    /// that its successor is about to replace.
    fn is_proof_of_death(&self, hello: &Hello) -> bool {
        let of_this_attempt = self.join.fresh || hello.published_ns >= self.hello.published_ns;
        of_this_attempt && self.is_dead(hello)
    }

    /// Whether `hello` is of a process of this host that is dead.
    fn is_dead(&self, hello: &Hello) -> bool {
        hello.host == self.hello.host && Life::from_proc(hello.process()).is_dead()
    }

    /// Other ranks: waits for an answer with this rank's nonce.
    fn accept(&self) -> Result<Answer> {
        let watch = self.no_watch();
        let key = self.key("answer");
        let answer = self.terms(&watch).until(|slice| -> Result<_, Halt> {
            let waited = Instant::now();
            if slice > Duration::ZERO {
                self.nap(&[&key], slice)?;
            }
            if let Some(answer) = self.peek::<Answer>(&key)? {
                // Nothing under a fresh name is a leftover, so a refusal there is meant for all, also for a rank whose
                // hello rank 0 had not read when it refused.
                let refused = self.join.fresh && answer.refusal.is_some();
                if refused || answer.is_for(&self.hello.nonce) {
                    return Ok(Some(answer));
                }
                self.check_outsider(&answer)?;
                // A leftover: the key is there, so the nap above did not sleep.
                std::thread::sleep(slice.min(Duration::from_millis(5)).saturating_sub(waited.elapsed()));
            }
            if let Some((0, pid)) = self.gone()? {
                return Err(Error::PeerLost { context: self.context(), rank: 0, pid }.into());
            }
            match self.peek::<Hello>(&self.hello_key(0))? {
                Some(hello) if self.is_proof_of_death(&hello) => {
                    Err(Error::PeerLost { context: self.context(), rank: 0, pid: hello.pid }.into())
                }
                _ => Ok(None),
            }
        });
        answer.map_err(|failed| self.failed(failed, vec![0])).and_then(|answer| self.heed(answer))
    }

    /// A rank beyond the end of a living answer's group will never be answered.
    fn check_outsider(&self, answer: &Answer) -> Result<()> {
        let Some(Some(first)) = answer.hellos.first() else { return Ok(()) };
        let outside = self.join.rank >= answer.hellos.len();
        if !outside || first.host != self.hello.host || Life::from_proc(first.process()).is_dead() {
            return Ok(());
        }
        let values = vec![
            format!("rank 0: world size {}", first.world),
            format!("rank {}: world size {}", self.join.rank, self.join.world),
        ];
        Err(Error::Mismatch { context: self.context(), what: FINGERPRINT, values })
    }

    /// The answer, unless it is a refusal.
    fn heed(&self, answer: Answer) -> Result<Answer> {
        let context = self.context();
        match answer.refusal {
            None => Ok(answer),
            Some(Refusal::Mismatch { values }) => Err(Error::Mismatch { context, what: FINGERPRINT, values }),
            Some(Refusal::Died { rank, pid }) => Err(Error::PeerLost { context, rank, pid }),
        }
    }

    /// From here on the hellos are known to be of this attempt: watch their processes.
    fn trust(&mut self, answer: &Answer) -> Result<Vec<Hello>> {
        let hellos: Option<Vec<Hello>> = answer.hellos.iter().cloned().collect();
        let hellos = hellos
            .filter(|hellos| hellos.len() == self.join.world)
            .ok_or_else(|| Error::invalid("answer of rank 0", "it does not name every rank"))?;
        self.pids = hellos.iter().map(|hello| hello.pid).collect();
        if self.join.lives.is_none() {
            let elsewhere =
                |hello: &&Hello| hello.host != self.hello.host || hello.process() == self.hello.process();
            let life = |hello: &Hello| match Some(hello).filter(elsewhere) {
                Some(_) => Arc::new(Life::unknown()),
                None => Arc::new(Life::from_proc(hello.process())),
            };
            self.lives = hellos.iter().map(life).collect();
        }
        Ok(hellos)
    }

    /// Publishes this rank's address and waits for everybody's; `None` when rank 0 has answered anew.
    fn all_accepted(&self, answer: &Answer, address: &Result<&str, String>) -> Result<Option<Vec<String>>> {
        let key = |rank: usize| self.key(&format!("{}/address/{rank}", answer.id));
        self.set(&key(self.join.rank), address)?;
        let keys: Vec<String> = (0..self.join.world).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let watch = self.no_watch();
        let terms = self.terms(&watch);
        let done = terms.until(|slice| -> Result<_, Halt> {
            if slice > Duration::ZERO {
                self.nap(&keys, slice)?;
            }
            if self.join.store.check(&keys, &terms).map_err(|error| self.store_failed(error))? {
                return Ok(Some(true));
            }
            Ok(self.is_superseded(answer)?.then_some(false))
        });
        if !done.map_err(|failed| self.failed(failed, self.absent(&keys)))? {
            return Ok(None);
        }
        let values = self.join.store.multi_get(&keys, &terms).map_err(|error| self.store_failed(error))?;
        let read = |(rank, value): (usize, &Vec<u8>)| {
            let said: Result<String, String> = serde_json::from_slice(value)
                .unwrap_or_else(|error| Err(format!("its address cannot be read: {error}")));
            said.map_err(|message| Error::Rank { context: self.context(), rank, message })
        };
        values.iter().enumerate().map(read).collect::<Result<Vec<String>>>().map(Some)
    }

    /// Whether `answer` rests on a leftover hello that its rank has replaced meanwhile.
    fn is_superseded(&self, answer: &Answer) -> Result<bool> {
        if self.join.fresh {
            return Ok(false);
        }
        if self.join.rank != 0 {
            let now = self.peek::<Answer>(&self.key("answer"))?;
            return Ok(now.is_some_and(|now| now.id != answer.id && now.is_for(&self.hello.nonce)));
        }
        for rank in 1..self.join.world {
            if self.peek::<Hello>(&self.hello_key(rank))? != answer.hellos[rank] {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The fd channel's token: the group id as bytes.
fn token(id: &str) -> Result<[u8; 16]> {
    let bytes = ids::unhex(id).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| Error::invalid("answer of rank 0", "its group id is not 16 bytes of hex"))
}
