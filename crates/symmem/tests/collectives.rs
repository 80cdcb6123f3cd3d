//! Every collective against a plain reference, over types, operations, lengths, offsets and worlds; the same bits on
//! every rank; disagreement and wrong arguments told to everybody.

use std::fmt::Debug;

use symmem::{Element, Error, Group, ProcessSpawner, ReduceOp, Result, bf16, f16};

/// Lengths around cache lines, slices and nothing at all.
const LENGTHS: [usize; 8] = [0, 1, 3, 63, 64, 65, 1000, 4097];

/// A small number that differs by rank and position, exact in every type here.
fn seed(rank: usize, position: usize) -> i64 {
    ((rank * 31 + position * 7) % 11) as i64 + 1
}

/// What the tests need to know of an element type: how to make one, and how all ranks' ones become one.
trait Reference: Element + PartialEq + Debug {
    fn make(value: i64) -> Self;
    fn reduce(op: ReduceOp, values: &[Self]) -> Self;
}

fn fold<T: Copy>(values: &[T], f: impl Fn(T, T) -> T) -> T {
    values.iter().copied().reduce(f).expect("at least one rank")
}

macro_rules! integers {
    ($($type:ty),*) => {
        $(impl Reference for $type {
            fn make(value: i64) -> Self {
                value as $type
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                match op {
                    ReduceOp::Sum => fold(values, <$type>::wrapping_add),
                    ReduceOp::Avg => fold(values, <$type>::wrapping_add) / values.len() as $type,
                    ReduceOp::Min => fold(values, <$type>::min),
                    ReduceOp::Max => fold(values, <$type>::max),
                    ReduceOp::Prod => fold(values, <$type>::wrapping_mul),
                    ReduceOp::And => fold(values, |a, b| a & b),
                    ReduceOp::Or => fold(values, |a, b| a | b),
                    _ => fold(values, |a, b| a ^ b),
                }
            }
        })*
    };
}

/// Floats accumulate as `$wide` in rank order and round once.
macro_rules! floats {
    ($($type:ty, $wide:ty, $to:expr, $from:expr);*) => {
        $(impl Reference for $type {
            fn make(value: i64) -> Self {
                $from(value as $wide * 0.375)
            }

            fn reduce(op: ReduceOp, values: &[Self]) -> Self {
                let wide: Vec<$wide> = values.iter().map(|value| $to(*value)).collect();
                $from(match op {
                    ReduceOp::Sum => fold(&wide, |a, b| a + b),
                    ReduceOp::Avg => fold(&wide, |a, b| a + b) / values.len() as $wide,
                    ReduceOp::Min => fold(&wide, <$wide>::min),
                    ReduceOp::Max => fold(&wide, <$wide>::max),
                    _ => fold(&wide, |a, b| a * b),
                })
            }
        })*
    };
}

integers!(i8, u16, i32, u64);
floats!(
    f32, f32, |value: f32| value, |value: f32| value;
    f64, f64, |value: f64| value, |value: f64| value;
    bf16, f32, |value: bf16| value.to_f32(), bf16::from_f32;
    f16, f32, |value: f16| value.to_f32(), f16::from_f32
);

const ARITHMETIC: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Min, ReduceOp::Max, ReduceOp::Prod];

/// The input of `rank`: `len` elements.
fn input<T: Reference>(rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|position| T::make(seed(rank, position))).collect()
}

/// The reduction of everybody's input.
fn reduced<T: Reference>(op: ReduceOp, world: usize, len: usize) -> Vec<T> {
    let inputs: Vec<Vec<T>> = (0..world).map(|rank| input(rank, len)).collect();
    let column = |position: usize| inputs.iter().map(|input| input[position]).collect::<Vec<_>>();
    (0..len).map(|position| T::reduce(op, &column(position))).collect()
}

/// All collectives on `len` elements, in a handle whose offset differs by rank.
fn run_all<T: Reference>(group: &Group, len: usize, op: ReduceOp) -> Result<()> {
    let (rank, world) = (group.rank(), group.size());
    let guard = T::make(77);
    let mut x = group.alloc::<T>(len + world + 1)?;
    x.fill(guard)?;
    let whole = x.rendezvous(group)?;
    let window = rank..rank + len;
    x.local_mut()?[window.clone()].copy_from_slice(&input::<T>(rank, len));
    let mut mem = symmem_window(&x, group, rank, len)?;

    let expected = reduced::<T>(op, world, len);
    let mut out = vec![guard; len];
    mem.all_reduce_out(op, &mut out)?;
    assert_eq!(out, expected, "all_reduce_out {op}");
    out.fill(guard);
    mem.reduce(op, world - 1, &mut out)?;
    assert_eq!(out, if rank == world - 1 { expected.clone() } else { vec![guard; len] }, "reduce {op}");

    let mut all = vec![guard; len * world];
    mem.all_gather(&mut all)?;
    assert_eq!(all, (0..world).flat_map(|rank| input::<T>(rank, len)).collect::<Vec<_>>(), "all_gather");

    if len.is_multiple_of(world) {
        let chunk = len / world;
        let mine = rank * chunk..(rank + 1) * chunk;
        let mut part = vec![guard; chunk];
        mem.reduce_scatter(op, &mut part)?;
        assert_eq!(part, expected[mine.clone()], "reduce_scatter {op}");
        out.fill(guard);
        mem.all_to_all(&mut out)?;
        let parts = (0..world).flat_map(|rank| input::<T>(rank, len)[mine.clone()].to_vec());
        assert_eq!(out, parts.collect::<Vec<_>>(), "all_to_all");
    }

    mem.all_reduce(op)?;
    assert_eq!(mem.local()?[..len], expected, "all_reduce {op}");
    if rank == 0 {
        mem.local_mut()?[..len].copy_from_slice(&input::<T>(5, len));
    }
    mem.broadcast(0)?;
    assert_eq!(mem.local()?[..len], input::<T>(5, len), "broadcast");
    drop(mem);
    let around = x.local()?;
    let untouched = around[..window.start].iter().chain(&around[window.end..]);
    assert!(untouched.into_iter().all(|value| *value == guard), "memory outside the handle changed");
    drop(around);
    whole.close()
}

/// A handle of `len` elements from `offset` on.
fn symmem_window<T: Reference>(
    x: &symmem::Allocation<T>,
    group: &Group,
    offset: usize,
    len: usize,
) -> Result<symmem::SymmetricMemory<T>> {
    x.rendezvous_at(group, offset)?.first(len)
}

fn every_type(group: &Group) -> Result<()> {
    for len in LENGTHS {
        for op in ARITHMETIC {
            run_all::<f32>(group, len, op)?;
            run_all::<bf16>(group, len, op)?;
            run_all::<i32>(group, len, op)?;
        }
    }
    for op in ARITHMETIC {
        run_all::<f64>(group, 65, op)?;
        run_all::<f16>(group, 65, op)?;
        run_all::<i8>(group, 65, op)?;
        run_all::<u16>(group, 65, op)?;
    }
    for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
        run_all::<u64>(group, 130, op)?;
    }
    Ok(())
}

#[test]
fn every_collective_matches_the_reference_on_threads() {
    for world in [1, 2, 3, 5, 9] {
        symmem::spawn(world, |group| every_type(&group)).unwrap();
    }
}

#[test]
fn every_collective_matches_the_reference_on_processes() {
    for world in [2, 4] {
        ProcessSpawner::new("every_collective_matches_the_reference_on_processes", world)
            .run(|group| every_type(&group))
            .unwrap();
    }
}

#[test]
fn a_world_beyond_the_inline_size_works() {
    symmem::spawn(20, |group| run_all::<f32>(&group, 1000, ReduceOp::Sum)).unwrap();
}

#[test]
fn ranks_that_disagree_get_the_same_mismatch_and_keep_their_memory() {
    symmem::spawn(3, |group| {
        let mut mem = group.alloc::<f32>(10)?.rendezvous(&group)?;
        mem.fill(group.rank() as f32)?;
        let op = if group.rank() == 1 { ReduceOp::Max } else { ReduceOp::Sum };
        let error = mem.all_reduce(op).expect_err("they disagree");
        let Error::Mismatch { values, .. } = error else { panic!("{error}") };
        assert!(values[1].contains("max") && values[2].contains("sum"), "{values:?}");
        assert_eq!(*mem.local()?, [group.rank() as f32; 10]);
        mem.all_reduce(ReduceOp::Sum)?;
        assert_eq!(*mem.local()?, [3.0; 10]);
        let error = mem.broadcast(group.rank()).expect_err("three roots");
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        mem.close()
    })
    .unwrap();
}

#[test]
fn wrong_arguments_are_told_before_anything_happens() {
    symmem::spawn(2, |group| {
        let mut mem = group.alloc::<f32>(5)?.rendezvous(&group)?;
        let divisible = mem.all_to_all(&mut [0.0; 5]).expect_err("5 is odd");
        assert!(divisible.to_string().contains("divisible"), "{divisible}");
        assert!(mem.all_gather(&mut [0.0; 9]).is_err());
        assert!(mem.all_reduce_out(ReduceOp::Sum, &mut [0.0; 4]).is_err());
        assert!(mem.broadcast(2).is_err());
        assert!(mem.all_reduce(ReduceOp::Xor).is_err(), "floats have no xor");
        let guard = mem.local()?;
        let other = mem.within(std::time::Duration::from_secs(5));
        drop(guard);
        drop(other);
        mem.all_reduce(ReduceOp::Sum)?;
        mem.close()
    })
    .unwrap();
}
