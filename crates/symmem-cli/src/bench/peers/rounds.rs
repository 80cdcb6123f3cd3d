//! The rounds of a comparison: in each, every system is launched once, and nobody is always the first.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::process::Pid;

use super::job::{LaunchJob, Output, Task};
use super::launch::{JobFolder, Launch};
use super::manifest::{Kind, Manifest, Peer};
use super::tally::Tally;
use super::{Status, is_common};
use crate::args::{BenchArgs, Condition, Op};
use crate::bench::collective::{Case, Collective, cases};
use crate::bench::cores;
use crate::bench::load::Load;
use crate::bench::progress::Progress;

/// A peer, and what became of it.
struct Runner {
    peer: Peer,
    failed: Option<String>,
}

/// All systems, at the starting line.
pub(super) struct Rounds {
    folder: JobFolder,
    root: PathBuf,
    program: String,
    runners: Vec<Runner>,
}

impl Rounds {
    /// Rounds with `peers`.
    pub(super) fn new(manifest: &Manifest, peers: Vec<Peer>) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let program = program.to_str().context("this program's path is not UTF-8")?.to_owned();
        let start = |peer| Runner { peer, failed: None };
        let runners = peers.into_iter().map(start).collect();
        Ok(Self { folder: JobFolder::new()?, root: manifest.root.clone(), program, runners })
    }

    /// All rounds with `ranks` ranks. A peer that fails is said to and takes no further part, in later calls
    /// neither. Meanwhile `load` runs beside them.
    pub(super) fn run(
        &mut self,
        args: &BenchArgs,
        ranks: usize,
        condition: Condition,
        load: &Load,
    ) -> Result<Tally> {
        let Condition { pin, load: loops } = condition;
        let cores = cores::available();
        let crowded = ranks > cores.len();
        let timed_s = args.timed(loops).map(|time| time.as_secs_f64());
        let mut job = LaunchJob {
            ranks,
            pin,
            cores,
            load: loops,
            timed_s,
            memories: args.memories(),
            cases: tasks(args, ranks),
        };
        let mut tally = Tally::new(&job);
        if job.cases.is_empty() {
            return Ok(tally);
        }
        let systems = self.runners.len() + 1;
        let bar = Progress::new(args.rounds() * systems).bar(format!("{ranks} ranks beside peers"));
        let spared = load.pids();
        for round in 0..args.rounds() {
            for turn in (0..systems).map(|turn| (turn + round) % systems) {
                bar.set_message(format!("round {} of {}, {}", round + 1, args.rounds(), self.name(turn)));
                match self.launch(turn, args, &job, crowded, &spared) {
                    None => {}
                    Some(Ok(output)) => tally.add(self.name(turn), output),
                    Some(Err(error)) if turn == 0 => return Err(error.context("symmem failed")),
                    Some(Err(error)) => {
                        tally.forget(self.name(turn));
                        bar.suspend(|| eprintln!("peer {} is left out: {error:#}", self.name(turn)));
                        self.runners[turn - 1].failed = Some(format!("{error:#}"));
                    }
                }
                bar.inc(1);
            }
            // Nor is a memory always the first.
            job.memories.rotate_left(1);
        }
        bar.finish_and_clear();
        Ok(tally)
    }

    /// What became of the peers.
    pub(super) fn statuses(self) -> Vec<Status> {
        let status = |Runner { peer, failed }| Status { name: peer.name, version: peer.version, failed };
        self.runners.into_iter().map(status).collect()
    }

    /// The name of the system whose turn it is; the first is symmem.
    fn name(&self, turn: usize) -> &str {
        turn.checked_sub(1).map_or("symmem", |peer| &self.runners[peer].peer.name)
    }

    /// Launches the system whose turn it is, unless it has failed before.
    fn launch(
        &self,
        turn: usize,
        args: &BenchArgs,
        job: &LaunchJob,
        crowded: bool,
        spared: &[Pid],
    ) -> Option<Result<Output>> {
        let launch = match turn.checked_sub(1).map(|peer| &self.runners[peer]) {
            None => self.ours(),
            Some(runner) if runner.failed.is_some() => return None,
            Some(runner) => self.theirs(&runner.peer, job.ranks, crowded),
        };
        Some(launch.run(&self.folder, job, args.peer_timeout(), spared))
    }

    fn ours(&self) -> Launch {
        let command = [self.program.as_str(), "bench-rank", "--symmem"].map(str::to_owned).to_vec();
        Launch { command, env: BTreeMap::new(), root: self.root.clone() }
    }

    fn theirs(&self, peer: &Peer, ranks: usize, crowded: bool) -> Launch {
        let mut command = peer.command(ranks);
        if peer.kind == Kind::Shim {
            let shim = self.root.join(&peer.shim).to_string_lossy().into_owned();
            command.extend([self.program.clone(), "bench-rank".to_owned(), "--shim".to_owned(), shim]);
        }
        Launch { command, env: peer.env(crowded), root: self.root.clone() }
    }
}

/// The cases that peers may have too.
fn tasks(args: &BenchArgs, ranks: usize) -> Vec<Task> {
    let of = |op: &Op| match (op, Collective::of(*op)) {
        (Op::Signal, _) => vec![Case::SIGNAL],
        (_, Some(op)) => cases(args, op, ranks),
        (_, None) => Vec::new(),
    };
    let common = args.ops().iter().flat_map(of).filter(is_common);
    common.map(|case| Task { case, iters: args.launch_iters(case.bytes) }).collect()
}
