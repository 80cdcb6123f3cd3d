//! Fused products and norms: right to the last bit that f32 has, the same bits as unfused, the same errors as
//! every collective, and nobody hangs.

mod common;

use std::fmt::Debug;
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use common::{AT_ONCE, PATIENCE, assert_error, config, same_ranks_with};
use symmem::tuning::Algorithm;
use symmem::{
    Element, Error, Group, MatrixView, ProcessSpawner, ReduceOp, Result, SymmetricMemory, bf16, f16,
};

/// What tests need of an element besides.
trait Number: Element + Debug + PartialEq {
    /// How much a rounding may change a number of about 1.
    const ROUNDING: f64;
    fn from(value: f32) -> Self;
    fn to(self) -> f64;
}

macro_rules! numbers {
    ($($type:ty: $rounding:literal, $from:expr, $to:expr;)*) => {
        $(impl Number for $type {
            const ROUNDING: f64 = $rounding;
            fn from(value: f32) -> Self {
                $from(value)
            }
            fn to(self) -> f64 {
                $to(self)
            }
        })*
    };
}

numbers! {
    f32: 1e-7, |value| value, f64::from;
    bf16: 4e-3, bf16::from_f32, bf16::to_f64;
    f16: 5e-4, f16::from_f32, f16::to_f64;
}

/// Numbers between -1 and 1, the same for the same seed.
fn noise<T: Number>(len: usize, seed: usize) -> Vec<T> {
    let mut state = (seed as u32).wrapping_mul(0x9e37_79b9) | 1;
    let step = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::from((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..len).map(step).collect()
}

fn bytes<T: Element>(of: &[T]) -> &[u8] {
    bytemuck::cast_slice(of)
}

/// Whether `found` is the product of `a`, rows of `k`, and `b`, rows of `n`, times `share`.
fn check_product<T: Number>(found: &[T], a: &[T], b: &[T], (k, n): (usize, usize), share: f64) {
    for (index, found) in found.iter().enumerate() {
        let (row, column) = (index / n, index % n);
        let terms = || (0..k).map(|at| a[row * k + at].to() * b[at * n + column].to() * share);
        let (right, most): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        let error = (found.to() - right).abs();
        assert!(
            error <= most * 1e-6 + right.abs() * T::ROUNDING + 6e-8,
            "{index}: {found:?} and not {right}"
        );
    }
}

const WAYS: [Algorithm; 2] = [Algorithm::Pipelined, Algorithm::Direct];

/// Of a rank's part: rows, columns; and of each weight the columns.
const GATHERS: [(usize, usize, &[usize]); 6] =
    [(5, 7, &[3, 1, 40]), (1, 1, &[1]), (33, 400, &[17]), (0, 4, &[3]), (3, 4, &[0, 2]), (13, 24, &[260])];

fn memory_of<T: Number>(group: &Group, data: &[T]) -> Result<SymmetricMemory<T>> {
    let mut memory = group.alloc::<T>(data.len())?.rendezvous(group)?;
    memory.local_mut()?.copy_from_slice(data);
    Ok(memory)
}

fn gather_rows<T: Number>(group: &Group) -> Result<()> {
    let world = group.size();
    for (rows, k, columns) in GATHERS {
        let all: Vec<T> = (0..world).flat_map(|rank| noise(rows * k, rank + 1)).collect();
        let memory = memory_of(group, &all[group.rank() * rows * k..][..rows * k])?;
        // The weights of a rank are its own.
        let weights: Vec<Vec<T>> = columns.iter().map(|n| noise(k * n, 100 * n + group.rank())).collect();
        let matrices: Vec<_> = weights
            .iter()
            .zip(columns)
            .map(|(data, n)| MatrixView::new(data, k, *n))
            .collect::<Result<_>>()?;
        let mut results = Vec::new();
        for way in WAYS {
            let mut outs: Vec<Vec<T>> =
                columns.iter().map(|n| vec![T::from(f32::NAN); world * rows * n]).collect();
            let mut gathered = vec![T::from(f32::NAN); world * rows * k];
            let mut slices: Vec<&mut [T]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            let memory = memory.using(way);
            memory.all_gather_matmul_and_rows(&matrices, &mut slices, &mut gathered)?;
            assert_eq!(bytes(&gathered), bytes(&all));
            let mut again = vec![vec![]; outs.len()];
            again.clone_from(&outs);
            let mut slices: Vec<&mut [T]> = again.iter_mut().map(Vec::as_mut_slice).collect();
            memory.all_gather_matmul(&matrices, &mut slices)?;
            assert!(again.iter().zip(&outs).all(|(one, other)| bytes(one) == bytes(other)));
            results.push(outs);
        }
        for (at, n) in columns.iter().enumerate() {
            check_product(&results[0][at], &all, &weights[at], (k, *n), 1.0);
            assert_eq!(bytes(&results[0][at]), bytes(&results[1][at]));
        }
        memory.close()?;
    }
    Ok(())
}

fn gather_columns<T: Number>(group: &Group) -> Result<()> {
    let world = group.size();
    for (rows, k, columns) in GATHERS {
        let all: Vec<Vec<T>> = (0..world).map(|rank| noise(rows * k, rank + 1)).collect();
        let memory = memory_of(group, &all[group.rank()])?;
        let whole: Vec<T> = (0..rows)
            .flat_map(|row| all.iter().flat_map(move |part| part[row * k..][..k].iter().copied()))
            .collect();
        for n in columns {
            let weights: Vec<T> = noise(world * k * n, 100 * n);
            let mut outs = [vec![T::zeroed(); rows * n], vec![T::zeroed(); rows * n]];
            for (way, out) in WAYS.into_iter().zip(&mut outs) {
                let matrix = MatrixView::new(&weights, world * k, *n)?;
                memory.using(way).all_gather_columns_matmul(&[matrix], &mut [out])?;
            }
            check_product(&outs[0], &whole, &weights, (world * k, *n), 1.0);
            assert_eq!(bytes(&outs[0]), bytes(&outs[1]));
        }
        memory.close()?;
    }
    Ok(())
}

fn scatter<T: Number>(group: &Group) -> Result<()> {
    let (rank, world) = (group.rank(), group.size());
    for (part, k, n, by_rows) in [
        (5, 7, 11, true),
        (1, 1, 1, true),
        (0, 4, 3, true),
        (3, 0, 5, true),
        (2, 5, 0, true),
        (40, 100, 70, true),
        (3, 9, 13, false),
        (33, 60, 20, false),
    ] {
        // A part of so many rows or columns; as many of the other kind as `n`.
        let [m, n] = if by_rows { [part * world, n] } else { [n, part * world] };
        let mut workspace = group.alloc::<f32>(m * n + 3)?.rendezvous(group)?.slice(3..3 + m * n)?;
        // Ranks differ in what they add up over.
        let depth = |rank: usize| if k == 0 { 0 } else { k + rank };
        let a: Vec<Vec<T>> = (0..world).map(|rank| noise(m * depth(rank), 10 + rank)).collect();
        let b: Vec<Vec<T>> = (0..world).map(|rank| noise(depth(rank) * n, 20 + rank)).collect();
        let total: usize = (0..world).map(depth).sum();
        let whole_a: Vec<T> = (0..m)
            .flat_map(|row| {
                let a = &a;
                (0..world).flat_map(move |rank| a[rank][row * depth(rank)..][..depth(rank)].iter().copied())
            })
            .collect();
        let whole_b: Vec<T> = b.concat();
        for op in [ReduceOp::Sum, ReduceOp::Avg] {
            let mut outs = [vec![T::from(f32::NAN); m * n / world], vec![T::zeroed(); m * n / world]];
            for (way, out) in WAYS.into_iter().zip(&mut outs) {
                let a = MatrixView::new(&a[rank], m, depth(rank))?;
                let b = MatrixView::new(&b[rank], depth(rank), n)?;
                let mut workspace = workspace.using(way);
                match by_rows {
                    true => workspace.matmul_reduce_scatter(op, a, b, out)?,
                    false => workspace.matmul_reduce_scatter_columns(op, a, b, out)?,
                }
            }
            assert_eq!(bytes(&outs[0]), bytes(&outs[1]));
            let share = if op == ReduceOp::Avg { 1.0 / world as f64 } else { 1.0 };
            if by_rows {
                check_product(&outs[0], &whole_a[rank * part * total..], &whole_b, (total, n), share);
            } else {
                let mine = |row: usize| whole_b[row * n + rank * part..][..part].iter().copied();
                let mine: Vec<T> = (0..total).flat_map(mine).collect();
                check_product(&outs[0], &whole_a, &mine, (total, part), share);
            }
        }
        workspace.fill(0.0)?;
        workspace.close()?;
    }
    Ok(())
}

fn norms<T: Number>(group: &Group) -> Result<()> {
    for (rows, width) in [(1, 1), (3, 17), (8, 256), (0, 5), (70, 1030)] {
        let len = rows * width;
        let memory = memory_of(group, &noise::<T>(len, group.rank() + 1))?;
        let (residual, weight): (Vec<T>, Vec<T>) = (noise(len, 50), noise(width, 51));
        let mut sum = vec![T::zeroed(); len];
        memory.all_reduce_out(ReduceOp::Sum, &mut sum)?;
        let mut results: Vec<(Vec<T>, Vec<T>)> = Vec::new();
        for algorithm in [None, Some(Algorithm::Staged), Some(Algorithm::Direct)] {
            if algorithm == Some(Algorithm::Staged) && len * size_of::<T>() > 64 << 10 {
                continue;
            }
            let memory = algorithm.map_or(memory.slice(..len)?, |algorithm| memory.using(algorithm));
            let (mut residual, mut out) = (residual.clone(), vec![T::zeroed(); len]);
            memory.all_reduce_rms_norm(&mut residual, &weight, 1e-5, &mut out)?;
            results.push((residual, out));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
        let (added, out) = &results[0];
        for row in 0..rows {
            let row = row * width..(row + 1) * width;
            let squares: f64 = added[row.clone()].iter().map(|value| value.to().powi(2)).sum();
            let scale = 1.0 / (squares / width as f64 + 1e-5).sqrt();
            for (column, at) in row.enumerate() {
                let right = T::from((sum[at].to() as f32) + residual[at].to() as f32);
                assert_eq!(bytes(&[added[at]]), bytes(&[right]));
                let right = added[at].to() * scale * weight[column].to();
                let error = (out[at].to() - right).abs();
                assert!(
                    error <= right.abs() * (T::ROUNDING + 1e-6) + 6e-8,
                    "{at}: {:?} and not {right}",
                    out[at]
                );
            }
        }
        let all = group.all_gather_bytes(bytes(out))?;
        assert!(all.iter().all(|theirs| theirs == bytes(out)), "all ranks have the same bits");
        memory.close()?;
    }
    Ok(())
}

fn everything(group: &Group) -> Result<()> {
    gather_rows::<f32>(group)?;
    gather_rows::<bf16>(group)?;
    gather_rows::<f16>(group)?;
    gather_columns::<f32>(group)?;
    gather_columns::<bf16>(group)?;
    scatter::<f32>(group)?;
    scatter::<bf16>(group)?;
    scatter::<f16>(group)?;
    norms::<f32>(group)?;
    norms::<bf16>(group)?;
    norms::<f16>(group)
}

#[test]
fn threads_get_what_one_rank_alone_would_fused_and_unfused() {
    for world in 1..=4 {
        symmem::spawn(world, |group| everything(&group.within(PATIENCE))).unwrap();
    }
}

#[test]
fn processes_get_what_one_rank_alone_would_fused_and_unfused() {
    let name = "processes_get_what_one_rank_alone_would_fused_and_unfused";
    ProcessSpawner::new(name, 2).env("SYMMEM_TIMEOUT", 60).run(|group| everything(&group)).unwrap();
}

#[test]
fn several_threads_of_a_rank_change_no_bit() {
    symmem::spawn(2, |group| {
        let mut results = Vec::new();
        for threads in [1, 3] {
            let group = same_ranks_with(&group, config().threads_per_rank(threads))?;
            let (rows, k, n) = (101, 500, 300);
            let memory = memory_of::<bf16>(&group, &noise(rows * k, group.rank()))?;
            let (weights, mut out) = (noise::<bf16>(k * n, 9), vec![bf16::ZERO; 2 * rows * n]);
            memory.all_gather_matmul(&[MatrixView::new(&weights, k, n)?], &mut [&mut out])?;
            let mut workspace = group.alloc::<f32>(2 * rows * n)?.rendezvous(&group)?;
            let (a, mut scattered) = (noise::<bf16>(2 * rows * k, 8), vec![bf16::ZERO; rows * n]);
            let (a, b) = (MatrixView::new(&a, 2 * rows, k)?, MatrixView::new(&weights, k, n)?);
            workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut scattered)?;
            let big = memory_of::<f32>(&group, &noise(600 * 1000, group.rank()))?;
            let (mut residual, mut normed) = (vec![0.5; 600 * 1000], vec![0.0; 600 * 1000]);
            big.all_reduce_rms_norm(&mut residual, &[1.0; 1000], 1e-6, &mut normed)?;
            results.push((out, scattered, residual, normed));
        }
        assert!(results[0] == results[1]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn some_columns_of_a_wider_matrix_are_multiplied_as_they_lie() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let memory = memory_of::<f32>(&group, &noise(6 * 8, group.rank()))?;
        let wide = noise::<f32>(8 * 10, 7);
        let part = MatrixView::new(&wide, 8, 10)?.part(3..7)?;
        let narrow: Vec<f32> = (0..8).flat_map(|row| wide[row * 10 + 3..][..4].iter().copied()).collect();
        let (mut one, mut other) = ([0.0; 48], [0.0; 48]);
        memory.all_gather_matmul(&[part, MatrixView::new(&narrow, 8, 4)?], &mut [&mut one, &mut other])?;
        assert_eq!(one, other);
        memory.close()
    })
    .unwrap();
}

/// A matrix without columns has as many rows as its maker says, and none of them takes any time.
#[test]
fn matrices_of_nothing_take_no_time() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = symmem::spawn(2, |group| {
            let most = usize::MAX / 2 * 2;
            let mut memory = group.alloc::<f32>(0)?.rendezvous(&group)?;
            let nothing = || MatrixView::<f32>::new(&[], most, 0);
            memory.all_gather_matmul(&[nothing()?], &mut [&mut []])?;
            memory.all_gather_columns_matmul(&[nothing()?], &mut [&mut []])?;
            let none = MatrixView::new(&[], 0, most)?;
            memory.matmul_reduce_scatter(ReduceOp::Sum, none, nothing()?, &mut [])?;
            memory.matmul_reduce_scatter_columns(ReduceOp::Sum, none, nothing()?, &mut [])?;
            memory.matmul_reduce_scatter(ReduceOp::Sum, nothing()?, none.part(0..0)?, &mut [])?;
            memory.close()
        });
        done.send(outcome.map(drop)).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("it ends soon").unwrap();
}

#[test]
fn ranks_that_disagree_get_the_same_mismatch_and_go_on() {
    symmem::spawn(3, |group| {
        let group = group.within(PATIENCE);
        let memory = memory_of::<f32>(&group, &[1.0; 12])?;
        let mut workspace = group.alloc::<f32>(36)?.rendezvous(&group)?;
        let odd = group.rank() == 1;
        let start = Instant::now();

        let k = if odd { 3 } else { 4 };
        let (data, mut out) = (vec![1.0; k], vec![7.0; 36 / k]);
        let error = memory.all_gather_matmul(&[MatrixView::new(&data, k, 1)?], &mut [&mut out]).unwrap_err();
        let Error::Mismatch { values, .. } = &error else { panic!("{error}") };
        let said = ["rank 0: (3, 4) x f32", "rank 1: (4, 3) x f32", "rank 2: (3, 4) x f32"];
        assert_eq!(*values, said);

        let way = if odd { Algorithm::Direct } else { Algorithm::Pipelined };
        let out = &mut [0.0; 9][..];
        let told = memory.using(way).all_gather_matmul(&[MatrixView::new(&[1.0; 4], 4, 1)?], &mut [out]);
        assert_error!(told, Error::Mismatch { .. });

        let m = if odd { 3 } else { 6 };
        let (a, b) = (vec![1.0f32; m], [1.0f32; 5]);
        let (a, b) = (MatrixView::new(&a, m, 1)?, MatrixView::new(&b, 1, 5)?);
        let mut out = vec![7.0; m / 3 * 5];
        let error = workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut out).unwrap_err();
        assert!(error.to_string().contains("rank 0: (6, 5) x f32; rank 1: (3, 5) x f32"), "{error}");
        assert!(out.iter().all(|value| *value == 7.0), "before a byte changes");

        let op = if odd { ReduceOp::Avg } else { ReduceOp::Sum };
        let (a, b) = (MatrixView::new(&[1.0f32; 3], 3, 1)?, MatrixView::new(&[1.0f32], 1, 1)?);
        let error = workspace.matmul_reduce_scatter(op, a, b, &mut [0.0]).unwrap_err();
        assert_error!(Err::<(), _>(error), Error::Mismatch { .. });

        let width = if odd { 6 } else { 4 };
        let (mut residual, mut out) = ([7.0; 12], [7.0; 12]);
        let told = memory.all_reduce_rms_norm(&mut residual, &vec![1.0; width], 0.0, &mut out);
        assert_error!(told, Error::Mismatch { .. });
        assert_eq!((residual, out), ([7.0; 12], [7.0; 12]));

        assert!(start.elapsed() < AT_ONCE);
        let mut out = [0.0; 9];
        memory.all_gather_matmul(&[MatrixView::new(&[1.0; 4], 4, 1)?], &mut [&mut out])?;
        assert_eq!(out, [4.0; 9]);
        workspace.close()?;
        memory.close()
    })
    .unwrap();
}

#[test]
fn a_wrong_shape_is_told_with_its_numbers() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let memory = memory_of::<f32>(&group, &[1.0; 12])?;
        let mut workspace = group.alloc::<f32>(10)?.rendezvous(&group)?;
        let one = MatrixView::new(&[1.0f32; 4], 4, 1)?;
        let says = |result: Result<()>, words: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            group.barrier()
        };
        let out = &mut [0.0f32; 5][..];
        says(memory.all_gather_matmul(&[one], &mut [out]), "output 0 has 5 elements, but 6 x 1 are needed")?;
        says(memory.all_gather_matmul(&[one], &mut []), "1 weights, but 0 outputs")?;
        says(memory.all_gather_matmul(&[], &mut []), "there must be some")?;
        let five = [1.0; 5];
        let told = memory.all_gather_matmul(&[MatrixView::new(&five, 5, 1)?], &mut [&mut [0.0; 4]]);
        says(told, "12 elements are no rows of 5")?;
        let told = memory.all_gather_columns_matmul(&[MatrixView::new(&five, 5, 1)?], &mut [&mut [0.0; 4]]);
        says(told, "5 rows cannot be divided among 2 ranks")?;
        let told = workspace.matmul_reduce_scatter(ReduceOp::Sum, one, one, &mut [0.0; 2]);
        says(told, "4 x 1 elements times 4 x 1")?;
        let row = MatrixView::new(&[1.0f32; 3], 1, 3)?;
        let told = workspace.matmul_reduce_scatter(ReduceOp::Sum, one, row, &mut [0.0; 6]);
        says(told, "a workspace of 10 elements for a product of 4 x 3")?;
        let told = workspace.matmul_reduce_scatter_columns(ReduceOp::Sum, one, row, &mut [0.0; 6]);
        says(told, "the 3 columns of a product of 4 x 3 cannot be divided among 2 ranks")?;
        let told = workspace.matmul_reduce_scatter(ReduceOp::Max, one, row, &mut [0.0; 6]);
        says(told, "max of products: there are sum and avg")?;
        let whole = memory.cast::<u32>()?;
        let told = whole.all_gather_matmul(&[MatrixView::new(&[1u32; 4], 4, 1)?], &mut [&mut [0; 6]]);
        says(told, "matrices of u32")?;
        let told = memory.using(Algorithm::Push).all_gather_matmul(&[one], &mut [&mut [0.0; 6]]);
        says(told, "push cannot carry")?;
        let told = memory.all_reduce_rms_norm(&mut [0.0; 12], &[1.0; 5], 0.0, &mut [0.0; 12]);
        says(told, "12 elements are no rows of 5")?;
        let told = memory.all_reduce_rms_norm(&mut [0.0; 11], &[1.0; 4], 0.0, &mut [0.0; 12]);
        says(told, "11 of the residual and 12 of the output")?;
        workspace.close()?;
        memory.close()
    })
    .unwrap();
}

/// Makes `call` fail on ranks 0 and 2, because rank 1 is not there.
fn without_rank_1(name: &str, leave: fn(), call: fn(&mut SymmetricMemory<f32>) -> Result<()>) {
    let outcome = ProcessSpawner::new(name, 3).env("SYMMEM_TIMEOUT", 30).run(move |group| {
        let mut memory = memory_of::<f32>(&group, &vec![1.0; 3 * 4096])?;
        call(&mut memory)?;
        if group.rank() == 1 {
            leave();
        }
        let start = Instant::now();
        let error = call(&mut memory).unwrap_err();
        assert_eq!(error.culprit(), Some(1), "{error}");
        assert!(start.elapsed() < PATIENCE / 2, "{error}");
        // And so does the next.
        assert!(call(&mut memory).is_err());
        Ok(())
    });
    assert!(outcome.is_err(), "rank 1 is missed");
}

#[test]
fn a_rank_that_dies_fails_a_gather_of_the_others() {
    without_rank_1(
        "a_rank_that_dies_fails_a_gather_of_the_others",
        || std::process::abort(),
        |memory| {
            let (weights, mut out) = (vec![1.0; 64 * 8], vec![0.0; 3 * 192 * 8]);
            memory.all_gather_matmul(&[MatrixView::new(&weights, 64, 8)?], &mut [&mut out])
        },
    );
}

#[test]
fn a_rank_that_dies_fails_a_scatter_of_the_others() {
    without_rank_1(
        "a_rank_that_dies_fails_a_scatter_of_the_others",
        || std::process::abort(),
        |memory| {
            let (a, b) = (vec![1.0f32; 96 * 64], vec![1.0f32; 64 * 64]);
            let (a, b) = (MatrixView::new(&a, 96, 64)?, MatrixView::new(&b, 64, 64)?);
            memory.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut vec![0.0; 32 * 64])
        },
    );
}

#[test]
fn a_rank_that_dies_fails_a_norm_of_the_others() {
    without_rank_1(
        "a_rank_that_dies_fails_a_norm_of_the_others",
        || std::process::abort(),
        |memory| {
            let (mut residual, mut out) = (vec![1.0; 3 * 4096], vec![1.0; 3 * 4096]);
            memory.all_reduce_rms_norm(&mut residual, &[1.0; 64], 1e-5, &mut out)
        },
    );
}

#[test]
fn a_rank_that_aborts_or_stays_away_fails_the_others_in_time() {
    let failed = Barrier::new(2);
    symmem::spawn(2, |group| {
        let memory = memory_of::<f32>(&group, &[1.0; 12])?;
        let (one, mut out) = (MatrixView::new(&[1.0f32; 4], 4, 1)?, [0.0; 6]);
        if group.rank() == 0 {
            let told = memory.within(Duration::from_millis(200)).all_gather_matmul(&[one], &mut [&mut out]);
            assert_error!(told, Error::Timeout { ref missing, .. } if *missing == [1]);
        }
        failed.wait();
        Ok(())
    })
    .unwrap();
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut workspace = group.alloc::<f32>(12)?.rendezvous(&group)?;
        let one = MatrixView::new(&[1.0f32; 4], 4, 1)?;
        let row = MatrixView::new(&[1.0f32; 3], 1, 3)?;
        match group.rank() {
            0 => {
                let told = workspace.matmul_reduce_scatter(ReduceOp::Sum, one, row, &mut [0.0; 6]);
                assert_eq!(told.unwrap_err().culprit(), Some(1));
            }
            _ => group.abort("enough"),
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_workspace_that_is_borrowed_is_refused() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mut workspace = group.alloc::<f32>(4)?.rendezvous(&group)?;
        let twin = workspace.slice(..4)?;
        let guard = (group.rank() == 1).then(|| twin.local()).transpose()?;
        let (a, b) = (MatrixView::new(&[1.0f32; 4], 4, 1)?, MatrixView::new(&[1.0f32], 1, 1)?);
        let told = workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut [0.0; 2]);
        assert!(told.is_err(), "{told:?}");
        drop(guard);
        workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut [0.0; 2])?;
        workspace.close()
    })
    .unwrap();
}
