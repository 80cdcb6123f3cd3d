//! What ranks say to each other through a store when they join, said wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tampering::Tampering;
use crate::Result;
use crate::config::Config;
use crate::group::{Group, RankContext};
use crate::numeric::ReduceOp;

/// How long a rank of a disturbed join waits: most of them end in a timeout, and the fuzzer waits for each.
const TIMEOUT: Duration = Duration::from_millis(60);
/// How much longer than its timeout a join may take, on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

/// Any bytes in the place of a hello, an answer, an address, a vote, or what a rank brings to a rendezvous.
pub(super) fn values(bytes: &[u8]) {
    crate::group::fuzz_values(bytes);
    crate::memory::fuzz_request(bytes);
}

/// Everything that ranks write when all is well.
pub(super) fn values_seeds() -> Vec<Vec<u8>> {
    let store = Tampering::new(&[]);
    let _ = meet(&store, SLACK);
    let request = br#"{"bytes":4000,"pad_bytes":2048,"dtype":"f32","provider":"shm","offset":0,"shape":[1000],"nothing":false,"error":null}"#;
    store.written().into_iter().chain([request.to_vec()]).collect()
}

/// Two ranks that join and work through a store that changes what they read: both get a group or an error in
/// time.
pub(super) fn store(bytes: &[u8]) {
    let start = Instant::now();
    let _ = meet(&Tampering::new(bytes), TIMEOUT);
    assert!(start.elapsed() < SLACK, "a join with a bad store took {:?}", start.elapsed());
}

/// Edits of every kind to every part of a join.
pub(super) fn store_seeds() -> Vec<Vec<u8>> {
    let edit = |part: u8, kind: u8, at: u16, bytes: &[u8]| {
        [&[part, kind][..], &at.to_le_bytes(), &[bytes.len() as u8], bytes].concat()
    };
    let texts: [&[u8]; 4] = [b"0", b"18446744073709551615", b"null", b"{\"rank\":7,\"pid\":1}"];
    // Few: each takes as long as a join may.
    let all = (0..5).flat_map(|part| (0..6).map(move |kind| (part, kind)));
    all.map(|(part, kind)| edit(part, kind, 40, texts[usize::from(part + kind) % texts.len()])).collect()
}

/// Two ranks, as threads, that join in `store`, reduce something and part.
fn meet(store: &Tampering, timeout: Duration) -> Result<()> {
    std::thread::scope(|scope| {
        let start = |rank| scope.spawn(move || take_part(store, rank, timeout));
        let ranks = [0, 1].map(start);
        ranks.into_iter().try_for_each(|rank| rank.join().expect("a rank returns, whatever it reads"))
    })
}

fn take_part(store: &Tampering, rank: usize, timeout: Duration) -> Result<()> {
    let context = RankContext::new(Config::from_env()?.timeout(timeout).tuning(None));
    let group = Group::from_store_in(&context, Arc::new(store.clone()), rank, 2, "fuzz")?;
    // Sizes at which a wrong tuning would choose what does not fit.
    for len in [1, 60, 4000, 40_000] {
        let mut sum = vec![rank as u64; len];
        group.all_reduce(ReduceOp::Sum, &mut sum)?;
        assert!(sum.iter().all(|sum| *sum == 1), "{len} elements: a wrong sum");
    }
    let mut memory = group.alloc::<u64>(9000)?.rendezvous(&group)?;
    memory.fill(rank as u64)?;
    memory.all_reduce(ReduceOp::Sum)?;
    assert!(memory.local()?.iter().all(|sum| *sum == 1), "a wrong sum");
    memory.close()
}
