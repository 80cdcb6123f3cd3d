//! Comparison with other systems: every system is launched by itself, again and again, by turns.
//!
//! Never are two of them alive at once. All do the same job in the same loop ([`super::collective::race`]; a script has
//! one of its own). Ratios are between launches of one round, and the median over all rounds counts. A peer that
//! fails is named and left out.

mod job;
mod launch;
mod manifest;
mod rank;
mod rounds;
mod shim;
mod tally;

use anyhow::{Context, Result};
use serde::Serialize;

use self::manifest::{Manifest, Peer};
pub(crate) use self::rank::run as run_rank;
use self::rounds::Rounds;
use super::report::Row;
use crate::args::BenchArgs;

/// What became of a peer.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub(super) name: String,
    version: String,
    /// Why it was left out.
    failed: Option<String>,
}

/// The systems to compare with.
pub(super) struct Comparison {
    manifest: Manifest,
    peers: Vec<Peer>,
    missing: Vec<String>,
}

impl Comparison {
    /// Those that were asked for, and are there; none if none were asked for.
    pub(super) fn prepare(args: &BenchArgs) -> Result<Option<Self>> {
        if args.peers.is_empty() {
            return Ok(None);
        }
        let manifest = Manifest::find(args.peers_dir.as_deref())?;
        if args.peers.iter().any(|name| name == "all") {
            let peers = manifest.peers.clone();
            return Ok(Some(Self { manifest, peers, missing: Vec::new() }));
        }
        let find = |name: &String| manifest.peers.iter().find(|peer| peer.name == *name);
        let peers = args.peers.iter().filter_map(find).cloned().collect();
        let missing = args.peers.iter().filter(|name| find(name).is_none()).cloned().collect();
        Ok(Some(Self { manifest, peers, missing }))
    }

    /// Runs all rounds; symmem's rows become those of its launches, and the peers' rows are added behind them.
    pub(super) fn run(self, args: &BenchArgs, rows: &mut Vec<Row>) -> Result<Vec<Status>> {
        for name in &self.missing {
            eprintln!("peer {name} is not installed and left out; `cargo xtask peers` installs it");
        }
        if self.peers.is_empty() {
            eprintln!(
                "no peers are installed in {}; `cargo xtask peers` installs them",
                self.manifest.folder()
            );
            return Ok(Vec::new());
        }
        let mut rounds = Rounds::new(&self.manifest, self.peers)?;
        for ranks in &args.ranks {
            let tally = rounds.run(args, usize::from(*ranks)).context("comparing with peers")?;
            tally.enter(rows);
        }
        Ok(rounds.statuses())
    }
}
