//! All-reduce, residual and norm: every algorithm, fused or not, from symmetric and from private memory,
//! written as it is or as fp8, of every element type, gives the same bits on every rank and in every grid,
//! and they are those of the definition.

use std::io::Write as _;
use std::time::Instant;

use symmem::cuda::{Algorithm, Buffer, Normed, RmsNorm, Settings, SymmetricMemory};
use symmem::{Element, Error, F8E4M3, ProcessSpawner, ReduceOp, Result, bf16, f16};

use crate::common::assert_error;
use crate::stage::{PATIENCE, QUEUES, Rank, alone, device, on_threads, settings};
use crate::trial::Random;

const EPSILON: f32 = 1e-5;
/// Rows, and elements of each: one and two units of a thread, more rows than blocks, rows that ranks do not
/// share evenly, and the longest there are.
const SHAPES: [(usize, usize); 6] = [(1, 64), (3, 8192), (7, 4096), (200, 1032), (33, 8184), (5, 16384)];
const SCALE: f32 = 0.0125;
/// Says that times are wanted.
const TIMES: &str = "SYMMEM_TEST_TIMES";

/// Elements of a type, as numbers.
trait Norming: Element + bytemuck::Pod {
    /// How far a rounded number is from the number, at most: by its size.
    const STEP: f64;
    fn of(value: f64) -> Self;
    fn number(self) -> f64;
}

impl Norming for f32 {
    const STEP: f64 = 1.0 / (1 << 24) as f64;
    fn of(value: f64) -> Self {
        value as Self
    }
    fn number(self) -> f64 {
        f64::from(self)
    }
}

impl Norming for bf16 {
    const STEP: f64 = 1.0 / (1 << 9) as f64;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn number(self) -> f64 {
        self.to_f64()
    }
}

impl Norming for f16 {
    const STEP: f64 = 1.0 / (1 << 12) as f64;
    fn of(value: f64) -> Self {
        Self::from_f64(value)
    }
    fn number(self) -> f64 {
        self.to_f64()
    }
}

/// Small numbers, the same for the same seed.
fn numbers<T: Norming>(seed: u64, len: usize) -> Vec<T> {
    let mut random = Random::new(seed);
    (0..len).map(|_| T::of((random.below(2001) as f64 - 1000.0) / 512.0)).collect()
}

fn bits<T: Norming>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// How the result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Plain,
    ByTensor,
    ByRow,
}

const ALL_WRITTEN: [Written; 3] = [Written::Plain, Written::ByTensor, Written::ByRow];

/// Which way a norm goes.
#[derive(Clone, Copy, Debug)]
struct Way {
    algorithm: Option<Algorithm>,
    is_private: bool,
    is_fused: bool,
    written: Written,
}

/// Everything that one shape needs, kept to the end: freeing memory waits for the device.
struct Trial<'a, T: Norming> {
    rank: &'a Rank,
    rows: usize,
    columns: usize,
    /// This rank's elements, and the residual of all ranks.
    own: Vec<T>,
    before: Vec<T>,
    memory: SymmetricMemory<T>,
    input: Buffer<T>,
    weight: Buffer<T>,
    residual: Buffer<T>,
    out: Buffer<T>,
    fp8: Buffer<F8E4M3>,
    scale: Buffer<f32>,
    scales: Buffer<f32>,
}

/// What a way leaves behind: the residual, the result, and the scales of rows.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    residual: Vec<u8>,
    result: Vec<u8>,
    scales: Vec<u32>,
}

impl<'a, T: Norming> Trial<'a, T> {
    /// Collective.
    fn new(rank: &'a Rank, (rows, columns): (usize, usize)) -> Result<Self> {
        let (len, device, stream) = (rows * columns, &rank.device, &rank.stream);
        let own = numbers::<T>(rank.rank() as u64, len);
        Ok(Self {
            rank,
            rows,
            columns,
            memory: rank.engine.alloc::<T>(len)?.rendezvous(&rank.engine)?,
            input: Buffer::from_slice(device, &own, stream)?,
            weight: Buffer::from_slice(device, &numbers::<T>(100, columns), stream)?,
            residual: Buffer::new(device, len)?,
            out: Buffer::new(device, len)?,
            fp8: Buffer::new(device, len)?,
            scale: Buffer::from_slice(device, &[SCALE], stream)?,
            scales: Buffer::new(device, rows)?,
            before: numbers(200, len),
            own,
        })
    }

    /// Gives the norm to the rank's stream.
    fn launch(&mut self, way: Way) -> Result<()> {
        let memory = match way.algorithm {
            Some(algorithm) => self.memory.using(algorithm),
            None => self.memory.clone(),
        };
        let norm = RmsNorm::new(self.columns, EPSILON).weight(&self.weight).residual(&mut self.residual);
        let norm = if way.is_fused { norm } else { norm.unfused() };
        let norm = if way.is_private { norm.input(&self.input) } else { norm };
        let out = match way.written {
            Written::Plain => Normed::from(&mut self.out),
            Written::ByTensor => Normed::fp8(&mut self.fp8, &self.scale),
            Written::ByRow => Normed::fp8_by_row(&mut self.fp8, &mut self.scales),
        };
        memory.all_reduce_rms_norm_with(norm, out, &self.rank.stream)
    }

    fn read(&self, written: Written) -> Result<Found> {
        let stream = &self.rank.stream;
        let result = match written {
            Written::Plain => bits(&self.out.read(stream)?).to_vec(),
            _ => self.fp8.read(stream)?.iter().map(|one| one.to_bits()).collect(),
        };
        let scales = match written {
            Written::ByRow => self.scales.read(stream)?.iter().map(|scale| scale.to_bits()).collect(),
            _ => Vec::new(),
        };
        Ok(Found { residual: bits(&self.residual.read(stream)?).to_vec(), result, scales })
    }

    fn run(&mut self, way: Way) -> Result<Found> {
        let stream = &self.rank.stream;
        let laid_out = if way.is_private { &self.before } else { &self.own };
        self.residual.write(&self.before, stream)?;
        self.memory.write(laid_out, stream)?;
        self.out.fill_bytes(0x11, stream)?;
        self.fp8.fill_bytes(0x11, stream)?;
        self.rank.ready()?;
        self.launch(way)?;
        self.rank.sync()?;
        let stays = !way.is_private && (way.is_fused || way.written == Written::Plain);
        if stays {
            let left = self.memory.read(&self.rank.stream)?;
            assert!(bits(&left) == bits(&self.own), "{way:?}: the memory has changed");
        }
        self.read(way.written)
    }

    /// The residual afterwards.
    fn sums(&self) -> Vec<T> {
        let (world, len) = (self.rank.group.size(), self.rows * self.columns);
        let all: Vec<Vec<T>> = (0..world).map(|rank| numbers(rank as u64, len)).collect();
        let of = |at: usize| T::of(all.iter().map(|one| one[at].number()).sum());
        (0..len).map(|at| T::of(of(at).number() + self.before[at].number())).collect()
    }

    /// Panics unless `found` is what the definition says.
    fn check(&self, found: &Found, written: Written) {
        let (sums, weight) = (self.sums(), numbers::<T>(100, self.columns));
        assert!(found.residual == bits(&sums), "the residual");
        let fp8 = |at: usize| f64::from(F8E4M3::from_bits(found.result[at]).to_f32());
        let plain: Vec<T> = match written {
            Written::Plain => found.result.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
            _ => Vec::new(),
        };
        for row in 0..self.rows {
            let places = row * self.columns..(row + 1) * self.columns;
            let squares: f64 = places.clone().map(|at| sums[at].number().powi(2)).sum();
            let factor = 1.0 / (squares / self.columns as f64 + f64::from(EPSILON)).sqrt();
            let wanted = |at: usize| sums[at].number() * factor * weight[at % self.columns].number();
            let largest = places.clone().map(|at| wanted(at).abs()).fold(0.0, f64::max);
            // Each result is rounded twice, and sums are made in f32.
            let slack = |size: f64| size * (2.0 * T::STEP + 1e-5);
            // Of fp8: half of a step where numbers are normal, or subnormal.
            let coarse = |size: f64, scale: f64| size / 16.0 + scale / 1024.0 + slack(largest);
            for at in places {
                let wanted = wanted(at);
                let (value, wanted, step) = match written {
                    Written::Plain => (plain[at].number(), wanted, slack(wanted.abs())),
                    Written::ByTensor => {
                        let scale = f64::from(SCALE);
                        let limited = wanted.clamp(-448.0 * scale, 448.0 * scale);
                        (fp8(at) * scale, limited, coarse(limited.abs(), scale))
                    }
                    Written::ByRow => {
                        let scale = f64::from(f32::from_bits(found.scales[row]));
                        assert!((scale * 448.0 - largest).abs() <= slack(largest), "the scale of row {row}");
                        (fp8(at) * scale, wanted, coarse(wanted.abs(), scale))
                    }
                };
                assert!((value - wanted).abs() <= step + 1e-7, "{written:?} {at}: {value} is not {wanted}");
            }
        }
    }
}

/// Collective: every way to do it. What they all give.
fn try_ways<T: Norming>(rank: &Rank) -> Result<Vec<Found>> {
    let mut kept = Vec::new();
    let mut all_found = Vec::new();
    for shape in SHAPES {
        if shape.1 * size_of::<T>() > 32 << 10 {
            continue;
        }
        let mut trial = Trial::<T>::new(rank, shape)?;
        for written in ALL_WRITTEN {
            let plain = Way { algorithm: None, is_private: false, is_fused: true, written };
            let first = trial.run(plain)?;
            trial.check(&first, written);
            for algorithm in [None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot)] {
                for (is_private, is_fused) in [(false, true), (true, true), (false, false), (true, false)] {
                    // An all-reduce by itself has other algorithms.
                    if !is_fused && algorithm.is_some() {
                        continue;
                    }
                    let way = Way { algorithm, is_private, is_fused, written };
                    let found = trial.run(way)?;
                    assert!(found == first, "{shape:?} {} {way:?} differs", T::DTYPE);
                }
            }
            let all: Vec<Vec<u8>> = rank.group.all_gather_bytes(&first.result)?;
            assert!(all.iter().all(|one| *one == first.result), "ranks differ");
            all_found.push(first);
        }
        kept.push(trial);
    }
    rank.end()?;
    Ok(all_found)
}

#[test]
fn every_way_and_every_grid_gives_the_same_bits() {
    if device().is_none() {
        return;
    }
    for world in [1, 2, 3, 4] {
        let run = |settings: &Settings| {
            on_threads(world, settings, |rank| {
                Ok([try_ways::<bf16>(rank)?, try_ways::<f16>(rank)?, try_ways::<f32>(rank)?])
            })
        };
        let many = run(&settings());
        let few = run(&Settings { max_blocks: 3, apart: true, ..settings() });
        assert!(many == few, "{world} ranks: grids differ");
    }
}

#[test]
fn averages_without_residual_and_weight_are_normalised_too() {
    if device().is_none() {
        return;
    }
    on_threads(3, &settings(), |rank| {
        const COLUMNS: usize = 2048;
        let memory = rank.engine.alloc::<f32>(2 * COLUMNS)?.rendezvous(&rank.engine)?;
        let mut out = Buffer::<f32>::new(&rank.device, 2 * COLUMNS)?;
        let all: Vec<Vec<f32>> = (0..3).map(|rank| numbers(rank, 2 * COLUMNS)).collect();
        memory.write(&all[rank.rank()], &rank.stream)?;
        rank.ready()?;
        let norm = RmsNorm::new(COLUMNS, EPSILON).reduce(ReduceOp::Avg);
        memory.all_reduce_rms_norm_with(norm, &mut out, &rank.stream)?;
        rank.sync()?;
        let found = out.read(&rank.stream)?;
        for row in 0..2 {
            let averages: Vec<f64> = (row * COLUMNS..(row + 1) * COLUMNS)
                .map(|at| all.iter().map(|one| f64::from(one[at])).sum::<f64>() / 3.0)
                .collect();
            let mean = averages.iter().map(|one| one * one).sum::<f64>() / COLUMNS as f64;
            let root = (mean + f64::from(EPSILON)).sqrt();
            for (at, average) in averages.iter().enumerate() {
                let value = f64::from(found[row * COLUMNS + at]);
                assert!((value - average / root).abs() < 1e-5, "{row} {at}: {value}");
            }
        }
        rank.end()
    });
}

/// A NaN in one rank's row, and numbers whose sum is too large in another row.
#[test]
fn a_nan_is_one_pattern_and_spoils_its_own_row_only() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        const COLUMNS: usize = 1024;
        let mut kept = Vec::new();
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            let memory = rank.engine.alloc::<f16>(3 * COLUMNS)?.rendezvous(&rank.engine)?;
            let mut residual = Buffer::<f16>::new(&rank.device, 3 * COLUMNS)?;
            let weight = Buffer::from_slice(&rank.device, &[f16::ONE; COLUMNS], &rank.stream)?;
            let mut out = Buffer::<f16>::new(&rank.device, 3 * COLUMNS)?;
            let mut own = vec![f16::ONE; 3 * COLUMNS];
            if rank.rank() == 1 {
                own[5] = f16::from_bits(0xfe12);
            }
            own[COLUMNS + 7] = f16::from_f32(60000.0);
            memory.write(&own, &rank.stream)?;
            residual.fill_bytes(0, &rank.stream)?;
            rank.ready()?;
            let memory = memory.using(algorithm);
            memory.all_reduce_rms_norm(&mut residual, &weight, EPSILON, &mut out, &rank.stream)?;
            rank.sync()?;
            let (sums, out_bits) = (residual.read(&rank.stream)?, out.read(&rank.stream)?);
            const NAN: u16 = 0x7e00;
            for at in 0..3 * COLUMNS {
                let sum = match at {
                    5 => NAN,
                    _ if at == COLUMNS + 7 => f16::INFINITY.to_bits(),
                    _ => f16::from_f32(2.0).to_bits(),
                };
                assert_eq!(sums[at].to_bits(), sum, "{algorithm} sum {at}");
                let normed = match at / COLUMNS {
                    0 => NAN,
                    // Over infinity.
                    1 if at == COLUMNS + 7 => NAN,
                    1 => 0,
                    _ => f16::ONE.to_bits(),
                };
                assert_eq!(out_bits[at].to_bits(), normed, "{algorithm} out {at}");
            }
            kept.push((memory, residual, weight, out));
        }
        rank.end()
    });
}

#[test]
fn a_graph_of_norms_can_be_replayed() {
    if device().is_none() {
        return;
    }
    const REPLAYS: usize = 3;
    on_threads(2, &settings(), |rank| {
        let mut kept = Vec::new();
        for (is_fused, written) in [(true, Written::Plain), (false, Written::ByRow), (false, Written::Plain)]
        {
            let way = Way { algorithm: None, is_private: true, is_fused, written };
            let mut trial = Trial::<f32>::new(rank, (40, 4096))?;
            let once = trial.run(way)?;
            rank.engine.prepare()?;
            rank.stream.begin_capture()?;
            trial.launch(way)?;
            let graph = rank.stream.end_capture()?;
            trial.residual.write(&trial.before, &rank.stream)?;
            rank.ready()?;
            for _ in 0..REPLAYS {
                graph.launch(&rank.stream)?;
                rank.sync()?;
                rank.ready()?;
                let found = trial.read(written)?;
                trial.residual.write(&trial.before, &rank.stream)?;
                assert!(found == once, "{way:?}");
                rank.ready()?;
            }
            kept.push((trial, graph));
        }
        rank.end()
    });
}

/// Launched one by one, each before the one ahead of it has ended.
#[test]
fn norms_and_other_operations_follow_each_other() {
    if device().is_none() {
        return;
    }
    const ROUNDS: usize = 60;
    on_threads(2, &settings(), |rank| {
        let mut trials =
            [(1, 8192), (4, 64), (50, 1024)].map(|shape| Trial::<f32>::new(rank, shape).expect("memory"));
        for trial in &mut trials {
            trial.residual.fill_bytes(0, &rank.stream)?;
            trial.memory.write(&vec![1.0; trial.rows * trial.columns], &rank.stream)?;
        }
        rank.ready()?;
        let algorithms = [None, Some(Algorithm::OneShot), Some(Algorithm::TwoShot)];
        for round in 0..ROUNDS {
            for trial in &mut trials {
                let algorithm = algorithms[round % algorithms.len()];
                let (is_fused, written) = (round % 5 != 4, ALL_WRITTEN[round % 2 * 2]);
                // Unfused with fp8 the memory would hold the sum.
                let written = if is_fused { written } else { Written::Plain };
                let algorithm = if is_fused { algorithm } else { None };
                trial.launch(Way { algorithm, is_private: false, is_fused, written })?;
            }
            rank.engine.barrier(&rank.stream)?;
        }
        rank.sync()?;
        for trial in &trials {
            let found = trial.residual.read(&rank.stream)?;
            assert!(found.iter().all(|one| *one == 2.0 * ROUNDS as f32), "{}", found[0]);
        }
        rank.end()
    });
}

/// The unfused way is two kernels. What another stream gets for the same lane comes behind both.
#[test]
fn both_steps_of_the_unfused_way_are_in_the_order_of_the_lane() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let other = rank.engine.stream()?;
        let mut trial = Trial::<f32>::new(rank, (500, 8192))?;
        let garbage = Buffer::from_slice(&rank.device, &vec![1e9f32; trial.own.len()], &rank.stream)?;
        let way = Way { algorithm: None, is_private: true, is_fused: false, written: Written::ByRow };
        let expected = trial.run(way)?;
        for round in 0..20 {
            trial.residual.write(&trial.before, &rank.stream)?;
            trial.fp8.fill_bytes(0x11, &rank.stream)?;
            rank.sync()?;
            rank.ready()?;
            // The sums are in the memory, which is overwritten behind them.
            trial.launch(way)?;
            match round % 2 {
                0 => trial.memory.copy_in(0, &garbage, &other)?,
                _ => trial.memory.all_reduce(ReduceOp::Sum, &other)?,
            }
            rank.engine.sync(&other, PATIENCE)?;
            rank.sync()?;
            assert!(trial.read(Written::ByRow)? == expected, "round {round}: it was overtaken");
        }
        rank.end()
    });
}

#[test]
fn closed_memory_and_wrong_arguments_are_refused() {
    if device().is_none() {
        return;
    }
    on_threads(1, &settings(), |rank| {
        let mut trial = Trial::<bf16>::new(rank, (4, 64))?;
        trial.columns = 48;
        let way = |is_fused| Way { algorithm: None, is_private: false, is_fused, written: Written::Plain };
        assert_error!(trial.launch(way(true)), Error::Invalid { .. });
        trial.columns = 64;
        trial.launch(way(true))?;
        rank.sync()?;
        trial.memory.clone().close()?;
        for is_fused in [true, false] {
            assert_error!(trial.launch(way(is_fused)), Error::Closed { .. });
        }
        rank.end()
    });
}

/// What an operation of a graph takes, in microseconds: a good one of some replays of many.
fn timed(rank: &Rank, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    const OPERATIONS: usize = 40;
    const LAUNCHES: usize = 50;
    rank.ready()?;
    rank.stream.begin_capture()?;
    (0..OPERATIONS).try_for_each(|_| operation())?;
    let graph = rank.stream.end_capture()?;
    let mut times = Vec::new();
    // Many, since who waits for a stream looks once in a millisecond.
    for _ in 0..8 {
        rank.ready()?;
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            graph.launch(&rank.stream)?;
        }
        rank.sync()?;
        times.push(start.elapsed());
    }
    rank.ready()?;
    times.sort();
    Ok(times[times.len() / 3].as_secs_f64() * 1e6 / (LAUNCHES * OPERATIONS) as f64)
}

/// One line for each number of rows: `all_reduce` alone, the norm in every way, and with a kernel of its own.
fn print_times(rank: &Rank) -> Result<()> {
    const COLUMNS: usize = 8192;
    let mut kept = Vec::new();
    for rows in [1, 4, 16, 32, 64, 128, 256, 1024] {
        let mut trial = Trial::<bf16>::new(rank, (rows, COLUMNS))?;
        trial.residual.fill_bytes(0, &rank.stream)?;
        trial.memory.write(&vec![bf16::ZERO; rows * COLUMNS], &rank.stream)?;
        rank.sync()?;
        let (memory, stream) = (trial.memory.clone(), rank.stream.clone());
        let mut row =
            vec![("all_reduce".to_owned(), timed(rank, || memory.all_reduce(ReduceOp::Sum, &stream))?)];
        let ways: [(&str, Option<Algorithm>, Written, bool); 7] = [
            ("chosen", None, Written::Plain, true),
            ("fp8", None, Written::ByTensor, true),
            ("fp8 by row", None, Written::ByRow, true),
            ("unfused", None, Written::Plain, false),
            ("unfused fp8", None, Written::ByTensor, false),
            ("one_shot", Some(Algorithm::OneShot), Written::Plain, true),
            ("two_shot", Some(Algorithm::TwoShot), Written::Plain, true),
        ];
        for (name, algorithm, written, is_fused) in ways {
            let way = Way { algorithm, is_private: false, is_fused, written };
            row.push((name.to_owned(), timed(rank, || trial.launch(way))?));
        }
        if rank.rank() == 0 {
            let alone = row[0].1;
            let row: Vec<_> =
                row.iter().map(|(name, us)| format!("{name} {us:.2} ({:.2}x)", us / alone)).collect();
            // Not by `println`, which a test that passes keeps to itself.
            let line = format!(
                "{} ranks, {rows} rows of {COLUMNS} bf16, us: {}\n",
                rank.group.size(),
                row.join(", ")
            );
            std::io::stderr().write_all(line.as_bytes()).expect("there is somebody to read it");
        }
        kept.push(trial);
    }
    rank.end()
}

/// Prints, asserts nothing. With an MPS server each rank gets its share of the device, as in the bench.
#[test]
fn times_in_graphs() {
    if std::env::var_os(TIMES).is_none() {
        println!("skipped: it measures, for which {TIMES} must be set");
        return;
    }
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for world in [2, 4] {
        ProcessSpawner::new("norm::times_in_graphs", world)
            .env(QUEUES, 4)
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100 / world)
            .run(|group| print_times(&Rank::new(&group, Settings { lanes: 1, ..settings() })?))
            .unwrap();
    }
}
