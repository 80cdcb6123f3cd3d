//! Models of the ballot: whoever reads one gets all of what was cast at once, or nothing.

use std::sync::Arc;

use loom::thread;

use crate::harness::{Model, holds, spin_until};
use crate::protocol::{ALIVE_WORDS, Ballot, Sheet};

/// A sheet that shows in each of its words which one it is.
fn sheet(number: u64) -> Sheet {
    Sheet { generation: number, alive: [number; ALIVE_WORDS], port: number as u32, nonce: number }
}

/// Which sheet was read; that it is whole.
fn number_of(read: Sheet) -> u64 {
    assert_eq!(read, sheet(read.generation));
    read.generation
}

/// The owner votes `votes` times while another looks `looks` times.
// The owner is the thread that loom runs first: it loads the round before it stores it, which hides from loom
// that somebody else may have looked before. What a look may see that comes late, loom explores in full.
fn run(votes: u64, looks: usize) {
    let ballot = Arc::new(Ballot::new());
    let reader = Arc::clone(&ballot);
    let reader = thread::spawn(move || {
        let numbers: Vec<u64> = (0..looks).filter_map(|_| reader.read()).map(number_of).collect();
        assert!(numbers.is_sorted(), "assertion: a later look saw an earlier vote");
    });
    (1..=votes).for_each(|vote| ballot.cast(&sheet(vote)));
    reader.join().unwrap();
    assert_eq!(ballot.read().map(number_of), Some(votes));
}

/// One vote, one look.
pub(crate) const ONCE: Model = Model { run: || run(1, 1), preemptions: Some(3) };

/// Votes that overwrite each other under the reader.
pub(crate) const AGAIN: Model = Model { run: || run(2, 1), preemptions: Some(3) };

const LOOKS: Model = Model { run: || run(2, 2), preemptions: Some(2) };

/// Two ranks vote until each sees the other's vote.
const BOTH: Model = Model {
    run: || {
        let ballots = Arc::new([Ballot::new(), Ballot::new()]);
        let vote = |ballots: &[Ballot; 2], me: usize| {
            ballots[me].cast(&sheet(1));
            spin_until(|| ballots[1 - me].read().map(number_of).filter(|number| *number == 1));
        };
        let other = Arc::clone(&ballots);
        let other = thread::spawn(move || vote(&other, 1));
        vote(&ballots, 0);
        other.join().unwrap();
    },
    preemptions: Some(2),
};

#[test]
fn a_ballot_is_read_whole_or_not_at_all() {
    holds(ONCE);
    holds(AGAIN);
}

#[test]
fn a_later_look_sees_no_earlier_vote() {
    holds(LOOKS);
}

#[test]
fn ranks_that_vote_see_each_other() {
    holds(BOTH);
}
