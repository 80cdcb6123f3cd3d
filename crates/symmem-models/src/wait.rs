//! Models of the wait: whoever waits for a word that a peer stores wakes up.
//!
//! The model's futex never times out, so a wake-up that is lost is a deadlock, which loom reports.

use std::sync::Arc;

use loom::thread;

use crate::harness::{Model, holds, sleep_until};
use crate::protocol::Bell;
use crate::protocol::atomic::{AtomicU32, Ordering};

/// A rank that sleeps, and the words it waits for.
struct Sleeper<const WORDS: usize> {
    bell: Bell,
    words: [AtomicU32; WORDS],
}

impl<const WORDS: usize> Sleeper<WORDS> {
    fn new() -> Arc<Self> {
        Arc::new(Self { bell: Bell::new(), words: std::array::from_fn(|_| AtomicU32::new(0)) })
    }

    fn publish(&self, word: usize, value: u32) {
        self.words[word].store(value, Ordering::Release);
        Bell::publish_fence();
        self.bell.ring_if_waited();
    }

    fn sleep_for(&self, word: usize, value: u32) {
        sleep_until(&self.bell, || (self.words[word].load(Ordering::Acquire) >= value).then_some(()));
    }
}

/// One publisher, one word.
pub(crate) const ONE_PUBLISHER: Model = Model { run: one_publisher, preemptions: None };

fn one_publisher() {
    let sleeper = Sleeper::<1>::new();
    let publisher = Arc::clone(&sleeper);
    let publisher = thread::spawn(move || publisher.publish(0, 1));
    sleeper.sleep_for(0, 1);
    publisher.join().unwrap();
}

/// A publisher that stores again, after the sleeper may have woken up and gone back to sleep.
pub(crate) const TWICE: Model = Model { run: twice, preemptions: Some(3) };

fn twice() {
    let sleeper = Sleeper::<1>::new();
    let publisher = Arc::clone(&sleeper);
    let publisher = thread::spawn(move || {
        publisher.publish(0, 1);
        publisher.publish(0, 2);
    });
    sleeper.sleep_for(0, 1);
    sleeper.sleep_for(0, 2);
    publisher.join().unwrap();
}

/// Two publishers ring one bell: the ring for one word must not use up the ring for the other.
pub(crate) const TWO_PUBLISHERS: Model = Model { run: two_publishers, preemptions: Some(3) };

fn two_publishers() {
    let sleeper = Sleeper::<2>::new();
    let publishers = [0, 1].map(|word| {
        let publisher = Arc::clone(&sleeper);
        thread::spawn(move || publisher.publish(word, 1))
    });
    sleeper.sleep_for(0, 1);
    sleeper.sleep_for(1, 1);
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
}

/// One publisher, two ranks that wait for it: one fence serves both bells, as in a meeting.
pub(crate) const TWO_SLEEPERS: Model = Model { run: two_sleepers, preemptions: Some(3) };

fn two_sleepers() {
    let word = Arc::new(AtomicU32::new(0));
    let bells = [Arc::new(Bell::new()), Arc::new(Bell::new())];
    let sleepers = bells.clone().map(|bell| {
        let word = Arc::clone(&word);
        let seen = move || (word.load(Ordering::Acquire) == 1).then_some(());
        thread::spawn(move || sleep_until(&bell, seen))
    });
    word.store(1, Ordering::Release);
    Bell::publish_fence();
    bells.iter().for_each(|bell| bell.ring_if_waited());
    sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
}

#[test]
fn a_sleeper_wakes_up_for_a_publisher() {
    holds(ONE_PUBLISHER);
}

#[test]
fn a_sleeper_that_slept_before_wakes_up_again() {
    holds(TWICE);
}

#[test]
fn a_sleeper_wakes_up_for_each_of_two_publishers() {
    holds(TWO_PUBLISHERS);
}

#[test]
fn two_sleepers_wake_up_for_one_store() {
    holds(TWO_SLEEPERS);
}
