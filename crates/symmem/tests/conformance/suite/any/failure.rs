//! What happens when a rank gives up, leaves, dies, does not come, or comes with something else: a typed
//! error on the others within the deadline, the same first cause on all, and the ranks that are left go on in
//! another group.

use std::time::{Duration, Instant};

use symmem::{Cause, Error, Result};

use crate::common::assert_error;
use crate::suite::any::rendezvous::check;
use crate::suite::run::{die, patience};
use crate::suite::seat::{AT_ONCE, Block, Memory, Seat};

/// Culprit and cause, once the group of `seat` has failed.
fn failed(seat: &impl Seat) -> (usize, Cause) {
    let start = Instant::now();
    loop {
        match seat.failure() {
            Some(failure) => return failure,
            None => assert!(start.elapsed() < patience(), "the group is still whole"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn an_abort_is_everybodys_first_cause<S: Seat>(seat: &S) -> Result<()> {
    let doomed = seat.again()?;
    let memory = doomed.memory::<f32>(100)?;
    let last = seat.world() - 1;
    doomed.meet()?;
    assert_eq!(doomed.failure(), None);
    seat.meet()?;
    if seat.rank() == last {
        doomed.group().abort("it was enough");
        doomed.group().abort("a second thought");
    }
    assert_eq!(failed(&doomed), (last, Cause::Aborted));
    let start = Instant::now();
    let refused = memory.barrier(0).unwrap_err();
    assert!(refused.is_group_failure() && refused.culprit() == Some(last), "{refused}");
    assert!(refused.to_string().contains("it was enough"), "{refused}");
    let refused = doomed.memory::<f32>(100).map(drop).unwrap_err();
    assert!(refused.is_group_failure(), "nobody meets on a failed group: {refused}");
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    drop((memory, doomed));
    check(seat, &mut seat.memory::<f32>(10)?)
}

/// The first to see it says so itself; others may hear it as the group's failure.
fn says_left(error: &Error, rank: usize) -> bool {
    match error {
        Error::PeerLeft { rank: who, .. } => *who == rank,
        Error::GroupFailed { culprit, cause: Cause::Left, .. } => *culprit == rank,
        _ => false,
    }
}

pub(crate) fn a_rank_that_left_is_named<S: Seat>(seat: &S) -> Result<()> {
    let doomed = seat.again()?;
    let last = seat.world() - 1;
    doomed.meet()?;
    if seat.rank() == last {
        drop(doomed);
        seat.meet()?;
    } else {
        seat.meet()?;
        let error = doomed.memory::<f32>(100).map(drop).unwrap_err();
        assert!(says_left(&error, last), "{error:?}");
        assert_eq!(failed(&doomed), (last, Cause::Left));
        drop(doomed);
    }
    check(seat, &mut seat.memory::<f32>(10)?)
}

pub(crate) fn a_rendezvous_that_a_rank_does_not_come_to_times_out<S: Seat>(seat: &S) -> Result<()> {
    let doomed = seat.with_deadline(seat.soon())?;
    let x = doomed.alloc::<f32>(100)?;
    let last = seat.world() - 1;
    seat.meet()?;
    if seat.rank() != last {
        let start = Instant::now();
        let error = x.rendezvous(&doomed).map(drop).unwrap_err();
        let is_told = match &error {
            Error::Timeout { missing, .. } => *missing == [last],
            Error::GroupFailed { culprit, cause: Cause::TimedOut, .. } => *culprit == last,
            _ => false,
        };
        assert!(is_told, "{error:?}");
        assert!(start.elapsed() < seat.soon() + AT_ONCE, "{:?}", start.elapsed());
    }
    seat.meet()?;
    assert_eq!(failed(&doomed), (last, Cause::TimedOut));
    drop((x, doomed));
    check(seat, &mut seat.memory::<f32>(10)?)
}

/// Rank 0 does another collective than the others.
pub(crate) fn ranks_that_disagree_on_what_they_do_get_the_same_error<S: Seat>(seat: &S) -> Result<()> {
    let x = seat.alloc::<f32>(100)?;
    let said = match seat.rank() {
        0 => x.rendezvous(seat).map(drop),
        _ => seat.group().barrier(),
    };
    assert_error!(&said, Error::Mismatch { values, .. } if values.len() == seat.world());
    crate::suite::any::rendezvous::unanimous(seat, &said)?;
    check(seat, &mut x.rendezvous(seat)?)
}

pub(crate) fn a_killed_rank_is_lost_for_all_survivors<S: Seat>(seat: &S) -> Result<()> {
    let (mut memory, x) = (seat.memory::<f32>(100)?, seat.alloc::<f32>(100)?);
    check(seat, &mut memory)?;
    let last = seat.world() - 1;
    if seat.rank() == last {
        die(last, "any::failure::a_killed_rank_is_lost_for_all_survivors");
    }
    let start = Instant::now();
    let error = x.rendezvous(seat).map(drop).unwrap_err();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    let is_told = match &error {
        Error::PeerLost { rank, .. } => *rank == last,
        Error::GroupFailed { culprit, .. } => *culprit == last,
        _ => false,
    };
    assert!(is_told, "{error:?}");
    assert_eq!(failed(seat).0, last);
    // Those who are left can meet.
    let left = seat.group().survivors(symmem::Deadline::after(patience()))?;
    assert_eq!((left.rank(), left.size()), (seat.rank(), last));
    Ok(())
}
