//! What happens when a rank gives up, does not come, comes with something else, or has left: the same first
//! cause on all ranks, and a new engine on the same device that works.

use std::time::{Duration, Instant};

use symmem::cuda::Status;
use symmem::{Cause, Error, ReduceOp, Result};

use crate::common::{AT_ONCE, assert_error};
use crate::suite::device::rank::{PATIENCE, Rank, SOON};
use crate::suite::value::assert_elements;

/// Culprit and cause, once the group has failed.
fn failed(rank: &Rank) -> (usize, Cause) {
    let start = Instant::now();
    loop {
        match rank.engine.status() {
            Status::Failed { culprit, cause, .. } => return (culprit, cause),
            _ if start.elapsed() > PATIENCE => panic!("the group is still whole"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Collective over `rank`. All say the same of `doomed`, which was ruined; that of `rank` goes on.
fn same_cause(rank: &Rank, doomed: Rank) -> Result<(usize, Cause)> {
    let (culprit, cause) = failed(&doomed);
    // As numbers, for all to see.
    let mine = (culprit as u64) << 32 | u64::from(cause as u32);
    let all = rank.group.all_gather(&mine)?;
    assert!(all.iter().all(|theirs| *theirs == mine), "rank {}: {cause}: {all:x?}", rank.rank());
    let refused = doomed.engine.barrier(&doomed.stream);
    assert!(refused.as_ref().is_err_and(Error::is_group_failure), "{refused:?}");
    assert_eq!(refused.err().and_then(|error| error.culprit()), Some(culprit));
    end(rank, doomed)?;
    Ok((culprit, cause))
}

/// Collective over `rank`. Waits until the work of `doomed` has left the device, and shows that all goes on
/// without it.
fn end(rank: &Rank, doomed: Rank) -> Result<()> {
    let start = Instant::now();
    while !doomed.stream.query()? {
        assert!(start.elapsed() < PATIENCE, "work of a failed group stays on the device");
        std::thread::sleep(Duration::from_millis(1));
    }
    rank.group.barrier()?;
    drop(doomed);
    goes_on(rank)
}

/// Collective. The engine of `rank` works.
fn goes_on(rank: &Rank) -> Result<()> {
    rank.group.barrier()?;
    let memory = rank.memory::<f32>(3000)?;
    memory.write(&vec![1.0; 3000], &rank.stream)?;
    rank.ready()?;
    memory.all_reduce(ReduceOp::Sum, &rank.stream)?;
    rank.sync()?;
    assert_elements("all_reduce", &memory.read(&rank.stream)?, |_| rank.world());
    rank.end()
}

/// Collective. An engine that is to be ruined; that of an earlier one, on the same device, is of no harm to
/// it.
fn doomed(rank: &Rank, deadline: Duration) -> Result<Rank> {
    let doomed = rank.again()?;
    goes_on(&doomed)?;
    // Not before: the first operations may have something to set up.
    doomed.engine.set_deadline(Some(deadline))?;
    doomed.ready()?;
    Ok(doomed)
}

pub(crate) fn an_abort_is_everybodys_first_cause(rank: &Rank) -> Result<()> {
    let doomed = doomed(rank, PATIENCE)?;
    let memory = doomed.memory::<f32>(100)?;
    let last = rank.world() - 1;
    doomed.ready()?;
    memory.all_reduce(ReduceOp::Sum, &doomed.stream)?;
    doomed.end()?;
    if rank.rank() == last {
        doomed.group.abort("it was enough");
        doomed.group.abort("a second thought");
    }
    assert_eq!(failed(&doomed), (last, Cause::Aborted));
    let Status::Failed { detail, .. } = doomed.engine.status() else { panic!("it has failed") };
    assert!(detail.contains("it was enough"), "{detail}");
    let refused = memory.all_reduce(ReduceOp::Sum, &doomed.stream);
    assert!(refused.is_err_and(|error| error.is_group_failure()));
    assert!(doomed.sync().is_err_and(|error| error.to_string().contains("it was enough")));
    assert!(doomed.memory::<f32>(100).is_err(), "nobody meets on a failed group");
    assert_eq!(same_cause(rank, doomed)?, (last, Cause::Aborted));
    drop(memory);
    rank.end()
}

pub(crate) fn an_abort_ends_work_that_waits(rank: &Rank) -> Result<()> {
    let doomed = doomed(rank, PATIENCE)?;
    let memory = doomed.memory::<f32>(3000)?;
    let last = rank.world() - 1;
    doomed.ready()?;
    memory.all_reduce(ReduceOp::Sum, &doomed.stream)?;
    doomed.end()?;
    if rank.rank() == last {
        std::thread::sleep(Duration::from_millis(100));
        doomed.group.abort("it was enough");
    } else {
        let start = Instant::now();
        memory.all_reduce(ReduceOp::Sum, &doomed.stream)?;
        let error = doomed.sync().unwrap_err();
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        assert!(error.is_group_failure() && error.to_string().contains("it was enough"), "{error}");
    }
    assert_eq!(same_cause(rank, doomed)?, (last, Cause::Aborted));
    drop(memory);
    rank.end()
}

pub(crate) fn a_sync_that_ends_early_changes_nothing(rank: &Rank) -> Result<()> {
    rank.ready()?;
    if rank.rank() == 0 {
        rank.engine.barrier(&rank.stream)?;
        let early = rank.engine.sync(&rank.stream, Duration::from_millis(50));
        assert_error!(early, Error::Timeout { .. });
    }
    rank.group.barrier()?;
    if rank.rank() != 0 {
        rank.engine.barrier(&rank.stream)?;
    }
    rank.sync()?;
    assert_eq!(rank.engine.status(), Status::Whole);
    rank.end()
}

/// What a rank may wait in vain for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Barrier,
    AllReduce,
    Put,
    Signal,
}

fn time_out(rank: &Rank, wait: Wait) -> Result<()> {
    let doomed = doomed(rank, SOON)?;
    let memory = doomed.memory::<f32>(3000)?;
    let stream = &doomed.stream;
    doomed.ready()?;
    if rank.rank() == 0 {
        let put = || memory.put_signal(1, 0, stream);
        let launched = match wait {
            Wait::Barrier => memory.barrier(0, stream),
            Wait::AllReduce => memory.all_reduce(ReduceOp::Sum, stream),
            Wait::Put => put().and_then(|()| put()),
            Wait::Signal => memory.wait_signal(1, 0, stream),
        };
        // NCCL may wait for peers before the work is on its stream.
        let error = launched.and_then(|()| doomed.sync()).unwrap_err();
        assert!(matches!(error, Error::Device { cause: Cause::TimedOut, .. }), "{error}");
    }
    let (culprit, cause) = same_cause(rank, doomed)?;
    assert_eq!(cause, Cause::TimedOut, "{wait:?}");
    // Any of those who did not come. NCCL does not say for whom it waits: of more than two, who waited has to
    // stand for them.
    let named = if rank.is_direct() || rank.world() == 2 { culprit != 0 } else { culprit == 0 };
    assert!(named, "{wait:?}: rank {culprit}");
    drop(memory);
    rank.end()
}

pub(crate) fn what_nobody_joins_times_out_for_all(rank: &Rank) -> Result<()> {
    time_out(rank, Wait::Barrier)?;
    time_out(rank, Wait::AllReduce)
}

pub(crate) fn a_signal_that_nobody_answers_times_out_for_all(rank: &Rank) -> Result<()> {
    time_out(rank, Wait::Put)?;
    time_out(rank, Wait::Signal)
}

pub(crate) fn ranks_that_disagree_get_the_same_error_and_keep_their_bytes(rank: &Rank) -> Result<()> {
    for len in [1000, 1_000_000] {
        let doomed = doomed(rank, PATIENCE)?;
        let memory = doomed.memory::<f32>(len)?;
        let before = vec![rank.rank() as f32; len];
        memory.write(&before, &doomed.stream)?;
        doomed.ready()?;
        let fewer = 4 * usize::from(rank.rank() == 0);
        // Who comes late may be told at once.
        let launched = memory.slice(..len - fewer)?.all_reduce(ReduceOp::Sum, &doomed.stream);
        let error = launched.and_then(|()| doomed.sync()).unwrap_err();
        assert!(matches!(error, Error::Device { cause: Cause::Failed, .. }), "{error}");
        assert!(memory.salvage(&doomed.stream)? == before, "the bytes changed");
        let said = rank.group.all_gather_bytes(error.to_string().as_bytes())?;
        let told =
            said.iter().any(|said| String::from_utf8_lossy(said).contains("disagree on the operation"));
        assert!(told, "nobody says why");
        assert_eq!(same_cause(rank, doomed)?.1, Cause::Failed);
        drop(memory);
        rank.end()?;
    }
    Ok(())
}

pub(crate) fn a_rank_that_left_is_named(rank: &Rank) -> Result<()> {
    let doomed = doomed(rank, SOON)?;
    let last = rank.world() - 1;
    doomed.ready()?;
    if rank.rank() == last {
        // Its engine has left with it.
        drop(doomed);
        rank.group.barrier()?;
        rank.group.barrier()?;
        return goes_on(rank);
    }
    rank.group.barrier()?;
    let launched = doomed.engine.barrier(&doomed.stream);
    let error = launched.and_then(|()| doomed.sync()).unwrap_err();
    assert_error!(Err::<(), _>(error), Error::PeerLeft { rank: who, .. } if who == last);
    assert_eq!(failed(&doomed), (last, Cause::Left));
    rank.group.barrier()?;
    drop(doomed);
    goes_on(rank)
}
