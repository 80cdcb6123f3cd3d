//! Traces of jobs that run already: their engines were made while nobody recorded, so marks around kernels
//! record them from then on.

use std::time::{Duration, Instant};

use symmem::cuda::Graph;
use symmem::trace::{Trace, Tracer, Track};
use symmem::{ProcessSpawner, ReduceOp, Result, inspect};

use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, on_threads, settings};

/// How late a rank is: much longer than what it waits for takes.
const LATE: Duration = Duration::from_millis(50);
const OPERATIONS: usize = 100;
const REPLAYS: usize = 20;
const LEN: usize = 1000;
/// Of each rank on its first lane: one barrier, the operations, the replays of one of two graphs, and a
/// signal put and taken.
const ON_FIRST_LANE: usize = 1 + OPERATIONS + REPLAYS + 2;

fn attach(rank: &Rank) -> Result<Tracer> {
    let mine = inspect::groups()?.into_iter().filter(|seen| seen.id == rank.group.id());
    Tracer::attach(&mine.collect::<Vec<_>>())
}

fn capture(rank: &Rank) -> Result<Graph> {
    rank.stream.begin_capture()?;
    rank.engine.barrier(&rank.stream)?;
    rank.stream.end_capture()
}

/// Collective. What rank 0 has traced; the others have nothing.
fn be_a_rank(rank: &Rank) -> Result<Option<Trace>> {
    let me = rank.rank();
    let memory = rank.engine.alloc::<f32>(LEN)?.rendezvous(&rank.engine)?;
    let stream = &rank.stream;
    memory.write(&[me as f32 + 1.0; LEN], stream)?;
    rank.engine.prepare()?;
    rank.ready()?;
    let unrecorded = capture(rank)?;
    assert_eq!(unrecorded.kernel_count(), 1);
    rank.ready()?;
    let mut tracer = None;
    if me == 0 {
        // Its kernel waits on the device already when the other rank comes to its first operation that is
        // recorded.
        rank.engine.barrier(stream)?;
        tracer = Some(attach(rank)?);
    }
    rank.group.barrier()?;
    if me != 0 {
        std::thread::sleep(LATE);
        rank.engine.barrier(stream)?;
    }
    rank.sync()?;
    if me != 0 {
        std::thread::sleep(LATE);
    }
    rank.engine.lane(1)?.barrier(stream)?;
    // Rank 0 has one barrier less on its first lane that is recorded: the one from before.
    rank.engine.barrier(stream)?;
    (0..OPERATIONS).try_for_each(|_| memory.all_reduce(ReduceOp::Avg, stream))?;
    rank.sync()?;
    rank.group.barrier()?;
    let recorded = capture(rank)?;
    assert_eq!(recorded.kernel_count(), 3, "a mark before it, and one after it");
    rank.ready()?;
    for _ in 0..REPLAYS {
        recorded.launch(stream)?;
        unrecorded.launch(stream)?;
    }
    memory.put_signal(rank.group.next(), 1, stream)?;
    memory.wait_signal(rank.group.prev(), 1, stream)?;
    rank.sync()?;
    let mean = (1..=rank.group.size()).sum::<usize>() as f32 / rank.group.size() as f32;
    assert!(memory.read(stream)?.iter().all(|value| *value == mean), "marks change nothing");
    rank.group.barrier()?;
    let start = Instant::now();
    while let Some(tracer) = &mut tracer
        && start.elapsed() < Duration::from_millis(500)
    {
        tracer.poll()?;
        std::thread::sleep(Duration::from_millis(2));
    }
    let trace = tracer.map(Tracer::finish).transpose()?;
    rank.group.barrier()?;
    // It goes on, as it was.
    let after = capture(rank)?;
    assert_eq!(after.kernel_count(), 1);
    rank.ready()?;
    memory.all_reduce(ReduceOp::Avg, stream)?;
    rank.end()?;
    Ok(trace)
}

fn check(trace: &Trace, world: usize) {
    let tracks = |lane: usize| -> Vec<&Track> {
        trace.tracks.iter().filter(|track| track.lane == Some(lane)).collect()
    };
    assert_eq!(trace.lost, 0);
    assert_eq!(
        tracks(0).len(),
        world,
        "{:?}",
        trace.tracks.iter().map(|track| track.rank).collect::<Vec<_>>()
    );
    for track in tracks(0) {
        // The first barrier of rank 0 was before the trace.
        let more = usize::from(track.rank != 0);
        assert_eq!(track.operations.len(), ON_FIRST_LANE + more, "rank {}", track.rank);
        for one in &track.operations {
            let took = one.end_ns.expect("all have ended").checked_sub(one.begin_ns).expect("after it began");
            assert!(took < PATIENCE.as_nanos() as u64 && !one.failed, "{one:?}");
        }
        assert!(track.operations.windows(2).all(|pair| pair[0].end_ns <= Some(pair[1].begin_ns)));
        let reductions = track.operations.iter().filter(|one| one.name == "all_reduce");
        assert!(reductions.clone().all(|one| one.bytes == Some(4 * LEN as u64) && one.meeting.is_some()));
        assert_eq!(reductions.count(), OPERATIONS);
    }
    // Everybody waited on the second lane for a rank that was late.
    let on_second = trace.meetings().into_iter().find(|meeting| {
        trace.tracks[meeting.arrivals[0].track].lane == Some(1) && meeting.arrivals.len() == world
    });
    let meeting = on_second.expect("the barrier of the second lane");
    let waiters = trace.waiters(&meeting);
    let of_first = waiters.iter().find(|(arrival, _)| trace.tracks[arrival.track].rank == 0);
    let (_, waited) = of_first.expect("rank 0 waited");
    assert!(Duration::from_nanos(*waited) > LATE / 2, "{waited} ns");
}

#[test]
fn a_trace_that_attaches_has_what_devices_do() {
    if device().is_none() {
        return;
    }
    for world in [2, 3] {
        let traces = on_threads(world, &settings(), be_a_rank);
        check(traces[0].as_ref().expect("rank 0 has the trace"), world);
    }
}

#[test]
fn a_trace_that_attaches_to_processes_has_what_their_devices_do() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    ProcessSpawner::new("traced::a_trace_that_attaches_to_processes_has_what_their_devices_do", 2)
        .env(QUEUES, 4)
        .run(|group| {
            let rank = Rank::new(&group, settings())?;
            if let Some(trace) = be_a_rank(&rank)? {
                check(&trace, group.size());
            }
            Ok(())
        })
        .unwrap();
}
