//! Exchanges whose arguments differ by rank, collectives with a root, low-contention forms and one-sided
//! writes: each against a plain reference, and what happens when ranks are wrong or disagree.

mod common;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use common::{PATIENCE, Random, assert_error};
use symmem::{Element, Error, Group, ProcessSpawner, Received, ReduceOp, Result, SymmetricMemory, bf16};

/// What was in an output before.
const GUARD: u8 = 0xee;

/// Runs `test` on 1 to 6 threads and, as the rank processes of the test `name`, on 1 to 4 processes.
fn everywhere(name: &str, test: fn(&Group) -> Result<()>) {
    for world in 1..=6 {
        symmem::spawn(world, |group| test(&group.within(PATIENCE))).unwrap();
    }
    for world in 1..=4 {
        ProcessSpawner::new(name, world).run(|group| test(&group.within(PATIENCE))).unwrap();
    }
}

/// The memory of `rank`: bytes that tell ranks and positions apart.
fn input(rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|position| (rank * 83 + position * 7 + position / 251) as u8).collect()
}

/// A handle of [`input`], at an offset that differs by rank.
fn memory(group: &Group, len: usize) -> Result<SymmetricMemory<u8>> {
    let (rank, world) = (group.rank(), group.size());
    let mut x = group.alloc::<u8>(len + world)?;
    x.local_mut()?[rank..rank + len].copy_from_slice(&input(rank, len));
    x.rendezvous_at(group, rank)?.slice(..len)
}

/// Numbers of rows, many of them 0.
fn random_splits(random: &mut Random, count: usize, most: usize) -> Vec<usize> {
    (0..count).map(|_| if random.below(3) == 0 { 0 } else { random.below(most + 1) }).collect()
}

fn prefix_sums(rows: &[usize]) -> Vec<usize> {
    rows.iter().scan(0, |end, rows| Some(std::mem::replace(end, *end + rows))).collect()
}

/// One chunk of an output: whose memory it comes from, its first row there, its rows.
type Chunk = (usize, usize, usize);

/// Checks an output made of `chunks` at the rows `offsets`.
fn check(out: &[u8], row: usize, len: usize, chunks: &[Chunk], offsets: &[usize], received: &Received) {
    let mut expected = vec![GUARD; out.len()];
    for ((rank, start, rows), offset) in chunks.iter().zip(offsets) {
        let from = &input(*rank, len)[start * row..][..rows * row];
        expected[offset * row..][..rows * row].copy_from_slice(from);
    }
    assert_eq!(received.splits, chunks.iter().map(|(_, _, rows)| *rows).collect::<Vec<_>>());
    assert_eq!(received.offsets, offsets);
    assert_eq!(out, expected);
}

fn variable_exchanges(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    let mut random = Random::new(1);
    for most in [0, 1, 5, 40] {
        let row = 1 + random.below(9);
        let splits: Vec<Vec<usize>> = (0..world).map(|_| random_splits(&mut random, world, most)).collect();
        let rows = splits.iter().map(|splits| splits.iter().sum::<usize>()).max().unwrap_or(0);
        // Some elements are left over.
        let len = rows * row + random.below(row);
        let mem = memory(group, len)?;
        let sent = |rank: usize| (rank, prefix_sums(&splits[rank])[me], splits[rank][me]);
        let chunks: Vec<Chunk> = (0..world).map(sent).collect();
        let counts: Vec<usize> = chunks.iter().map(|(_, _, rows)| *rows).collect();
        let mut out = vec![GUARD; counts.iter().sum::<usize>() * row + random.below(3)];
        let received = mem.all_to_all_v(row, &splits[me], &mut out)?;
        check(&out, row, len, &chunks, &prefix_sums(&counts), &received);
        mem.close()?;
    }
    Ok(())
}

#[test]
fn rows_of_any_number_reach_their_ranks() {
    everywhere("rows_of_any_number_reach_their_ranks", variable_exchanges);
}

/// Dispatches to experts and combines again, with what `dispatch` returned.
fn expert_exchanges(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    let mut random = Random::new(2);
    for (experts, most) in [(1, 3), (2, 0), (3, 1), (5, 7), (40, 3), (0, 0)] {
        let (row, align) = (1 + random.below(9), 1 + random.below(6));
        let splits: Vec<Vec<usize>> =
            (0..world).map(|_| random_splits(&mut random, world * experts, most)).collect();
        let rows = splits.iter().map(|splits| splits.iter().sum::<usize>()).max().unwrap_or(0);
        let len = rows * row;
        let mem = memory(group, len)?;

        let (mut chunks, mut offsets, mut next) = (Vec::new(), Vec::new(), 0);
        for expert in 0..experts {
            let first = next;
            for (rank, splits) in splits.iter().enumerate() {
                let position = me * experts + expert;
                chunks.push((rank, prefix_sums(splits)[position], splits[position]));
                offsets.push(next);
                next += splits[position];
            }
            next = first + (next - first).max(1).next_multiple_of(align);
        }
        let mut out = vec![GUARD; next * row];
        let received = mem.all_to_all_2d(row, &splits[me], align, &mut out)?;
        check(&out, row, len, &chunks, &offsets, &received);

        // Back: every rank gets what it had sent, in the order in which it had it.
        let longest = group.all_gather(&out.len())?.into_iter().max().unwrap_or(0);
        let mut experts_memory = group.alloc::<u8>(longest)?.rendezvous(group)?;
        experts_memory.local_mut()?[..out.len()].copy_from_slice(&out);
        let sent = splits[me].iter().sum::<usize>() * row;
        let mut back = vec![GUARD; sent + 2];
        let returned =
            experts_memory.all_to_all_2d_offset(row, &received.splits, &received.offsets, &mut back)?;
        assert_eq!(returned, Received { splits: splits[me].clone(), offsets: prefix_sums(&splits[me]) });
        assert_eq!(back[..sent], input(me, len)[..sent]);
        assert_eq!(back[sent..], [GUARD; 2]);
        mem.close()?;
        experts_memory.close()?;
    }
    Ok(())
}

#[test]
fn rows_reach_their_experts_and_come_back() {
    everywhere("rows_reach_their_experts_and_come_back", expert_exchanges);
}

#[test]
fn there_may_be_more_experts_and_ranks_than_elsewhere() {
    symmem::spawn(34, |group| {
        let (me, experts) = (group.rank(), 70);
        let chunks = experts * group.size();
        let mut mem = group.alloc::<u32>(chunks)?.rendezvous(&group)?;
        mem.local_mut()?.iter_mut().enumerate().for_each(|(row, value)| *value = (me * chunks + row) as u32);
        let mut out = vec![0; chunks];
        mem.all_to_all_2d(1, &vec![1; chunks], 1, &mut out)?;
        let row = |position: usize| {
            let (expert, rank) = (position / group.size(), position % group.size());
            (rank * chunks + me * experts + expert) as u32
        };
        assert!(out.iter().enumerate().all(|(position, value)| *value == row(position)));
        mem.close()
    })
    .unwrap();
}

fn explicit_offsets(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    // Chunks of one row, backwards, every other row not sent.
    let len = 2 * world;
    let mem = memory(group, len)?;
    let offsets: Vec<usize> = (0..world).rev().map(|chunk| 2 * chunk).collect();
    let mut out = vec![GUARD; world];
    mem.all_to_all_2d_offset(1, &vec![1; world], &offsets, &mut out)?;
    assert_eq!(out, (0..world).map(|rank| input(rank, len)[offsets[me]]).collect::<Vec<_>>());
    mem.close()
}

#[test]
fn chunks_may_lie_anywhere() {
    everywhere("chunks_may_lie_anywhere", explicit_offsets);
}

fn rooted(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    for len in [0, 1, 13, 1200] {
        let mem = memory(group, len)?;
        for root in 0..world {
            let mut out = vec![GUARD; if me == root { len * world } else { 3 }];
            mem.gather(root, &mut out)?;
            let all: Vec<u8> = (0..world).flat_map(|rank| input(rank, len)).collect();
            assert_eq!(out, if me == root { all } else { vec![GUARD; 3] }, "gather to {root}");
        }
        mem.close()?;
        let mem = memory(group, len * world)?;
        for root in 0..world {
            let mut out = vec![GUARD; len];
            mem.scatter(root, &mut out)?;
            assert_eq!(out, input(root, len * world)[me * len..][..len], "scatter from {root}");
        }
        mem.close()?;
    }
    Ok(())
}

#[test]
fn a_root_gathers_and_scatters() {
    everywhere("a_root_gathers_and_scatters", rooted);
}

/// Memory of small numbers that differ by rank and position.
fn numbers<T: Element>(group: &Group, len: usize, make: fn(f32) -> T) -> Result<SymmetricMemory<T>> {
    let (rank, world) = (group.rank(), group.size());
    let mut x = group.alloc::<T>(len + world)?;
    for (position, value) in x.local_mut()?[rank..rank + len].iter_mut().enumerate() {
        *value = make(((rank * 31 + position * 7) % 23) as f32 * 0.375 - 3.0);
    }
    x.rendezvous_at(group, rank)?.slice(..len)
}

/// The columns of a rank in `rows` rows of `matrix`.
fn columns_of<T: Copy>(matrix: &[T], rows: usize, rank: usize, width: usize) -> Vec<T> {
    let columns = matrix.len().checked_div(rows).unwrap_or(0);
    (0..rows).flat_map(|row| matrix[row * columns + rank * width..][..width].to_vec()).collect()
}

fn check_columns<T: Element + PartialEq + Debug>(
    group: &Group,
    shapes: &[(usize, usize)],
    op: ReduceOp,
    make: fn(f32) -> T,
) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    for &(rows, width) in shapes {
        let mem = numbers(group, rows * width * world, make)?;
        let mut whole = vec![make(99.0); mem.len()];
        mem.all_reduce_out(op, &mut whole)?;
        let mut out = vec![make(99.0); rows * width];
        mem.reduce_scatter_columns(op, width * world, &mut out)?;
        assert_eq!(out, columns_of(&whole, rows, me, width), "{rows} x {width} {op}");
        mem.close()?;
    }
    Ok(())
}

fn columns(group: &Group) -> Result<()> {
    let shapes = [
        (0, 1),
        (1, 1),
        (1, 0),
        (3, 1),
        (1000, 1),
        (500, 2),
        (300, 3),
        (70, 4),
        (65, 17),
        (9, 130),
        (2, 1000),
    ];
    check_columns(group, &shapes, ReduceOp::Sum, |value| value)?;
    check_columns(group, &shapes[4..8], ReduceOp::Avg, bf16::from_f32)?;
    check_columns(group, &shapes[4..], ReduceOp::Max, |value| value as i8)?;
    check_columns(group, &shapes[4..6], ReduceOp::Min, f64::from)
}

#[test]
fn columns_are_reduced_and_scattered() {
    everywhere("columns_are_reduced_and_scattered", columns);
}

#[test]
fn columns_work_when_a_single_row_fills_the_block() {
    symmem::spawn(40, |group| check_columns(&group, &[(5, 120), (3, 1)], ReduceOp::Sum, |value| value))
        .unwrap();
}

fn low_contention_of_type<T: Element + PartialEq + Debug>(group: &Group, make: fn(f32) -> T) -> Result<()> {
    let world = group.size();
    let mut random = Random::new(3 + group.rank() as u64);
    for chunk in [0, 1, 64, 3001] {
        let mem = numbers(group, chunk * world, make)?;
        let mut expected = vec![make(99.0); mem.len() * world];
        let mut out = expected.clone();
        mem.all_gather(&mut expected)?;
        std::thread::sleep(Duration::from_micros(random.below(300) as u64));
        mem.low_contention_all_gather(&mut out)?;
        assert_eq!(out, expected);
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let (mut expected, mut out) = (vec![make(99.0); chunk], vec![make(98.0); chunk]);
            mem.reduce_scatter(op, &mut expected)?;
            std::thread::sleep(Duration::from_micros(random.below(300) as u64));
            mem.low_contention_reduce_scatter(op, &mut out)?;
            assert_eq!(out, expected, "{op}");
        }
        mem.close()?;
    }
    Ok(())
}

fn low_contention(group: &Group) -> Result<()> {
    low_contention_of_type(group, |value| value)?;
    low_contention_of_type(group, bf16::from_f32)
}

#[test]
fn low_contention_gives_the_same_bits() {
    everywhere("low_contention_gives_the_same_bits", low_contention);
}

#[test]
fn low_contention_copies_a_rank_before_it_hears_the_next() {
    symmem::spawn(3, |group| {
        let mem = memory(&group.within(PATIENCE), 100)?;
        let mut out = vec![GUARD; 300];
        // Everybody starts with itself and goes backwards; what comes after the one that disagrees is not
        // read.
        let (result, copied) = match group.rank() {
            0 => (mem.barrier(0), [false; 3]),
            1 => (mem.low_contention_all_gather(&mut out), [false, true, false]),
            _ => (mem.low_contention_all_gather(&mut out), [false, true, true]),
        };
        assert_error!(result, Error::Mismatch { .. });
        for (rank, part) in out.chunks_exact(100).enumerate() {
            assert_eq!(part, if copied[rank] { input(rank, 100) } else { vec![GUARD; 100] }, "rank {rank}");
        }
        mem.close()
    })
    .unwrap();
}

/// The culprit gets its own error where it can see what is wrong by itself; all others are told that it is
/// the culprit.
fn check_blame(result: Result<()>, me: usize, culprit: usize) {
    match result.expect_err("the arguments are wrong") {
        Error::Rank { rank, .. } if rank == culprit => {}
        Error::Invalid { .. } | Error::Borrowed { .. } if me == culprit => {}
        error => panic!("rank {me}, while rank {culprit} is wrong: {error:?}"),
    }
}

/// Runs `call`, whose arguments are wrong on rank `culprit`; everybody must be told at once, with `out` as it
/// was.
fn blames(mem: &SymmetricMemory<u8>, culprit: usize, call: impl FnOnce(&mut [u8]) -> Result<()>) {
    let mut out = vec![GUARD; 100];
    let start = Instant::now();
    check_blame(call(&mut out), mem.rank(), culprit);
    assert!(start.elapsed() < PATIENCE / 2, "told at a deadline only");
    assert_eq!(out, [GUARD; 100]);
    mem.barrier(0).expect("the group goes on");
}

fn wrong_on_one_rank(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    let mem = memory(group, 10 * world)?;
    for culprit in 0..world {
        let wrong = me == culprit;
        let splits = |bad: usize| vec![if wrong { bad } else { 1 }; world];
        let one = vec![1; world];
        // Beyond the memory, in each of the ways.
        for bad in [11, usize::MAX, usize::MAX / 2 + 1] {
            blames(&mem, culprit, |out| mem.all_to_all_v(1, &splits(bad), out).map(drop));
            blames(&mem, culprit, |out| mem.all_to_all_2d(1, &splits(bad), 2, out).map(drop));
        }
        for bad in [10 * world, usize::MAX] {
            blames(&mem, culprit, |out| mem.all_to_all_2d_offset(1, &one, &splits(bad), out).map(drop));
        }
        // Not as many as there must be.
        let few = if wrong { &one[1..] } else { &one };
        blames(&mem, culprit, |out| mem.all_to_all_v(1, few, out).map(drop));
        blames(&mem, culprit, |out| mem.all_to_all_2d_offset(1, &one, few, out).map(drop));
        if world > 1 {
            blames(&mem, culprit, |out| mem.all_to_all_2d(1, few, 1, out).map(drop));
        }
        // No room for what comes.
        let short = if wrong { world - 1 } else { 100 };
        blames(&mem, culprit, |out| mem.all_to_all_v(1, &one, &mut out[..short]).map(drop));
        blames(&mem, culprit, |out| mem.all_to_all_2d_offset(1, &one, &one, &mut out[..short]).map(drop));
        let short = if wrong { 6 } else { 100 };
        blames(&mem, culprit, |out| mem.all_to_all_2d(1, &one, 7, &mut out[..short]).map(drop));
        let len = if wrong { 9 } else { 10 };
        blames(&mem, culprit, |out| mem.scatter(0, &mut out[..len]));
        blames(&mem, culprit, |out| mem.gather(culprit, &mut out[..9]));
        blames(&mem, culprit, |out| mem.reduce_scatter_columns(ReduceOp::Sum, world, &mut out[..len]));
        blames(&mem, culprit, |out| mem.low_contention_reduce_scatter(ReduceOp::Sum, &mut out[..len]));
        let mut all = vec![GUARD; 10 * world * world - usize::from(wrong)];
        check_blame(mem.low_contention_all_gather(&mut all), me, culprit);
        // The memory is in use: with the allocation's other handle, for this one is needed for the call.
        borrowed_on(group, culprit)?;
    }
    mem.close()
}

fn borrowed_on(group: &Group, culprit: usize) -> Result<()> {
    let x = group.alloc::<u8>(group.size())?;
    let mem = x.rendezvous(group)?;
    let mut other = x.rendezvous(group)?;
    let guard = if group.rank() == culprit { Some(other.local_mut()?) } else { None };
    blames(&mem, culprit, |out| mem.all_to_all_v(1, &vec![1; group.size()], out).map(drop));
    blames(&mem, culprit, |out| mem.low_contention_reduce_scatter(ReduceOp::Sum, &mut out[..1]));
    drop(guard);
    mem.close()
}

#[test]
fn a_rank_with_wrong_arguments_is_named_to_all() {
    everywhere("a_rank_with_wrong_arguments_is_named_to_all", wrong_on_one_rank);
}

/// Runs `call`, on whose arguments the ranks disagree.
fn disagree(mem: &SymmetricMemory<u8>, call: impl FnOnce(&mut [u8]) -> Result<()>) {
    let mut out = vec![GUARD; 1000];
    assert_error!(call(&mut out), Error::Mismatch { values, .. } if values.len() == mem.world_size());
    assert_eq!(out, [GUARD; 1000]);
    mem.barrier(0).expect("the group goes on");
}

fn disagreements(group: &Group) -> Result<()> {
    let (me, world) = (group.rank(), group.size());
    if world == 1 {
        return Ok(());
    }
    let odd = usize::from(me == world - 1);
    let mem = memory(group, 12 * world)?;
    let one = vec![1; world];
    disagree(&mem, |out| mem.all_to_all_v(1 + odd, &one, out).map(drop));
    disagree(&mem, |out| mem.all_to_all_2d(1, &one, 1 + odd, out).map(drop));
    disagree(&mem, |out| mem.all_to_all_2d(1, &vec![1; world * (1 + odd)], 1, out).map(drop));
    disagree(&mem, |out| mem.all_to_all_2d_offset(1 + odd, &one, &one, out).map(drop));
    disagree(&mem, |out| mem.gather(odd, &mut out[..12 * world * world]));
    disagree(&mem, |out| mem.scatter(odd, &mut out[..12]));
    disagree(&mem, |out| mem.reduce_scatter_columns(ReduceOp::Sum, world * (1 + odd), &mut out[..12]));
    let op = if odd == 1 { ReduceOp::Sum } else { ReduceOp::Max };
    disagree(&mem, |out| mem.reduce_scatter_columns(op, world, &mut out[..12]));
    disagree(&mem, |out| mem.low_contention_reduce_scatter(op, &mut out[..12]));
    // A few times in a row, and against another operation: the ranks stay in step.
    for _ in 0..20 {
        let result = match odd {
            0 => mem.low_contention_all_gather(&mut vec![GUARD; 12 * world * world]),
            _ => mem.barrier(0),
        };
        assert_error!(result, Error::Mismatch { .. });
    }
    let mut all = vec![GUARD; 12 * world * world];
    mem.low_contention_all_gather(&mut all)?;
    assert_eq!(all, (0..world).flat_map(|rank| input(rank, 12 * world)).collect::<Vec<_>>());
    mem.close()
}

#[test]
fn ranks_that_disagree_are_all_told() {
    everywhere("ranks_that_disagree_are_all_told", disagreements);
}

/// What is wrong on every rank: each has its own error, or that of the first one.
fn refused<R: std::fmt::Debug>(result: Result<R>) {
    assert_error!(result, Error::Invalid { .. } | Error::Rank { rank: 0, .. });
}

fn wrong_on_all_ranks(group: &Group) -> Result<()> {
    let world = group.size();
    let mem = memory(group, 6 * world + 1)?;
    let mut out = [GUARD; 100];
    assert_error!(mem.gather(world, &mut out), Error::RankOutOfRange { .. });
    assert_error!(mem.scatter(usize::MAX, &mut out), Error::RankOutOfRange { .. });
    assert_error!(mem.reduce_scatter_columns(ReduceOp::Sum, 0, &mut out), Error::Invalid { .. });
    assert_error!(mem.reduce_scatter_columns(ReduceOp::Sum, 100, &mut out), Error::Invalid { .. });
    refused(mem.all_to_all_2d(1, &vec![0; world], 0, &mut out));
    if world > 1 {
        assert_error!(mem.scatter(0, &mut out), Error::Invalid { .. });
        assert_error!(mem.low_contention_reduce_scatter(ReduceOp::Sum, &mut out), Error::Invalid { .. });
    }
    // Rows times elements, offsets and alignments that are beyond counting.
    let huge = [usize::MAX, usize::MAX / 2 + 1, 1 << 32];
    for big in huge {
        refused(mem.all_to_all_v(big, &vec![big; world], &mut out));
        refused(mem.all_to_all_v(1, &vec![big; world], &mut out));
        refused(mem.all_to_all_2d(1, &vec![1; world], big, &mut out));
        refused(mem.all_to_all_2d(big, &vec![1; world], 1, &mut out));
        let offsets = vec![big; world];
        refused(mem.all_to_all_2d_offset(1, &vec![1; world], &offsets, &mut out));
        refused(mem.all_to_all_2d_offset(3, &vec![big; world], &offsets, &mut out));
        // Rows of nothing can be any number, as long as they can be counted.
        let result = mem.all_to_all_v(0, &vec![big / 64; world], &mut []);
        assert_eq!(result?.splits, vec![big / 64; world]);
        let result = mem.all_to_all_2d(0, &vec![usize::MAX / world; world], usize::MAX / 3, &mut []);
        refused(result);
    }
    assert_eq!(out, [GUARD; 100]);
    let floats = numbers(group, 2 * world, |value| value)?;
    let mut out = [0.0; 2];
    assert_error!(floats.reduce_scatter_columns(ReduceOp::Xor, world, &mut out), Error::Invalid { .. });
    assert_error!(floats.low_contention_reduce_scatter(ReduceOp::Xor, &mut out), Error::Invalid { .. });
    floats.reduce_scatter_columns(ReduceOp::Max, 2 * world, &mut out)?;
    floats.close()?;
    let empty = group.alloc::<u32>(0)?.rendezvous(group)?;
    empty.gather(0, &mut [])?;
    empty.scatter(0, &mut [])?;
    empty.reduce_scatter_columns(ReduceOp::Sum, 0, &mut [])?;
    empty.reduce_scatter_columns(ReduceOp::Sum, usize::MAX / world * world, &mut [])?;
    empty.low_contention_all_gather(&mut [])?;
    empty.all_to_all_v(usize::MAX, &vec![0; world], &mut [])?;
    empty.close()?;
    mem.close()
}

#[test]
fn what_cannot_be_is_refused_by_all() {
    everywhere("what_cannot_be_is_refused_by_all", wrong_on_all_ranks);
}

fn puts(group: &Group) -> Result<()> {
    let (me, next, prev) = (group.rank(), group.next(), group.prev());
    let mut mem = group.alloc::<u8>(5000)?.rendezvous_at(group, 1)?;
    for (round, len) in [0, 1, 7, 8, 100, 4000].into_iter().enumerate() {
        let value = round as u64 + 1;
        // SAFETY: nobody holds a guard before it has waited for the signal, or after the barrier.
        unsafe { mem.put_with_flag(next, 3, &input(me, len), 5, value)? };
        mem.wait_flag(5, value)?;
        assert_eq!(mem.local()?[3..3 + len], input(prev, len));
        assert_eq!(mem.local()?[3 + len..4999].iter().max(), Some(&0), "beyond what was put");
        assert_eq!(mem.local()?[..3], [0; 3]);
        // The word stays, and is a u64 of the pad.
        mem.wait_flag(5, value)?;
        assert_eq!(mem.signal_pad_view::<u64>(me, &[1], 5)?.read(0)?, value);
        mem.barrier(0)?;
        mem.fill(0)?;
        mem.barrier(0)?;
    }
    // SAFETY: nobody holds a guard between the barriers.
    unsafe { mem.put(next, 4990, &[7; 9])? };
    mem.barrier(0)?;
    assert_eq!(mem.local()?[4989..], [0, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    mem.close()
}

#[test]
fn what_is_put_is_there_when_its_signal_is() {
    everywhere("what_is_put_is_there_when_its_signal_is", puts);
}

/// Many rounds without a barrier: the receiver answers with a signal of its own.
fn ping_pong(group: &Group) -> Result<()> {
    let (next, prev) = (group.next(), group.prev());
    let mem = group.alloc::<u64>(64)?.rendezvous(group)?;
    for round in 1..=500 {
        // SAFETY: the receiver has said that it has read the last round.
        unsafe { mem.put_with_flag(next, 0, &[round; 64], 0, round)? };
        mem.wait_flag(0, round)?;
        assert_eq!(*mem.local()?, [round; 64]);
        // SAFETY: nothing is written.
        unsafe { mem.put_with_flag(prev, 0, &[], 1, round)? };
        mem.wait_flag(1, round)?;
    }
    mem.close()
}

#[test]
fn signals_of_many_rounds_carry_their_data() {
    everywhere("signals_of_many_rounds_carry_their_data", ping_pong);
}

fn wrong_puts(group: &Group) -> Result<()> {
    let me = group.rank();
    let mut mem = group.alloc::<u32>(10)?.rendezvous(group)?;
    let words = mem.signal_pad_size() / 8;
    // SAFETY: nothing of this is written.
    unsafe {
        for (start, len) in [(10, 1), (0, 11), (11, 0), (usize::MAX, 1), (usize::MAX / 4, 1)] {
            assert_error!(mem.put(group.next(), start, &vec![1; len]), Error::OutOfBounds { op: "put", .. });
        }
        assert_error!(mem.put(group.size(), 0, &[1]), Error::RankOutOfRange { .. });
        for word in [words, usize::MAX, usize::MAX / 8] {
            let result = mem.put_with_flag(group.next(), 0, &[1], word, 1);
            assert_error!(result, Error::OutOfBounds { op: "put_with_flag", .. });
            assert_error!(mem.wait_flag(word, 1), Error::OutOfBounds { op: "wait_flag", .. });
        }
        let own = mem.local()?;
        assert_error!(mem.put(me, 0, &[1]), Error::Borrowed { .. });
        assert_error!(mem.put(me, 0, &own), Error::Borrowed { .. });
    }
    assert_eq!(*mem.local()?, [0; 10]);
    mem.barrier(0)?;
    // SAFETY: this rank's own.
    unsafe { mem.put_with_flag(me, 0, &[1; 10], words - 1, 1)? };
    mem.wait_flag(words - 1, 1)?;
    assert_eq!(*mem.local_mut()?, [1; 10]);

    let start = Instant::now();
    let short = Duration::from_millis(60);
    assert_error!(mem.within(short).wait_flag(0, 1), Error::Timeout { missing, context }
        if missing.is_empty() && context.op == "wait_flag");
    assert!(start.elapsed() >= short);
    assert_eq!(group.failure(), None);
    mem.close()
}

#[test]
fn puts_and_signals_end_with_memory_and_pad() {
    everywhere("puts_and_signals_end_with_memory_and_pad", wrong_puts);
}

#[test]
fn nobody_waits_for_a_signal_of_those_who_have_left() {
    symmem::spawn(3, |group| {
        let mem = group.alloc::<u32>(1)?.rendezvous(&group.within(PATIENCE))?;
        if group.rank() == 1 {
            // SAFETY: nothing is written.
            return unsafe { mem.put_with_flag(0, 0, &[], 0, 1) };
        }
        if group.rank() == 2 {
            return Ok(());
        }
        // Somebody did set this one before leaving.
        mem.wait_flag(0, 1)?;
        let start = Instant::now();
        assert_error!(mem.wait_flag(0, 2), Error::PeerLeft { .. });
        assert!(start.elapsed() < PATIENCE / 2);
        Ok(())
    })
    .unwrap();
}
