//! Properties of views: any shape, element and offset within bounds gives exactly the peer's bytes, anything
//! else is an error and never a panic.

mod common;

use common::PATIENCE;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use symmem::{Element, Error, PeerView, Result, SymmetricMemory};

/// Bytes of the peer's memory: more than a page, and no multiple of the larger elements.
const BYTES: usize = 4096 + 203;
/// The rank whose memory is looked at.
const PEER: usize = 1;

/// What the peer wrote: the low and the high part of a counter, so that neighbours and pages differ.
fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at ^ ((at >> 8) * 31)) as u8).collect()
}

/// A rank's own handle.
struct World<'a> {
    mem: &'a SymmetricMemory<u8>,
}

impl World<'_> {
    /// A handle that starts at byte `offset`, on the peer too. Local.
    fn at_byte(&self, offset: usize) -> Result<SymmetricMemory<u8>> {
        self.mem.slice(offset..)
    }
}

/// Checks `property` for many values of `strategy`, on rank 0 of two threads; the other wrote the pattern and
/// waits.
fn check<S>(strategy: S, property: impl Fn(&World<'_>, S::Value) -> TestCaseResult + Sync)
where
    S: Strategy + Sync,
    S::Value: std::fmt::Debug,
{
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE * 2);
        let mut x = group.alloc::<u8>(BYTES)?;
        x.local_mut()?.copy_from_slice(&pattern());
        let mem = x.rendezvous(&group)?;
        mem.barrier(0)?;
        if group.rank() != PEER {
            let world = World { mem: &mem };
            let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
            let outcome = TestRunner::new(config).run(&strategy, |value| property(&world, value));
            if let Err(failed @ (TestError::Fail(..) | TestError::Abort(_))) = outcome {
                panic!("{failed}");
            }
        }
        mem.barrier(0)?;
        mem.close()
    })
    .unwrap();
}

/// Runs a function that is generic over the element for the element of number `$dtype`.
macro_rules! for_element {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype % 10 {
            0 => $function::<u8>($($argument),*),
            1 => $function::<i8>($($argument),*),
            2 => $function::<u16>($($argument),*),
            3 => $function::<i16>($($argument),*),
            4 => $function::<u32>($($argument),*),
            5 => $function::<i32>($($argument),*),
            6 => $function::<u64>($($argument),*),
            7 => $function::<i64>($($argument),*),
            8 => $function::<f32>($($argument),*),
            _ => $function::<f64>($($argument),*),
        }
    };
}

/// A side or offset: mostly small, sometimes absurd.
fn number(end: usize) -> impl Strategy<Value = usize> {
    let absurd =
        prop_oneof![Just(usize::MAX), Just(usize::MAX / 2 + 1), Just(1 << 61), Just(1 << 32), any::<usize>()];
    prop_oneof![8 => 0..end, 1 => absurd]
}

fn shape() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        prop::collection::vec(number(12), 0..5),
        // As long as the buffer, or nearly.
        (BYTES - 20..BYTES + 20).prop_map(|bytes| vec![bytes]),
        (1usize..9, BYTES - 20..BYTES + 20).prop_map(|(side, bytes)| vec![bytes / side, side]),
    ]
}

/// Elements of `shape`, exactly; `None` for more than 128 bits can count.
fn elements(shape: &[usize]) -> Option<u128> {
    shape.iter().try_fold(1u128, |len, side| len.checked_mul(*side as u128))
}

/// Checks a view of `shape` elements of `U` that was asked for at byte `start` of `size` bytes holding
/// `bytes`.
fn check_view<U: Element>(
    shape: &[usize],
    start: u128,
    bytes: &[u8],
    outcome: Result<(Vec<usize>, Vec<U>)>,
) -> TestCaseResult {
    let end = elements(shape).and_then(|len| len.checked_mul(size_of::<U>() as u128)?.checked_add(start));
    let fits = end.is_some_and(|end| end <= bytes.len() as u128);
    match outcome {
        Ok((sides, values)) => {
            prop_assert!(fits, "a view beyond the end");
            prop_assert_eq!(sides, shape);
            prop_assert_eq!(
                bytemuck::cast_slice::<U, u8>(&values),
                &bytes[start as usize..end.unwrap_or(0) as usize]
            );
        }
        Err(Error::OutOfBounds { size, .. }) => {
            // An empty shape whose other sides overflow may count as either.
            prop_assert!(!fits || shape.contains(&0), "a view within bounds was refused");
            prop_assert_eq!(size, bytes.len() as u64);
        }
        Err(other) => prop_assert!(false, "{other}"),
    }
    Ok(())
}

fn contents<U: Element>(view: PeerView<U>) -> Result<(Vec<usize>, Vec<U>)> {
    Ok((view.shape().to_vec(), view.to_vec()?))
}

fn check_buffer<U: Element>(world: &World<'_>, shape: &[usize], offset: usize) -> TestCaseResult {
    let start = offset as u128 * size_of::<U>() as u128;
    check_view(shape, start, &pattern(), world.mem.buffer::<U>(PEER, shape, offset).and_then(contents))
}

#[test]
fn a_buffer_view_is_the_peers_bytes_or_out_of_bounds() {
    check((0..10, shape(), number(BYTES)), |world, (dtype, shape, offset)| {
        for_element!(dtype, check_buffer(world, &shape, offset))
    });
}

fn check_remote<U: Element>(mem: &SymmetricMemory<u8>, shape: &[usize]) -> TestCaseResult {
    check_view(shape, mem.offset() as u128, &pattern(), mem.remote::<U>(PEER, shape).and_then(contents))
}

/// The handle's offset counts bytes here, so most of these views are unaligned.
#[test]
fn a_remote_view_starts_at_the_handles_offset() {
    check((0..10, shape(), 0..=BYTES), |world, (dtype, shape, offset)| {
        let mem = world.at_byte(offset).unwrap();
        prop_assert_eq!(mem.peer(PEER).unwrap().to_vec().unwrap(), &pattern()[offset..]);
        for_element!(dtype, check_remote(&mem, &shape))
    });
}

#[test]
fn a_handle_starts_within_the_allocation_or_not_at_all() {
    check(number(2 * BYTES), |world, offset| {
        match world.at_byte(offset) {
            Ok(mem) => prop_assert_eq!((mem.offset(), mem.len()), (offset, BYTES - offset)),
            Err(Error::OutOfBounds { .. }) => prop_assert!(offset > BYTES),
            Err(other) => prop_assert!(false, "{other}"),
        }
        Ok(())
    });
}

/// Both ranks rendezvous at offsets of their own: each sees the other's bytes from the other's offset on, up
/// to the farthest one, and nothing behind its memory.
#[test]
fn a_handle_sees_its_peers_from_their_offsets_on_and_not_beyond_their_memory() {
    let case = (number(2 * BYTES), number(2 * BYTES), number(BYTES), 0usize..300);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&case, |(own, theirs, start, count)| {
            symmem::spawn(2, |group| {
                let group = group.within(PATIENCE);
                let starts = [own, theirs];
                let mut x = group.alloc::<u8>(BYTES)?;
                x.local_mut()?.copy_from_slice(&pattern());
                let farthest = own.max(theirs);
                let mem = match x.rendezvous_at(&group, starts[group.rank()]) {
                    Ok(mem) => mem,
                    Err(error) => {
                        assert!(matches!(error, Error::Rank { .. }) && farthest > BYTES, "{error}");
                        return Ok(());
                    }
                };
                assert_eq!((mem.offset(), mem.len()), (starts[group.rank()], BYTES - farthest));
                mem.barrier(0)?;
                for (peer, at) in starts.into_iter().enumerate() {
                    let theirs = &pattern()[at..at + mem.len()];
                    assert_eq!(mem.offset_of(peer)?, at);
                    assert_eq!(mem.peer(peer)?.to_vec()?, theirs);
                    let behind = mem.remote::<u8>(peer, &[BYTES - at])?;
                    assert_eq!(behind.to_vec()?, &pattern()[at..]);
                    assert!(mem.remote::<u8>(peer, &[BYTES - at + 1]).is_err());
                    let mut out = vec![0; count];
                    let fits = start.checked_add(count).is_some_and(|end| end <= mem.len());
                    assert_eq!(mem.get(peer, start, &mut out).is_ok(), fits);
                    assert_eq!(out, if fits { theirs[start..][..count].to_vec() } else { vec![0; count] });
                }
                mem.barrier(0)?;
                mem.close()
            })
            .unwrap();
            Ok(())
        })
        .unwrap();
}

/// Handles of parts may differ in length, so that a peer's part ends before this rank's does: what is not in
/// the peer's memory is refused.
#[test]
fn a_longer_part_does_not_reach_beyond_its_peers_memory() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let x = group.alloc::<u8>(64)?;
        let (start, len) = if group.rank() == 0 { (0, 16) } else { (60, 1) };
        let mem = x.rendezvous_as::<u32>(&group, start, len)?;
        mem.barrier(0)?;
        if group.rank() == 0 {
            let out_of_bounds =
                |outcome: Result<()>| assert!(matches!(outcome, Err(Error::OutOfBounds { .. })));
            mem.get(PEER, 0, &mut [0])?;
            out_of_bounds(mem.get(PEER, 0, &mut [0; 2]));
            out_of_bounds(mem.get(PEER, 1, &mut [0]));
            out_of_bounds(mem.slice(15..16)?.get(PEER, 0, &mut [0]));
            out_of_bounds(mem.slice(16..16)?.get(PEER, 0, &mut []));
            out_of_bounds(mem.peer(PEER).map(drop));
            out_of_bounds(mem.slice(16..16)?.peer(PEER).map(drop));
            out_of_bounds(mem.peer_ptr(PEER).map(drop));
            out_of_bounds(mem.slice(16..16)?.peer_ptr(PEER).map(drop));
            assert_eq!(mem.slice(..1)?.peer_ptr(PEER)?.addr() - mem.base_ptrs()[PEER].addr(), 60);
            // SAFETY: nothing is written.
            out_of_bounds(unsafe { mem.put(PEER, 1, &[7]) });
            assert_eq!(mem.remote::<u32>(PEER, &[1])?.to_vec()?, [0]);
        }
        mem.barrier(0)?;
        mem.close()
    })
    .unwrap();
}

fn check_pad<U: Element>(world: &World<'_>, shape: &[usize], offset: usize) -> TestCaseResult {
    let view = world.mem.signal_pad_view::<U>(PEER, shape, offset);
    let outcome = view.and_then(|view| Ok((view.shape().to_vec(), view.to_vec()?)));
    check_view(shape, offset as u128 * size_of::<U>() as u128, &vec![0; world.mem.signal_pad_size()], outcome)
}

#[test]
fn a_pad_view_is_within_the_pad_or_out_of_bounds() {
    check((0..10, shape(), number(12_000)), |world, (dtype, shape, offset)| {
        for_element!(dtype, check_pad(world, &shape, offset))
    });
}

/// The place of `index` in `shape`, row by row.
fn place(shape: &[usize], index: &[usize]) -> Option<usize> {
    let inside = shape.len() == index.len() && index.iter().zip(shape).all(|(at, side)| at < side);
    inside.then(|| index.iter().zip(shape).fold(0, |place, (at, side)| place * side + at))
}

#[test]
fn an_index_is_its_place_row_by_row() {
    let index = || prop::collection::vec(number(6), 0..4);
    let sides = prop::collection::vec(0usize..6, 0..4);
    check((sides, index()), |world, (shape, index)| {
        let view = world.mem.buffer::<u16>(PEER, &shape, 3).unwrap();
        let values = view.to_vec().unwrap();
        match (place(&shape, &index), view.read_at(&index)) {
            (Some(place), Ok(value)) => prop_assert_eq!(value, values[place]),
            (None, Err(Error::Invalid { .. })) => {}
            (place, outcome) => prop_assert!(false, "{place:?} gave {outcome:?}"),
        }
        Ok(())
    });
}

fn check_part<U: Element>(world: &World<'_>, start: usize, count: usize) -> TestCaseResult {
    let len = 100;
    let view = world.mem.buffer::<U>(PEER, &[len], 1).unwrap();
    let mut out = vec![U::zeroed(); count];
    let outcome = view.read_into(start, &mut out);
    let fits = start.checked_add(count).is_some_and(|end| end <= len);
    prop_assert_eq!(outcome.is_ok(), fits);
    let (from, bytes) = ((start.min(len) + 1) * size_of::<U>(), count * size_of::<U>());
    let expected = if fits { pattern()[from..from + bytes].to_vec() } else { vec![0; bytes] };
    prop_assert_eq!(bytemuck::cast_slice::<U, u8>(&out), expected);
    Ok(())
}

#[test]
fn a_part_is_read_whole_or_not_at_all() {
    check((0..10, number(110), 0usize..110), |world, (dtype, start, count)| {
        for_element!(dtype, check_part(world, start, count))
    });
}

#[test]
fn get_is_read_into() {
    check((0..=BYTES, number(BYTES), 0usize..300), |world, (offset, start, count)| {
        let mem = world.at_byte(offset).unwrap();
        let (mut by_get, mut by_view) = (vec![0; count], vec![0; count]);
        let got = mem.get(PEER, start, &mut by_get);
        let read = mem.peer(PEER).unwrap().read_into(start, &mut by_view);
        prop_assert_eq!(got.is_ok(), read.is_ok());
        prop_assert_eq!(by_get, by_view);
        Ok(())
    });
}

/// Writes `count` elements at `start` of a view in the middle of the peer's memory, then puts everything
/// back.
fn check_write<U: Element>(world: &World<'_>, offset: usize, start: usize, count: usize) -> TestCaseResult {
    let view = world.mem.buffer::<U>(PEER, &[64], offset).unwrap();
    let values: Vec<U> = vec![bytemuck::pod_read_unaligned(&[0xa5; 8][..size_of::<U>()]); count];
    // SAFETY: the peer holds no guard while the property is checked.
    let outcome = unsafe { view.write_from(start, &values) };
    let fits = start.checked_add(count).is_some_and(|end| end <= 64);
    prop_assert_eq!(outcome.is_ok(), fits);
    let mut expected = pattern();
    if fits {
        let from = (offset + start) * size_of::<U>();
        expected[from..from + count * size_of::<U>()].fill(0xa5);
    }
    let whole = world.mem.peer(PEER).unwrap();
    let found = whole.to_vec().unwrap();
    // SAFETY: as above.
    unsafe { whole.write_from(0, &pattern()) }.unwrap();
    prop_assert!(found == expected, "bytes outside of the range changed, or inside did not");
    Ok(())
}

#[test]
fn a_write_changes_its_range_and_nothing_else() {
    check((0..10, 0usize..400, number(70), 0usize..70), |world, (dtype, offset, start, count)| {
        for_element!(dtype, check_write(world, offset, start, count))
    });
}

fn check_slice<U: Element + PartialEq + std::fmt::Debug>(mem: &SymmetricMemory<u8>) -> TestCaseResult {
    let view = mem.remote::<U>(PEER, &[8]).unwrap();
    // SAFETY: nobody writes while the property is checked.
    let slice = unsafe { view.as_slice() };
    prop_assert_eq!(slice.is_ok(), mem.offset().is_multiple_of(align_of::<U>()));
    if let Ok(slice) = slice {
        let theirs: Vec<U> = view.to_vec().unwrap();
        prop_assert_eq!(bytemuck::cast_slice::<U, u8>(slice), bytemuck::cast_slice::<U, u8>(&theirs));
    }
    Ok(())
}

#[test]
fn a_slice_in_place_needs_alignment() {
    check((0..10, 0..BYTES - 64), |world, (dtype, offset)| {
        let mem = world.at_byte(offset).unwrap();
        for_element!(dtype, check_slice(&mem))
    });
}
