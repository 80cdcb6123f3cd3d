//! Single words in the order of a stream.

use symmem::Result;
use symmem::cuda::Buffer;

use crate::suite::device::rank::Rank;
use crate::suite::value::assert_elements;

fn problem(result: Result<()>, text: &str) {
    let error = result.expect_err(text).to_string();
    assert!(error.contains(text), "{error}");
}

pub(crate) fn ranges_of_words_are_set(rank: &Rank) -> Result<()> {
    let stream = &rank.stream;
    let memory = rank.memory::<u32>(64)?;
    rank.ready()?;
    memory.memset32(10, 0xffff_ffff, 20, stream)?;
    let expected = |at: usize| if (10..30).contains(&at) { u32::MAX as usize } else { 0 };
    assert_elements("memset32", &memory.read(stream)?, expected);
    memory.memset32(0, 5, 64, stream)?;
    memory.memset32(63, 6, 1, stream)?;
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
        problem(memory.memset32(offset, value, count, stream), text);
    }
    assert_elements("memset32", &memory.read(stream)?, |at| if at == 63 { 6 } else { 5 });
    rank.end()
}

pub(crate) fn words_are_written_one_by_one(rank: &Rank) -> Result<()> {
    let stream = &rank.stream;
    let memory = rank.memory::<u32>(8)?;
    rank.ready()?;
    for last in 0..8 {
        memory.stream_write_value32(last, last * 3, stream)?;
        let expected = |at: usize| if at <= last as usize { at * 3 } else { 0 };
        assert_elements("stream_write_value32", &memory.read(stream)?, expected);
    }
    problem(memory.stream_write_value32(-1, 1, stream), "offset");
    problem(memory.stream_write_value32(0, 1 << 32, stream), "val must be in the range of");
    problem(memory.stream_write_value32(8, 1, stream), "numel");
    stream.begin_capture()?;
    let captured = memory.stream_write_value32(0, 1, stream);
    drop(stream.end_capture()?);
    problem(captured, "cannot be captured");
    rank.end()
}

pub(crate) fn words_need_no_group(rank: &Rank) -> Result<()> {
    let stream = &rank.others[0];
    let mut allocated = rank.engine.alloc::<u32>(16)?;
    let mut private = Buffer::from_slice(&rank.device, &[1; 16], stream)?;
    for mut words in [allocated.as_slice_mut()?, private.as_slice_mut()] {
        words.memset32(0, 9, 16, stream)?;
        words.stream_write_value32(15, 10, stream)?;
    }
    let expected = |at: usize| if at == 15 { 10 } else { 9 };
    assert_elements("an allocation", &allocated.read(stream)?, expected);
    assert_elements("a buffer", &private.read(stream)?, expected);
    rank.end()
}

pub(crate) fn symmetric_words_are_seen_by_peers(rank: &Rank) -> Result<()> {
    let memory = rank.memory::<u32>(16)?;
    let mut seen = rank.buffer::<u32>(16 * rank.world())?;
    rank.ready()?;
    memory.memset32(0, 1 + rank.rank() as i64, 16, &rank.stream)?;
    memory.stream_write_value32(15, 99, &rank.stream)?;
    memory.all_gather(&mut seen, &rank.stream)?;
    rank.sync()?;
    let expected = |at: usize| if at % 16 == 15 { 99 } else { 1 + at / 16 };
    assert_elements("all_gather", &seen.read(&rank.stream)?, expected);
    rank.end()
}
