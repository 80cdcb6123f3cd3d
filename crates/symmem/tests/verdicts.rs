//! Errors say themselves whether their group is over.

mod common;

use std::time::Duration;

use common::{PATIENCE, config, same_ranks_with};
use symmem::{CancelToken, Error, Group, Mailbox, Result};

const SOON: Duration = Duration::from_millis(100);

/// The error must say what the group itself says.
fn is_right<T: std::fmt::Debug>(group: &Group, outcome: Result<T>, over: bool) -> Error {
    let error = outcome.unwrap_err();
    assert_eq!(error.is_group_failure(), over, "{error:?}");
    assert_eq!(group.failure().is_some(), over, "{error:?}");
    error
}

/// Two ranks, of which rank 0 runs `work` on a group that the other one never uses.
fn alone(work: impl Fn(&Group) -> Result<()> + Sync) {
    let done = symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let other = same_ranks_with(&group, config())?;
        if group.rank() == 0 {
            work(&other.within(SOON))?;
        }
        group.barrier()
    });
    done.unwrap();
}

#[test]
fn a_collective_that_timed_out_has_ended_its_group() {
    alone(|group| {
        let error = is_right(group, group.barrier(), true);
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        // And every later one says so too.
        is_right(group, group.barrier(), true);
        Ok(())
    });
}

#[test]
fn a_collective_that_was_cancelled_has_ended_its_group() {
    alone(|group| {
        let token = CancelToken::new();
        token.cancel();
        let error = is_right(group, group.cancelled_by(&token).barrier(), true);
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        Ok(())
    });
}

#[test]
fn waits_for_signals_and_mail_that_timed_out_leave_their_group() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let memory = group.alloc::<u32>(8)?.rendezvous(&group)?;
        let mailbox = Mailbox::new(&group)?;
        if group.rank() == 0 {
            let brief = memory.within(SOON);
            let error = is_right(&group, brief.wait_signal(1, 0), false);
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
            is_right(&group, brief.wait_flag(0, 7), false);
            is_right(&group, mailbox.within(SOON).receive(1, 0, &mut [0u8; 4]), false);
        }
        group.barrier()?;
        memory.close()
    })
    .unwrap();
}

#[test]
fn a_rank_that_left_ends_a_collective_and_leaves_mail_its_group() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let (collective, mailed) = (same_ranks_with(&group, config())?, group.try_clone()?);
        let mailbox = Mailbox::new(&mailed)?;
        if group.rank() == 1 {
            drop((collective, mailbox, mailed));
            return group.barrier();
        }
        let error = is_right(&collective, collective.within(PATIENCE).barrier(), true);
        assert!(matches!(error, Error::PeerLeft { rank: 1, .. }), "{error:?}");
        let error = is_right(&mailed, mailbox.receive(1, 0, &mut [0u8; 4]), false);
        assert!(matches!(error, Error::PeerLeft { rank: 1, .. }), "{error:?}");
        group.barrier()
    })
    .unwrap();
}

#[test]
fn ranks_that_disagree_keep_their_group() {
    symmem::spawn(2, |group| {
        let outcome = match group.rank() {
            0 => group.barrier(),
            _ => group.all_gather(&1u8).map(drop),
        };
        let error = is_right(&group, outcome, false);
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
        group.barrier()
    })
    .unwrap();
}

#[test]
fn an_abort_is_the_end_on_every_rank() {
    symmem::spawn(2, |group| {
        let doomed = group.try_clone()?;
        if group.rank() == 0 {
            doomed.abort("enough");
        }
        is_right(&doomed, doomed.within(PATIENCE).barrier(), true);
        group.barrier()
    })
    .unwrap();
}

#[cfg(feature = "faults")]
#[test]
fn a_rank_whose_own_part_failed_for_good_says_that_the_group_is_over_and_why() {
    use std::os::fd::AsFd;
    use symmem::fault::{FailingCall, inject};

    symmem::spawn(2, |group| {
        // Connections stay open, so that only a new group makes new ones; what a join needs is done by then.
        let doomed = group.try_clone()?.within(PATIENCE);
        let file = std::fs::File::open("/dev/null").unwrap();
        if group.rank() == 0 {
            inject(FailingCall::Socket, libc::EMFILE);
        }
        let passed = doomed.all_gather_fds(file.as_fd());
        if passed.is_err() {
            let error = is_right(&doomed, passed, true);
            assert_eq!(error.culprit(), Some(0), "{error:?}");
            assert!(error.to_string().contains("Too many open files"), "{error}");
        } else {
            println!("skipped: the join had made the connection already");
        }
        group.barrier()
    })
    .unwrap();
}
