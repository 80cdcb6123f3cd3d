//! Steps 1 and 2 of a join: hellos, rank 0's answer, and proof that every rank accepted it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem_store::Wait;

use super::proof::NO_SECRET;
use super::{Join, Joining};
use crate::error::Halt;
use crate::group::membership::Member;
use crate::group::seal::{Claim, GroupId, SealKind, Unsealed};
use crate::sync::control::{self, MAX_WORLD};
use crate::sys::channel::Endpoint;
use crate::sys::fault::{self, Point};
use crate::sys::life::{ProcessId, ProcessLife};
use crate::sys::{clock, ids};
use crate::tuning::Tuning;
use crate::{Error, Result};

/// What the ranks' hellos must agree on, in words.
const FINGERPRINT: &str = "world size, version or protocol";
/// How long rank 0 waits for the others once it knows that they disagree, so that all get the same answer. (A
/// death under a fresh name needs no waiting: there, ranks heed a refusal whether it names them or not.)
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
        // A member is who it was when it first joined, also where this process could not ask again.
        let (process, host) = match &join.known {
            Some(known) => (known[join.rank].process, known[join.rank].host.clone()),
            None => (ProcessId::own(), join.context.host()?),
        };
        Ok(Self {
            nonce: ids::hex(&ids::random::<16>()?),
            protocol: control::VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            world: join.world,
            host,
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

/// Rank 0's answer. The group id is a hash of it: ranks that were shown different ones do not meet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    salt: String,
    hellos: Vec<Option<Hello>>,
    tuning: Tuning,
    refusal: Option<JoinRefusal>,
}

impl Answer {
    fn is_for(&self, nonce: &str) -> bool {
        self.hellos.iter().flatten().any(|hello| hello.nonce == nonce)
    }
}

/// Why rank 0 will not make a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum JoinRefusal {
    Mismatch { values: Vec<String> },
    Died { rank: usize, pid: u32 },
    Unproven { ranks: Vec<usize>, problem: String },
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
    pub(super) id: GroupId,
    pub(super) members: Vec<Member>,
    /// Rank 0's.
    pub(super) tuning: Tuning,
    /// This rank's.
    pub(super) endpoint: Endpoint,
}

impl Joining<'_> {
    /// Steps 1 and 2 of the protocol: an answer that every rank has accepted.
    pub(super) fn agree(&mut self) -> Result<Accepted> {
        let rank = self.join.rank;
        self.set(&self.hello_key(rank), &self.hello_claim(rank), &self.hello)?;
        fault::point(Point::NonceSet);
        loop {
            let (id, answer) = if rank == 0 { self.answer()? } else { self.accept()? };
            fault::point(Point::Answered);
            let ready = self.trust(&answer).and_then(|members| Ok((self.listen(&id, &members)?, members)));
            // A rank that cannot go on says so instead, or the others would wait for its address.
            let address = ready.as_ref().map(|(endpoint, _)| endpoint.address()).map_err(Error::to_string);
            match (self.all_accepted(&id, &answer, &address), ready) {
                (Ok(None), _) => {}
                (_, Err(error)) | (Err(error), Ok(_)) => return Err(error),
                (Ok(Some(addresses)), Ok((endpoint, mut members))) => {
                    for (member, address) in members.iter_mut().zip(addresses) {
                        member.address = address;
                    }
                    return Ok(Accepted { id, members, tuning: answer.tuning, endpoint });
                }
            }
        }
    }

    fn hello_claim(&self, rank: usize) -> Claim<'_> {
        Claim::once(SealKind::Hello, &self.join.boot, rank)
    }

    /// The id that the answer `body` leads to.
    fn id_of(&self, body: &[u8]) -> GroupId {
        GroupId::of(&[self.join.boot.as_bytes(), body])
    }

    fn listen(&self, id: &GroupId, members: &[Member]) -> Result<Endpoint> {
        self.check_hosts(members)?;
        let dir = self.join.context.config().socket_dir.as_deref();
        Endpoint::bind(self.sealer.token(id), dir, self.peers(members)?)
    }

    /// Rank 0: collects the hellos and answers them.
    fn answer(&mut self) -> Result<(GroupId, Answer)> {
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
                // Who says hello later is to get the same answer, so wait a little; a death in a fresh run
                // cannot change.
                let settled = complete || (self.join.fresh && matches!(refusal, JoinRefusal::Died { .. }));
                let patient = !settled && disagreed.get_or_insert_with(Instant::now).elapsed() < grace;
                Ok(if patient { None } else { Some(Some(refusal)) })
            })
            .map_err(|failed| {
                let missing = (0..hellos.len()).filter(|rank| hellos[*rank].is_none()).collect();
                self.failed(failed, missing)
            })?;
        let answer = Answer { salt: ids::hex(&ids::random::<16>()?), hellos, tuning, refusal };
        let body =
            serde_json::to_vec(&answer).map_err(|error| Error::invalid("answer", error.to_string()))?;
        self.publish(&self.key("answer"), &self.answer_claim(), &body)?;
        Ok((self.id_of(&body), self.heed(answer)?))
    }

    fn answer_claim(&self) -> Claim<'_> {
        Claim::once(SealKind::Answer, &self.join.boot, 0)
    }

    /// The answer that is there now, if there is one.
    fn peek_answer(&self) -> Result<Option<(GroupId, Answer)>> {
        let body = self.peek_sealed(&self.key("answer"), &self.answer_claim())?;
        let read = |body: Vec<u8>| Some((self.id_of(&body), serde_json::from_slice(&body).ok()?));
        Ok(body.and_then(read))
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

    /// Reads the hellos that are missing; also those of ranks beyond the end, if any rank thinks that there
    /// are some.
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
        let hello = self.peek_hello(rank)?;
        Ok(hello.filter(|hello| self.is_proof_of_death(hello) || !self.is_dead(hello)))
    }

    /// The hello of `rank` that is there now, if it is believed.
    fn peek_hello(&self, rank: usize) -> Result<Option<Hello>> {
        let claim = self.hello_claim(rank);
        let hello = self.peek::<Hello>(&self.hello_key(rank), &claim)?;
        if hello.as_ref().is_some_and(|hello| self.is_foreign(rank, hello)) {
            self.note(&claim, Some(Unsealed::Foreign));
            return Ok(None);
        }
        Ok(hello)
    }

    /// Whether `hello` is of another process than the one that is known to be `rank`.
    fn is_foreign(&self, rank: usize, hello: &Hello) -> bool {
        let known = self.join.known.as_ref().and_then(|known| known.get(rank));
        known.is_some_and(|known| known.process != hello.process())
    }

    /// The rank that the launcher saw die, if it saw one.
    fn gone(&self) -> Result<Option<(usize, u32)>> {
        if !self.join.fresh {
            return Ok(None);
        }
        // The launcher has no secret. A forged word ends the join, which whoever writes the store can do
        // anyway.
        let said = self.peek_bytes(&self.key(GONE))?;
        let gone = said.and_then(|said| serde_json::from_slice::<Gone>(&said).ok());
        Ok(gone.filter(|gone| gone.rank < self.join.world).map(|gone| (gone.rank, gone.pid)))
    }

    /// Why the hellos that came so far cannot become a group, if they cannot.
    fn refusal(&self, hellos: &[Option<Hello>]) -> Result<Option<JoinRefusal>> {
        if let Some((rank, pid)) = self.gone()? {
            return Ok(Some(JoinRefusal::Died { rank, pid }));
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
            return Ok(Some(JoinRefusal::Mismatch { values: values.collect() }));
        }
        let dead = said.iter().find(|(_, hello)| self.is_proof_of_death(hello));
        if let Some((rank, hello)) = dead {
            return Ok(Some(JoinRefusal::Died { rank: *rank, pid: hello.pid }));
        }
        // Under a name that others may have used, what is not believed may be a leftover that goes.
        if let Some((ranks, problem)) = self.doubt().filter(|_| self.join.fresh) {
            return Ok(Some(JoinRefusal::Unproven { ranks, problem }));
        }
        Ok(self.unproven_host(&said))
    }

    /// The refusal of ranks that say that they are on other hosts, where nothing proves them.
    fn unproven_host(&self, said: &[(usize, &Hello)]) -> Option<JoinRefusal> {
        // Where members of a group are is known.
        if self.join.known.is_some() || self.sealer.proves() || self.takes_claims() {
            return None;
        }
        let elsewhere = said.iter().filter(|(_, hello)| hello.host != self.hello.host);
        let ranks: Vec<usize> = elsewhere.map(|(rank, _)| *rank).collect();
        (!ranks.is_empty()).then(|| JoinRefusal::Unproven { ranks, problem: NO_SECRET.to_owned() })
    }

    /// Whether `hello` belongs to this attempt and its process is dead. A dead process' hello may also be a
    /// leftover that its successor is about to replace.
    fn is_proof_of_death(&self, hello: &Hello) -> bool {
        let of_this_attempt = self.join.fresh || hello.published_ns >= self.hello.published_ns;
        of_this_attempt && self.is_dead(hello)
    }

    /// Whether `hello` is of a process of this host that is dead.
    fn is_dead(&self, hello: &Hello) -> bool {
        hello.host == self.hello.host && ProcessLife::from_proc(hello.process()).is_dead()
    }

    /// Other ranks: waits for an answer with this rank's nonce.
    fn accept(&self) -> Result<(GroupId, Answer)> {
        let watch = self.no_watch();
        let key = self.key("answer");
        let mut doubted = None;
        let answer = self.terms(&watch).until(|slice| -> Result<_, Halt> {
            let waited = Instant::now();
            if slice > Duration::ZERO {
                self.nap(&[&key], slice)?;
            }
            if let Some((id, answer)) = self.peek_answer()? {
                // Nothing under a fresh name is a leftover, so a refusal there is meant for all, also for a
                // rank whose hello rank 0 had not read when it refused.
                let refused = self.join.fresh && answer.refusal.is_some();
                if refused || answer.is_for(&self.hello.nonce) {
                    return Ok(Some((id, answer)));
                }
                self.check_outsider(&answer)?;
            }
            // If the key is there, as a leftover or a forgery, then the nap above did not sleep.
            std::thread::sleep(slice.min(Duration::from_millis(5)).saturating_sub(waited.elapsed()));
            if let Some(pid) = self.gone_rank_0()? {
                return Err(Error::PeerLost { context: self.context(), rank: 0, pid }.into());
            }
            match self.doubted().filter(|_| self.join.fresh) {
                // Nothing there is a leftover, so rank 0 will not say anything better.
                Some(error) if doubted.get_or_insert_with(Instant::now).elapsed() > GRACE => {
                    Err(error.into())
                }
                _ => Ok(None),
            }
        });
        let (id, answer) = answer.map_err(|failed| self.failed(failed, vec![0]))?;
        Ok((id, self.heed(answer)?))
    }

    /// The process of rank 0, if it is known to have died.
    fn gone_rank_0(&self) -> Result<Option<u32>> {
        if let Some((0, pid)) = self.gone()? {
            return Ok(Some(pid));
        }
        let hello = self.peek_hello(0)?;
        Ok(hello.filter(|hello| self.is_proof_of_death(hello)).map(|hello| hello.pid))
    }

    /// A rank beyond the end of a living answer's group will never be answered.
    fn check_outsider(&self, answer: &Answer) -> Result<()> {
        let Some(Some(first)) = answer.hellos.first() else { return Ok(()) };
        let outside = self.join.rank >= answer.hellos.len();
        if !outside || first.host != self.hello.host || ProcessLife::from_proc(first.process()).is_dead() {
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
            Some(JoinRefusal::Mismatch { values }) => {
                Err(Error::Mismatch { context, what: FINGERPRINT, values })
            }
            Some(JoinRefusal::Died { rank, pid }) => Err(Error::PeerLost { context, rank, pid }),
            Some(JoinRefusal::Unproven { ranks, problem }) => {
                Err(Error::Unproven { context, ranks, problem })
            }
        }
    }

    /// From here on the hellos are known to be of this attempt: watch their processes.
    fn trust(&mut self, answer: &Answer) -> Result<Vec<Member>> {
        let wrong = |problem: &str| Error::invalid("answer of rank 0", problem);
        let hellos: Option<Vec<&Hello>> = answer.hellos.iter().map(Option::as_ref).collect();
        let hellos = hellos
            .filter(|hellos| hellos.len() == self.join.world)
            .ok_or_else(|| wrong("it does not name every rank"))?;
        // Staging is laid out by the number of ranks, and a tuning says what fits it.
        if answer.tuning.world() != self.join.world {
            return Err(wrong("its tuning is for another number of ranks"));
        }
        if self.join.known.is_none() && *hellos[self.join.rank] != self.hello {
            let problem = "rank 0 was shown another hello of this rank than it sent: somebody changes what is in the store";
            return Err(self.unproven(vec![self.join.rank], problem));
        }
        self.pids = hellos.iter().map(|hello| hello.pid).collect();
        let members = hellos.iter().enumerate().map(|(rank, hello)| self.member(rank, hello));
        let members = members.collect::<Result<Vec<Member>>>()?;
        self.lives = members.iter().map(|member| Arc::clone(&member.life)).collect();
        Ok(members)
    }

    /// The member that says `hello`; where it listens comes later.
    fn member(&self, rank: usize, hello: &Hello) -> Result<Member> {
        if self.is_foreign(rank, hello) {
            return Err(self.unproven(vec![rank], Unsealed::Foreign.to_string()));
        }
        if let Some(known) = &self.join.known {
            return Ok(Member { address: String::new(), ..known[rank].clone() });
        }
        let elsewhere = hello.host != self.hello.host || hello.process() == self.hello.process();
        let life = if elsewhere { ProcessLife::unknown() } else { ProcessLife::from_proc(hello.process()) };
        Ok(Member {
            process: hello.process(),
            host: hello.host.clone(),
            address: String::new(),
            life: Arc::new(life),
        })
    }

    /// Publishes this rank's address and waits for everybody's; `None` when rank 0 has answered again.
    fn all_accepted(
        &self,
        id: &GroupId,
        answer: &Answer,
        address: &Result<&str, String>,
    ) -> Result<Option<Vec<String>>> {
        let key = |rank: usize| self.key(&format!("{}/address/{rank}", id.text));
        let claim = |rank: usize| Claim::once(SealKind::Address, &id.text, rank);
        self.set(&key(self.join.rank), &claim(self.join.rank), address)?;
        let keys: Vec<String> = (0..self.join.world).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let watch = self.no_watch();
        let terms = if address.is_ok() { self.terms(&watch) } else { self.last_terms(&watch) };
        let done = terms.until(|slice| -> Result<_, Halt> {
            if slice > Duration::ZERO {
                self.nap(&keys, slice)?;
            }
            if self.join.store.check(&keys, &terms).map_err(|error| self.store_failed(error))? {
                return Ok(Some(true));
            }
            Ok(self.is_superseded(id, answer)?.then_some(false))
        });
        if !done.map_err(|failed| self.failed(failed, self.absent(&keys)))? {
            return Ok(None);
        }
        let values = self.join.store.multi_get(&keys, &terms).map_err(|error| self.store_failed(error))?;
        let read = |(rank, value): (usize, &Vec<u8>)| {
            let value = self
                .sealer
                .open(&claim(rank), value)
                .map_err(|why| self.unproven(vec![rank], why.to_string()))?;
            let said: Result<String, String> = serde_json::from_slice(value)
                .unwrap_or_else(|error| Err(format!("its address cannot be read: {error}")));
            said.map_err(|message| Error::Rank { context: self.context(), rank, message })
        };
        values.iter().enumerate().map(read).collect::<Result<Vec<String>>>().map(Some)
    }

    /// Whether `answer` rests on a leftover hello that its rank has replaced meanwhile.
    fn is_superseded(&self, id: &GroupId, answer: &Answer) -> Result<bool> {
        if self.join.fresh {
            return Ok(false);
        }
        if self.join.rank != 0 {
            let now = self.peek_answer()?;
            return Ok(now.is_some_and(|(now, answer)| now != *id && answer.is_for(&self.hello.nonce)));
        }
        for rank in 1..self.join.world {
            if self.peek_hello(rank)? != answer.hellos[rank] {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
