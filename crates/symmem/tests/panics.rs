//! Ranks that are threads, one of which panics: the others must blame it, soon, and can go on without it. One
//! that catches its panic and goes on is no better off: what it left midway ends the group, and is poisoned.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{is_rank_of, start};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use symmem::fault::{self, Point};
use symmem::inspect;
use symmem::trace::Tracer;
use symmem::tuning::Algorithm;
use symmem::{CancelToken, Cause, Config, Deadline, Error, Group, ReduceOp, Result, SymmetricMemory};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber, span};

const LONG: Duration = Duration::from_secs(20);

/// Whether `error` says that rank `victim` panicked.
fn blames(error: &Error, victim: usize) -> bool {
    let panicked = match error {
        Error::GroupFailed { cause, .. } => *cause == Cause::Panicked,
        other => matches!(other, Error::PeerLost { .. }),
    };
    panicked && error.culprit() == Some(victim)
}

/// Notes when a panic unwinds past it.
struct Stamp<'a>(&'a Mutex<Option<Instant>>);

impl Drop for Stamp<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.lock().unwrap() = Some(Instant::now());
        }
    }
}

/// Runs `work` again and again on 4 ranks, one of which panics at `point`, and checks what the others make of
/// it.
fn panics_at(point: Point, victim: usize, work: impl Fn(&Group) -> Result<()> + Sync) {
    let died = Mutex::new(None);
    let seen = Mutex::new(Vec::new());
    let outcome = symmem::spawn(4, |group| {
        let group = group.within(Duration::from_secs(60));
        let _stamp = Stamp(&died);
        if group.rank() == victim {
            fault::arm_panic(point);
        }
        let end = Instant::now() + LONG;
        let error = loop {
            match work(&group) {
                Ok(()) => assert!(Instant::now() < end, "nobody panicked"),
                Err(error) => break error,
            }
        };
        seen.lock().unwrap().push((Instant::now(), error));
        goes_on(&group.survivors(Deadline::after(LONG))?, 3)
    });
    match outcome {
        Err(Error::Spawned { rank, message }) => {
            assert_eq!(rank, victim, "{message}");
            assert!(message.contains(point.name()), "{message}");
        }
        other => panic!("{}: {other:?}", point.name()),
    }
    let died = died.into_inner().unwrap().expect("the victim panicked");
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 3, "{}: {seen:?}", point.name());
    for (at, error) in seen {
        assert!(blames(&error, victim), "{}: {error}", point.name());
        assert!(at - died < Duration::from_secs(1), "{}: {:?} later: {error}", point.name(), at - died);
    }
}

/// The group works.
fn goes_on(group: &Group, ranks: usize) -> Result<()> {
    assert_eq!(group.size(), ranks);
    let mut memory = group.alloc::<u64>(100)?;
    memory.fill(group.rank() as u64)?;
    let memory = memory.rendezvous(group)?;
    memory.barrier(0)?;
    assert_eq!(memory.peer(group.next())?.read(99)?, group.next() as u64);
    memory.close()
}

/// A rendezvous and all one can do with it.
fn use_memory(group: &Group) -> Result<()> {
    let memory = group.alloc::<u64>(1 << 10)?.rendezvous(group)?;
    memory.barrier(0)?;
    memory.put_signal(group.next(), 1)?;
    memory.wait_signal(group.prev(), 1)?;
    memory.get(group.next(), 0, &mut vec![0; 1 << 10])?;
    memory.close()
}

#[test]
fn a_panic_inside_a_rendezvous_is_blamed_on_its_rank() {
    let points = [Point::RequestSent, Point::PadFdSent, Point::PadMapped, Point::RendezvousVoted];
    for (victim, point) in points.into_iter().enumerate() {
        panics_at(point, victim, use_memory);
    }
}

#[test]
fn a_panic_inside_an_operation_on_memory_is_blamed_on_its_rank() {
    let points = [
        Point::BarrierEntered,
        Point::BarrierPublished,
        Point::SignalPut,
        Point::SignalWaited,
        Point::MidCopy,
        Point::Closing,
    ];
    for (at, point) in points.into_iter().enumerate() {
        panics_at(point, (at + 1) % 4, use_memory);
    }
}

#[test]
fn a_panic_inside_an_exchange_is_blamed_on_its_rank() {
    for victim in 0..4 {
        panics_at(Point::ExchangePublished, victim, |group| group.all_gather(&group.rank()).map(drop));
    }
}

#[test]
fn a_panic_while_a_subgroup_is_made_is_blamed_on_its_rank() {
    for (at, &point) in Point::JOIN.iter().enumerate() {
        panics_at(point, at % 4, |group| group.try_clone()?.barrier());
    }
}

#[test]
fn a_panic_between_operations_is_blamed_on_its_rank() {
    let outcome = symmem::spawn(3, |group| {
        group.barrier()?;
        assert_ne!(group.rank(), 1, "on purpose");
        let error = group.barrier().unwrap_err();
        assert!(blames(&error, 1), "{error}");
        goes_on(&group.survivors(Deadline::after(LONG))?, 2)
    });
    assert!(matches!(outcome, Err(Error::Spawned { rank: 1, .. })), "{outcome:?}");
}

/// A token whose poll panics: user code inside of every wait.
fn panicking_token() -> CancelToken {
    CancelToken::polled(|| panic!("a poll panics, on purpose"))
}

/// Waits until `flag` is set.
fn wait_for(flag: &AtomicBool) {
    let end = Instant::now() + LONG;
    while !flag.load(Ordering::Acquire) {
        assert!(Instant::now() < end, "nobody came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

type MemoryOp = fn(&mut SymmetricMemory<f32>) -> Result<()>;

const MEMORY_OPS: [(&str, MemoryOp); 15] = [
    ("all_reduce by push", |mem| mem.using(Algorithm::Push).slice(..4)?.all_reduce(ReduceOp::Sum)),
    ("all_reduce by staging", |mem| mem.using(Algorithm::Staged).all_reduce(ReduceOp::Sum)),
    ("all_reduce in two shots", |mem| mem.using(Algorithm::TwoShot).all_reduce(ReduceOp::Sum)),
    ("all_reduce_out", |mem| mem.using(Algorithm::Direct).all_reduce_out(ReduceOp::Sum, &mut [0.0; 1024])),
    ("reduce_scatter", |mem| mem.reduce_scatter(ReduceOp::Sum, &mut [0.0; 512])),
    ("scan", |mem| mem.using(Algorithm::Direct).scan(ReduceOp::Sum, &mut [0.0; 1024])),
    ("all_gather", |mem| mem.using(Algorithm::Direct).all_gather(&mut [0.0; 2048])),
    ("broadcast", |mem| mem.using(Algorithm::Direct).broadcast(1)),
    ("gather", |mem| mem.gather(0, &mut [0.0; 2048])),
    ("low_contention_all_gather", |mem| mem.low_contention_all_gather(&mut [0.0; 2048])),
    ("low_contention_reduce_scatter", |mem| {
        mem.low_contention_reduce_scatter(ReduceOp::Sum, &mut [0.0; 512])
    }),
    ("barrier", |mem| mem.barrier(0)),
    ("wait_signal", |mem| mem.wait_signal(1, 0)),
    ("wait_flag", |mem| mem.wait_flag(0, 7)),
    ("close", |mem| mem.slice(..1)?.close()),
];

/// Runs `op` on rank 0, whose wait panics because rank 1 is late, and on rank 1 once rank 0 has caught the
/// panic.
fn caught_on_memory(name: &str, op: MemoryOp) {
    let caught = AtomicBool::new(false);
    let outcome = symmem::spawn(2, |group| {
        let group = group.within(LONG);
        let mut mem = group.alloc::<f32>(1024)?.rendezvous(&group)?;
        mem.fill(1.0)?;
        group.barrier()?;
        if group.rank() == 0 {
            let mut hasty = mem.cancelled_by(&panicking_token());
            let panicked = catch_unwind(AssertUnwindSafe(|| op(&mut hasty)));
            assert!(panicked.is_err(), "{name}: {panicked:?}");
            assert!(matches!(mem.local(), Err(Error::Poisoned { .. })), "{name}");
            assert!(matches!(mem.local_mut(), Err(Error::Poisoned { .. })), "{name}");
            let error = mem.barrier(0).unwrap_err();
            assert!(blames(&error, 0), "{name}: {error}");
            caught.store(true, Ordering::Release);
            return Ok(());
        }
        wait_for(&caught);
        let error = op(&mut mem).unwrap_err();
        assert!(blames(&error, 0), "{name}: {error}");
        assert!(matches!(mem.local(), Err(Error::Poisoned { .. })), "{name}");
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn a_caught_panic_in_a_wait_ends_the_group_and_poisons_the_memory() {
    for (name, op) in MEMORY_OPS {
        caught_on_memory(name, op);
    }
}

type GroupOp = fn(&Group) -> Result<()>;

const GROUP_OPS: [(&str, GroupOp); 9] = [
    ("barrier", |group| group.barrier()),
    ("all_gather", |group| group.all_gather(&1u8).map(drop)),
    ("broadcast", |group| group.broadcast_bytes(1, b"x").map(drop)),
    ("all_reduce by push", |group| group.all_reduce(ReduceOp::Sum, &mut [1u8; 8])),
    ("all_reduce in pieces", |group| group.all_reduce(ReduceOp::Sum, &mut vec![1u8; 3 << 20])),
    ("all_reduce of what cannot be", |group| group.all_reduce(ReduceOp::And, &mut [1f32; 8])),
    ("all_to_all_v", |group| group.all_to_all_v(&[1u8; 4], &[2, 2], &mut [0u8; 4], &[2, 2])),
    ("broadcast_fds", |group| group.broadcast_fds(1, &[]).map(drop)),
    ("rendezvous", |group| group.alloc::<u8>(1)?.rendezvous(group).map(drop)),
];

#[test]
fn a_caught_panic_in_a_wait_of_the_group_ends_it() {
    for (name, op) in GROUP_OPS {
        let caught = AtomicBool::new(false);
        let outcome = symmem::spawn(2, |group| {
            let group = group.within(LONG);
            if group.rank() == 0 {
                let hasty = group.cancelled_by(&panicking_token());
                let panicked = catch_unwind(AssertUnwindSafe(|| op(&hasty)));
                assert!(panicked.is_err(), "{name}: {panicked:?}");
                caught.store(true, Ordering::Release);
            }
            wait_for(&caught);
            let error = op(&group).unwrap_err();
            assert!(blames(&error, 0), "{name}: {error}");
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Calls what it has when it is dropped.
struct AtTheEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtTheEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn an_operation_that_succeeds_in_a_destructor_while_its_thread_unwinds_harms_nobody() {
    symmem::spawn(2, |group| {
        let group = group.within(LONG);
        let mut mem = group.alloc::<f32>(1024)?.rendezvous(&group)?;
        mem.fill(1.0)?;
        let mut ended = None;
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _last = AtTheEnd(|| {
                assert!(std::thread::panicking());
                let mut work = || -> Result<()> {
                    mem.all_reduce(ReduceOp::Sum)?;
                    mem.using(Algorithm::TwoShot).all_reduce(ReduceOp::Sum)?;
                    mem.start().all_reduce(ReduceOp::Sum)?.wait()?;
                    group.all_reduce(ReduceOp::Sum, &mut [1u8; 8])?;
                    group.barrier()
                };
                ended = Some(work());
            });
            panic!("on purpose")
        }));
        assert!(unwound.is_err() && matches!(ended, Some(Ok(()))), "{ended:?}");
        group.barrier()?;
        assert!(mem.local()?.iter().all(|value| *value == 8.0));
        mem.close()
    })
    .unwrap();
}

#[test]
fn a_panic_that_a_destructor_catches_while_its_thread_unwinds_counts() {
    let caught = AtomicBool::new(false);
    symmem::spawn(2, |group| {
        let group = group.within(LONG);
        let mem = group.alloc::<f32>(1024)?.rendezvous(&group)?;
        if group.rank() == 0 {
            let mut hasty = mem.cancelled_by(&panicking_token()).using(Algorithm::TwoShot);
            let _unwound = catch_unwind(AssertUnwindSafe(|| {
                let _last = AtTheEnd(|| {
                    let inner = catch_unwind(AssertUnwindSafe(|| hasty.all_reduce(ReduceOp::Sum)));
                    assert!(inner.is_err());
                });
                panic!("on purpose")
            }));
            assert!(matches!(mem.local(), Err(Error::Poisoned { .. })));
            caught.store(true, Ordering::Release);
        }
        wait_for(&caught);
        let error = group.barrier().unwrap_err();
        assert!(blames(&error, 0), "{error}");
        Ok(())
    })
    .unwrap();
}

/// A subscriber that panics when it is told of an event of this level and module.
struct PanickingSubscriber(Level, &'static str);

/// Of a group that failed.
const OF_FAILURES: PanickingSubscriber = PanickingSubscriber(Level::DEBUG, "running");
/// Of operations that cannot be recorded.
const OF_RECORDS: PanickingSubscriber = PanickingSubscriber(Level::WARN, "recording");

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == self.0 && metadata.target().contains(self.1)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("a subscriber panics, on purpose");
    }
}

#[test]
fn a_subscriber_that_panics_while_a_collective_fails_leaves_poisoned_memory() {
    let caught = AtomicBool::new(false);
    symmem::spawn(2, |group| {
        let group = group.within(LONG);
        let mut mem = group.alloc::<f32>(1024)?.rendezvous(&group)?;
        if group.rank() == 0 {
            let mut hasty = mem.within(Duration::from_millis(50)).using(Algorithm::TwoShot);
            let reduce = || with_default(OF_FAILURES, || hasty.all_reduce(ReduceOp::Sum));
            let panicked = catch_unwind(AssertUnwindSafe(reduce));
            assert!(panicked.is_err(), "{panicked:?}");
            assert!(matches!(mem.local(), Err(Error::Poisoned { .. })));
            caught.store(true, Ordering::Release);
        }
        wait_for(&caught);
        // The timeout that the subscriber was to be told of came first.
        let error = mem.all_reduce(ReduceOp::Sum).unwrap_err();
        assert!(error.culprit().is_some() || matches!(error, Error::Poisoned { .. }), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_subscriber_that_panics_at_a_warning_of_the_environment_does_so_once() {
    const TEST: &str = "a_subscriber_that_panics_at_a_warning_of_the_environment_does_so_once";
    if !is_rank_of(TEST) {
        start(TEST, &[("SYMMEM_NO_SUCH_VARIABLE".to_owned(), "1".to_owned())]).expect();
        return;
    }
    let of_settings = PanickingSubscriber(Level::WARN, "config");
    assert!(catch_unwind(|| with_default(of_settings, Config::from_env)).is_err());
    Config::from_env().unwrap();
    symmem::spawn(2, |group| group.barrier()).unwrap();
}

#[test]
fn a_subscriber_that_panics_before_an_operation_is_recorded_ends_the_group() {
    const TEST: &str = "a_subscriber_that_panics_before_an_operation_is_recorded_ends_the_group";
    if !is_rank_of(TEST) {
        // A process of its own, since the limit is that of all its threads.
        start(TEST, &[]).expect();
        return;
    }
    let caught = AtomicBool::new(false);
    symmem::spawn(2, |group| {
        let group = group.within(LONG);
        if group.rank() == 0 {
            let seen = inspect::groups()?.into_iter().filter(|seen| seen.id == group.id());
            let _tracer = Tracer::attach(&seen.collect::<Vec<_>>())?;
            let usual = getrlimit(Resource::Nofile);
            // No descriptor is left for what would be recorded.
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..usual }).unwrap();
            let panicked = catch_unwind(AssertUnwindSafe(|| with_default(OF_RECORDS, || group.barrier())));
            setrlimit(Resource::Nofile, usual).unwrap();
            assert!(panicked.is_err(), "{panicked:?}");
            caught.store(true, Ordering::Release);
        }
        wait_for(&caught);
        let error = group.barrier().unwrap_err();
        assert!(blames(&error, 0), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_started_operation_that_panics_is_its_pendings_error_and_poisons() {
    let caught = AtomicBool::new(false);
    symmem::spawn(2, |group| {
        let group = group.within(LONG);
        let mem = group.alloc::<f32>(1024)?.rendezvous(&group)?;
        if group.rank() == 0 {
            let hasty = mem.cancelled_by(&panicking_token()).using(Algorithm::TwoShot);
            let error = hasty.start().all_reduce(ReduceOp::Sum)?.wait().unwrap_err();
            assert!(blames(&error, 0) && error.to_string().contains("a poll panics"), "{error}");
            assert!(matches!(mem.local(), Err(Error::Poisoned { .. })));
            caught.store(true, Ordering::Release);
            return Ok(());
        }
        wait_for(&caught);
        let error = mem.start().all_reduce(ReduceOp::Sum)?.wait().unwrap_err();
        assert!(blames(&error, 0), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_panic_under_the_users_own_guard_poisons_nothing() {
    symmem::spawn(2, |group| {
        let mut mem = group.alloc::<f32>(16)?.rendezvous(&group)?;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut own = mem.local_mut().expect("nobody else has it");
            own[0] = 1.0;
            panic!("on purpose")
        }));
        assert!(panicked.is_err());
        mem.all_reduce(ReduceOp::Sum)?;
        assert_eq!(mem.local()?[0], 2.0);
        mem.close()
    })
    .unwrap();
}
