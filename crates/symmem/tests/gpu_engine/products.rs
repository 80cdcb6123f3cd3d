//! Products and their collectives: every way, type and odd shape against a reference in f64; graphs, ranks
//! that are late, and ranks that disagree.
//!
//! They need cuBLASLt, and skip themselves where it is not found. Ranks are threads that share the device, so
//! they prepare, and meet, before anything waits: what is loaded may wait for the device.

use std::time::Duration;

use symmem::cuda::{Buffer, DeviceMatrix, FusedWay, Settings, SymmetricMemory};
use symmem::{Element, Error, ProcessSpawner, ReduceOp, Result, bf16, f16};

use crate::stage::{QUEUES, Rank, alone, device, on_threads, settings};
use crate::trial::Random;

/// Rows of a rank, width, and columns of the weights: aligned and not, one row, and larger than a tile.
const SHAPES: [[usize; 3]; 5] = [[1, 64, 8], [3, 33, 17], [64, 256, 128], [97, 520, 72], [128, 512, 384]];
const WAYS: [FusedWay; 3] = [FusedWay::Unfused, FusedWay::Fused, FusedWay::ByShape];
/// Elements that are compared, at most.
const SPOTS: usize = 2000;
/// Elements between the columns that are used and the next row.
const GAP: usize = 3;

/// Elements of a type, as numbers.
trait Number: Element + PartialEq {
    /// How far a rounded number is from the number, at most: by its size.
    const STEP: f64;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
}

impl Number for f32 {
    const STEP: f64 = 1.0 / (1 << 24) as f64;
    fn of(value: f64) -> Self {
        value as Self
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
}

impl Number for bf16 {
    const STEP: f64 = 1.0 / (1 << 8) as f64;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn wide(self) -> f64 {
        self.to_f64()
    }
}

impl Number for f16 {
    const STEP: f64 = 1.0 / (1 << 11) as f64;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn wide(self) -> f64 {
        self.to_f64()
    }
}

/// Numbers with more bits than TF32 has, the same for the same seed.
fn numbers<T: Number>(seed: usize, len: usize) -> Vec<T> {
    let mut random = Random::new(seed as u64);
    (0..len).map(|_| T::of((random.below(1 << 20) as f64 - (1 << 19) as f64) / (1 << 19) as f64)).collect()
}

/// Element (row, column) of a product of matrices with rows of `strides`, and what its terms add up to
/// without their signs.
fn element<T: Number>(
    (left, right): (&[T], &[T]),
    [row, inner, column]: [usize; 3],
    strides: [usize; 2],
) -> (f64, f64) {
    let term = |at: usize| left[row * strides[0] + at].wide() * right[at * strides[1] + column].wide();
    (0..inner).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

/// Far from what sums in f32 lose, and less than a tenth of what sums of TF32 do.
const SUMS: f64 = 1.5e-6;

/// Panics unless `found` is near `expected`, which says it of an element of these rows and columns.
fn check_spots<T: Number>(
    found: &[T],
    columns: usize,
    what: &str,
    expected: impl Fn(usize, usize) -> (f64, f64),
) {
    let step = (found.len() / SPOTS).max(1) | 1;
    for at in (0..found.len()).step_by(step) {
        let (value, slack) = expected(at / columns, at % columns);
        let found = found[at].wide();
        let slack = slack + (value.abs() + slack) * T::STEP + 1e-9;
        assert!((found - value).abs() <= slack, "{what} {}: element {at} is {found}, not {value}", T::DTYPE);
    }
}

/// Says so where there is no device, or no cuBLASLt.
fn is_skipped() -> bool {
    if device().is_none() {
        return true;
    }
    let missing = on_threads(1, &settings(), |rank| {
        let memory = rank.engine.alloc::<f32>(4)?.rendezvous(&rank.engine)?;
        let weights = Buffer::<f32>::new(&rank.device, 4)?;
        let weights = DeviceMatrix::new(&weights, 2, 2)?;
        Ok(match memory.prepare_all_gather_matmul(&[weights], &rank.stream) {
            Err(error @ (Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => Some(error.to_string()),
            other => other.map(|()| None)?,
        })
    });
    if let Some(Some(problem)) = missing.first() {
        println!("skipped: {problem}");
    }
    missing != [None]
}

/// Rows that are gathered and multiplied with two weights, the second a part of a wider matrix.
struct Gather<'a, T: Number> {
    rank: &'a Rank,
    shape: [usize; 3],
    rows: SymmetricMemory<T>,
    weights: [Buffer<T>; 2],
    outs: [Buffer<T>; 2],
    gathered: Buffer<T>,
}

impl<'a, T: Number> Gather<'a, T> {
    /// Collective.
    fn new(rank: &'a Rank, shape: [usize; 3]) -> Result<Self> {
        let ([rows, inner, columns], device) = (shape, &rank.device);
        let all = rows * rank.group.size();
        let lens = [inner * columns, inner * (columns + GAP)];
        let weights = [0, 1].map(|at| numbers::<T>(1000 + rank.rank() * 10 + at, lens[at]));
        let buffer = |weights: &[T]| Buffer::from_slice(device, weights, &rank.stream);
        Ok(Self {
            rank,
            shape,
            rows: rank.engine.alloc(rows * inner)?.rendezvous(&rank.engine)?,
            weights: [buffer(&weights[0])?, buffer(&weights[1])?],
            outs: [Buffer::new(device, all * columns)?, Buffer::new(device, all * columns)?],
            gathered: Buffer::new(device, all * inner)?,
        })
    }

    /// Collective. With nothing left to load.
    fn prepared(rank: &'a Rank, shape: [usize; 3]) -> Result<Self> {
        let made = Self::new(rank, shape)?;
        made.rows.prepare_all_gather_matmul(&made.weights()?, &rank.stream)?;
        Ok(made)
    }

    fn weights(&self) -> Result<[DeviceMatrix<'_, T>; 2]> {
        let [_, inner, columns] = self.shape;
        let wide = DeviceMatrix::new(&self.weights[1], inner, columns + GAP)?;
        Ok([DeviceMatrix::new(&self.weights[0], inner, columns)?, wide.part(GAP..columns + GAP)?])
    }

    fn launch(&mut self, way: FusedWay, wants_rows: bool) -> Result<()> {
        let [_, inner, columns] = self.shape;
        let wide = DeviceMatrix::new(&self.weights[1], inner, columns + GAP)?;
        let weights = [DeviceMatrix::new(&self.weights[0], inner, columns)?, wide.part(GAP..columns + GAP)?];
        let [one, other] = &mut self.outs;
        let outs = &mut [one.as_slice_mut(), other.as_slice_mut()];
        let gathered = wants_rows.then(|| self.gathered.as_slice_mut());
        self.rows.all_gather_matmul_by(way, &weights, outs, gathered, &self.rank.stream)
    }

    /// This rank's rows become those of `round`.
    fn fill(&self, round: usize) -> Result<()> {
        let stream = &self.rank.stream;
        let own = numbers::<T>(self.rank.rank() + 100 * round, self.rows.len());
        self.rows.write(&own, stream)?;
        self.outs.iter().try_for_each(|out| out.fill_bytes(0x11, stream))?;
        self.gathered.fill_bytes(0x11, stream)
    }

    fn check(&self, round: usize, wants_rows: bool, what: &str) -> Result<()> {
        let (stream, [_, inner, columns]) = (&self.rank.stream, self.shape);
        let ranks = 0..self.rank.group.size();
        let all: Vec<T> = ranks.flat_map(|rank| numbers::<T>(rank + 100 * round, self.rows.len())).collect();
        let all = all.as_slice();
        for (at, (stride, skip)) in [(columns, 0), (columns + GAP, GAP)].into_iter().enumerate() {
            let weights = self.weights[at].read(stream)?;
            check_spots(&self.outs[at].read(stream)?, columns, what, |row, column| {
                let place = [row, inner, column + skip];
                let (value, size) = element((all, &weights), place, [inner, stride]);
                (value, size * SUMS)
            });
        }
        if wants_rows {
            assert!(self.gathered.read(stream)? == all, "{what}: the rows of all");
        }
        Ok(())
    }
}

/// A product that is reduced and scattered, whose left side is a part of a wider matrix.
struct Scatter<'a, T: Number> {
    rank: &'a Rank,
    /// Rows of a rank's part, inner, columns.
    shape: [usize; 3],
    workspace: SymmetricMemory<T>,
    left: Buffer<T>,
    right: Buffer<T>,
    out: Buffer<T>,
}

impl<'a, T: Number> Scatter<'a, T> {
    /// Collective.
    fn new(rank: &'a Rank, shape: [usize; 3]) -> Result<Self> {
        let ([part, inner, columns], device) = (shape, &rank.device);
        let rows = part * rank.group.size();
        let right = numbers::<T>(2000 + rank.rank(), inner * columns);
        Ok(Self {
            rank,
            shape,
            // Larger than it need be.
            workspace: rank.engine.alloc(rows * columns + 40)?.rendezvous(&rank.engine)?,
            left: Buffer::new(device, rows * (inner + GAP))?,
            right: Buffer::from_slice(device, &right, &rank.stream)?,
            out: Buffer::new(device, part * columns)?,
        })
    }

    /// Collective. With nothing left to load.
    fn prepared(rank: &'a Rank, shape: [usize; 3]) -> Result<Self> {
        let made = Self::new(rank, shape)?;
        let (a, b) = made.sides()?;
        made.workspace.prepare_matmul_reduce_scatter(a, b, &rank.stream)?;
        Ok(made)
    }

    fn rows(&self) -> usize {
        self.shape[0] * self.rank.group.size()
    }

    fn sides(&self) -> Result<(DeviceMatrix<'_, T>, DeviceMatrix<'_, T>)> {
        let [_, inner, columns] = self.shape;
        let a = DeviceMatrix::new(&self.left, self.rows(), inner + GAP)?.part(0..inner)?;
        Ok((a, DeviceMatrix::new(&self.right, inner, columns)?))
    }

    fn launch(&mut self, way: FusedWay, op: ReduceOp) -> Result<()> {
        let [_, inner, columns] = self.shape;
        let a = DeviceMatrix::new(&self.left, self.rows(), inner + GAP)?.part(0..inner)?;
        let b = DeviceMatrix::new(&self.right, inner, columns)?;
        self.workspace.matmul_reduce_scatter_by(way, op, (a, b), &mut self.out, &self.rank.stream)
    }

    fn left_of(&self, rank: usize, round: usize) -> Vec<T> {
        numbers(3000 + rank + 100 * round, self.rows() * (self.shape[1] + GAP))
    }

    fn fill(&self, round: usize) -> Result<()> {
        self.left.write(&self.left_of(self.rank.rank(), round), &self.rank.stream)?;
        self.out.fill_bytes(0x11, &self.rank.stream)
    }

    fn check(&self, round: usize, op: ReduceOp, what: &str) -> Result<()> {
        let ([part, inner, columns], world) = (self.shape, self.rank.group.size());
        let sides: Vec<_> = (0..world)
            .map(|rank| (self.left_of(rank, round), numbers::<T>(2000 + rank, inner * columns)))
            .collect();
        let share = if op == ReduceOp::Avg { 1.0 / world as f64 } else { 1.0 };
        check_spots(&self.out.read(&self.rank.stream)?, columns, what, |row, column| {
            let place = [self.rank.rank() * part + row, inner, column];
            let parts = sides.iter().map(|(left, right)| {
                element((left.as_slice(), right.as_slice()), place, [inner + GAP, columns])
            });
            // Each rank's product is rounded to the type.
            let add = |(sum, slack): (f64, f64), (value, size): (f64, f64)| {
                (sum + value, slack + size * SUMS + value.abs() * T::STEP)
            };
            let (sum, slack) = parts.fold((0.0, 0.0), add);
            (sum * share, slack * share)
        });
        Ok(())
    }
}

/// Collective: every way and shape. Ranks that are threads prepare.
fn try_ways<T: Number>(rank: &Rank, prepares: bool) -> Result<()> {
    // Freed at the end: freeing memory waits for the device.
    let mut kept = Vec::new();
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let (mut gather, mut scatter) = match prepares {
            true => (Gather::<T>::prepared(rank, shape)?, Scatter::<T>::prepared(rank, shape)?),
            false => (Gather::<T>::new(rank, shape)?, Scatter::<T>::new(rank, shape)?),
        };
        for (round, way) in WAYS.into_iter().enumerate() {
            let what = format!("{shape:?} {way:?} of {}", rank.group.size());
            let is_odd = (round + number) % 2 == 1;
            let (wants_rows, op) = (is_odd, if is_odd { ReduceOp::Avg } else { ReduceOp::Sum });
            gather.fill(round)?;
            scatter.fill(round)?;
            rank.ready()?;
            gather.launch(way, wants_rows)?;
            scatter.launch(way, op)?;
            rank.sync()?;
            gather.check(round, wants_rows, &what)?;
            scatter.check(round, op, &what)?;
        }
        rank.ready()?;
        kept.push((gather, scatter));
    }
    rank.end()
}

#[test]
fn products_of_every_type_and_shape_are_what_they_are_in_f64() {
    if is_skipped() {
        return;
    }
    for world in [1, 2, 4] {
        on_threads(world, &settings(), |rank| {
            try_ways::<f32>(rank, true)?;
            try_ways::<bf16>(rank, true)?;
            try_ways::<f16>(rank, true)
        });
    }
}

#[test]
fn processes_multiply_without_preparing() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for world in [2, 4] {
        ProcessSpawner::new("products::processes_multiply_without_preparing", world)
            .env(QUEUES, 4)
            .run(|group| match try_ways::<bf16>(&Rank::new(&group, settings())?, false) {
                Err(error @ (Error::NoLibrary { .. } | Error::LibraryTooOld { .. })) => {
                    println!("skipped: {error}");
                    Ok(())
                }
                other => other,
            })
            .unwrap();
    }
}

#[test]
fn graphs_of_products_follow_their_inputs() {
    if is_skipped() {
        return;
    }
    for world in [2, 4] {
        on_threads(world, &settings(), |rank| {
            let mut gather = Gather::<bf16>::prepared(rank, [32, 128, 64])?;
            let mut scatter = Scatter::<bf16>::prepared(rank, [33, 128, 64])?;
            rank.engine.prepare()?;
            // What another rank makes meanwhile may break a capture.
            rank.ready()?;
            let mut graphs = Vec::new();
            for way in [FusedWay::Fused, FusedWay::Unfused] {
                rank.stream.begin_capture()?;
                gather.launch(way, false)?;
                scatter.launch(way, ReduceOp::Sum)?;
                gather.launch(way, true)?;
                graphs.push(rank.stream.end_capture()?);
            }
            for round in 0..3 {
                for (graph, way) in graphs.iter().zip(["fused", "unfused"]) {
                    gather.fill(round)?;
                    scatter.fill(round)?;
                    rank.ready()?;
                    graph.launch(&rank.stream)?;
                    rank.sync()?;
                    let what = format!("{way}, replay {round}");
                    gather.check(round, true, &what)?;
                    scatter.check(round, ReduceOp::Sum, &what)?;
                    // Eager ones between the replays use the same room.
                    rank.ready()?;
                    gather.launch(FusedWay::Fused, false)?;
                    rank.sync()?;
                    gather.check(round, false, "between replays")?;
                    rank.ready()?;
                }
            }
            rank.end()
        });
    }
}

#[test]
fn a_rank_that_comes_late_is_waited_for() {
    if is_skipped() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let mut gather = Gather::<bf16>::prepared(rank, [64, 256, 128])?;
        let mut scatter = Scatter::<bf16>::prepared(rank, [64, 256, 128])?;
        for late in [0, 1] {
            for way in [FusedWay::Fused, FusedWay::Unfused] {
                gather.fill(late)?;
                scatter.fill(late)?;
                rank.ready()?;
                if rank.rank() == late {
                    std::thread::sleep(Duration::from_millis(100));
                }
                // One behind the other: rooms and workspaces are used again at once.
                for _ in 0..3 {
                    gather.launch(way, false)?;
                    scatter.launch(way, ReduceOp::Sum)?;
                }
                rank.sync()?;
                gather.check(late, false, "late")?;
                scatter.check(late, ReduceOp::Sum, "late")?;
            }
        }
        rank.end()
    });
}

#[test]
fn operations_on_other_streams_and_lanes_come_in_order() {
    if is_skipped() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let mut gather = Gather::<f32>::prepared(rank, [16, 64, 32])?;
        let other = rank.engine.stream()?;
        let sums = rank.engine.alloc::<f32>(1000)?.rendezvous(&rank.engine)?;
        gather.fill(0)?;
        sums.write(&[1.0; 1000], &rank.stream)?;
        rank.ready()?;
        for round in 0..10 {
            sums.all_reduce(ReduceOp::Avg, &other)?;
            gather.launch(WAYS[round % 2], false)?;
        }
        sums.all_reduce(ReduceOp::Sum, &other)?;
        rank.sync()?;
        rank.engine.sync(&other, crate::stage::PATIENCE)?;
        gather.check(0, false, "in turns with sums")?;
        assert_eq!(sums.read(&other)?, [2.0; 1000]);
        rank.end()
    });
}

/// Rank 1 gives what cannot be, or another shape than the others.
#[test]
fn ranks_that_disagree_all_fail() {
    if is_skipped() {
        return;
    }
    for wrong in 0..3 {
        let errors =
            on_threads(2, &Settings { deadline: Some(Duration::from_secs(5)), ..settings() }, |rank| {
                let odd = rank.rank() == 1;
                let memory = rank.engine.alloc::<f32>(64 * 8)?.rendezvous(&rank.engine)?;
                let weights = Buffer::<f32>::new(&rank.device, 64 * 8)?;
                let mut out = Buffer::<f32>::new(&rank.device, 64 * 64)?;
                // As many elements in other rows, or an output that is too short; or another way.
                let inner = if odd && wrong == 0 { 16 } else { 8 };
                let weights = DeviceMatrix::new(weights.as_slice().slice(..inner * 4)?, inner, 4)?;
                let len = 64 * 8 / inner * 2 * 4 - usize::from(odd && wrong == 1);
                let way = if odd && wrong == 2 { FusedWay::Unfused } else { FusedWay::Fused };
                memory.prepare_all_gather_matmul(&[weights], &rank.stream)?;
                rank.ready()?;
                let mut out = out.as_slice_mut();
                let outs = &mut [out.slice_mut(..len)?];
                let launched = memory.all_gather_matmul_by(way, &[weights], outs, None, &rank.stream);
                assert_eq!(launched.is_err(), odd && wrong == 1, "{launched:?}");
                // The group has failed: its ranks do not meet any more.
                Ok(rank.sync().expect_err("the ranks disagree").to_string())
            });
        let says = |error: &String| error.contains("disagree") || error.contains("in another operation");
        assert!(errors.iter().all(says), "{wrong}: {errors:?}");
    }
}
