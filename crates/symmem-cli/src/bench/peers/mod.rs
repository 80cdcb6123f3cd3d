//! Comparison with other systems: every system is launched by itself, again and again, by turns.
//!
//! Never are two of them alive at once. All do the same job in the same loop ([`super::collective::race`]; a
//! script has one of its own). Ratios are between launches of one round, and the median over all rounds
//! counts. A peer that fails is named and left out.

mod job;
mod launch;
mod manifest;
mod rank;
mod rounds;
mod shim;
mod tally;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use self::manifest::{Manifest, Peer};
pub(crate) use self::rank::run as run_rank;
use self::rounds::Rounds;
use self::shim::{dtype_number, op_number};
use super::collective::{Case, Collective};
use super::load::Load;
use super::report::Row;
use crate::args::{BenchArgs, Condition};

/// What `cargo xtask peers` can install.
const INSTALLABLE: [&str; 6] = ["impi", "mpich", "openmpi", "gloo", "deepspeed", "vllm"];

/// What became of a peer.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub(super) name: String,
    version: String,
    /// Why it was left out.
    failed: Option<String>,
}

/// The systems to compare with.
#[derive(Default)]
pub(super) struct Comparison {
    manifest: Manifest,
    peers: Vec<Peer>,
    /// What is to be said before the first launch.
    complaints: Vec<String>,
    rounds: Option<Rounds>,
}

impl Comparison {
    /// Those that were asked for, and are there; none if none were asked for.
    pub(super) fn prepare(args: &BenchArgs) -> Result<Self> {
        if args.peers.is_empty() {
            return Ok(Self::default());
        }
        let manifest = Manifest::find(args.peers_dir.as_deref())?;
        let find = |name: &String| manifest.peers.iter().find(|peer| peer.name == *name);
        let all = args.peers.iter().any(|name| name == "all");
        let is_known =
            |name: &&String| *name == "all" || INSTALLABLE.contains(&name.as_str()) || find(name).is_some();
        if let Some(name) = args.peers.iter().find(|name| !is_known(name)) {
            let installed = manifest.peers.iter().map(|peer| peer.name.as_str());
            let mut known: Vec<_> = installed.chain(INSTALLABLE).chain(["all"]).collect();
            known.sort();
            known.dedup();
            bail!("--peers {name}: there is no such peer; there are {}", known.join(", "));
        }
        let peers: Vec<Peer> = match all {
            true => manifest.peers.clone(),
            false => args.peers.iter().filter_map(find).cloned().collect(),
        };
        let missing = args.peers.iter().filter(|name| !all && find(name).is_none());
        let absent =
            |name| format!("peer {name} is not installed and left out; `cargo xtask peers` installs it");
        let mut complaints: Vec<String> = missing.map(absent).collect();
        if peers.is_empty() {
            let folder = manifest.folder();
            complaints.push(format!("no peers are installed in {folder}; `cargo xtask peers` installs them"));
        }
        Ok(Self { manifest, peers, complaints, rounds: None })
    }

    /// Whether `case` is compared with peers, so that its rows come from launches.
    pub(super) fn compares(&self, case: &Case) -> bool {
        !self.peers.is_empty() && is_common(case)
    }

    /// Runs all rounds with `ranks` ranks; symmem's rows become those of its launches, and the peers' rows
    /// are added behind them.
    pub(super) fn run(
        &mut self,
        args: &BenchArgs,
        ranks: usize,
        condition: Condition,
        load: &Load,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        self.complaints.drain(..).for_each(|complaint| eprintln!("{complaint}"));
        if self.peers.is_empty() {
            return Ok(());
        }
        let rounds = match &mut self.rounds {
            Some(rounds) => rounds,
            none => none.insert(Rounds::new(&self.manifest, self.peers.clone())?),
        };
        let tally = rounds.run(args, ranks, condition, load).context("comparing with peers")?;
        tally.enter(rows);
        Ok(())
    }

    /// What became of the peers.
    pub(super) fn statuses(self) -> Vec<Status> {
        self.rounds.map_or_else(Vec::new, Rounds::statuses)
    }
}

/// Whether peers may have `case` too.
fn is_common(case: &Case) -> bool {
    case.op == Collective::Signal || op_number(case.op).is_some() && dtype_number(case.dtype).is_some()
}

#[cfg(test)]
mod tests {
    use super::INSTALLABLE;

    #[test]
    fn every_peer_that_can_be_installed_is_known() {
        let text = include_str!("../../../../../xtask/src/commands/peers/mod.rs");
        let table =
            text.split("const PEERS").nth(1).and_then(|rest| rest.split("];").next()).expect("a table");
        let names: Vec<_> =
            table.split("name: \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(names, INSTALLABLE);
    }
}
