//! Who may be a rank: what the store says is a claim, what the kernel or the job secret says is a proof.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod namespace;
mod once;
mod other_user;
mod sealed;
mod unsealed;

use std::sync::Arc;
use std::thread;

use symmem::store::{HashStore, Store};
use symmem::{Config, Error, Group, RankContext, Result};

/// Where the ranks of these tests meet, below the name they give.
const BOOT: &str = "symmem/met";

fn join(config: Config, store: &Arc<dyn Store>, rank: usize, world: usize) -> Result<Group> {
    Group::from_store_in(&RankContext::new(config), Arc::clone(store), rank, world, "met")
}

/// Runs `f` as each of `world` ranks, on threads; what each returned.
fn on_ranks<T: Send>(world: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let f = &f;
        let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || f(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

fn memory() -> Arc<dyn Store> {
    Arc::new(HashStore::new())
}

/// Checks that `outcome` is the error that these `ranks` are not proven; its text.
fn unproven<T: std::fmt::Debug>(outcome: Result<T>, ranks: &[usize]) -> String {
    match outcome {
        Err(Error::Unproven { ranks: named, problem, .. }) if named == ranks => problem,
        other => panic!("expected that ranks {ranks:?} are not proven, got {other:?}"),
    }
}
