//! A rank's part in the kill suite: work until somebody dies, say whom it blames, regroup, and clean up.

// The survey of kills uses a part of it.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use symmem::store::{Store, TcpStore, Wait};
use symmem::tuning::{Algorithm, Collective};
use symmem::{Deadline, Error, Group, ReduceOp, Result, SymmetricMemory};

use super::random::Random;
use super::traces::Holdings;

/// Says that a process is a rank of a case, and which.
pub(crate) const ORDER: &str = "SYMMEM_KILL_ORDER";
/// Starts the line of a rank's output that holds its report.
pub(crate) const REPORT: &str = "report of a survivor: ";

/// Longer than anything here takes when all is well, and shorter than the groups' deadline.
const LONG: Duration = Duration::from_secs(20);
/// Elements of the memory that is copied: 4 MiB.
const LEN: usize = 1 << 19;
/// Elements of the memory that collectives work on: more than a piece of the pipeline.
const SHARED: usize = 40_000;

/// What a rank is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) ranks: usize,
    pub(crate) victim: usize,
    pub(crate) seed: u64,
    /// Does collectives and nothing else.
    pub(crate) only_collectives: bool,
    /// The launcher's store.
    pub(crate) port: u16,
}

/// What a survivor says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// When it first called the library.
    pub(crate) called_ns: u64,
    pub(crate) blame: Blame,
    pub(crate) before: Holdings,
    pub(crate) after: Holdings,
}

/// The first error a survivor got.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Blame {
    pub(crate) at_ns: u64,
    /// Whether it is one of the errors that tell of a death.
    pub(crate) tells_of_a_death: bool,
    /// The culprit, as a rank of the world.
    pub(crate) culprit: Option<usize>,
    pub(crate) message: String,
    pub(crate) op: String,
}

/// Time that all processes share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Blame {
    /// `members` are the ranks of the group that `error` is about.
    pub(crate) fn new(error: &Error, members: &[usize]) -> Self {
        let at_ns = now_ns();
        let op = match error {
            Error::PeerLost { context, .. } | Error::GroupFailed { context, .. } => Some(context.op),
            _ => None,
        };
        // The one error of a subgroup's making that is about the group it is made from.
        let about_the_world = op == Some("subgroup");
        let in_world = |rank| if about_the_world { Some(rank) } else { members.get(rank).copied() };
        let culprit = error.culprit().and_then(in_world);
        let op_name = op.unwrap_or_default().to_owned();
        Self { at_ns, tells_of_a_death: op.is_some(), culprit, message: error.to_string(), op: op_name }
    }
}

impl Order {
    /// What this process is told, if it is a rank of a case.
    pub(crate) fn from_env() -> Option<Self> {
        Some(serde_json::from_str(&std::env::var(ORDER).ok()?).unwrap())
    }

    /// Lives and reports, or dies.
    pub(crate) fn carry_out(&self) {
        let before = Holdings::now();
        let called_ns = now_ns();
        let blame = self.live(called_ns);
        let after = Holdings::settled(before);
        let report = Report { called_ns, blame, before, after };
        println!("\n{REPORT}{}", serde_json::to_string(&report).unwrap());
    }

    /// Works until somebody dies, then goes on without; nothing of it is left at the end.
    fn live(&self, called_ns: u64) -> Blame {
        let wait = Wait::for_at_most(LONG);
        let store = TcpStore::connect("127.0.0.1", self.port, &wait).unwrap();
        let rank = std::env::var("RANK").unwrap().parse().unwrap();
        let everybody: Vec<usize> = (0..self.ranks).collect();
        let (group, blame) = match Group::from_env() {
            Ok(group) => {
                store.set(&format!("joined/{rank}"), b"", &wait).unwrap();
                let blame = work(&group, self.seed, self.only_collectives);
                (Some(group), blame)
            }
            Err(error) => (None, Blame::new(&error, &everybody)),
        };
        // Shown when something goes wrong later.
        eprintln!("rank {rank} since {called_ns}: {blame:?}");
        verify(&self.regroup(group, rank, store), self.ranks - 1).unwrap();
        blame
    }

    /// The survivors' new group. A death during the very first join may leave some with a group and others
    /// without; then they all meet in the launcher's store, where the dead rank's place is taken by the next
    /// one.
    pub(crate) fn regroup(&self, group: Option<Group>, rank: usize, store: TcpStore) -> Group {
        let wait = Wait::for_at_most(LONG);
        let survivors: Vec<usize> = (0..self.ranks).filter(|rank| *rank != self.victim).collect();
        let key = |rank: &usize| format!("has-a-group/{rank}");
        store.set(&key(&rank), &[u8::from(group.is_some())], &wait).unwrap();
        let keys: Vec<String> = survivors.iter().map(key).collect();
        let have = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>(), &wait).unwrap();
        match group.filter(|_| have.iter().all(|has| has == &[1])) {
            Some(group) => group.survivors(Deadline::after(LONG)).unwrap(),
            None => {
                let place = survivors.iter().position(|survivor| *survivor == rank).unwrap();
                Group::from_store(Arc::new(store), place, survivors.len(), "regroup").unwrap()
            }
        }
    }
}

/// A barrier and a read of every peer, on memory allocated again.
pub(crate) fn verify(group: &Group, ranks: usize) -> Result<()> {
    assert_eq!(group.size(), ranks);
    let mut memory = group.alloc::<u64>(1000)?;
    memory.fill(group.rank() as u64 + 7)?;
    let memory = memory.rendezvous(group)?;
    memory.barrier(0)?;
    for peer in 0..ranks {
        assert_eq!(memory.peer(peer)?.read(999)?, peer as u64 + 7);
    }
    memory.close()
}

/// Does everything a group can do, in an order that is the same on all ranks, until something fails.
fn work(group: &Group, seed: u64, only_collectives: bool) -> Blame {
    let everybody: Vec<usize> = (0..group.size()).collect();
    let mut random = Random::new(seed);
    let outcome: Result<(), Failure> = prepare(group).and_then(|(memory, shared)| {
        let mut worker = Worker { group, memory, shared };
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            match random.below(9) {
                _ if only_collectives => worker.collectives(&mut random)?,
                0 => worker.part(&random.members(group.size()))?,
                1 => worker.twin()?,
                2 => worker.rendezvous()?,
                3 => worker.barriers()?,
                4 => worker.signals()?,
                5 => worker.copy()?,
                6 | 7 => worker.collectives(&mut random)?,
                _ => worker.exchange(random.below(group.size()))?,
            }
        }
        panic!("nobody died");
    });
    let Err((error, members)) = outcome else { unreachable!("the loop ends with an error only") };
    Blame::new(&error, members.as_ref().unwrap_or(&everybody))
}

/// An error, with the members of its group unless that is everybody.
pub(crate) type Failure = (Error, Option<Vec<usize>>);

/// Memory that holds the rank's number, and memory for collectives.
pub(crate) fn prepare(group: &Group) -> Result<(SymmetricMemory<u64>, SymmetricMemory<u64>), Failure> {
    let run = || {
        let mut memory = group.alloc::<u64>(LEN)?;
        memory.fill(group.rank() as u64)?;
        Ok((memory.rendezvous(group)?, group.alloc::<u64>(SHARED)?.rendezvous(group)?))
    };
    run().map_err(|error| (error, None))
}

pub(crate) struct Worker<'a> {
    pub(crate) group: &'a Group,
    pub(crate) memory: SymmetricMemory<u64>,
    pub(crate) shared: SymmetricMemory<u64>,
}

impl Worker<'_> {
    /// A subgroup of `members`, in which the others take no part.
    pub(crate) fn part(&self, members: &[usize]) -> Result<(), Failure> {
        if !members.contains(&self.group.rank()) {
            return Ok(());
        }
        let run = || {
            let part = self.group.subgroup(members, "part")?;
            assert_eq!(part.all_gather(&self.group.rank())?, members);
            part.barrier()
        };
        run().map_err(|error| (error, Some(members.to_vec())))
    }

    /// A second group of everybody.
    pub(crate) fn twin(&self) -> Result<(), Failure> {
        all(|| {
            let twin = self.group.try_clone()?;
            twin.barrier()?;
            verify(&twin, self.group.size())
        })
    }

    pub(crate) fn rendezvous(&self) -> Result<(), Failure> {
        all(|| verify(self.group, self.group.size()))
    }

    pub(crate) fn barriers(&self) -> Result<(), Failure> {
        all(|| (0..200).try_for_each(|_| self.memory.barrier(1).and_then(|()| self.group.barrier())))
    }

    pub(crate) fn signals(&self) -> Result<(), Failure> {
        let (group, memory) = (self.group, &self.memory);
        let round = |_| memory.put_signal(group.next(), 2).and_then(|()| memory.wait_signal(group.prev(), 2));
        all(|| (0..200).try_for_each(round))
    }

    pub(crate) fn copy(&self) -> Result<(), Failure> {
        let mut copied = vec![u64::MAX; LEN];
        let next = self.group.next();
        all(|| (0..5).try_for_each(|_| self.memory.get(next, 0, &mut copied)))?;
        assert!(copied.iter().all(|value| *value == next as u64));
        Ok(())
    }

    pub(crate) fn exchange(&self, root: usize) -> Result<(), Failure> {
        let (rank, ranks) = (self.group.rank(), self.group.size());
        // Longer than a round of the exchange can carry.
        let long = vec![rank as u8; 40_000];
        let everybody: Vec<usize> = (0..ranks).collect();
        let round = |_| {
            assert_eq!(self.group.all_gather(&rank)?, everybody);
            assert_eq!(self.group.broadcast_bytes(root, &long)?, vec![root as u8; long.len()]);
            assert_eq!(self.group.all_gather_bytes(&long)?.len(), ranks);
            Ok(())
        };
        all(|| (0..20).try_for_each(round))
    }
}

/// Collectives by every algorithm, each with a result that is checked.
impl Worker<'_> {
    fn collectives(&mut self, random: &mut Random) -> Result<(), Failure> {
        all(|| (0..15).try_for_each(|_| self.collective(random)))
    }

    fn collective(&mut self, random: &mut Random) -> Result<()> {
        let (rank, ranks) = (self.group.rank() as u64, self.group.size() as u64);
        let algorithm = Algorithm::ALL[random.below(Algorithm::ALL.len())];
        let len =
            [1 + random.below(60), 1 + random.below(4000), SHARED - random.below(1000)][random.below(3)];
        let (root, first) = (random.below(self.group.size()), random.next() >> 8);
        let sum = first * ranks + ranks * (ranks - 1) / 2;
        let call = random.below(6);
        let collectives =
            [Collective::Broadcast, Collective::AllReduce, Collective::Reduce, Collective::AllReduceOut];
        let forced = self.shared.using(algorithm).slice(..len)?;
        // What the algorithm cannot carry goes by size.
        let mut memory = match collectives.get(call).map(|collective| forced.algorithm(*collective)) {
            Some(Ok(_)) => forced,
            _ => self.shared.slice(..len)?,
        };
        memory.fill(first + rank)?;
        let mut out = vec![first + rank; len];
        let expected = match call {
            0 => memory.broadcast(root).map(|()| first + root as u64)?,
            1 => memory.all_reduce(ReduceOp::Sum).map(|()| sum)?,
            2 => {
                memory.reduce(ReduceOp::Sum, root, &mut out)?;
                assert!(root as u64 != rank || out.iter().all(|value| *value == sum));
                first + rank
            }
            3 => {
                memory.all_reduce_out(ReduceOp::Sum, &mut out)?;
                assert!(out.iter().all(|value| *value == sum));
                first + rank
            }
            4 => {
                let mut all = vec![0; len * self.group.size()];
                self.group.all_gather_into(&out, &mut all)?;
                let right =
                    |(rank, part): (usize, &[u64])| part.iter().all(|value| *value == first + rank as u64);
                assert!(all.chunks(len).enumerate().all(right));
                first + rank
            }
            _ => {
                self.group.all_reduce(ReduceOp::Sum, &mut out)?;
                assert!(out.iter().all(|value| *value == sum));
                first + rank
            }
        };
        assert!(memory.local()?.iter().all(|value| *value == expected));
        Ok(())
    }
}

pub(crate) fn all(run: impl FnOnce() -> Result<()>) -> Result<(), Failure> {
    run().map_err(|error| (error, None))
}
