//! What errors look like: a rank that does not show up, a cancelled wait, an abort, a wrong size.

use std::time::Duration;

use symmem::{CancelToken, Error, Result};

fn main() -> Result<()> {
    symmem::spawn(2, |group| {
        let mem = group.alloc::<u32>(8)?.rendezvous(&group)?;

        // A signal that nobody sends: the deadline ends the wait, and the wait can be repeated.
        let soon = mem.within(Duration::from_millis(50));
        let error = soon.wait_signal(group.next(), 0).expect_err("nobody signals");
        say(&group, &error);

        // A wait that somebody else cancels.
        let token = CancelToken::new();
        token.cancel();
        say(&group, &mem.cancelled_by(&token).wait_signal(group.next(), 0).expect_err("cancelled"));

        // Ranks that disagree: the same error everywhere, and the group is as good as before.
        let wrong = group.alloc::<u32>(8 + group.rank())?;
        let error = wrong.rendezvous(&group).expect_err("sizes differ");
        say(&group, &error);
        assert!(matches!(error, Error::Mismatch { .. }));
        mem.barrier(0)?;

        // An abort reaches everybody.
        if group.rank() == 1 {
            group.abort("the input file is empty");
        }
        say(&group, &mem.barrier(0).expect_err("aborted"));
        Ok(())
    })?;
    Ok(())
}

fn say(group: &symmem::Group, error: &Error) {
    if group.rank() == 0 {
        println!("{error}\n");
    }
}
