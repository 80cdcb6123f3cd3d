//! Each place that a proof relies on, removed in turn: the models must notice.
//!
//! A site that no model misses would be a site that is not needed, or a model that is too weak.

use crate::harness::{Failure, Model, failure_without};
use crate::protocol::atomic::Site;
use crate::{ballot, borrow, meeting, pad, ring, staging, wait};

/// The models that fail without `site`, and how.
fn witnesses(site: Site) -> Vec<(Model, Failure)> {
    use Failure::{Deadlock, Disorder};
    match site {
        Site::RingFence | Site::SleepFence => vec![
            (wait::ONE_PUBLISHER, Deadlock),
            (wait::TWICE, Deadlock),
            (wait::TWO_PUBLISHERS, Deadlock),
            (wait::TWO_SLEEPERS, Deadlock),
            (pad::RING, Deadlock),
            (pad::REUSE_ASLEEP, Deadlock),
            (meeting::SLEEP, Deadlock),
            (ring::ASLEEP, Deadlock),
        ],
        Site::SlotRelease | Site::SlotAcquire => {
            let meetings = [meeting::ONCE, meeting::REUSE, meeting::SLEEP, staging::PARCELS];
            meetings.into_iter().map(|model| (model, Disorder)).collect()
        }
        // Without bells. In front of a bell a fence follows every put and take: an acquire fence, which does
        // the work of the two Acquires, and loom moreover lets any two SeqCst fences order all that is around
        // them.
        Site::PutRelease | Site::TakeAcquire => vec![(pad::CARRIES_WRITES, Disorder), (pad::REUSE, Disorder)],
        Site::TakeRelease | Site::PutAcquire => vec![(pad::CARRIES_READS, Disorder), (pad::REUSE, Disorder)],
        Site::ConsumedWait => {
            let one_way = [staging::PARCELS, staging::ROOT, staging::BOTH_KINDS, staging::THREE_RANKS];
            one_way.into_iter().map(|model| (model, Disorder)).collect()
        }
        Site::BorrowAcquire => vec![
            (borrow::TWO_WRITERS, Disorder),
            (borrow::READER_AND_WRITER, Disorder),
            (borrow::LATE_READ, Disorder),
            (borrow::LATE_WRITE_WRITER, Disorder),
        ],
        Site::GiveBackRelease => vec![
            (borrow::TWO_WRITERS, Disorder),
            (borrow::READER_AND_WRITER, Disorder),
            (borrow::SUCCESS, Disorder),
            (borrow::LATE_WRITE, Disorder),
        ],
        Site::ShareAcquire => vec![
            (borrow::READER_AND_WRITER, Disorder),
            (borrow::SUCCESS, Disorder),
            (borrow::LATE_WRITE, Disorder),
        ],
        Site::UnshareRelease => vec![(borrow::READER_AND_WRITER, Disorder), (borrow::LATE_READ, Disorder)],
        Site::PoisonLook => {
            let late = [borrow::LATE_WRITE, borrow::LATE_WRITE_WRITER, borrow::LATE_READ];
            late.into_iter().map(|model| (model, Disorder)).collect()
        }
        // Only where no borrow orders poison and refusal.
        Site::PoisonRelease | Site::PoisonAcquire => vec![(borrow::CAUSE, Disorder)],
        // Without bells, as for the pad.
        Site::HeadRelease | Site::HeadAcquire => vec![(ring::ONCE, Disorder), (ring::REUSE, Disorder)],
        Site::TailRelease | Site::TailAcquire => vec![(ring::REUSE, Disorder)],
        Site::CastRelease | Site::BallotAcquire => vec![(ballot::ONCE, Disorder), (ballot::AGAIN, Disorder)],
        // A mix needs a vote that overwrites another.
        Site::CastFence | Site::BallotFence => vec![(ballot::AGAIN, Disorder)],
    }
}

fn is_missed(site: Site) {
    for (index, (model, failure)) in witnesses(site).into_iter().enumerate() {
        assert_eq!(failure_without(site, model), Some(failure), "model {index} without {site:?}");
    }
}

#[test]
fn the_publishers_fence_is_missed() {
    is_missed(Site::RingFence);
}

#[test]
fn the_sleepers_fence_is_missed() {
    is_missed(Site::SleepFence);
}

#[test]
fn the_release_of_an_announcement_is_missed() {
    is_missed(Site::SlotRelease);
}

#[test]
fn the_acquire_of_an_announcement_is_missed() {
    is_missed(Site::SlotAcquire);
}

#[test]
fn the_release_of_a_signal_is_missed() {
    is_missed(Site::PutRelease);
}

#[test]
fn the_acquire_of_a_signal_is_missed() {
    is_missed(Site::TakeAcquire);
}

#[test]
fn the_release_of_a_slot_is_missed() {
    is_missed(Site::TakeRelease);
}

#[test]
fn the_acquire_of_a_free_slot_is_missed() {
    is_missed(Site::PutAcquire);
}

#[test]
fn the_wait_for_consumed_staging_is_missed() {
    is_missed(Site::ConsumedWait);
}

#[test]
fn the_acquire_of_a_borrow_for_writing_is_missed() {
    is_missed(Site::BorrowAcquire);
}

#[test]
fn the_release_of_a_borrow_for_writing_is_missed() {
    is_missed(Site::GiveBackRelease);
}

#[test]
fn the_acquire_of_a_borrow_for_reading_is_missed() {
    is_missed(Site::ShareAcquire);
}

#[test]
fn the_release_of_a_borrow_for_reading_is_missed() {
    is_missed(Site::UnshareRelease);
}

#[test]
fn the_look_at_the_poison_after_the_borrow_is_missed() {
    is_missed(Site::PoisonLook);
}

#[test]
fn the_release_of_a_poison_is_missed() {
    is_missed(Site::PoisonRelease);
}

#[test]
fn the_acquire_of_a_poison_is_missed() {
    is_missed(Site::PoisonAcquire);
}

#[test]
fn the_release_of_a_filled_slot_is_missed() {
    is_missed(Site::HeadRelease);
}

#[test]
fn the_acquire_of_a_filled_slot_is_missed() {
    is_missed(Site::HeadAcquire);
}

#[test]
fn the_release_of_an_emptied_slot_is_missed() {
    is_missed(Site::TailRelease);
}

#[test]
fn the_acquire_of_an_emptied_slot_is_missed() {
    is_missed(Site::TailAcquire);
}

#[test]
fn the_writers_fence_of_a_ballot_is_missed() {
    is_missed(Site::CastFence);
}

#[test]
fn the_release_of_a_ballot_is_missed() {
    is_missed(Site::CastRelease);
}

#[test]
fn the_acquire_of_a_ballot_is_missed() {
    is_missed(Site::BallotAcquire);
}

#[test]
fn the_readers_fence_of_a_ballot_is_missed() {
    is_missed(Site::BallotFence);
}
