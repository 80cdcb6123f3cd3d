//! Named crash points and injected failures, for fault tests only.
//!
//! The library calls [`point`] where a crash is worth testing and [`fail`] before calls that can fail.
//! Without the cargo feature `faults` both are empty, nothing is read from the environment, and this module
//! is private.
//!
//! With it, a process rank is told through the environment:
//! - `SYMMEM_CRASH_POINT=<name>` kills the process (SIGKILL) at the [`Point`] of that name;
//!   `SYMMEM_CRASH_RANK=<rank>` limits that to threads that said [`set_rank`] so; `SYMMEM_CRASH_AFTER=<n>`
//!   lets the first n passes go.
//! - `SYMMEM_FAIL=<map|socket>:<errno name or number>` makes the first such call fail;
//!   `SYMMEM_FAIL_RANK=<rank>` limits that to one rank.
//! - `SYMMEM_LEAVE_OUT=consumed-wait` makes no rank wait until its staging was read: the stress test must
//!   notice.
//!
//! A thread rank calls [`arm`], [`arm_panic`] and [`inject`] on its own thread.

#![allow(unsafe_code, reason = "system calls")]
// Without the feature nothing outside can reach this, and nothing inside asks for names.
#![cfg_attr(not(feature = "faults"), allow(unreachable_pub, dead_code))]

macro_rules! points {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A place where a rank can be made to die.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Point {
            $($(#[$doc])* $variant,)*
        }

        impl Point {
            /// Every point, in the order a rank passes them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The points of a join, in that order.
            pub const JOIN: &[Self] = Self::ALL.split_at(Self::JoinDone as usize + 1).0;

            /// The point's name, as in `SYMMEM_CRASH_POINT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

points! {
    /// Joining: this rank's nonce is in the store.
    NonceSet = "nonce-set",
    /// Joining: rank 0's answer is in the store, or was read.
    Answered = "answered",
    /// Joining: the control segment exists.
    ControlCreated = "control-created",
    /// Joining: the control segment and pidfd were sent to a peer.
    FdSent = "fd-sent",
    /// Joining: a peer's control segment and pidfd were received.
    FdReceived = "fd-received",
    /// Joining: the peers' control segments are mapped.
    Mapped = "mapped",
    /// Joining: this rank voted on success.
    Voted = "voted",
    /// Joining: done.
    JoinDone = "join-done",
    /// Rendezvous: this rank's request was sent.
    RequestSent = "request-sent",
    /// Rendezvous: the data and pad segments were sent to a peer.
    PadFdSent = "pad-fd-sent",
    /// Rendezvous: the peers' segments are mapped.
    PadMapped = "pad-mapped",
    /// Rendezvous: this rank voted on success.
    RendezvousVoted = "rendezvous-voted",
    /// Barrier: entered, nothing published.
    BarrierEntered = "barrier-entered",
    /// Barrier: this rank's arrival is published.
    BarrierPublished = "barrier-published",
    /// A signal was put.
    SignalPut = "signal-put",
    /// A signal was waited for.
    SignalWaited = "signal-waited",
    /// In the middle of a copy from or to a peer.
    MidCopy = "mid-copy",
    /// Exchange: this rank's part is published.
    ExchangePublished = "exchange-published",
    /// Push: this rank's bytes are packed, nothing announced.
    ParcelPacked = "parcel-packed",
    /// Push: heard from all who are needed, their parcels still to be taken up.
    ParcelsHeard = "parcels-heard",
    /// Staged and pipelined: this rank's staging is laid out, nothing announced.
    StagingFilled = "staging-filled",
    /// Staged and pipelined: heard from all who are needed, about to read their staging.
    StagingHeard = "staging-heard",
    /// Pipelined: a piece is done, and more are to come or were before it.
    PieceDone = "piece-done",
    /// Direct and two-shot: everybody is in, no byte is written.
    DirectEntered = "direct-entered",
    /// Direct and two-shot: this rank's work is done, nobody knows.
    DirectWorked = "direct-worked",
    /// Pull: everybody said where its memory is, none is read.
    PullEntered = "pull-entered",
    /// Pull: this rank has read what it needs, nobody knows.
    PullRead = "pull-read",
    /// Closing: about to leave.
    Closing = "closing",
    /// Survivors: they agree on who they are, and this rank has not begun to join them.
    Elected = "elected",
}

impl Point {
    /// The point of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }
}

/// A kind of call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailingCall {
    /// Mapping a peer's segment.
    Map,
    /// Connecting to a peer's socket.
    Socket,
}

#[cfg(not(feature = "faults"))]
pub(crate) use absent::{fail, leaves_out_consumed_wait, point, set_rank, start_epoch, start_tag};
#[cfg(feature = "faults")]
pub(crate) use active::leaves_out_consumed_wait;
#[cfg(feature = "faults")]
pub use active::{
    arm, arm_panic, fail, inject, point, set_rank, set_start_epoch, set_start_tag, start_epoch, start_tag,
};

#[cfg(not(feature = "faults"))]
mod absent {
    use super::{FailingCall, Point};
    use std::io;

    #[inline(always)]
    pub(crate) fn set_rank(_rank: usize) {}

    #[inline(always)]
    pub(crate) fn point(_point: Point) {}

    #[inline(always)]
    pub(crate) fn fail(_failure: FailingCall) -> io::Result<()> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn leaves_out_consumed_wait() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn start_epoch() -> u64 {
        0
    }

    #[inline(always)]
    pub(crate) fn start_tag() -> u64 {
        0
    }
}

#[cfg(feature = "faults")]
mod active {
    use super::{FailingCall, Point};
    use std::cell::Cell;
    use std::env;
    use std::io;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// What a thread does at a point.
    type Armed = (Point, Box<dyn FnOnce()>);

    thread_local! {
        static RANK: Cell<Option<usize>> = const { Cell::new(None) };
        static CALL: Cell<Option<Armed>> = const { Cell::new(None) };
        static FAIL: Cell<Option<(FailingCall, i32)>> = const { Cell::new(None) };
        static START_EPOCH: Cell<u64> = const { Cell::new(0) };
        static START_TAG: Cell<u64> = const { Cell::new(0) };
    }

    /// Tells which rank this thread is.
    pub fn set_rank(rank: usize) {
        RANK.set(Some(rank));
    }

    /// Runs `call` when this thread next passes `point`.
    pub fn arm(point: Point, call: impl FnOnce() + 'static) {
        CALL.set(Some((point, Box::new(call))));
    }

    /// Panics when this thread next passes `point`.
    pub fn arm_panic(point: Point) {
        arm(point, move || panic!("told to panic at {}", point.name()));
    }

    /// Makes this thread's next call of that kind fail with `errno`.
    pub fn inject(failure: FailingCall, errno: i32) {
        FAIL.set(Some((failure, errno)));
    }

    /// Makes groups that this thread joins from now on count their meetings from `epoch` on: equal on all
    /// ranks.
    pub fn set_start_epoch(epoch: u64) {
        START_EPOCH.set(epoch);
    }

    /// Where the meetings of a new group start.
    pub fn start_epoch() -> u64 {
        START_EPOCH.get()
    }

    /// Makes groups that this thread joins from now on count their exchanges of descriptors, and so their
    /// memories, from `tag` on: equal on all ranks.
    pub fn set_start_tag(tag: u64) {
        START_TAG.set(tag);
    }

    /// Where the exchanges of a new group start.
    pub fn start_tag() -> u64 {
        START_TAG.get()
    }

    /// Dies here if told so.
    pub fn point(point: Point) {
        match CALL.take() {
            Some((armed, call)) if armed == point => call(),
            other => CALL.set(other),
        }
        static ORDER: OnceLock<Option<Crash>> = OnceLock::new();
        if let Some(crash) = ORDER.get_or_init(Crash::from_env) {
            crash.pass(point);
        }
    }

    /// Fails if told so, once.
    pub fn fail(failure: FailingCall) -> io::Result<()> {
        if let Some((told, errno)) = FAIL.get()
            && told == failure
        {
            FAIL.set(None);
            return Err(io::Error::from_raw_os_error(errno));
        }
        static ORDER: OnceLock<Option<Fail>> = OnceLock::new();
        match ORDER.get_or_init(Fail::from_env) {
            Some(order) => order.pass(failure),
            None => Ok(()),
        }
    }

    /// Whether ranks go on without waiting until their staging was read.
    pub(crate) fn leaves_out_consumed_wait() -> bool {
        static ORDER: OnceLock<bool> = OnceLock::new();
        *ORDER.get_or_init(|| match env::var("SYMMEM_LEAVE_OUT") {
            Ok(name) if name == "consumed-wait" => true,
            Ok(name) => panic!("SYMMEM_LEAVE_OUT={name}: there is no such step"),
            Err(_) => false,
        })
    }

    /// What the environment says about crashing.
    struct Crash {
        point: Point,
        rank: Option<usize>,
        passes_left: AtomicU64,
    }

    impl Crash {
        fn from_env() -> Option<Self> {
            let name = env::var("SYMMEM_CRASH_POINT").ok()?;
            // A misspelt name would let a kill test pass without a kill.
            let point =
                Point::from_name(&name).unwrap_or_else(|| panic!("SYMMEM_CRASH_POINT={name}: no such point"));
            let passes_left = AtomicU64::new(number("SYMMEM_CRASH_AFTER").unwrap_or(0));
            Some(Self { point, rank: number("SYMMEM_CRASH_RANK").map(|rank| rank as usize), passes_left })
        }

        fn pass(&self, point: Point) {
            if point != self.point || !concerns(self.rank) {
                return;
            }
            let step = |left: u64| left.checked_sub(1);
            if self.passes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).is_err() {
                // The time of death on the clock all processes share: tests measure how long the others take
                // to see it.
                eprintln!(
                    "crash point {} at {} ns after boot",
                    point.name(),
                    crate::sys::clock::boottime_ns()
                );
                // SAFETY: no memory is involved; the process ends here.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        }
    }

    /// What the environment says about failing.
    struct Fail {
        failure: FailingCall,
        errno: i32,
        rank: Option<usize>,
        done: AtomicBool,
    }

    impl Fail {
        fn from_env() -> Option<Self> {
            let text = env::var("SYMMEM_FAIL").ok()?;
            let parsed = parse_failure(&text);
            let (failure, errno) =
                parsed.unwrap_or_else(|| panic!("SYMMEM_FAIL={text}: expected map:ENOMEM or the like"));
            let rank = number("SYMMEM_FAIL_RANK").map(|rank| rank as usize);
            Some(Self { failure, errno, rank, done: AtomicBool::new(false) })
        }

        fn pass(&self, failure: FailingCall) -> io::Result<()> {
            if failure != self.failure || !concerns(self.rank) || self.done.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            Err(io::Error::from_raw_os_error(self.errno))
        }
    }

    fn concerns(rank: Option<usize>) -> bool {
        rank.is_none() || rank == RANK.get()
    }

    fn number(name: &str) -> Option<u64> {
        let text = env::var(name).ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
    }

    pub(super) fn parse_failure(text: &str) -> Option<(FailingCall, i32)> {
        let (kind, errno) = text.split_once(':')?;
        let failure = match kind {
            "map" => FailingCall::Map,
            "socket" => FailingCall::Socket,
            _ => return None,
        };
        let errno = match errno {
            "EACCES" => libc::EACCES,
            "EAGAIN" => libc::EAGAIN,
            "ECONNREFUSED" => libc::ECONNREFUSED,
            "EMFILE" => libc::EMFILE,
            "ENFILE" => libc::ENFILE,
            "ENOBUFS" => libc::ENOBUFS,
            "ENOMEM" => libc::ENOMEM,
            "EPERM" => libc::EPERM,
            number => number.parse().ok()?,
        };
        Some((failure, errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for point in Point::ALL {
            assert_eq!(Point::from_name(point.name()), Some(*point));
        }
        assert_eq!(Point::from_name("nonsense"), None);
    }

    #[test]
    fn nothing_happens_unasked() {
        set_rank(0);
        point(Point::MidCopy);
        fail(FailingCall::Map).unwrap();
    }

    #[cfg(feature = "faults")]
    mod on {
        use super::*;
        use crate::sys::testing::{alone_with, succeeds_alone};
        use std::os::unix::process::ExitStatusExt;

        #[test]
        fn an_armed_panic_happens_once_and_only_at_its_point() {
            arm_panic(Point::Voted);
            point(Point::Mapped);
            assert!(std::panic::catch_unwind(|| point(Point::Voted)).is_err());
            point(Point::Voted);
        }

        #[test]
        fn an_injected_failure_happens_once_and_only_to_its_kind() {
            inject(FailingCall::Socket, libc::EMFILE);
            fail(FailingCall::Map).unwrap();
            assert_eq!(fail(FailingCall::Socket).unwrap_err().raw_os_error(), Some(libc::EMFILE));
            fail(FailingCall::Socket).unwrap();
        }

        #[test]
        fn failures_are_read_from_text() {
            assert_eq!(active::parse_failure("map:ENOMEM"), Some((FailingCall::Map, libc::ENOMEM)));
            assert_eq!(active::parse_failure("socket:24"), Some((FailingCall::Socket, 24)));
            for bad in ["", "map", "map:", "disk:ENOMEM", "map:EWHAT"] {
                assert_eq!(active::parse_failure(bad), None, "{bad}");
            }
        }

        #[test]
        fn the_environment_kills_the_rank_at_the_point_after_some_passes() {
            let name = "sys::fault::tests::on::the_environment_kills_the_rank_at_the_point_after_some_passes";
            let vars =
                [("SYMMEM_CRASH_POINT", "mid-copy"), ("SYMMEM_CRASH_RANK", "3"), ("SYMMEM_CRASH_AFTER", "2")];
            let out = alone_with(name, &vars, || {
                point(Point::MidCopy);
                set_rank(3);
                point(Point::Voted);
                point(Point::MidCopy);
                point(Point::MidCopy);
                println!("\nalive");
                point(Point::MidCopy);
                println!("\nstill alive");
            });
            let Some(out) = out else { return };
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(said.contains("\nalive") && !said.contains("still alive"), "{said}");
            assert_eq!(out.status.signal(), Some(libc::SIGKILL));
        }

        #[test]
        fn a_mapping_fails_when_told_and_works_afterwards() {
            succeeds_alone("sys::fault::tests::on::a_mapping_fails_when_told_and_works_afterwards", || {
                let segment = crate::sys::memfd::Segment::create("x", 1).unwrap();
                let import = || {
                    let fd = segment.fd().try_clone_to_owned().unwrap();
                    crate::sys::memfd::Mapping::import(fd, 1)
                };
                inject(FailingCall::Map, libc::ENOMEM);
                let error = import().unwrap_err().to_string();
                assert!(error.contains("allocate memory"), "{error}");
                import().unwrap();
            });
        }
    }
}
