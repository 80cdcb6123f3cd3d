//! Traces: what is recorded of a job, and that those who are not recorded know nothing of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use symmem::trace::{Operation, Trace, Tracer};
use symmem::{DType, Group, ProcessSpawner, ReduceOp, Result};

/// The trace of `work` on `ranks` processes, and how they ended. A rank does not come back.
fn trace_all(name: &str, ranks: usize, work: fn(Group) -> Result<()>) -> (Trace, Vec<Result<()>>) {
    let tracer = Tracer::listen().unwrap();
    let (variable, value) = tracer.environment();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The ranks are started by the test's own thread, whose name says which test they are of.
        let reading = scope.spawn(|| {
            let mut tracer = tracer;
            while !done.load(Ordering::Acquire) {
                tracer.poll().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            tracer.finish().unwrap()
        });
        let outcomes = ProcessSpawner::new(name, ranks).env(variable, value).run_all(work);
        done.store(true, Ordering::Release);
        (reading.join().unwrap(), outcomes.unwrap())
    })
}

/// The trace of ranks all of which end as they should.
fn trace(name: &str, ranks: usize, work: fn(Group) -> Result<()>) -> Trace {
    let (trace, outcomes) = trace_all(name, ranks, work);
    outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    trace
}

fn named<'a>(trace: &'a Trace, rank: usize, name: &str) -> Vec<&'a Operation> {
    let track = trace.tracks.iter().find(|track| track.rank == rank && track.group == "world");
    let track = track.unwrap_or_else(|| panic!("no track of rank {rank}: {trace:?}"));
    track.operations.iter().filter(|operation| operation.name == name).collect()
}

#[test]
fn every_rank_has_a_track_with_all_it_did() {
    let name = "every_rank_has_a_track_with_all_it_did";
    let trace = trace(name, 3, |group| {
        let mut x = group.alloc::<f32>(1000)?;
        x.fill(1.0)?;
        let mut mem = x.rendezvous(&group)?;
        for _ in 0..50 {
            mem.all_reduce(ReduceOp::Max)?;
        }
        mem.put_signal(group.next(), 3)?;
        mem.wait_signal(group.prev(), 3)?;
        let mut y = [group.rank() as u64];
        group.all_reduce(ReduceOp::Sum, &mut y)?;
        mem.close()
    });
    assert_eq!(trace.lost, 0);
    assert_eq!(trace.tracks.len(), 3, "{trace:?}");
    for rank in 0..3 {
        let all = named(&trace, rank, "all_reduce");
        assert_eq!(all.len(), 51);
        let (symmetric, private) = (all[7], all[50]);
        assert_eq!((symmetric.bytes, symmetric.dtype), (Some(4000), Some(DType::F32)));
        assert_eq!((symmetric.reduce, private.reduce), (Some(ReduceOp::Max), Some(ReduceOp::Sum)));
        assert!(symmetric.algorithm.is_some() && !symmetric.failed);
        assert_eq!((private.bytes, private.dtype), (Some(8), Some(DType::U64)));
        assert!(all.windows(2).all(|pair| pair[0].end_ns <= Some(pair[1].begin_ns)));
        assert!(all.iter().all(|one| one.end_ns >= Some(one.begin_ns)));
        let signal = named(&trace, rank, "wait_signal");
        assert_eq!((signal.len(), signal[0].channel, signal[0].meeting), (1, Some(3), None));
        assert_eq!(named(&trace, rank, "close").len(), 1);
    }
    let of_all = trace.meetings().into_iter().filter(|meeting| meeting.arrivals.len() == 3);
    assert!(of_all.count() >= 53, "all ranks meet in every collective");
}

#[test]
fn the_rank_that_the_others_waited_for_came_last() {
    let name = "the_rank_that_the_others_waited_for_came_last";
    let late = Duration::from_millis(30);
    let trace = trace(name, 3, |group| {
        for round in 0..3 {
            if group.rank() == round {
                thread::sleep(Duration::from_millis(30));
            }
            group.barrier()?;
        }
        Ok(())
    });
    let barriers: Vec<_> = trace
        .meetings()
        .into_iter()
        .filter(|meeting| {
            trace.operation(meeting.arrivals[0]).name == "barrier" && meeting.arrivals.len() == 3
        })
        .collect();
    assert_eq!(barriers.len(), 3, "{trace:?}");
    for (round, meeting) in barriers.iter().enumerate() {
        let last = meeting.arrivals.last().unwrap();
        assert_eq!(trace.tracks[last.track].rank, round);
        let waiters = trace.waiters(meeting);
        assert_eq!(waiters.len(), 2);
        let longest = waiters.iter().map(|(_, ns)| Duration::from_nanos(*ns)).max().unwrap();
        assert!(longest > late / 2, "{longest:?}");
    }
}

#[test]
fn groups_have_tracks_of_their_own() {
    let name = "groups_have_tracks_of_their_own";
    let trace = trace(name, 2, |group| {
        let twin = group.subgroup(&[1, 0], "twin")?;
        twin.barrier()?;
        group.barrier()
    });
    let twins: Vec<_> = trace.tracks.iter().filter(|track| track.group.contains("twin")).collect();
    assert_eq!(twins.len(), 2, "{trace:?}");
    assert!(twins.iter().all(|track| track.operations.iter().any(|one| one.name == "barrier")));
}

#[test]
fn what_a_dead_rank_did_is_not_lost() {
    let (trace, outcomes) = trace_all("what_a_dead_rank_did_is_not_lost", 2, die_in_a_barrier);
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(named(&trace, 1, "barrier").len(), 5, "{trace:?}");
    let last = *named(&trace, 0, "barrier").last().unwrap();
    assert!(last.failed, "rank 0 saw the end of the group: {last:?}");
}

fn die_in_a_barrier(group: Group) -> Result<()> {
    for _ in 0..5 {
        group.barrier()?;
    }
    if group.rank() == 1 {
        std::process::abort();
    }
    group.barrier()
}

/// Meets until there is a file, which rank 0 alone looks for.
fn meet_until_told(group: Group) -> Result<u64> {
    let mut x = [0.0_f64; 100];
    for round in 1.. {
        let told =
            group.rank() == 0 && std::env::var(STOP).is_ok_and(|file| std::path::Path::new(&file).exists());
        x[0] = f64::from(u8::from(told));
        group.all_reduce(ReduceOp::Max, &mut x)?;
        if x[0] > 0.0 {
            return Ok(round);
        }
    }
    Ok(0)
}

/// Names the file that ends [`meet_until_told`].
const STOP: &str = "SYMMEM_TEST_TRACE_STOP";

#[test]
fn a_job_that_runs_already_can_be_traced_and_goes_on_after_it() {
    let name = "a_job_that_runs_already_can_be_traced_and_goes_on_after_it";
    if std::env::var_os("SYMMEM_SPAWN_NAME").is_some() {
        // A rank, which does not come back and traces nobody.
        ProcessSpawner::new(name, 3).run(meet_until_told).unwrap();
    }
    let file = std::env::temp_dir().join(format!("symmem-test-trace-{}", std::process::id()));
    let pid = std::process::id();
    let rounds = thread::scope(|scope| {
        let file = &file;
        let looking = scope.spawn(move || {
            let end = std::time::Instant::now() + Duration::from_secs(60);
            let groups = loop {
                let groups = symmem::inspect::groups_of(&[pid]).unwrap();
                let runs = groups
                    .iter()
                    .filter(|group| group.world == 3 && group.ranks.iter().all(|rank| rank.last.len() > 5));
                let found: Vec<_> = runs.cloned().collect();
                if !found.is_empty() || std::time::Instant::now() > end {
                    break found;
                }
                thread::sleep(Duration::from_millis(5));
            };
            let mut tracer = Tracer::attach(&groups).unwrap();
            while tracer.progress().0 < 1000 && std::time::Instant::now() < end {
                tracer.poll().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            assert!(tracer.is_alive());
            let trace = tracer.finish().unwrap();
            std::fs::write(file, "enough").unwrap();
            trace
        });
        let rounds = ProcessSpawner::new(name, 3).env(STOP, file.display()).run(meet_until_told);
        // Whatever became of the ranks: whoever looks for them ends.
        let trace = looking.join().unwrap();
        assert!(
            trace.tracks.len() == 3 && trace.tracks.iter().all(|track| track.operations.len() > 100),
            "{trace:?}"
        );
        assert!(trace.meetings().iter().any(|meeting| meeting.arrivals.len() == 3));
        rounds
    });
    std::fs::remove_file(&file).unwrap();
    let rounds = rounds.unwrap();
    assert!(rounds.iter().all(|one| *one == rounds[0]));
}
