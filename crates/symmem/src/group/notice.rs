//! A line on stderr for whoever wonders why nothing happens: who waits, in what, and for whom.
//!
//! Used by the watches of this crate, which are looked at while a rank waits
//! ([`Watch::still_waiting`](symmem_store::Watch)). The first line comes after
//! [`Config::wait_notice`](crate::Config::wait_notice), 10 s unless configured, the next ones more and more
//! rarely. A wait that was asked to be shorter ends before it says anything.

use std::cell::Cell;
use std::time::Duration;

/// How much longer a wait must have lasted for the next line.
const RARER: u32 = 6;

/// When a wait says something next.
#[derive(Debug)]
pub(crate) struct Notice(Cell<Option<Duration>>);

impl Notice {
    /// Of a wait that first says something after `first`, or never.
    pub(crate) fn new(first: Option<Duration>) -> Self {
        Self(Cell::new(first))
    }

    /// Says `who_waits`, if it is time for a wait that has lasted for `elapsed`.
    pub(crate) fn say(&self, elapsed: Duration, who_waits: impl FnOnce() -> String) {
        if self.is_due(elapsed) {
            // One call, so that lines of several ranks do not mix.
            eprintln!(
                "symmem: {} for {} s now (SYMMEM_WAIT_NOTICE=never silences this)",
                who_waits(),
                elapsed.as_secs()
            );
        }
    }

    fn is_due(&self, elapsed: Duration) -> bool {
        let is_due = self.0.get().is_some_and(|next| elapsed >= next);
        if is_due {
            self.0.set(elapsed.checked_mul(RARER));
        }
        is_due
    }
}

/// `rank 2`, or `ranks 1, 2 and 5 more`.
pub(crate) fn list_ranks(ranks: &[usize]) -> String {
    const MOST: usize = 8;
    match ranks {
        [rank] => format!("rank {rank}"),
        _ => {
            let shown: Vec<String> = ranks.iter().take(MOST).map(ToString::to_string).collect();
            let more = match ranks.len().saturating_sub(MOST) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("ranks {}{more}", shown.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_more_and_more_rarely() {
        let notice = Notice::new(Some(Duration::from_secs(10)));
        let due: Vec<u64> = (0..1000).filter(|at| notice.is_due(Duration::from_secs(*at))).collect();
        assert_eq!(due, [10, 60, 360]);
        assert!(!Notice::new(None).is_due(Duration::MAX));
    }

    #[test]
    fn many_ranks_are_cut_short() {
        assert_eq!(list_ranks(&[3]), "rank 3");
        assert_eq!(list_ranks(&[1, 2]), "ranks 1, 2");
        assert_eq!(list_ranks(&(0..12).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
    }
}
