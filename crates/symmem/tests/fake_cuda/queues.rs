//! Ranks of one process on one device have as many streams as there are queues, less one.

use std::time::Duration;

use symmem::cuda::{Buffer, Device, Engine, Graph, Stream};
use symmem::{Error, Group, Result};

use crate::common::{config, same_ranks_with};
use crate::fake::{self, Live};

const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// An engine on the one device of all ranks.
fn sharing(group: &Group) -> Result<Engine> {
    let group = same_ranks_with(group, config().allow_overlapping_devices(true))?;
    Engine::new(&group, &Device::new(0)?)
}

/// The streams that can be made before one is refused, and the refusal.
fn make_until_refused(device: &Device) -> (Vec<Stream>, Error) {
    let mut streams = Vec::new();
    loop {
        match Stream::new(device) {
            Ok(stream) => streams.push(stream),
            Err(error) => return (streams, error),
        }
        assert!(streams.len() < 100, "no stream is refused");
    }
}

#[test]
fn streams_beyond_the_queues_are_refused() {
    const NAME: &str = "queues::streams_beyond_the_queues_are_refused";
    for (setting, queues) in [("", 8), ("4", 4), ("32", 32), ("1000", 32), ("0", 8)] {
        fake::run(NAME, &[(CONNECTIONS, setting)], || {
            let device = Device::new(0).unwrap();
            let before: Vec<_> = (0..50).map(|_| Stream::new(&device).unwrap()).collect();
            symmem::spawn(2, |group| {
                let engine = sharing(&group)?;
                group.barrier()?;
                if group.rank() == 0 {
                    let (streams, error) = make_until_refused(engine.device());
                    assert_eq!(streams.len(), queues - 1);
                    let text = error.to_string();
                    assert!(text.contains(&format!("at most {} streams", queues - 1)), "{text}");
                    assert!(text.contains(CONNECTIONS) && text.lines().count() == 1, "{text}");
                    // A stream that is gone gives its place to another.
                    drop(streams);
                    assert_eq!(make_until_refused(engine.device()).0.len(), queues - 1);
                }
                group.barrier()
            })
            .unwrap();
            // Nobody shares the device any more.
            let after: Vec<_> = (0..50).map(|_| Stream::new(&device).unwrap()).collect();
            drop((before, after));
        });
    }
}

#[test]
fn an_operation_on_a_stream_too_many_fails_every_rank_with_the_reason() {
    const NAME: &str = "queues::an_operation_on_a_stream_too_many_fails_every_rank_with_the_reason";
    fake::run(NAME, &[(CONNECTIONS, "3")], || {
        let device = Device::new(0).unwrap();
        // Made when nobody shared the device, so nobody counted them.
        let streams: Vec<_> = (0..3).map(|_| Stream::new(&device).unwrap()).collect();
        symmem::spawn(2, |group| {
            let engine = sharing(&group)?;
            group.barrier()?;
            let mine: &[Stream] = if group.rank() == 0 { &streams[..2] } else { &streams[2..] };
            let results: Vec<_> = match group.rank() {
                0 => mine.iter().map(|stream| engine.barrier(stream)).collect(),
                _ => {
                    group.barrier()?;
                    vec![engine.barrier(&mine[0])]
                }
            };
            if group.rank() == 0 {
                assert!(results.iter().all(Result::is_ok), "{results:?}");
                group.barrier()?;
            }
            let error = match results.into_iter().find_map(Result::err) {
                Some(error) => error,
                None => fails_soon(&engine, &mine[0]),
            };
            assert!(error.to_string().contains("at most 2 streams"), "{error}");
            Ok(())
        })
        .unwrap();
    });
}

/// The error of the first operation that fails.
fn fails_soon(engine: &Engine, stream: &Stream) -> Error {
    for _ in 0..2000 {
        if let Err(error) = engine.barrier(stream) {
            return error;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the group did not fail");
}

/// As many streams as there can be beside another rank's, and more when copies are done.
#[test]
fn copies_on_many_streams_make_no_events() {
    const NAME: &str = "queues::copies_on_many_streams_make_no_events";
    fake::run(NAME, &[(CONNECTIONS, "32")], || {
        symmem::spawn(2, |group| {
            let engine = sharing(&group)?;
            let memory = engine.alloc::<f32>(16)?.rendezvous(&engine)?;
            let more = Buffer::<f32>::new(engine.device(), 16)?;
            let streams: Vec<Stream> = (0..12).map(|_| engine.stream()).collect::<Result<_>>()?;
            group.barrier()?;
            let before = Live::now().events();
            for held in [true, false] {
                let used = if held { &streams[..6] } else { &streams };
                if group.rank() == 0 {
                    fake::hold(held);
                }
                group.barrier()?;
                for stream in used.iter().chain(used) {
                    memory.put(group.next(), 0, &more, stream)?;
                }
                group.barrier()?;
                assert_eq!(Live::now().events(), before, "{} streams", used.len());
                group.barrier()?;
            }
            memory.close()
        })
        .unwrap();
    });
}

/// The driver lets nobody make an event while a thread is in `cuGraphLaunch`, where it may wait for a peer.
#[test]
fn replays_and_copies_make_no_events() {
    const NAME: &str = "queues::replays_and_copies_make_no_events";
    fake::run(NAME, &[], || {
        symmem::spawn(2, |group| {
            let engine = sharing(&group)?;
            let stream = engine.stream()?;
            let memory = engine.alloc::<f32>(16)?.rendezvous(&engine)?;
            let more = Buffer::<f32>::new(engine.device(), 16)?;
            let graphs = [(); 3].map(|()| {
                stream.begin_capture()?;
                engine.barrier(&stream)?;
                stream.end_capture()
            });
            let graphs: Vec<Graph> = graphs.into_iter().collect::<Result<_>>()?;
            group.barrier()?;
            let before = Live::now().events();
            if group.rank() == 0 {
                fake::hold(true);
            }
            for _ in 0..5 {
                group.barrier()?;
                graphs.iter().try_for_each(|graph| graph.launch(&stream))?;
                memory.put(group.next(), 0, &more, &stream)?;
            }
            group.barrier()?;
            assert_eq!(Live::now().events(), before);
            group.barrier()?;
            fake::hold(false);
            engine.sync(&stream, Duration::from_secs(10))?;
            drop(graphs);
            group.barrier()?;
            if group.rank() == 0 {
                stream.begin_capture()?;
                let _graph = stream.end_capture()?;
                // Of each rank's three graphs none is left.
                assert_eq!(Live::now().events(), before - 2 * 3 + 1);
            }
            group.barrier()
        })
        .unwrap();
    });
}
