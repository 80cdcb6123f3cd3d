//! What happens when a rank does not come, comes with something else, or gives up: the same first cause on
//! all ranks, no context lost, and a new engine that works. Items 46 to 48 of the reference's list. A rank
//! that comes late is in `late.rs`.

use std::time::{Duration, Instant};

use symmem::cuda::{OnError, Settings, Status};
use symmem::{Cause, Error, ReduceOp, Result};

use crate::common::AT_ONCE;
use crate::stage::{PATIENCE, Rank, device, on_threads, settings};

/// Long enough for ranks that come, short for those that wait in vain.
const SOON: Duration = Duration::from_millis(300);

fn impatient() -> Settings {
    Settings { deadline: Some(SOON), ..settings() }
}

/// Culprit and cause, once the group has failed.
pub(crate) fn failed(rank: &Rank) -> (usize, Cause) {
    let start = Instant::now();
    loop {
        match rank.engine.status() {
            Status::Failed { culprit, cause, .. } => return (culprit, cause),
            _ if start.elapsed() > PATIENCE => panic!("the group is still whole"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Collective over the ranks of `parent`, whose own group never failed. A new engine is right.
pub(crate) fn starts_again(parent: &symmem::Group) -> Result<()> {
    let rank = Rank::new(parent, settings())?;
    let memory = rank.engine.alloc::<f32>(3000)?.rendezvous(&rank.engine)?;
    memory.write(&vec![1.5; 3000], &rank.stream)?;
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    assert_eq!(memory.read(&rank.stream)?, vec![1.5 * parent.size() as f32; 3000]);
    rank.end()
}

/// Runs `test` on `world` threads, then a new engine on the same ranks and context.
fn then_again<R: Send>(
    world: usize,
    settings: &Settings,
    test: impl Fn(&Rank) -> Result<R> + Sync,
) -> Vec<R> {
    let _alone = crate::stage::alone();
    let ranks = symmem::spawn(world, |group| {
        let result = {
            let rank = Rank::new(&group, settings.clone())?;
            let result = test(&rank)?;
            // Everything of the failed group has drained before anybody frees its memory.
            let _ = rank.engine.sync(&rank.stream, PATIENCE);
            group.barrier()?;
            result
        };
        starts_again(&group)?;
        Ok(result)
    });
    ranks.unwrap()
}

#[test]
fn a_barrier_and_signals_that_nobody_answers_time_out() {
    if device().is_none() {
        return;
    }
    for what in 0..3 {
        let causes = then_again(2, &impatient(), |rank| {
            let memory = rank.engine.alloc::<u32>(64)?.rendezvous(&rank.engine)?;
            rank.ready()?;
            if rank.rank() == 0 {
                match what {
                    0 => memory.barrier(0, &rank.stream)?,
                    1 => {
                        memory.put_signal(1, 0, &rank.stream)?;
                        memory.put_signal(1, 0, &rank.stream)?;
                    }
                    _ => memory.wait_signal(1, 0, &rank.stream)?,
                }
                assert!(rank.sync().is_err());
            }
            Ok(failed(rank))
        });
        assert_eq!(causes, [(1, Cause::TimedOut); 2], "case {what}");
    }
}

#[test]
fn ranks_that_disagree_both_get_an_error_and_keep_their_bytes() {
    if device().is_none() {
        return;
    }
    for large in [false, true] {
        let len = if large { 1_000_000 } else { 1000 };
        let details = then_again(2, &settings(), |rank| {
            let memory = rank.engine.alloc::<f32>(len)?.rendezvous(&rank.engine)?;
            let before = vec![rank.rank() as f32; len];
            memory.write(&before, &rank.stream)?;
            rank.ready()?;
            memory.slice(..len - 4 * rank.rank())?.all_reduce(ReduceOp::Sum, &rank.stream)?;
            let error = rank.sync().unwrap_err();
            assert!(matches!(error, Error::Device { cause: Cause::Failed, .. }), "{error}");
            assert_eq!(memory.salvage(&rank.stream)?, before);
            Ok(error.to_string())
        });
        assert!(details.iter().any(|text| text.contains("disagree on the operation")), "{details:?}");
    }
}

#[test]
fn an_abort_on_the_host_ends_kernels_that_wait() {
    if device().is_none() {
        return;
    }
    let causes = then_again(2, &settings(), |rank| {
        if rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
            rank.group.abort("enough");
            return Ok(failed(rank));
        }
        let start = Instant::now();
        rank.engine.barrier(&rank.stream)?;
        let error = rank.sync().unwrap_err();
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        assert!(error.to_string().contains("enough"), "{error}");
        Ok(failed(rank))
    });
    assert_eq!(causes, [(1, Cause::Aborted); 2]);
}

#[test]
fn a_sync_that_ends_early_changes_nothing() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        if rank.rank() == 0 {
            rank.engine.barrier(&rank.stream)?;
            let error = rank.engine.sync(&rank.stream, Duration::from_millis(50)).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            rank.group.barrier()?;
        } else {
            rank.group.barrier()?;
            rank.engine.barrier(&rank.stream)?;
        }
        assert_eq!(rank.engine.status(), Status::Whole);
        rank.end()
    });
}

#[test]
fn the_deadline_can_be_changed() {
    if device().is_none() {
        return;
    }
    let causes = then_again(2, &settings(), |rank| {
        rank.engine.set_deadline(Some(SOON))?;
        rank.ready()?;
        if rank.rank() == 0 {
            let start = Instant::now();
            rank.engine.barrier(&rank.stream)?;
            assert!(rank.sync().is_err());
            assert!(start.elapsed() < SOON + AT_ONCE, "{:?}", start.elapsed());
        }
        Ok(failed(rank))
    });
    assert_eq!(causes, [(1, Cause::TimedOut); 2]);
}

#[test]
fn ranks_must_agree_on_the_engine() {
    if device().is_none() {
        return;
    }
    let _alone = crate::stage::alone();
    let errors = symmem::spawn(2, |group| {
        let lanes = 1 + group.rank() as u32;
        let settings = Settings { lanes, on_error: OnError::Report, ..settings() };
        let Err(error) = Rank::new(&group, settings) else { panic!("there is an engine") };
        Ok(error.to_string())
    })
    .unwrap();
    assert!(errors.iter().all(|error| error.contains("disagree on the engine")), "{errors:?}");
}
