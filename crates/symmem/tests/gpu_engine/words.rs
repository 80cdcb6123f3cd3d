//! memset32 and stream_write_value32. Items 73 and 74 of the reference's list.

use symmem::Result;
use symmem::cuda::{Buffer, Stream};

use crate::stage::{device, on_threads, settings};

fn problem(result: Result<()>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "{error}");
}

#[test]
fn words_are_written_one_by_one_without_any_group() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let mut words = device.alloc::<u32>(8).unwrap();
    for at in 0..8 {
        words.as_slice_mut().unwrap().stream_write_value32(at, at * 3, &stream).unwrap();
        let expected: Vec<u32> = (0..8).map(|index| if index <= at { index as u32 * 3 } else { 0 }).collect();
        assert_eq!(words.read(&stream).unwrap(), expected);
    }
    let mut slice = words.as_slice_mut().unwrap();
    problem(slice.stream_write_value32(-1, 1, &stream), "offset");
    problem(slice.stream_write_value32(0, 1 << 32, &stream), "val must be in the range of");
    problem(slice.stream_write_value32(8, 1, &stream), "numel");
    stream.begin_capture().unwrap();
    problem(slice.stream_write_value32(0, 1, &stream), "cannot be captured");
    drop(stream.end_capture().unwrap());
}

#[test]
fn ranges_of_words_are_set() {
    let Some(device) = device() else { return };
    let stream = Stream::new(&device).unwrap();
    let mut words = Buffer::from_slice(&device, &[0u32; 64], &stream).unwrap();
    words.as_slice_mut().memset32(10, 0xffff_ffff, 20, &stream).unwrap();
    let expected: Vec<u32> = (0..64).map(|at| if (10..30).contains(&at) { u32::MAX } else { 0 }).collect();
    assert_eq!(words.read(&stream).unwrap(), expected);
    let mut slice = words.as_slice_mut();
    slice.memset32(0, 5, 64, &stream).unwrap();
    slice.memset32(63, 6, 1, &stream).unwrap();
    let cases: [(i64, i64, i64, &str); 8] = [
        (-1, 1, 1, "offset must be"),
        (0, 1, 0, "count must be a positive integer"),
        (0, 1, -1, "count must be a positive integer"),
        (0, -1, 1, "val must be in the range of"),
        (0, 1 << 32, 1, "val must be in the range of"),
        (64, 1, 1, "exceeded the numel"),
        (0, 1, 65, "exceeded the numel"),
        (60, 1, 5, "exceeded the numel"),
    ];
    for (offset, value, count, text) in cases {
        problem(slice.memset32(offset, value, count, &stream), text);
    }
    let found = words.read(&stream).unwrap();
    assert_eq!((found[0], found[62], found[63]), (5, 5, 6));
}

#[test]
fn symmetric_words_are_seen_by_peers() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<u32>(16)?.rendezvous(&rank.engine)?;
        let mut seen = Buffer::<u32>::new(&rank.device, 16)?;
        rank.ready()?;
        memory.memset32(0, 1 + rank.rank() as i64, 16, &rank.stream)?;
        memory.stream_write_value32(15, 99, &rank.stream)?;
        memory.barrier(0, &rank.stream)?;
        memory.get(rank.group.next(), 0, &mut seen, &rank.stream)?;
        rank.sync()?;
        let seen = seen.read(&rank.stream)?;
        assert_eq!((seen[0], seen[15]), (1 + rank.group.next() as u32, 99));
        problem(memory.memset32(0, 1, 17, &rank.stream), "numel");
        rank.end()
    });
}
