//! The thread that moves mail while nobody waits for it: what was started goes on whatever this rank does
//! meanwhile.
//!
//! One per mailbox, made by the first operation that was started and did not end at once. It sleeps while
//! nothing is unfinished, and leaves the work to threads that wait for their mail while there are any. When
//! the last handle of the mailbox is gone it sends what is still to be sent, for as long as the group's
//! timeout allows, and ends; nobody ever waits for the thread itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use symmem_store::{Deadline, TICK};

use super::hub::{Hub, Locked};
use crate::{Error, Result};

/// How long who started something may take to wait for it, before the thread takes it up.
const GRACE: Duration = Duration::from_millis(1);

impl Hub {
    /// Sees to it that what is unfinished goes on.
    pub(super) fn wake_helper(self: &Arc<Self>, queues: &mut Locked<'_>) -> Result<()> {
        if !queues.has_helper {
            let hub = Arc::clone(self);
            let name = format!("rank {} mail", self.rank());
            let thread = std::thread::Builder::new().name(name).spawn(move || hub.help());
            thread.map_err(|error| Error::sys("starting a mailbox's helper thread", error))?;
            queues.has_helper = true;
        }
        self.unfinished.notify_one();
        Ok(())
    }

    /// The thread's life.
    fn help(&self) {
        let (mut end, mut looked) = (None, Instant::now());
        loop {
            // Also while others wait, or mail comes: they do not look after the peers of what was started.
            if looked.elapsed() >= TICK {
                self.end_awaiting_gone();
                looked = Instant::now();
            }
            let queues = self.lock();
            if queues.closed {
                let end = end.get_or_insert_with(|| self.patience());
                if !queues.has_outgoing() || end.expired() {
                    return;
                }
            } else if queues.is_idle() {
                let queues = self.unfinished.wait(queues).unwrap_or_else(|poison| poison.into_inner());
                self.rest(queues, GRACE);
                continue;
            } else if queues.waiters > 0 {
                self.rest(queues, TICK);
                continue;
            }
            drop(queues);
            self.work();
        }
    }

    /// Moves mail as it comes, until there is none or somebody waits for it; for a tick at most.
    fn work(&self) {
        self.rings.bell(self.rank()).sleep(TICK, || {
            let mut queues = self.lock();
            queues.progress(&self.rings);
            let over = queues.is_idle() || queues.waiters > 0;
            self.tell(queues);
            over
        });
    }

    fn rest(&self, queues: Locked<'_>, time: Duration) {
        let _rested = self.unfinished.wait_timeout(queues, time);
    }

    /// Until when what is still to be sent may take.
    fn patience(&self) -> Deadline {
        self.group().terms.timeout.map_or(Deadline::never(), Deadline::after)
    }
}
