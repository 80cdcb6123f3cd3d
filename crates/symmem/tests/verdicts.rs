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
            is_right(&group, brief.wait_for_signal(0, 7), false);
            is_right(&group, mailbox.within(SOON).receive(1, 0, &mut [0u8; 4]), false);
        }
        group.barrier()?;
        memory.close()
    })
    .unwrap();
}
