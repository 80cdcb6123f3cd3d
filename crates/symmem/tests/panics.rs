//! Ranks that are threads, one of which panics: the others must blame it, soon, and can go on without it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use symmem::fault::{self, Point};
use symmem::{Cause, Deadline, Error, Group, Result};

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

/// Runs `work` again and again on 4 ranks, one of which panics at `point`, and checks what the others make of it.
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
