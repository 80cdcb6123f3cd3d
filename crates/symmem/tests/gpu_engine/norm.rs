//! All-reduce, residual and norm: every algorithm, fused or not, from symmetric and from private memory, written as it is or as fp8, for every element type, gives
//! the same bits on every rank, and they are those of the definition.

use std::io::Write as _;
use std::time::Instant;

use symmem::cuda::{Algorithm, Buffer, Normed, RmsNorm, Settings, SymmetricMemory};
use symmem::{Element, F8E4M3, ProcessSpawner, ReduceOp, Result, bf16, f16};

use crate::stage::{QUEUES, Rank, alone, device, on_threads, settings};
use crate::trial::Random;

const EPSILON: f32 = 1e-5;
/// Rows, and elements of each: one and several units of a thread, more rows than blocks, and rows that ranks do not share evenly.
const SHAPES: [(usize, usize); 5] = [(1, 64), (3, 8192), (7, 4096), (200, 1032), (33, 8184)];

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
#[derive(Debug, PartialEq)]
struct Found {
    residual: Vec<u8>,
    result: Vec<u8>,
    scales: Vec<u32>,
}

const SCALE: f32 = 0.0125;

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

    fn run(
        &mut self,
        algorithm: Option<Algorithm>,
        is_private: bool,
        is_fused: bool,
        written: Written,
    ) -> Result<Found> {
        let stream = &self.rank.stream;
        self.residual.write(&self.before, stream)?;
        self.memory.write(if is_private { &self.before } else { &self.own }, stream)?;
        self.out.fill_bytes(0x11, stream)?;
        self.fp8.fill_bytes(0x11, stream)?;
        self.rank.ready()?;
        let memory = match algorithm {
            Some(algorithm) => self.memory.using(algorithm),
            None => self.memory.clone(),
        };
        let norm = RmsNorm::new(self.columns, EPSILON).weight(&self.weight).residual(&mut self.residual);
        let norm = if is_fused { norm } else { norm.unfused() };
        let out = match written {
            Written::Plain => Normed::Plain((&mut self.out).into()),
            Written::ByTensor => Normed::Fp8 { out: (&mut self.fp8).into(), scale: self.scale.as_slice() },
            Written::ByRow => {
                Normed::Fp8ByRow { out: (&mut self.fp8).into(), scales: (&mut self.scales).into() }
            }
        };
        match is_private {
            true => memory.all_reduce_rms_norm_from(ReduceOp::Sum, &self.input, norm, out, stream)?,
            false => memory.all_reduce_rms_norm(ReduceOp::Sum, norm, out, stream)?,
        }
        self.rank.sync()?;
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

    /// Panics unless `found` is what the definition says.
    fn check(&self, found: &Found, written: Written) {
        let (world, len) = (self.rank.group.size(), self.rows * self.columns);
        let all: Vec<Vec<T>> = (0..world).map(|rank| numbers(rank as u64, len)).collect();
        let (before, weight) = (&self.before, numbers::<T>(100, self.columns));
        let sums: Vec<T> = (0..len)
            .map(|at| {
                let sum = T::of(all.iter().map(|one| one[at].number()).sum());
                T::of(sum.number() + before[at].number())
            })
            .collect();
        assert_eq!(found.residual, bits(&sums), "the residual");
        let fp8 = |at: usize| f64::from(F8E4M3::from_bits(found.result[at]).to_f32());
        let plain: Vec<T> = match written {
            Written::Plain => found.result.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
            _ => Vec::new(),
        };
        for row in 0..self.rows {
            let places = row * self.columns..(row + 1) * self.columns;
            let square =
                places.clone().map(|at| sums[at].number().powi(2)).sum::<f64>() / self.columns as f64;
            let factor = 1.0 / (square + f64::from(EPSILON)).sqrt();
            let wanted = |at: usize| sums[at].number() * factor * weight[at % self.columns].number();
            let largest = places.clone().map(|at| wanted(at).abs()).fold(0.0, f64::max);
            // Each result is rounded twice, and sums are made in f32.
            let slack = |size: f64| size * (2.0 * T::STEP + 1e-5);
            for at in places {
                let wanted = wanted(at);
                let (value, step) = match written {
                    Written::Plain => (plain[at].number(), slack(wanted.abs())),
                    Written::ByTensor => {
                        let scale = f64::from(SCALE);
                        let limited = wanted.clamp(-448.0 * scale, 448.0 * scale);
                        let value = fp8(at) * scale;
                        assert!(
                            (value - limited).abs() <= limited.abs() / 16.0 + scale / 1024.0 + slack(largest),
                            "{value} is not {limited}"
                        );
                        continue;
                    }
                    Written::ByRow => {
                        let scale = f64::from(f32::from_bits(found.scales[row]));
                        assert!((scale * 448.0 - largest).abs() <= slack(largest), "the scale of row {row}");
                        (fp8(at) * scale, wanted.abs() / 16.0 + scale / 1024.0 + slack(largest))
                    }
                };
                assert!((value - wanted).abs() <= step + 1e-7, "{at}: {value} is not {wanted}");
            }
        }
    }
}

/// Collective: every way to do it.
fn try_ways<T: Norming>(rank: &Rank) -> Result<()> {
    let mut kept = Vec::new();
    for shape in SHAPES {
        let mut trial = Trial::<T>::new(rank, shape)?;
        for written in [Written::Plain, Written::ByTensor, Written::ByRow] {
            let first = trial.run(None, false, true, written)?;
            trial.check(&first, written);
            let ways =
                [None, Some(Algorithm::LowLatency), Some(Algorithm::OneShot), Some(Algorithm::TwoShot)];
            for algorithm in ways {
                for (is_private, is_fused) in [(false, true), (true, true), (false, false), (true, false)] {
                    let is_large = shape.0 * shape.1 * size_of::<T>() > 128 << 10;
                    if algorithm == Some(Algorithm::LowLatency) && is_large {
                        continue;
                    }
                    // An all-reduce by itself has other algorithms.
                    if !is_fused && algorithm.is_some() {
                        continue;
                    }
                    let found = trial.run(algorithm, is_private, is_fused, written)?;
                    assert!(
                        found == first,
                        "{shape:?} {} {written:?} {algorithm:?} private {is_private} fused {is_fused}",
                        T::DTYPE
                    );
                }
            }
            let all: Vec<Vec<u8>> = rank.group.all_gather_bytes(&first.result)?;
            assert!(all.iter().all(|one| *one == first.result), "ranks differ");
        }
        kept.push(trial);
    }
    rank.end()
}

#[test]
fn every_way_gives_the_same_bits() {
    if device().is_none() {
        return;
    }
    for world in [1, 2, 3, 4] {
        on_threads(world, &settings(), |rank| {
            try_ways::<bf16>(rank)?;
            try_ways::<f16>(rank)?;
            try_ways::<f32>(rank)
        });
    }
}

#[test]
fn wrong_arguments_are_told() {
    if device().is_none() {
        return;
    }
    on_threads(1, &settings(), |rank| {
        let memory = rank.engine.alloc::<bf16>(64)?.rendezvous(&rank.engine)?;
        let mut out = Buffer::<bf16>::new(&rank.device, 64)?;
        let mut short = Buffer::<bf16>::new(&rank.device, 32)?;
        let run = |columns, out: &mut Buffer<bf16>| {
            let norm = RmsNorm::new(columns, EPSILON);
            let error =
                memory.all_reduce_rms_norm(ReduceOp::Sum, norm, Normed::Plain(out.into()), &rank.stream);
            error.map_err(|error| error.to_string())
        };
        assert!(run(0, &mut out).unwrap_err().contains("no rows"));
        assert!(run(48, &mut out).unwrap_err().contains("no rows of 48"));
        assert!(run(4, &mut out).unwrap_err().contains("multiple of 16"));
        assert!(run(64, &mut short).unwrap_err().contains("32 elements"));
        rank.end()
    });
}

/// What an operation of a graph takes, in microseconds: the best of some replays of many.
fn timed(rank: &Rank, mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    const OPERATIONS: usize = 40;
    const LAUNCHES: usize = 150;
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

/// One line for each number of rows: `all_reduce` alone, the norm in every way, and with the norm by a kernel of its own.
fn print_times(rank: &Rank) -> Result<()> {
    const COLUMNS: usize = 8192;
    for rows in [1, 16, 64, 256] {
        let mut trial = Trial::<bf16>::new(rank, (rows, COLUMNS))?;
        trial.residual.fill_bytes(0, &rank.stream)?;
        trial.memory.write(&vec![bf16::ZERO; rows * COLUMNS], &rank.stream)?;
        rank.sync()?;
        let stream = rank.stream.clone();
        let alone = timed(rank, || trial.memory.all_reduce(ReduceOp::Sum, &stream))?;
        let mut row = vec![("all_reduce".to_owned(), alone)];
        let ways: [(&str, Option<Algorithm>, Written, bool); 7] = [
            ("chosen", None, Written::Plain, true),
            ("fp8", None, Written::ByTensor, true),
            ("fp8 by row", None, Written::ByRow, true),
            ("unfused", None, Written::Plain, false),
            ("low_latency", Some(Algorithm::LowLatency), Written::Plain, true),
            ("one_shot", Some(Algorithm::OneShot), Written::Plain, true),
            ("two_shot", Some(Algorithm::TwoShot), Written::Plain, true),
        ];
        for (name, algorithm, written, is_fused) in ways {
            if algorithm == Some(Algorithm::LowLatency) && rows > 16 {
                continue;
            }
            let memory = algorithm.map_or_else(|| trial.memory.clone(), |one| trial.memory.using(one));
            let Trial { weight, residual, out, fp8, scale, scales, .. } = &mut trial;
            let time = timed(rank, || {
                let norm = RmsNorm::new(COLUMNS, EPSILON).weight(&*weight).residual(&mut *residual);
                let norm = if is_fused { norm } else { norm.unfused() };
                let out = match written {
                    Written::Plain => Normed::Plain((&mut *out).into()),
                    Written::ByTensor => Normed::Fp8 { out: (&mut *fp8).into(), scale: scale.as_slice() },
                    Written::ByRow => {
                        Normed::Fp8ByRow { out: (&mut *fp8).into(), scales: (&mut *scales).into() }
                    }
                };
                memory.all_reduce_rms_norm(ReduceOp::Sum, norm, out, &stream)
            })?;
            row.push((name.to_owned(), time));
        }
        if rank.rank() == 0 {
            let row: Vec<_> = row.iter().map(|(name, time)| format!("{name} {time:.2}")).collect();
            // Not by `println`, which a test that passes keeps to itself.
            let line =
                format!("norm times in us, {} ranks, {rows} rows: {}\n", rank.group.size(), row.join(", "));
            std::io::stderr().write_all(line.as_bytes()).expect("there is somebody to read it");
        }
        rank.end()?;
        // It is never worth doing it by hand.
        let (chosen, unfused) = (row[1].1, row[4].1);
        assert!(chosen < 1.3 * unfused, "{rows} rows: {chosen} us, and {unfused} in two steps");
    }
    Ok(())
}

#[test]
fn a_norm_takes_little_more_than_its_all_reduce() {
    if device().is_none() {
        return;
    }
    let _alone = alone();
    for world in [2, 4] {
        ProcessSpawner::new("norm::a_norm_takes_little_more_than_its_all_reduce", world)
            .env(QUEUES, 4)
            .run(|group| print_times(&Rank::new(&group, Settings { lanes: 1, ..settings() })?))
            .unwrap();
    }
}
