//! Aborts, leaving, cancelling, deadlines: who learns what, and what can go on.

use std::thread;
use std::time::{Duration, Instant};

use symmem::{CancelToken, Cause, Deadline, Error, Group, Result};

use crate::common::{AT_ONCE, PATIENCE, assert_error};

/// What `op` gives, and that it did not take long: its own deadline is far away.
fn at_once<T>(op: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = op();
    assert!(start.elapsed() < AT_ONCE, "took {:.1?}", start.elapsed());
    outcome
}

pub(crate) fn an_abort_reaches_waiting_ranks_with_culprit_and_reason(group: &Group) -> Result<()> {
    let doomed = group.try_clone()?;
    let culprit = group.size() - 1;
    assert_eq!(doomed.failure(), None);
    group.barrier()?;
    if group.rank() == culprit {
        doomed.abort("the tests say so");
    }
    assert_error!(at_once(|| doomed.barrier()), Error::GroupFailed { culprit: who, cause: Cause::Aborted, reason, .. }
        if who == culprit && reason == "the tests say so");
    assert_eq!(doomed.failure(), Some((culprit, Cause::Aborted)));
    assert_error!(doomed.all_gather(&0u8), Error::GroupFailed { .. });
    group.barrier()
}

pub(crate) fn the_first_abort_stands(group: &Group) -> Result<()> {
    let doomed = group.try_clone()?;
    if group.rank() == 0 {
        doomed.abort("first");
        doomed.abort("a second thought");
    }
    group.barrier()?;
    if group.rank() != 0 {
        doomed.abort("too late");
    }
    group.barrier()?;
    assert_error!(doomed.barrier(), Error::GroupFailed { culprit: 0, reason, .. } if reason == "first");
    group.barrier()
}

/// Whether `error` says that `rank` left: the first to see it says so, the others hear it as the group's
/// failure.
fn says_left(error: &Error, rank: usize) -> bool {
    match error {
        Error::PeerLeft { rank: who, .. } => *who == rank,
        Error::GroupFailed { culprit, cause: Cause::Left, .. } => *culprit == rank,
        _ => false,
    }
}

pub(crate) fn who_waits_for_a_rank_that_left_learns_it_at_once(group: &Group) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let left = group.try_clone()?.within(Duration::from_secs(60));
    let leaver = group.size() / 2;
    if group.rank() == leaver {
        drop(left);
    } else {
        let error = at_once(|| left.barrier()).unwrap_err();
        assert!(says_left(&error, leaver), "{error:?}");
        assert_eq!(left.failure(), Some((leaver, Cause::Left)));
    }
    group.barrier()
}

pub(crate) fn a_rank_that_left_harms_nobody_who_does_not_need_it(group: &Group) -> Result<()> {
    if group.size() < 3 {
        return Ok(());
    }
    let left = group.try_clone()?;
    let mem = left.alloc::<u32>(4)?.rendezvous(&left)?;
    let leaver = group.size() - 1;
    if group.rank() == leaver {
        drop((mem, left));
        return group.barrier();
    }
    group.barrier()?;
    // The leaver's own memory stays readable, and the others' signals go on.
    assert_eq!(mem.peer(leaver)?.read(0)?, 0);
    match group.rank() {
        0 => mem.put_signal(1, 0),
        1 => mem.wait_signal(0, 0),
        _ => Ok(()),
    }
}

pub(crate) fn memory_of_a_failed_group_is_poisoned_and_can_be_salvaged(group: &Group) -> Result<()> {
    let doomed = group.try_clone()?;
    let mut x = group.alloc::<u32>(16)?;
    x.fill(group.rank() as u32 + 5)?;
    let mut mem = x.rendezvous_at(&doomed, 4)?;
    mem.barrier(0)?;
    if group.rank() == 0 {
        doomed.abort("spoilt");
    }
    assert_error!(mem.barrier(0), Error::GroupFailed { .. });
    assert_error!(x.local(), Error::Poisoned { cause, .. } if cause.contains("spoilt"));
    assert_error!(x.local_mut(), Error::Poisoned { .. });
    assert_error!(mem.local_mut(), Error::Poisoned { .. });
    assert_error!(x.rendezvous(group), Error::Rank { message, .. } if message.contains("poisoned"));
    assert_eq!(x.salvage(), [group.rank() as u32 + 5; 16]);
    assert_eq!(mem.salvage(), [group.rank() as u32 + 5; 12]);
    // Others' memory is untouched by that.
    let fine = group.alloc::<u32>(16)?.rendezvous(group)?;
    fine.close()
}

/// Cancels `token` once this rank is inside an operation of `group`; gives the operation's outcome.
fn cancelled_inside<T: Send>(
    group: &Group,
    token: &CancelToken,
    op: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let before = group.counters().ops;
    thread::scope(|scope| {
        let op = scope.spawn(|| op().map_err(|error| (error, Instant::now())));
        while group.counters().ops == before {
            thread::yield_now();
        }
        let cancelled = Instant::now();
        token.cancel();
        op.join().expect("the waiting thread").map_err(|(error, at)| {
            assert!(at.saturating_duration_since(cancelled) < AT_ONCE);
            error
        })
    })
}

pub(crate) fn a_cancelled_wait_ends_soon_and_names_who_cancelled(group: &Group) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let doomed = group.try_clone()?;
    let token = CancelToken::new();
    if group.rank() == 0 {
        let patient = doomed.cancelled_by(&token);
        assert_error!(cancelled_inside(&doomed, &token, || patient.barrier()), Error::Cancelled { .. });
    }
    group.barrier()?;
    // Others must not wait for a rank that has given up on the meeting.
    assert_error!(doomed.barrier(), Error::GroupFailed { culprit: 0, cause: Cause::Cancelled, .. });
    group.barrier()
}

pub(crate) fn a_cancelled_wait_for_a_signal_can_be_repeated(group: &Group) -> Result<()> {
    let mem = group.alloc::<u8>(8)?.rendezvous(group)?;
    let token = CancelToken::new();
    let patient = mem.cancelled_by(&token);
    let outcome = cancelled_inside(group, &token, || patient.wait_signal(group.prev(), 0));
    assert_error!(outcome, Error::Cancelled { .. });
    group.barrier()?;
    mem.put_signal(group.next(), 0)?;
    mem.wait_signal(group.prev(), 0)?;
    mem.close()
}

pub(crate) fn a_barrier_that_not_all_join_times_out_and_names_the_missing(group: &Group) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let doomed = group.try_clone()?;
    let mem = doomed.alloc::<u32>(8)?.rendezvous(&doomed)?;
    if group.rank() == 0 {
        let expected: Vec<usize> = (1..group.size()).collect();
        let outcome = mem.within(Duration::from_millis(100)).barrier(0);
        assert_error!(outcome, Error::Timeout { context, missing }
            if missing == expected && context.op == "barrier" && context.channel == Some(0));
    }
    group.barrier()?;
    // The others are unaffected, until they use that group: it is out of step, and says who was not there.
    assert_eq!(doomed.failure(), Some((1, Cause::TimedOut)));
    assert_error!(mem.barrier(0), Error::GroupFailed { culprit: 1, cause: Cause::TimedOut, .. });
    group.barrier()
}

pub(crate) fn those_who_stay_can_regroup(group: &Group) -> Result<()> {
    if group.size() == 1 {
        return Ok(());
    }
    let old = group.try_clone()?;
    let leaver = 0;
    if group.rank() == leaver {
        drop(old);
        return group.barrier();
    }
    assert!(says_left(&old.barrier().unwrap_err(), leaver));
    let new = old.survivors(Deadline::after(PATIENCE))?;
    assert_eq!((new.rank(), new.size()), (group.rank() - 1, group.size() - 1));
    let mut x = new.alloc::<u32>(4)?;
    x.fill(new.rank() as u32)?;
    let mem = x.rendezvous(&new)?;
    mem.barrier(0)?;
    assert_eq!(mem.peer(new.next())?.read(3)?, new.next() as u32);
    mem.close()?;
    group.barrier()
}
