//! Order across streams and threads: the guard of a lane. Items 25 to 30, 32 and 33 of the reference's list.

use std::time::Duration;

use symmem::cuda::cudarc::driver::sys;
use symmem::cuda::{Buffer, Event, Settings, Status, Stream};
use symmem::{ProcessSpawner, ReduceOp, Result};

use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, on_threads, settings};

/// Two streams of a rank.
fn two_streams(rank: &Rank) -> Result<(Stream, Stream)> {
    Ok((rank.engine.stream()?, rank.engine.stream()?))
}

/// Waits for both, and ends the test.
fn end(rank: &Rank, streams: &[&Stream]) -> Result<()> {
    for stream in streams {
        rank.engine.sync(stream, PATIENCE)?;
    }
    assert_eq!(rank.engine.status(), Status::Whole);
    rank.end()
}

/// Lets one rank come late.
fn delay(rank: &Rank, late: usize) {
    if rank.rank() == late {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn barriers_on_two_streams_come_one_after_the_other() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<u32>(256)?.rendezvous(&rank.engine)?;
        let mut seen = Buffer::<u32>::new(&rank.device, 1)?;
        let (first, second) = two_streams(rank)?;
        rank.ready()?;
        delay(rank, 0);
        memory.memset32(0, 100 + rank.rank() as i64, 1, &first)?;
        memory.barrier(0, &first)?;
        memory.barrier(0, &second)?;
        memory.memset32(0, 200 + rank.rank() as i64, 1, &second)?;
        memory.barrier(0, &second)?;
        memory.get(rank.group.next(), 0, &mut seen, &second)?;
        rank.engine.sync(&second, PATIENCE)?;
        assert_eq!(seen.read(&second)?, [200 + rank.group.next() as u32]);
        end(rank, &[&first, &second])
    });
}

#[test]
fn signals_on_two_streams_come_one_after_the_other() {
    if device().is_none() {
        return;
    }
    on_threads(3, &settings(), |rank| {
        let memory = rank.engine.alloc::<u32>(256)?.rendezvous(&rank.engine)?;
        let (first, second) = two_streams(rank)?;
        let mut seen = Buffer::<u32>::new(&rank.device, 1)?;
        rank.ready()?;
        delay(rank, 0);
        for (round, stream) in [&first, &second, &first, &second].into_iter().enumerate() {
            memory.memset32(round as i64, round as i64 * 10, 1, stream)?;
            memory.put_signal(rank.group.next(), 0, stream)?;
            memory.wait_signal(rank.group.prev(), 0, stream)?;
        }
        memory.get(rank.group.prev(), 3, &mut seen, &second)?;
        rank.engine.sync(&second, PATIENCE)?;
        assert_eq!(seen.read(&second)?, [30]);
        end(rank, &[&first, &second])
    });
}

#[test]
fn only_the_last_kernel_is_waited_for_and_not_what_its_stream_does_then() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<u32>(256)?.rendezvous(&rank.engine)?;
        let (first, second) = two_streams(rank)?;
        memory.barrier(0, &first)?;
        // Another lane: it holds up the first stream until the signal comes, and nothing else.
        memory.lane(1)?.wait_signal(rank.group.next(), 5, &first)?;
        memory.barrier(0, &second)?;
        rank.engine.sync(&second, PATIENCE)?;
        assert!(!first.query()?, "the first stream still waits");
        rank.group.barrier()?;
        memory.put_signal(rank.group.next(), 5, &second)?;
        end(rank, &[&first, &second])
    });
}

#[test]
fn threads_of_a_rank_may_share_a_lane() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let streams = two_streams(rank)?;
        std::thread::scope(|scope| {
            for stream in [&streams.0, &streams.1] {
                scope.spawn(move || {
                    for _ in 0..200 {
                        rank.engine.barrier(stream).unwrap();
                    }
                    rank.engine.sync(stream, PATIENCE).unwrap();
                });
            }
        });
        end(rank, &[&streams.0, &streams.1])
    });
}

#[test]
fn all_reduces_on_two_streams_come_one_after_the_other() {
    if device().is_none() {
        return;
    }
    on_threads(4, &settings(), |rank| {
        let len = 4096;
        let memory = rank.engine.alloc::<f32>(len)?.rendezvous(&rank.engine)?;
        memory.write(&vec![1.0; len], &rank.stream)?;
        let mut outs = [Buffer::<f32>::new(&rank.device, len)?, Buffer::<f32>::new(&rank.device, len)?];
        let (first, second) = two_streams(rank)?;
        rank.ready()?;
        delay(rank, 1);
        for _ in 0..50 {
            memory.all_reduce_out(ReduceOp::Sum, &mut outs[0], &first)?;
            memory.all_reduce_out(ReduceOp::Sum, &mut outs[1], &second)?;
        }
        rank.engine.sync(&second, PATIENCE)?;
        assert_eq!(outs[1].read(&second)?, vec![4.0; len]);
        end(rank, &[&first, &second])
    });
}

#[test]
fn a_capture_orders_its_forked_streams() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    // As processes: branches of a graph run on queues of the driver's choice, which ranks that are threads
    // share.
    ProcessSpawner::new("order::a_capture_orders_its_forked_streams", 2)
        .env(QUEUES, 8)
        .run(|group| fork_and_join(&Rank::new(&group, settings())?))
        .unwrap();
}

fn fork_and_join(rank: &Rank) -> Result<()> {
    let memory = rank.engine.alloc::<u32>(256)?.rendezvous(&rank.engine)?;
    let (first, second) = two_streams(rank)?;
    let (fork, join) = (Event::new(&rank.device)?, Event::new(&rank.device)?);
    for lane in [0, 1] {
        rank.engine.lane(lane)?.prepare()?;
        first.begin_capture()?;
        fork.record(&first)?;
        second.wait(&fork)?;
        memory.barrier(0, &first)?;
        // On another lane the two are free of each other.
        memory.lane(lane)?.barrier(0, &second)?;
        join.record(&second)?;
        first.wait(&join)?;
        let graph = first.end_capture()?;
        assert_eq!(graph.kernel_count(), 2);
        rank.ready()?;
        for _ in 0..4 {
            graph.launch(&rank.stream)?;
        }
        rank.sync()?;
        rank.ready()?;
    }
    end(rank, &[&first, &second])
}

#[test]
fn a_capture_that_is_never_replayed_changes_nothing() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let (first, second) = two_streams(rank)?;
        rank.ready()?;
        rank.engine.barrier(&first)?;
        rank.engine.sync(&first, PATIENCE)?;
        second.begin_capture()?;
        rank.engine.barrier(&second)?;
        drop(second.end_capture()?);
        rank.ready()?;
        rank.engine.barrier(&second)?;
        rank.engine.barrier(&first)?;
        end(rank, &[&first, &second])
    });
}

#[test]
fn ranks_of_a_process_need_streams_of_their_own() {
    if device().is_none() {
        return;
    }
    let device = device().unwrap();
    let common = Stream::new(&device).unwrap();
    on_threads(2, &settings(), |rank| {
        // SAFETY: the legacy default stream is always there.
        let legacy = unsafe { Stream::from_raw(&rank.device, std::ptr::null_mut()) }?;
        let error = rank.engine.barrier(&legacy).unwrap_err().to_string();
        assert!(error.contains("legacy default stream"), "{error}");
        rank.group.barrier()?;
        if rank.rank() == 0 {
            rank.engine.barrier(&common)?;
        }
        rank.group.barrier()?;
        if rank.rank() == 1 {
            let error = rank.engine.barrier(&common).unwrap_err().to_string();
            assert!(error.contains("rank 0 of this process"), "{error}");
            rank.engine.barrier(&rank.stream)?;
        }
        let used = if rank.rank() == 0 { &common } else { &rank.stream };
        end(rank, &[used])
    });
}

/// The priority that the driver has for a stream.
fn priority_of(stream: &Stream) -> i32 {
    let (mut context, mut priority) = (std::ptr::null_mut(), i32::MIN);
    // SAFETY: a live stream; each call writes one value, and the context is that of the stream.
    let codes = unsafe {
        [
            sys::cuStreamGetCtx(stream.raw(), &mut context),
            sys::cuCtxSetCurrent(context),
            sys::cuStreamGetPriority(stream.raw(), &mut priority),
        ]
    };
    assert_eq!(codes, [sys::CUresult::CUDA_SUCCESS; 3]);
    priority
}

#[test]
fn streams_of_an_engine_have_the_priority_of_its_settings() {
    let Some(device) = device() else { return };
    let (least, greatest) = device.stream_priorities().unwrap();
    assert!(greatest < least, "this device knows no priorities");
    // What the device does not have is clamped.
    for (asked, has) in
        [(least, least), (greatest, greatest), (least + 100, least), (greatest - 100, greatest)]
    {
        on_threads(1, &Settings { priority: asked, ..settings() }, |rank| {
            assert_eq!(priority_of(&rank.stream), has, "{asked} was asked for");
            rank.engine.barrier(&rank.stream)?;
            end(rank, &[&rank.stream])
        });
    }
}
