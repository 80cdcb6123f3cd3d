//! What ranks are busy with when one of them is killed.

use symmem::store::{Store, TcpStore, Wait};
use symmem::{Delivery, Group, Mailbox, ReduceOp, Result, SymmetricMemory};

use super::random::Random;
use super::rank::{Failure, Worker, all, prepare};
use super::trial::{Case, Kind, Stage, Trouble};

/// One kind of work. The first join and the regrouping are work too, and done by every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// The victim dies in the first join.
    Join,
    Subgroups,
    Twins,
    Rendezvous,
    Barriers,
    Signals,
    Copies,
    Exchange,
    /// Collectives on symmetric memory, by every algorithm.
    Symmetric,
    /// Collectives on private memory.
    Private,
    /// Gather, scatter, rows to experts, and the others that trials do not know.
    Rows,
    Started,
    Mail,
    /// A second rank dies while the others regroup.
    Survivors,
}

impl Activity {
    /// Each with how often it is chosen.
    const ALL: [(Self, &str, usize); 14] = [
        (Self::Join, "join", 5),
        (Self::Subgroups, "subgroups", 3),
        (Self::Twins, "twins", 2),
        (Self::Rendezvous, "rendezvous", 3),
        (Self::Barriers, "barriers", 1),
        (Self::Signals, "signals", 1),
        (Self::Copies, "copies", 1),
        (Self::Exchange, "exchange", 2),
        (Self::Symmetric, "symmetric", 5),
        (Self::Private, "private", 5),
        (Self::Rows, "rows", 2),
        (Self::Started, "started", 4),
        (Self::Mail, "mail", 4),
        (Self::Survivors, "survivors", 3),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(activity, ..)| *activity == self).map_or("", |(_, name, _)| name)
    }

    pub(crate) fn from_name(wanted: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name, _)| *name == wanted).map(|(activity, ..)| *activity)
    }

    pub(crate) fn random(random: &mut Random) -> Self {
        let total = Self::ALL.iter().map(|(.., weight)| weight).sum();
        let mut left = random.below(total);
        for (activity, _, weight) in Self::ALL {
            if left < weight {
                return activity;
            }
            left -= weight;
        }
        unreachable!("the weights add up")
    }

    /// Does it over and over, the same on all ranks, until something fails. Says `ready` once it has begun.
    pub(crate) fn work(self, group: &Group, seed: u64, ready: impl FnOnce()) -> Failure {
        let outcome = match self {
            Self::Symmetric | Self::Private => on_stage(self, group, seed, ready),
            Self::Rows => rows(group, ready).map_err(|error| (error, None)),
            Self::Started => started(group, seed, ready).map_err(|error| (error, None)),
            Self::Mail => mail(group, seed, ready),
            _ => self.with_worker(group, seed, ready),
        };
        match outcome {
            Err(failure) => failure,
            Ok(never) => match never {},
        }
    }

    fn with_worker(self, group: &Group, seed: u64, ready: impl FnOnce()) -> Result<Never, Failure> {
        let (memory, shared) = prepare(group)?;
        let worker = Worker { group, memory, shared };
        let mut random = Random::new(seed);
        ready();
        loop {
            match self {
                Self::Subgroups => worker.part(&random.members(group.size()))?,
                Self::Twins => worker.twin()?,
                Self::Rendezvous => worker.rendezvous()?,
                Self::Signals => worker.signals()?,
                Self::Copies => worker.copy()?,
                Self::Exchange => worker.exchange(random.below(group.size()))?,
                _ => worker.barriers()?,
            }
            // Who needed nobody, or was no member, learns it here.
            all(|| group.barrier())?;
        }
    }
}

/// Work ends with an error only.
enum Never {}

/// Trials of random collectives, by every algorithm, on two types of a round's choice.
fn on_stage(activity: Activity, group: &Group, seed: u64, ready: impl FnOnce()) -> Result<Never, Failure> {
    const BYTES: usize = 280 << 10;
    let failed = |error| (error, None);
    let mut random = Random::new(seed);
    let dtypes = [0, 1].map(|_| symmem::DType::ALL[random.below(symmem::DType::ALL.len())]);
    let mut stage = Stage::of(group, BYTES, &dtypes).map_err(failed)?;
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| kind.is_private() == (activity == Activity::Private)).collect();
    ready();
    loop {
        let kind = kinds[random.below(kinds.len())];
        let dtype = dtypes[random.below(2)];
        let algorithms = kind.collective().algorithms();
        let algorithm = algorithms.get(random.below(algorithms.len() + 1)).copied();
        let case = Case::of(kind, dtype, algorithm, &mut random, group.size(), BYTES);
        match stage.try_act(&case) {
            Ok(()) => {}
            Err(Trouble::Failed(error)) => return Err(failed(error)),
            Err(Trouble::Wrong(problem)) => panic!("{case:?}: {problem}"),
        }
    }
}

/// The collectives on symmetric memory that trials do not know.
fn rows(group: &Group, ready: impl FnOnce()) -> Result<Never> {
    const CHUNK: usize = 600;
    let (rank, world) = (group.rank(), group.size());
    let len = CHUNK * world;
    let mut memory: SymmetricMemory<u64> = group.alloc::<u64>(len)?.rendezvous(group)?;
    let chunk_of = |from: usize, to: usize| (from * 100 + to) as u64;
    memory.local_mut()?.chunks_mut(CHUNK).enumerate().for_each(|(to, chunk)| chunk.fill(chunk_of(rank, to)));
    let (mut chunk, mut rows, mut every) = (vec![0; CHUNK], vec![0; len], vec![0; len * world]);
    ready();
    for round in 0.. {
        let root = round % world;
        memory.gather(root, &mut every)?;
        memory.scatter(root, &mut chunk)?;
        assert_eq!(chunk, [chunk_of(root, rank); CHUNK]);
        let sent = memory.all_to_all_v(1, &vec![CHUNK; world], &mut rows)?;
        assert!((0..world).all(|from| rows[from * CHUNK] == chunk_of(from, rank)));
        let sent = memory.all_to_all_2d(1, &sent.splits, 1, &mut rows)?;
        memory.all_to_all_2d_offset(1, &sent.splits, &sent.offsets, &mut rows)?;
        memory.low_contention_all_gather(&mut every)?;
        assert!((0..world).all(|from| every[from * len + len - 1] == chunk_of(from, world - 1)));
        memory.low_contention_reduce_scatter(ReduceOp::Sum, &mut chunk)?;
        assert_eq!(chunk[0], (0..world).map(|from| chunk_of(from, rank)).sum::<u64>());
        memory.reduce_scatter_columns(ReduceOp::Max, world, &mut chunk)?;
    }
    unreachable!("it ends with an error only")
}

/// Every started form, one, two or three under way at once.
fn started(group: &Group, seed: u64, ready: impl FnOnce()) -> Result<Never> {
    let mut random = Random::new(seed);
    let (rank, world) = (group.rank() as u64, group.size());
    let len = 3000 * world;
    let mut memory: SymmetricMemory<u64> = group.alloc::<u64>(len)?.rendezvous(group)?;
    let mut other: SymmetricMemory<u64> = group.alloc::<u64>(len)?.rendezvous(group)?;
    let sum = (world * (world - 1) / 2) as u64;
    let op = ReduceOp::Sum;
    ready();
    loop {
        let root = random.below(world);
        memory.fill(rank)?;
        match random.below(7) {
            0 => {
                let pending = memory.start().all_reduce(op)?;
                other.fill(rank)?;
                let second = other.start().broadcast(root)?;
                let third = group.start().barrier()?;
                pending.wait()?;
                second.wait()?;
                third.wait()?;
                assert!(memory.local()?.iter().all(|value| *value == sum));
                assert!(other.local()?.iter().all(|value| *value == root as u64));
            }
            1 => assert_eq!(memory.start().all_reduce_out(op, vec![0; len])?.wait()?, vec![sum; len]),
            2 => drop(memory.start().reduce(op, root, vec![0; len])?.wait()?),
            3 => {
                let scattered = memory.start().reduce_scatter(op, vec![0; len / world])?;
                let gathered = memory.start().all_gather(vec![0; len * world])?;
                assert_eq!(scattered.wait()?, vec![sum; len / world]);
                assert_eq!(gathered.wait()?[len * (world - 1)], world as u64 - 1);
            }
            4 => drop(memory.start().all_to_all(vec![0; len])?.wait()?),
            5 => {
                let reduced = group.start().all_reduce(op, vec![rank; len])?;
                let told = group.start().broadcast_into(root, vec![rank; len])?;
                assert_eq!(reduced.wait()?, vec![sum; len]);
                assert_eq!(told.wait()?, vec![root as u64; len]);
            }
            _ => {
                let gathered = group.start().all_gather_into(vec![rank; 50], vec![0; 50 * world])?;
                let scattered = group.start().reduce_scatter(op, vec![rank; len], vec![0; len / world])?;
                let moved = group.start().all_to_all(vec![rank; len], vec![0; len])?;
                drop(group.start().reduce(op, root, vec![rank; len])?.wait()?);
                drop((gathered.wait()?, moved.wait()?));
                assert_eq!(scattered.wait()?, vec![sum; len / world]);
            }
        }
    }
}

/// Everybody sends everybody messages of all sizes, in batches and one by one.
fn mail(group: &Group, seed: u64, ready: impl FnOnce()) -> Result<Never, Failure> {
    let told = |error| (error, None);
    let mailbox = Mailbox::new(group).map_err(told)?;
    ready();
    let Err(error) = exchange_mail(&mailbox, group, seed);
    // A death fails those who wait for that rank and does not end the group: others may wait for us. So end
    // it.
    let _ = group.barrier();
    Err(told(error))
}

fn exchange_mail(mailbox: &Mailbox, group: &Group, seed: u64) -> Result<Never> {
    let mut script = Random::new(seed);
    let (rank, world) = (group.rank(), group.size());
    loop {
        let len = [0, 3, 1000, 40_000, 300_000][script.below(5)];
        let peers: Vec<usize> = (1..world).map(|step| (rank + step) % world).collect();
        match script.below(3) {
            0 => {
                mailbox.send(group.next(), 1, &vec![rank as u8; len])?;
                receive(mailbox, group.prev(), len)?;
            }
            _ => {
                let send = |peer: &usize| mailbox.send_start(*peer, 1, vec![rank as u8; len]);
                let sent = peers.iter().map(send).collect::<Result<Vec<_>>>()?;
                peers.iter().rev().try_for_each(|peer| receive(mailbox, *peer, len))?;
                sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
            }
        }
    }
}

fn receive(mailbox: &Mailbox, from: usize, len: usize) -> Result<()> {
    let mut out = vec![0xee; len];
    assert_eq!(mailbox.receive(from, 1, &mut out)?, Delivery { source: from, tag: 1, note: 0, bytes: len });
    assert!(out.iter().all(|byte| *byte == from as u8));
    Ok(())
}

/// Waits until every one of `ranks` has said hello or has joined: nobody but a launcher can notice the death
/// of a rank that has not said a word.
pub(crate) fn wait_until_known(store: &TcpStore, ranks: usize, wait: &Wait<'_>) -> bool {
    let names = |rank: usize| [format!("/hello/{rank}"), format!("joined/{rank}")];
    let mut known = vec![false; ranks];
    while !wait.deadline().expired() {
        let Ok(keys) = store.list_keys(wait) else { return false };
        for (rank, known) in known.iter_mut().enumerate() {
            *known |= keys.iter().any(|key| names(rank).iter().any(|name| key.ends_with(name)));
        }
        if known.iter().all(|known| *known) {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    false
}
