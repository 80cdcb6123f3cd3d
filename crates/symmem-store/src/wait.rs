//! How this project waits: a deadline, a cancel token, and something to watch.
//!
//! Every blocking call in `symmem-store` and `symmem` ends in [`Wait::until`]. It is the one place that looks
//! at deadlines and cancellation, and the one that bounds how long anybody sleeps without looking ([`TICK`]).

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time a wait sleeps between two looks at deadline, cancel token and watch.
pub const TICK: Duration = Duration::from_millis(20);

/// The moment a blocking call gives up, or never.
///
/// ```
/// use std::time::Duration;
/// use symmem_store::Deadline;
/// assert!(!Deadline::after(Duration::from_secs(60)).expired());
/// assert!(Deadline::after(Duration::ZERO).expired());
/// assert_eq!(Deadline::never().remaining(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// Gives up `timeout` from now; a timeout too long for the clock is never.
    pub fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    /// Gives up at `instant`.
    pub fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// Waits as long as it takes (peers' deaths, aborts and cancellation still end the wait).
    pub fn never() -> Self {
        Self(None)
    }

    /// Time left, zero once expired; `None` for [`Deadline::never`].
    pub fn remaining(&self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether the moment has passed.
    pub fn expired(&self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

/// Ends waits early, from another thread or a signal handler. Clones share one state; cancelling is final.
///
/// ```
/// let token = symmem_store::CancelToken::new();
/// token.clone().cancel();
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<TokenState>);

#[derive(Default)]
struct TokenState {
    cancelled: AtomicBool,
    poll: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl CancelToken {
    /// A token nobody has cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that also counts as cancelled whenever `poll` says so, for runtimes that must be asked whether
    /// a signal came. Unlike [`CancelToken::cancel`] that is not final: the next wait asks again.
    ///
    /// A wait asks on its own thread and only once it found nothing and is about to sleep, so `poll` may take
    /// microseconds; it is asked at least once per [`TICK`] from then on.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// static PRESSED: AtomicBool = AtomicBool::new(false);
    /// let token = symmem_store::CancelToken::polled(|| PRESSED.swap(false, Ordering::Relaxed));
    /// PRESSED.store(true, Ordering::Relaxed);
    /// assert!(token.is_cancelled());
    /// assert!(!token.is_cancelled());
    /// ```
    pub fn polled(poll: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(TokenState { cancelled: AtomicBool::new(false), poll: Some(Box::new(poll)) }))
    }

    /// Cancels: every wait that holds a clone returns within a [`TICK`].
    pub fn cancel(&self) {
        // Relaxed: the token carries no data, only the wish to stop.
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether somebody cancelled, or the poll of [`CancelToken::polled`] says so now.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Relaxed) || self.0.poll.as_ref().is_some_and(|poll| poll())
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let polled = self.0.poll.is_some();
        f.debug_struct("CancelToken").field("cancelled", &self.0.cancelled).field("polled", &polled).finish()
    }
}

/// Something else that can end a wait: `symmem` watches its peers' lives here.
pub trait Watch {
    /// Returns an error when the wait is pointless. Called at least once per [`TICK`] while waiting.
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>>;

    /// Called after each look that ended nothing, with how long the wait has lasted: for watches that tell
    /// people of long waits.
    fn still_waiting(&self, _elapsed: Duration) {}
}

/// Why a wait ended before its condition held.
#[derive(Debug)]
pub enum Interrupt {
    /// The deadline passed.
    Expired,
    /// The cancel token was cancelled.
    Cancelled,
    /// The [`Watch`] said so.
    Watch(Box<dyn StdError + Send + Sync>),
}

/// The terms of one blocking call.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    deadline: Deadline,
    started: Instant,
    cancel: Option<&'a CancelToken>,
    watch: Option<&'a dyn Watch>,
}

impl<'a> Wait<'a> {
    /// Waits until `deadline`.
    pub fn new(deadline: Deadline) -> Self {
        Self { deadline, started: Instant::now(), cancel: None, watch: None }
    }

    /// Waits at most `timeout` from now.
    pub fn for_at_most(timeout: Duration) -> Self {
        Self::new(Deadline::after(timeout))
    }

    /// Ends early when `token` is cancelled.
    pub fn with_cancel(mut self, token: &'a CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Ends early when `watch` says so.
    pub fn with_watch(mut self, watch: &'a dyn Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The same terms, but at most `timeout` from now.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        if self.deadline.remaining().is_none_or(|left| left > timeout) {
            self.deadline = Deadline::after(timeout);
        }
        self
    }

    /// The deadline this wait ends at.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Time since the wait was set up.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// One look at cancel token, watch and deadline; says how long the caller may sleep before the next look.
    pub fn look(&self) -> Result<Duration, Interrupt> {
        if self.cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Interrupt::Cancelled);
        }
        // The watch comes before the deadline: a dead peer is a better answer than "too late".
        if let Some(watch) = self.watch {
            watch.look().map_err(Interrupt::Watch)?;
            watch.still_waiting(self.elapsed());
        }
        match self.deadline.remaining() {
            Some(Duration::ZERO) => Err(Interrupt::Expired),
            Some(left) => Ok(left.min(TICK)),
            None => Ok(TICK),
        }
    }

    /// Calls `nap` until it returns a value. `nap` sleeps at most the time it is given; the first call gets
    /// zero, so that a condition that already holds succeeds whatever the deadline says.
    pub fn until<T, E: From<Interrupt>>(
        &self,
        mut nap: impl FnMut(Duration) -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        if let Some(value) = nap(Duration::ZERO)? {
            return Ok(value);
        }
        loop {
            let slice = match self.look() {
                Ok(slice) => slice,
                // What ended the wait may have happened just after the condition came true: look once more.
                Err(interrupt) => return nap(Duration::ZERO)?.ok_or_else(|| interrupt.into()),
            };
            if let Some(value) = nap(slice)? {
                return Ok(value);
            }
        }
    }
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("deadline", &self.deadline).field("elapsed", &self.elapsed()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn counting() -> (CancelToken, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        (CancelToken::polled(move || count.fetch_add(1, Ordering::Relaxed) >= 2), asked)
    }

    #[test]
    fn a_condition_that_holds_asks_no_poll() {
        let (token, asked) = counting();
        let wait = Wait::for_at_most(Duration::from_secs(60)).with_cancel(&token);
        let value = wait.until(|_| Ok::<_, Interrupt>(Some(7)));
        assert_eq!(value.unwrap(), 7);
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_poll_ends_a_wait_and_is_not_final() {
        let (token, asked) = counting();
        let wait = Wait::for_at_most(Duration::from_secs(60)).with_cancel(&token);
        let ended = wait.until(|_| Ok::<Option<()>, Interrupt>(None));
        assert!(matches!(ended, Err(Interrupt::Cancelled)));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        asked.store(0, Ordering::Relaxed);
        assert!(!token.is_cancelled());
        token.cancel();
        assert!(token.is_cancelled());
        assert_eq!(asked.load(Ordering::Relaxed), 1, "a cancelled token asks nobody");
    }
}
