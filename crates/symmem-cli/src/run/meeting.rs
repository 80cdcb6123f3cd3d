//! Where the ranks of a job meet: who serves the store, and which ranks each node has.
//!
//! On one node that is any port of the loopback interface. On several, node 0 serves the store at the
//! master's address, every launcher writes down how many ranks it has, and reads from the others' notes which
//! ranks its own are. What is in the store is no secret, and no proof either: ranks prove themselves to each
//! other.

use std::collections::hash_map::RandomState;
use std::error::Error as StdError;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use symmem::store::{ServerLimits, Store, StoreError, TcpStore, TcpStoreServer, Wait, Watch};
use symmem::{Config, Launcher, Placement};

use crate::args::{Address, RunArgs};

const LOOPBACK: &str = "127.0.0.1";
/// torchrun's.
const PORT: u16 = 29_500;
/// After which time people are told whom this node waits for.
const NOTICE: Duration = Duration::from_secs(5);
/// How the keys of launchers begin.
pub(super) const KEYS: &str = "symmem/run";

/// This node's part of a job.
pub(super) struct Meeting {
    pub(super) launcher: Launcher,
    /// Of all nodes.
    pub(super) world: usize,
    /// The first rank of this node.
    pub(super) first: usize,
    /// How the launchers of several nodes talk.
    pub(super) store: Option<TcpStore>,
    /// Serves the store as long as it lives.
    pub(super) _server: Option<TcpStoreServer>,
}

/// What a node's launcher writes down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Note {
    ranks: usize,
    nodes: u32,
    /// Tells this launcher from another one that takes itself for the same node.
    nonce: u64,
}

/// Meets the other nodes, if there are any.
pub(super) fn meet(args: &RunArgs, ranks: usize, placement: Placement) -> Result<Meeting> {
    if args.nnodes == 1 {
        return alone(args.master.as_ref(), ranks, placement);
    }
    let master = args.master.as_ref().context("several nodes need --master: the address of node 0")?;
    let (host, port) = (master.host.as_str(), master.port.unwrap_or(PORT));
    if port == 0 {
        bail!("several nodes need a port that all of them know: --master {host}:{PORT}");
    }
    let config = Config::from_env()?;
    let serve = || {
        let limits = ServerLimits::for_world(ranks.saturating_mul(args.nnodes as usize));
        TcpStoreServer::bind(config.get_store_bind().unwrap_or(host), port, limits)
    };
    let server = (args.node_rank == 0).then(serve).transpose()?;
    // Who serves it must not depend on how others reach this machine, if that is another address.
    let own = server.as_ref().filter(|_| config.get_store_bind().is_some());
    let host = own.map_or_else(|| host.to_owned(), |server| server.own_addr().ip().to_string());
    let launcher = Launcher::new(&host, port, placement)?;
    let waiting =
        Waiting { for_whom: format!("the launcher of node 0 at {master}"), said: AtomicBool::new(false) };
    let wait = Wait::for_at_most(args.meet_within).with_watch(&waiting);
    let store = TcpStore::connect(&host, port, &wait)?;
    let notes = exchange(&store, args, ranks)?;
    let before = &notes[..args.node_rank as usize];
    let run = agree(&store, args, launcher.run_id())?;
    Ok(Meeting {
        world: notes.iter().map(|note| note.ranks).sum(),
        first: before.iter().map(|note| note.ranks).sum(),
        launcher: launcher.of_run(&run),
        store: Some(store),
        _server: server,
    })
}

fn alone(master: Option<&Address>, ranks: usize, placement: Placement) -> Result<Meeting> {
    let (host, port) =
        master.map_or((LOOPBACK, 0), |master| (master.host.as_str(), master.port.unwrap_or(0)));
    let server = TcpStoreServer::bind(host, port, ServerLimits::for_world(ranks))?;
    // "*" is where to serve, and no address to go to.
    let anywhere = server.local_addr().ip().is_unspecified();
    let host = if anywhere { server.own_addr().ip().to_string() } else { host.to_owned() };
    let launcher = Launcher::new(&host, server.port(), placement)?;
    Ok(Meeting { launcher, world: ranks, first: 0, store: None, _server: Some(server) })
}

/// Everybody's notes, by node.
fn exchange(store: &TcpStore, args: &RunArgs, ranks: usize) -> Result<Vec<Note>> {
    let nonce = RandomState::new().hash_one(std::process::id());
    let own = Note { ranks, nodes: args.nnodes, nonce };
    let (key, wait) = (note_key(args.node_rank), Wait::for_at_most(args.meet_within));
    let written = store.compare_set(&key, b"", &serde_json::to_vec(&own)?, &wait)?;
    if read_note(&written, args.node_rank)? != own {
        bail!(
            "another launcher is node {} of this job already. Hint: each node has its own --node-rank, and each job its own port",
            args.node_rank
        );
    }
    let mut notes = Vec::new();
    for node in 0..args.nnodes {
        let waiting =
            Waiting { for_whom: format!("node {node} of {}", args.nnodes), said: AtomicBool::new(false) };
        let wait = Wait::for_at_most(args.meet_within).with_watch(&waiting);
        let note = store.get(&note_key(node), &wait).map_err(|error| match error {
            StoreError::Timeout { .. } => {
                let within = args.meet_within.as_secs_f64();
                anyhow::anyhow!(
                    "node {node} of {} did not come within {within} s (--meet-within)",
                    args.nnodes
                )
            }
            error => error.into(),
        })?;
        let note = read_note(&note, node)?;
        if note.nodes != args.nnodes {
            bail!(
                "node {node} was told --nnodes {}, and this one {}: they must be the same",
                note.nodes,
                args.nnodes
            );
        }
        notes.push(note);
    }
    Ok(notes)
}

/// The id of the run, which node 0 says.
fn agree(store: &TcpStore, args: &RunArgs, own: &str) -> Result<String> {
    let (key, wait) = (format!("{KEYS}/id"), Wait::for_at_most(args.meet_within));
    if args.node_rank == 0 {
        store.set(&key, own.as_bytes(), &wait)?;
        return Ok(own.to_owned());
    }
    String::from_utf8(store.get(&key, &wait)?).context("the run id in the store is not text")
}

fn note_key(node: u32) -> String {
    format!("{KEYS}/node/{node}")
}

fn read_note(bytes: &[u8], node: u32) -> Result<Note> {
    serde_json::from_slice(bytes)
        .with_context(|| format!("what node {node} wrote into the store is not a note of symmem run"))
}

/// Tells people what takes long.
struct Waiting {
    for_whom: String,
    said: AtomicBool,
}

impl Watch for Waiting {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(())
    }

    fn still_waiting(&self, elapsed: Duration) {
        if elapsed > NOTICE && !self.said.swap(true, Ordering::Relaxed) {
            eprintln!("symmem run: waiting for {}", self.for_whom);
        }
    }
}
