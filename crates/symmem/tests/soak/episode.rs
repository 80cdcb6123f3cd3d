//! One episode: some ranks, as threads or processes, and what they do.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use symmem::{DType, Delivery, Group, Mailbox, ProcessSpawner, ReduceOp, Result};

use super::growth::Growth;
use super::random::Random;
use super::traces::Holdings;
use super::trial::{Case, Kind, Stage, dawdle};

/// The call that ranks as processes are started for.
const CALL: &str = "soak";
/// What a rank's process is told.
const EPISODE: &str = "SYMMEM_SOAK_EPISODE";
/// Most bytes of a call: staging and a little more.
const BYTES: usize = 280 << 10;
/// Calls between two looks at the clock, and between two groups.
const BATCH: usize = 60;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Episode {
    ranks: usize,
    processes: bool,
    seed: u64,
    time: Duration,
}

/// What an episode did.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    episodes: u64,
    calls: u64,
    groups: u64,
    letters: u64,
    /// Most MiB that were resident in a process.
    peak: usize,
}

impl Done {
    pub(crate) fn add(&mut self, other: &Self) {
        self.episodes += other.episodes.max(1);
        self.calls += other.calls;
        self.groups += other.groups;
        self.letters += other.letters;
        self.saw(other.peak);
    }

    /// So many MiB were resident in a process.
    pub(crate) fn saw(&mut self, resident: usize) {
        self.peak = self.peak.max(resident);
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { episodes, calls, groups, letters, peak } = self;
        if *episodes > 0 {
            write!(f, "{episodes} episodes, ")?;
        }
        write!(f, "{calls} collectives, {letters} messages, {groups} groups")?;
        // Ranks that are threads are not asked: their process is.
        if *peak > 0 { write!(f, ", at most {peak} MiB resident") } else { Ok(()) }
    }
}

impl Episode {
    pub(crate) fn random(random: &mut Random, time: Duration) -> Self {
        Self { ranks: 2 + random.below(5), processes: random.below(2) == 0, seed: random.next(), time }
    }

    /// The episode that this process is a rank of, if it is one.
    pub(crate) fn of_this_process() -> Option<Self> {
        serde_json::from_str(&std::env::var(EPISODE).ok()?).ok()
    }

    pub(crate) fn name(&self) -> String {
        let kind = if self.processes { "processes" } else { "threads" };
        format!("{} {kind} for {:.0} s", self.ranks, self.time.as_secs_f64())
    }

    /// Runs it; in a rank's process this does not return.
    pub(crate) fn run(&self) -> Result<Done, String> {
        let ran = if self.processes {
            let told = serde_json::to_string(self).map_err(|error| error.to_string())?;
            let spawner = ProcessSpawner::new(CALL, self.ranks).env(EPISODE, told);
            spawner.run(|group| self.act(&group))
        } else {
            symmem::spawn(self.ranks, |group| self.act(&group))
        };
        Ok(ran.map_err(|error| error.to_string())?[0])
    }

    /// One rank's part.
    fn act(&self, group: &Group) -> Result<Done> {
        let mut script = Random::new(self.seed);
        let mut own = Random::new(self.seed ^ (group.rank() as u64 + 1) << 32);
        let end = Instant::now() + self.time;
        let mut done = Done::default();
        let mut growth = Growth::default();
        let mut first = None;
        // From here on the group has the helper that it keeps.
        start_some(group, &mut script)?;
        while group.broadcast(0, &u8::from(Instant::now() < end))? == 1 {
            self.batch(group, &mut script, &mut own, &mut done)?;
            if self.processes {
                // Everything a batch made is gone, so this rank holds no more than it held after an earlier
                // one.
                let held = first.get_or_insert_with(Holdings::now);
                let holds = Holdings::at_most(*held);
                assert!(holds.is_within(*held), "rank {}: {held:?} became {holds:?}", group.rank());
                *held = holds;
                growth.look().unwrap_or_else(|problem| panic!("rank {}: {problem}", group.rank()));
            }
        }
        done.peak = growth.peak();
        Ok(done)
    }

    /// Makes a group of some ranks, and works on it and on the one of all in turn.
    fn batch(&self, group: &Group, script: &mut Random, own: &mut Random, done: &mut Done) -> Result<()> {
        let dtypes = [0; 3].map(|_| DType::ALL[script.below(DType::ALL.len())]);
        let members = script.members(group.size());
        let name = ["part", "other"][script.below(2)];
        let part = members.contains(&group.rank()).then(|| group.subgroup(&members, name)).transpose()?;
        let twin = (script.below(4) == 0).then(|| group.try_clone()).transpose()?;
        let whole = twin.as_ref().unwrap_or(group);
        let mut whole_stage = Stage::of(whole, BYTES, &dtypes)?;
        let mut part_stage = part.as_ref().map(|part| Stage::of(part, BYTES, &dtypes)).transpose()?;
        for _ in 0..BATCH {
            let on_whole = script.below(2) == 0;
            let size = if on_whole { group.size() } else { members.len() };
            let case = random_case(script, size, &dtypes);
            dawdle(own);
            match &mut part_stage {
                _ if on_whole => whole_stage.act(&case),
                Some(stage) => stage.act(&case),
                None => {}
            }
        }
        done.letters += send_letters(whole, script)?;
        start_some(whole, script)?;
        part_stage.map(Stage::close).transpose()?;
        whole_stage.close()?;
        done.calls += BATCH as u64;
        done.groups += 1 + u64::from(twin.is_some());
        Ok(())
    }
}

/// Any call on one of `dtypes`.
fn random_case(script: &mut Random, world: usize, dtypes: &[DType]) -> Case {
    let kind = Kind::ALL[script.below(Kind::ALL.len())];
    let algorithms = kind.collective().algorithms();
    let algorithm = algorithms.get(script.below(algorithms.len() + 1)).copied();
    Case::of(kind, dtypes[script.below(dtypes.len())], algorithm, script, world, BYTES)
}

/// Everybody sends everybody a message and checks what comes; returns how many came.
fn send_letters(group: &Group, script: &mut Random) -> Result<u64> {
    let mailbox = Mailbox::new(group)?;
    let (rank, world) = (group.rank(), group.size());
    let len = [0, 5, 3000, 70_000, 400_000][script.below(5)];
    let letter = |from: usize| vec![from as u8 ^ len as u8; len];
    let peers: Vec<usize> = (1..world).map(|step| (rank + step) % world).collect();
    let sent =
        peers.iter().map(|peer| mailbox.send_start(*peer, 7, letter(rank))).collect::<Result<Vec<_>>>()?;
    for peer in peers.iter().rev() {
        let mut out = vec![0; len];
        assert_eq!(
            mailbox.receive(*peer, 7, &mut out)?,
            Delivery { source: *peer, tag: 7, note: 0, bytes: len }
        );
        assert_eq!(out, letter(*peer), "a message of rank {peer}");
    }
    sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
    Ok(peers.len() as u64)
}

/// Two started operations at once.
fn start_some(group: &Group, script: &mut Random) -> Result<()> {
    let (rank, world) = (group.rank() as u64, group.size() as u64);
    let (len, root) = (1 + script.below(30_000), script.below(group.size()));
    let sum = group.start().all_reduce(ReduceOp::Sum, vec![rank; len])?;
    let told = group.start().broadcast_into(root, vec![rank; len])?;
    assert_eq!(sum.wait()?, vec![world * (world - 1) / 2; len]);
    assert_eq!(told.wait()?, vec![root as u64; len]);
    Ok(())
}
