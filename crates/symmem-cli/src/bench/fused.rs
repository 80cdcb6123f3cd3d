//! Products and norms that are made while a collective runs, by one rank's thread: fused, unfused, and beside
//! them what they cannot be faster than, the product alone, or the all_reduce alone.
//!
//! All of them take turns, one call each. After the first call everything of the two ways must be equal to
//! the last bit, and some elements near what they are in f64.

use symmem::tuning::Algorithm;
use symmem::{DType, Element, Group, MatrixView, ReduceOp, Result, SymmetricMemory, bf16, f16};

use super::lab::Lab;
use super::report::Row;
use super::stats::{Percentiles, Ratio};
use crate::args::{BenchArgs, Op};

/// What is measured here, and of which shapes: rows of all ranks, width, columns of the weights. Of a norm
/// rows and width.
const WORK: [(Op, [[usize; 3]; 3]); 3] = [
    (Op::AllGatherMatmul, PRODUCTS),
    (Op::MatmulReduceScatter, PRODUCTS),
    (Op::AllReduceRmsNorm, [[1, 8192, 0], [16, 8192, 0], [256, 8192, 0]]),
];
const PRODUCTS: [[usize; 3]; 3] = [[2048, 2048, 64], [2048, 2048, 128], [2048, 2048, 2048]];
/// Every side of a shape is as many times smaller in a quick run.
const QUICK: usize = 16;
/// The types that products are made of.
const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Rounds of turns: as many as there is time for, within these.
const ROUNDS: (usize, usize) = (3, 33);
/// Elements of a result that are compared with the reference.
const SPOTS: usize = 64;
const EPSILON: f32 = 1e-6;

/// Seeds of numbers: those of rank 0, the others follow.
const LEFT: usize = 1000;
const RIGHT: usize = 2000;

/// Whether `op` is measured here.
pub(super) fn has(op: Op) -> bool {
    WORK.iter().any(|(one, _)| *one == op)
}

/// What is measured of `op`.
fn cases(args: &BenchArgs, op: Op, ranks: usize) -> Vec<(DType, [usize; 3])> {
    let shapes = WORK.iter().filter(|(one, _)| *one == op).flat_map(|(_, shapes)| shapes);
    let of_shape = |shape: &[usize; 3]| {
        let [rows, width, columns] = match args.is_quick() {
            true => shape.map(|side| side.div_ceil(QUICK)),
            false => *shape,
        };
        let ranks = if columns == 0 { 1 } else { ranks };
        let whole = [rows.next_multiple_of(ranks), width.next_multiple_of(ranks), columns];
        args.dtypes().iter().filter(|dtype| TYPES.contains(dtype)).map(move |dtype| (*dtype, whole))
    };
    shapes.flat_map(of_shape).collect()
}

/// Steps of progress.
pub(super) fn steps(args: &BenchArgs, op: Op, ranks: usize) -> usize {
    cases(args, op, ranks).len()
}

/// The rows of `op`.
pub(super) fn run(lab: &Lab<'_>, op: Op) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (dtype, shape) in cases(lab.args, op, lab.group.size()) {
        lab.start(&format!("{op} {dtype} {}", words(shape)));
        rows.extend(match dtype {
            DType::BF16 => one_case::<bf16>(lab, op, shape)?,
            DType::F16 => one_case::<f16>(lab, op, shape)?,
            _ => one_case::<f32>(lab, op, shape)?,
        });
        lab.step();
    }
    Ok(rows)
}

fn words(shape: [usize; 3]) -> String {
    let sides: Vec<_> = shape.iter().filter(|side| **side > 0).map(usize::to_string).collect();
    sides.join("x")
}

/// An element type that products are made of.
trait Number: Element {
    /// Of a number that every type has.
    fn of(value: f32) -> Self;
    fn wide(self) -> f64;
    /// The distance of two neighbours near 1.
    const STEP: f64;
}

impl Number for f32 {
    fn of(value: f32) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self.into()
    }
    const STEP: f64 = f32::EPSILON as f64;
}

impl Number for bf16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f64 {
        self.to_f64()
    }
    const STEP: f64 = 1.0 / 128.0;
}

impl Number for f16 {
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f64 {
        self.to_f64()
    }
    const STEP: f64 = 1.0 / 1024.0;
}

/// The number at `at` of those that `seed` makes: from -1 to 1 in steps that every type has.
pub(super) fn number(seed: usize, at: usize) -> f32 {
    let bits = (at as u64 ^ (seed as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((bits ^ bits >> 29) >> 20 & 127) as f32 / 64.0 - 1.0
}

fn numbers<T: Number>(seed: usize, len: usize) -> Vec<T> {
    (0..len).map(|at| T::of(number(seed, at))).collect()
}

/// One that takes its turn.
struct Turn<T: Number> {
    /// Nothing for the limit.
    way: &'static str,
    mem: Memory<T>,
    inputs: [Vec<T>; 2],
    shape: [usize; 3],
    out: Vec<T>,
}

/// The symmetric memory, and with it what is called.
enum Memory<T: Number> {
    Gather(SymmetricMemory<T>),
    Scatter(SymmetricMemory<f32>),
    Norm(SymmetricMemory<T>),
    Reduce(SymmetricMemory<T>),
}

impl<T: Number> Turn<T> {
    /// Before a call.
    fn prepare(&mut self) {
        if let Memory::Norm(_) = self.mem {
            // The call adds to the residual.
            self.inputs[1].fill(T::zeroed());
        }
    }

    fn call(&mut self) -> Result<()> {
        let [rows, width, columns] = self.shape;
        let [left, right] = &mut self.inputs;
        match &mut self.mem {
            Memory::Gather(mem) => {
                mem.all_gather_matmul(&[MatrixView::new(right, width, columns)?], &mut [&mut self.out])
            }
            Memory::Scatter(mem) => {
                let (left, right) =
                    (MatrixView::new(left, rows, width)?, MatrixView::new(right, width, columns)?);
                mem.matmul_reduce_scatter(ReduceOp::Sum, left, right, &mut self.out)
            }
            Memory::Norm(mem) => mem.all_reduce_rms_norm(right, left, EPSILON, &mut self.out),
            Memory::Reduce(mem) => mem.all_reduce_out(ReduceOp::Sum, &mut self.out),
        }
    }

    fn close(self) -> Result<()> {
        match self.mem {
            Memory::Scatter(mem) => mem.close(),
            Memory::Gather(mem) | Memory::Norm(mem) | Memory::Reduce(mem) => mem.close(),
        }
    }
}

/// Collective. What takes turns for `op`; the limit comes last.
fn turns<T: Number>(group: &Group, op: Op, shape: [usize; 3]) -> Result<Vec<Turn<T>>> {
    let (rank, world, [rows, width, columns]) = (group.rank(), group.size(), shape);
    let alone = group.subgroup(&[rank], "alone")?;
    let filled = |group: &Group, seed, len| -> Result<SymmetricMemory<T>> {
        let mut mem = group.alloc::<T>(len)?.rendezvous(group)?;
        mem.local_mut()?.copy_from_slice(&numbers(seed, len));
        Ok(mem)
    };
    let right = |width| numbers(RIGHT + rank, width * columns);
    let both = [("fused", Algorithm::Pipelined), ("unfused", Algorithm::Direct)];
    let mut turns = Vec::new();
    match op {
        Op::AllGatherMatmul => {
            for (way, algorithm) in both {
                let mem = filled(group, LEFT + rank, rows / world * width)?.using(algorithm);
                let (inputs, out) = ([Vec::new(), right(width)], vec![T::zeroed(); rows * columns]);
                turns.push(Turn { way, mem: Memory::Gather(mem), inputs, shape, out });
            }
        }
        Op::MatmulReduceScatter => {
            for (way, algorithm) in both {
                let mem = group.alloc::<f32>(rows * columns)?.rendezvous(group)?.using(algorithm);
                let shape = [rows, width / world, columns];
                let inputs = [numbers(LEFT + rank, rows * shape[1]), right(shape[1])];
                let out = vec![T::zeroed(); rows / world * columns];
                turns.push(Turn { way, mem: Memory::Scatter(mem), inputs, shape, out });
            }
        }
        _ => {
            for (way, is_norm) in [("fused", true), ("", false)] {
                let mem = filled(group, LEFT + rank, rows * width)?;
                let mem = if is_norm { Memory::Norm(mem) } else { Memory::Reduce(mem) };
                let inputs = [numbers(RIGHT, width), vec![T::zeroed(); rows * width]];
                turns.push(Turn { way, mem, inputs, shape, out: vec![T::zeroed(); rows * width] });
            }
            return Ok(turns);
        }
    }
    let shape = turns.first().map_or(shape, |turn| turn.shape);
    let mem = Memory::Gather(filled(&alone, LEFT + rank, rows * shape[1])?);
    let (inputs, out) = ([Vec::new(), right(shape[1])], vec![T::zeroed(); rows * columns]);
    turns.push(Turn { way: "", mem, inputs, shape, out });
    Ok(turns)
}

fn one_case<T: Number>(lab: &Lab<'_>, op: Op, shape: [usize; 3]) -> Result<Vec<Row>> {
    let mut turns = turns::<T>(lab.group, op, shape)?;
    for turn in &mut turns {
        turn.prepare();
        turn.call()?;
    }
    let ways = turns.iter().filter(|turn| !turn.way.is_empty());
    let right: Vec<bool> = ways.clone().map(|turn| is_right(op, lab.group, shape, &turn.out)).collect();
    let same = ways.clone().all(|turn| bytes(&turn.out) == bytes(&turns[0].out));
    let right = lab.all_right(same && right.into_iter().all(|right| right))?;

    let mut own = vec![Vec::new(); turns.len()];
    let (start, count) = (lab.clock.now(), turns.len());
    let rounds = if lab.args.is_quick() { ROUNDS.0 } else { ROUNDS.1 };
    for round in 0..rounds {
        for at in (0..count).map(|turn| (turn + round) % count) {
            turns[at].prepare();
            lab.group.barrier()?;
            let start = lab.clock.now();
            turns[at].call()?;
            own[at].push(lab.clock.now() - start);
        }
        let us = lab.clock.us(lab.clock.now() - start);
        let late = lab.args.case_limit().is_some_and(|limit| us > limit.as_secs_f64() * 1e6);
        // What one rank thinks of the time all must know, to end together.
        if !lab.all_right(!late)? && round + 1 >= ROUNDS.0 {
            break;
        }
    }
    let slowest = own.iter().map(|own| lab.slowest(own)).collect::<Result<Vec<_>>>()?;
    let rows = rows::<T>(lab, op, shape, &turns, slowest, right);
    turns.into_iter().try_for_each(Turn::close)?;
    Ok(rows)
}

fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

fn rows<T: Number>(
    lab: &Lab<'_>,
    op: Op,
    shape: [usize; 3],
    turns: &[Turn<T>],
    slowest: Vec<Vec<u64>>,
    verified: bool,
) -> Vec<Row> {
    let limit = slowest.last().map(|samples| Percentiles::of(&mut samples.clone()));
    let limit_name = if shape[2] == 0 { "all_reduce alone" } else { "product alone" };
    let row = |(turn, mut samples): (&Turn<T>, Vec<u64>)| {
        let own = Percentiles::of(&mut samples.clone());
        let is_limit = turn.way.is_empty();
        let algorithm = if is_limit { limit_name } else { turn.way };
        let form: Vec<String> = [words(shape), turn.way.to_owned()].into();
        let row = Row {
            dtype: T::DTYPE.to_string(),
            bytes: shape[0] * shape[1] * size_of::<T>(),
            form: form.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "),
            ..lab.row(&op.to_string(), algorithm, &mut samples, verified)
        };
        let over = |own: u64, limit: u64| own as f64 / limit.max(1) as f64;
        let ratio = limit.map(|limit| Ratio {
            p50: over(own.p50, limit.p50),
            mean: over(own.mean, limit.mean),
            above_us: 0.0,
        });
        if is_limit { row.of_limit() } else { row.beside_limit(ratio) }
    };
    // As everywhere, the limit first.
    let mut rows: Vec<Row> = turns.iter().zip(slowest).map(row).collect();
    rows.rotate_right(1);
    rows
}

/// Whether some elements of `out` are what they must be on this rank.
fn is_right<T: Number>(op: Op, group: &Group, shape: [usize; 3], out: &[T]) -> bool {
    let step = out.len().div_ceil(SPOTS).max(1);
    (0..out.len()).step_by(step).chain(out.len().checked_sub(1)).all(|at| {
        let (right, scale) = reference::<T>(op, group, shape, at);
        // The sum is made in f32 and rounded once more, each product by less.
        (out[at].wide() - right).abs() <= scale * (T::STEP + 1e-5)
    })
}

/// The element at `at` of this rank's result in f64, and the sum of what is added up without signs.
fn reference<T: Number>(op: Op, group: &Group, shape: [usize; 3], at: usize) -> (f64, f64) {
    let (rank, world, [rows, width, columns]) = (group.rank(), group.size(), shape);
    let value = |seed: usize, at: usize| f64::from(number(seed, at));
    let sums = |terms: &mut dyn Iterator<Item = f64>| {
        terms.fold((0.0, 0.0), |(sum, scale), term| (sum + term, scale + term.abs()))
    };
    match op {
        Op::AllGatherMatmul => {
            let (row, column, part) = (at / columns, at % columns, rows / world);
            let left = |k| value(LEFT + row / part, row % part * width + k);
            sums(&mut (0..width).map(|k| left(k) * value(RIGHT + rank, k * columns + column)))
        }
        Op::MatmulReduceScatter => {
            let (row, column) = (rows / world * rank + at / columns, at % columns);
            let part = width / world;
            let of_rank = |from: usize| {
                let left = move |k| value(LEFT + from, row * part + k);
                (0..part).map(move |k| left(k) * value(RIGHT + from, k * columns + column))
            };
            sums(&mut (0..world).flat_map(of_rank))
        }
        _ => {
            // The sum is rounded before it is normalised, and all of it again after.
            let (row, column) = (at / width, at % width);
            let sum = |column: usize| {
                let sum: f32 = (0..world).map(|from| number(LEFT + from, row * width + column)).sum();
                T::of(sum).wide()
            };
            let squares: f64 = (0..width).map(|column| sum(column).powi(2)).sum();
            let root = (squares / width as f64 + f64::from(EPSILON)).sqrt();
            let right = sum(column) / root * value(RIGHT, column);
            (right, right.abs())
        }
    }
}
