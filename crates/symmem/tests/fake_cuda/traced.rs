//! Traces of jobs that run already: what their devices do is recorded from then on, by marks around kernels
//! that cannot record.

use std::time::{Duration, Instant};

use symmem::cuda::{Device, Engine, Settings, Stream};
use symmem::inspect;
use symmem::trace::{Trace, Tracer, Track};
use symmem::{Group, ReduceOp, Result};

use crate::common::PATIENCE;
use crate::fake::launched;
use crate::{DEVICES, engine, fake};

/// A tracer of this group, which is recorded when this returns.
fn attach(group: &Group) -> Result<Tracer> {
    let mine = inspect::groups()?.into_iter().filter(|seen| seen.id == group.id());
    Tracer::attach(&mine.collect::<Vec<_>>())
}

/// Reads until `count` operations are there, and a little longer, for those that should not be.
fn read(tracer: &mut Tracer, count: usize) -> Result<()> {
    let start = Instant::now();
    while tracer.progress().0 < count {
        assert!(start.elapsed() < PATIENCE, "{:?} of {count} operations came", tracer.progress());
        tracer.poll()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Collective. The trace of what `work` does while a tracer is attached, for rank 0.
fn traced(group: &Group, count: usize, work: impl FnOnce() -> Result<()>) -> Result<Option<Trace>> {
    let mut tracer = match group.rank() {
        0 => Some(attach(group)?),
        _ => None,
    };
    group.barrier()?;
    work()?;
    group.barrier()?;
    if let Some(tracer) = &mut tracer {
        read(tracer, count)?;
    }
    let trace = tracer.map(Tracer::finish).transpose()?;
    // Nobody goes on before it is recorded no more.
    group.barrier()?;
    Ok(trace)
}

fn on_devices(trace: &Trace) -> Vec<&Track> {
    trace.tracks.iter().filter(|track| track.device.is_some()).collect()
}

#[test]
fn devices_of_a_job_that_runs_already_are_in_its_trace() {
    const NAME: &str = "traced::devices_of_a_job_that_runs_already_are_in_its_trace";
    fake::run(NAME, &[DEVICES, ("SYMMEM_LANES", "2")], || {
        symmem::spawn(2, |group| {
            let engine = engine(&group)?;
            let stream = Stream::new(engine.device())?;
            let memory = engine.device().alloc::<f32>(1000)?.rendezvous(&engine)?;
            engine.barrier(&stream)?;
            assert!(launched().starts_with("barrier"), "nothing is recorded yet: {}", launched());
            // 5 operations of each rank's device, and a barrier or two of its host.
            let trace = traced(&group, 12, || {
                for _ in 0..2 {
                    memory.all_reduce(ReduceOp::Avg, &stream)?;
                    assert!(launched().starts_with("mark_end"), "{}", launched());
                }
                engine.lane(1)?.barrier(&stream)?;
                memory.put_signal(group.next(), 3, &stream)?;
                memory.wait_signal(group.prev(), 3, &stream)
            })?;
            engine.barrier(&stream)?;
            assert!(launched().starts_with("barrier"), "nothing is recorded any more: {}", launched());
            let Some(trace) = trace else { return Ok(()) };
            let tracks = on_devices(&trace);
            let places = tracks.iter().map(|track| (track.rank, track.device, track.lane, track.engine));
            let expected = [(0, 0), (0, 1), (1, 0), (1, 1)];
            let expected = expected.map(|(rank, lane)| (rank, Some(rank), Some(lane), Some(0)));
            assert_eq!(places.collect::<Vec<_>>(), expected);
            for track in tracks.iter().filter(|track| track.lane == Some(0)) {
                let names: Vec<_> = track.operations.iter().map(|one| one.name).collect();
                assert_eq!(names, ["all_reduce", "all_reduce", "put_signal", "wait_signal"]);
                let [first, second, put, wait] = &track.operations[..] else { unreachable!("four names") };
                assert_eq!((first.bytes, first.reduce), (Some(4000), Some(ReduceOp::Avg)));
                assert_eq!(second.meeting, first.meeting.map(|number| number + 1));
                assert_eq!((put.channel, put.meeting, wait.meeting), (Some(3), None, None));
                assert!(track.operations.iter().all(|one| one.end_ns >= Some(one.begin_ns) && !one.failed));
            }
            let is_device = |track: usize| trace.tracks[track].device.is_some();
            let meetings =
                trace.meetings().into_iter().filter(|meeting| is_device(meeting.arrivals[0].track));
            assert_eq!(meetings.map(|meeting| meeting.arrivals.len()).collect::<Vec<_>>(), [2, 2, 2]);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn a_graph_records_its_replays_if_its_group_was_recorded_when_it_was_captured() {
    const NAME: &str = "traced::a_graph_records_its_replays_if_its_group_was_recorded_when_it_was_captured";
    fake::run(NAME, &[DEVICES], || {
        symmem::spawn(1, |group| {
            let engine = engine(&group)?;
            let stream = Stream::new(engine.device())?;
            let capture = || {
                stream.begin_capture()?;
                engine.barrier(&stream)?;
                stream.end_capture()
            };
            let before = capture()?;
            let mut later = None;
            let trace = traced(&group, 4, || {
                let graph = capture()?;
                before.launch(&stream)?;
                (0..3).try_for_each(|_| graph.launch(&stream))?;
                later = Some(graph);
                Ok(())
            })?;
            let trace = trace.expect("this is rank 0");
            let [track] = on_devices(&trace)[..] else { panic!("{trace:?}") };
            let numbers: Vec<_> = track.operations.iter().filter_map(|one| one.meeting).collect();
            assert_eq!(numbers, [3, 4, 5], "the first one, of the other graph, is not there");
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn lanes_of_two_engines_of_a_group_are_told_apart() {
    fake::run("traced::lanes_of_two_engines_of_a_group_are_told_apart", &[DEVICES], || {
        symmem::spawn(2, |group| {
            let device = Device::new(group.rank())?;
            let engines =
                [Engine::new(&group, &device)?, Engine::with(&group, &device, Settings::default())?];
            let stream = Stream::new(&device)?;
            let trace = traced(&group, 6, || engines.iter().try_for_each(|engine| engine.barrier(&stream)))?;
            let Some(trace) = trace else { return Ok(()) };
            let places: Vec<_> = on_devices(&trace).iter().map(|track| (track.rank, track.engine)).collect();
            assert_eq!(places, [(0, Some(0)), (0, Some(1)), (1, Some(0)), (1, Some(1))]);
            let meetings = trace.meetings().into_iter().filter(|meeting| {
                let engines: Vec<_> =
                    meeting.arrivals.iter().map(|arrival| trace.tracks[arrival.track].engine).collect();
                assert!(engines.windows(2).all(|pair| pair[0] == pair[1]), "{engines:?}");
                engines[0].is_some()
            });
            assert_eq!(meetings.map(|meeting| meeting.arrivals.len()).collect::<Vec<_>>(), [2, 2]);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn devices_are_recorded_where_nothing_can_be_compiled() {
    const NAME: &str = "traced::devices_are_recorded_where_nothing_can_be_compiled";
    fake::run(NAME, &[DEVICES, ("SYMMEM_NVRTC_LIBRARY", "/nothing")], || {
        symmem::spawn(2, |group| {
            let mut kept = None;
            let trace = traced(&group, 4, || {
                // Made while the group is recorded: its kernels would record themselves.
                let engine = engine(&group)?;
                engine.barrier(&Stream::new(engine.device())?)?;
                assert!(launched().starts_with("mark_end"), "{}", launched());
                kept = Some(engine);
                Ok(())
            })?;
            let Some(trace) = trace else { return Ok(()) };
            let counts = on_devices(&trace).into_iter().map(|track| (track.rank, track.operations.len()));
            assert_eq!(counts.collect::<Vec<_>>(), [(0, 1), (1, 1)]);
            Ok(())
        })
        .unwrap();
    });
}
