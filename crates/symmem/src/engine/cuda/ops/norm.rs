//! All-reduce, residual and RMS norm as one operation: what every layer of a transformer does twice when its weights are shared out over ranks.
//!
//! One kernel where a row fits a block's registers; or, where that is asked for or ranks are out of reach, an all-reduce and a kernel for the rest. The bits are
//! the same either way, on all ranks (`kernels/norm.cuh` says why).

use super::all_reduce::mode_of;
use crate::cuda::owner::{Owner, Place};
use crate::cuda::{Device, DeviceSlice, DeviceSliceMut, Stream};
use crate::engine::cuda::control::{MAX_BLOCKS, SCRATCH};
use crate::engine::cuda::launch::Call;
use crate::engine::cuda::plan::{Agreed, Algorithm, Form, Routine, number_of};
use crate::engine::cuda::statement::Statement;
use crate::memory::device::SymmetricMemory;
use crate::numeric::{Element, F8E4M3, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

const OP: Op = Op::AllReduceRmsNorm;
/// Bytes of a unit, and how many of them a row has at most: as in `kernels/norm.cuh`.
const UNIT: usize = 16;
const MAX_ROW_UNITS: usize = 2048;
const WARP: u32 = 32;

/// How rows are normalised behind an all-reduce: `x = sum + residual`, `x / sqrt(mean(x²) + epsilon) * weight`.
///
/// Rows follow each other without gaps. Everything begins at a multiple of 16 bytes, and a row has a multiple of that, 32 KiB at most.
#[derive(Debug)]
pub struct RmsNorm<'a, T: Element> {
    columns: usize,
    epsilon: f32,
    weight: Option<DeviceSlice<'a, T>>,
    residual: Option<DeviceSliceMut<'a, T>>,
    is_fused: bool,
}

impl<'a, T: Element> RmsNorm<'a, T> {
    /// Rows of `columns` elements, without weight and residual.
    pub fn new(columns: usize, epsilon: f32) -> Self {
        Self { columns, epsilon, weight: None, residual: None, is_fused: true }
    }

    /// The weight of each column; the same on all ranks.
    #[must_use]
    pub fn weight(self, weight: impl Into<DeviceSlice<'a, T>>) -> Self {
        Self { weight: Some(weight.into()), ..self }
    }

    /// What is added to the sum, and becomes the sum with it; the same on all ranks.
    #[must_use]
    pub fn residual(self, residual: impl Into<DeviceSliceMut<'a, T>>) -> Self {
        Self { residual: Some(residual.into()), ..self }
    }

    /// By an all-reduce and another kernel, one after the other, with the same result. All ranks must choose alike.
    #[must_use]
    pub fn unfused(self) -> Self {
        Self { is_fused: false, ..self }
    }
}

/// Where the normalised rows go, and how they are written.
#[derive(Debug)]
pub enum Normed<'a, T: Element> {
    /// As they are.
    Plain(DeviceSliceMut<'a, T>),
    /// Divided by a scale that is given, and rounded to fp8.
    Fp8 {
        /// As many elements as the symmetric memory.
        out: DeviceSliceMut<'a, F8E4M3>,
        /// One element.
        scale: DeviceSlice<'a, f32>,
    },
    /// Each row divided by a scale of its own, so that its largest element becomes the largest of fp8, 448.
    Fp8ByRow {
        /// As many elements as the symmetric memory.
        out: DeviceSliceMut<'a, F8E4M3>,
        /// One for each row: what it was divided by.
        scales: DeviceSliceMut<'a, f32>,
    },
}

/// Memory of the caller's that an operation touches: what it is called, where it is, its elements and bytes, and its device.
struct Part<'a> {
    what: &'static str,
    place: Place<'a>,
    len: usize,
    bytes: usize,
    device: &'a Device,
}

macro_rules! part {
    ($what:literal, $slice:expr, $element:ty) => {
        Part {
            what: $what,
            place: $slice.place(),
            len: $slice.len(),
            bytes: $slice.len() * size_of::<$element>(),
            device: $slice.device(),
        }
    };
}

impl<T: Element> Normed<'_, T> {
    fn out(&self) -> Part<'_> {
        match self {
            Self::Plain(out) => part!("out", out, T),
            Self::Fp8 { out, .. } | Self::Fp8ByRow { out, .. } => part!("out", out, F8E4M3),
        }
    }

    fn scales(&self) -> Option<Part<'_>> {
        match self {
            Self::Plain(_) => None,
            Self::Fp8 { scale, .. } => Some(part!("scale", scale, f32)),
            Self::Fp8ByRow { scales, .. } => Some(part!("scales", scales, f32)),
        }
    }

    /// As `Written` of `kernels/norm.cuh` numbers them.
    fn written(&self) -> u32 {
        match self {
            Self::Plain(_) => 0,
            Self::Fp8 { .. } => 1,
            Self::Fp8ByRow { .. } => 2,
        }
    }
}

/// The second parameter of kernels that normalise. Mirrored by `Norm` of `kernels/norm.cuh`; change both.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Parameters {
    residual: u64,
    weight: u64,
    scales: u64,
    rows: u32,
    row_bytes: u32,
    share: f32,
    epsilon: f32,
    written: u32,
    unused: u32,
}

/// What a launch that normalises needs beside what every launch does.
#[derive(Clone, Copy)]
pub(crate) struct Normalising<'a> {
    pub(crate) parameters: Parameters,
    /// Of residual, weight and scales.
    pub(crate) owners: [Option<&'a dyn Owner>; 3],
}

/// Threads of a block that works on rows of `row` bytes. Nothing else may decide on it: the order of sums follows from it.
fn row_threads(row: usize) -> u32 {
    let most = Routine::NormOneShot.most_threads();
    u32::try_from(row / UNIT).unwrap_or(most).next_multiple_of(WARP).min(most)
}

/// Rows in which the symmetric memory is worked on, once everything is checked.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    /// Bytes of a row.
    row: usize,
}

impl Shape {
    fn bytes(self) -> usize {
        self.rows * self.row
    }

    /// Bytes of the rows that one of `world` ranks owns.
    fn slice(self, world: usize) -> usize {
        self.rows.div_ceil(world) * self.row
    }
}

impl Agreed {
    /// The algorithm for rows of this shape: the `forced` one, or what was measured on an H200.
    fn choose_norm(&self, shape: Shape, forced: Option<Algorithm>) -> Result<Algorithm> {
        let problem = match forced {
            None => return Ok(self.norm_algorithm(shape)),
            Some(Algorithm::LowLatency) if shape.bytes() > self.slot => {
                format!("packets carry at most {} bytes, not {}", self.slot, shape.bytes())
            }
            Some(Algorithm::TwoShot) if shape.slice(self.world) > SCRATCH => {
                format!("its slices have at most {SCRATCH} bytes, not {}", shape.slice(self.world))
            }
            Some(known @ (Algorithm::LowLatency | Algorithm::OneShot | Algorithm::TwoShot)) => {
                return Ok(known);
            }
            Some(_) => "low_latency, one_shot and two_shot can".to_owned(),
        };
        let algorithm = forced.map_or("", Algorithm::name);
        Err(Error::invalid(
            format!("algorithm {algorithm}"),
            format!("it cannot carry {}: {problem}", OP.name()),
        ))
    }

    fn norm_algorithm(&self, shape: Shape) -> Algorithm {
        let reads = if self.world <= 2 { usize::MAX } else { 1 << 20 };
        if shape.bytes() <= reads || shape.slice(self.world) > SCRATCH {
            return Algorithm::OneShot;
        }
        Algorithm::TwoShot
    }

    /// Blocks for `routine`, each of which has whole rows.
    fn norm_blocks(&self, routine: Routine, number: usize, shape: Shape, blocks: Option<u32>) -> u32 {
        let rows = if routine == Routine::NormTwoShot { shape.rows.div_ceil(self.world) } else { shape.rows };
        // A meeting of more blocks takes no longer, and a row waits for the one before it.
        let most = blocks.unwrap_or(MAX_BLOCKS as u32).clamp(1, MAX_BLOCKS as u32);
        u32::try_from(rows).unwrap_or(u32::MAX).clamp(1, most.min(self.limits[routine as usize][number]))
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective, in the order of `stream`. `out` becomes the reduction of everybody's memory, with `norm`'s residual added, normalised row by row;
    /// the residual becomes the sum before that. The same bits on all ranks, if residual and weight are the same on all of them.
    ///
    /// `bf16`, `f16` and `f32`, sum and average. This memory holds nothing of use afterwards.
    ///
    /// ```no_run
    /// # use symmem::cuda::{Engine, Buffer, Normed, RmsNorm, Stream};
    /// # use symmem::{ReduceOp, Result, bf16};
    /// # fn layer(engine: &Engine, partial: &symmem::cuda::SymmetricMemory<bf16>, weight: &Buffer<bf16>,
    /// #     residual: &mut Buffer<bf16>, out: &mut Buffer<bf16>, stream: &Stream) -> Result<()> {
    /// let norm = RmsNorm::new(8192, 1e-5).weight(weight).residual(residual);
    /// partial.all_reduce_rms_norm(ReduceOp::Sum, norm, Normed::Plain(out.into()), stream)
    /// # }
    /// ```
    pub fn all_reduce_rms_norm(
        &self,
        op: ReduceOp,
        norm: RmsNorm<'_, T>,
        out: Normed<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.engine.told(stream, self.normalise(op, self.own_place(), &norm, &out, stream))
    }

    /// [`SymmetricMemory::all_reduce_rms_norm`] of everybody's `input`, which is as long as this memory; this memory is a place to work in.
    pub fn all_reduce_rms_norm_from<'a>(
        &self,
        op: ReduceOp,
        input: impl Into<DeviceSlice<'a, T>>,
        norm: RmsNorm<'_, T>,
        out: Normed<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let input = input.into();
        let done = self
            .check_norm_part(&part!("input", input, T), self.len)
            .and_then(|()| self.normalise(op, input.place(), &norm, &out, stream));
        self.engine.told(stream, done)
    }

    /// An error unless `part` has `len` elements, is on this device, begins at a unit, and lies outside of this memory.
    fn check_norm_part(&self, part: &Part<'_>, len: usize) -> Result<()> {
        let (what, own) = (part.what, self.own_address());
        if part.len != len {
            let problem = format!("it has {} elements, {len} are needed. Hint: cut it with slice", part.len);
            return Err(Error::invalid(what, problem));
        }
        self.engine.check_memory(what, part.device)?;
        let (from, to) = (part.place.address, part.place.address + part.bytes as u64);
        if from < own + self.bytes() as u64 && own < to {
            return Err(Error::invalid(what, "it overlaps the symmetric memory, which peers read meanwhile"));
        }
        // Scales are read and written one by one.
        if what.starts_with("scale") { Ok(()) } else { check_aligned(what, from) }
    }

    /// The rows of this memory, if all of `norm` and `out` fits them.
    fn check_norm(&self, norm: &RmsNorm<'_, T>, out: &Normed<'_, T>) -> Result<Shape> {
        let row = norm.columns * size_of::<T>();
        let longest = MAX_ROW_UNITS * UNIT;
        if norm.columns == 0 || !self.len.is_multiple_of(norm.columns) {
            let problem = format!("{} elements are no rows of {}", self.len, norm.columns);
            return Err(Error::invalid("columns", problem));
        }
        if !row.is_multiple_of(UNIT) || row > longest {
            let problem =
                format!("a row has {row} bytes. Hint: it can have a multiple of {UNIT}, up to {longest}");
            return Err(Error::invalid("columns", problem));
        }
        let rows = self.len / norm.columns;
        check_aligned("symmetric memory", self.own_address())?;
        self.check_norm_part(&out.out(), self.len)?;
        if let Some(weight) = &norm.weight {
            self.check_norm_part(&part!("weight", weight, T), norm.columns)?;
        }
        if let Some(residual) = &norm.residual {
            self.check_norm_part(&part!("residual", residual, T), self.len)?;
        }
        if let Some(scales) = out.scales() {
            let wanted = if scales.what == "scale" { 1 } else { rows };
            self.check_norm_part(&scales, wanted)?;
        }
        Ok(Shape { rows, row })
    }

    fn normalise(
        &self,
        op: ReduceOp,
        input: Place<'_>,
        norm: &RmsNorm<'_, T>,
        out: &Normed<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let engine = &self.engine;
        engine.check(OP, None, stream)?;
        let (number, mode) = (number_of(T::DTYPE)?, mode_of(op, T::DTYPE)?);
        let shape = self.check_norm(norm, out)?;
        if shape.rows == 0 {
            return self.meet_for_nothing(OP, stream);
        }
        let weight = norm.weight.as_ref().map_or(Place::bare(0), DeviceSlice::place);
        let residual = norm.residual.as_ref().map_or(Place::bare(0), DeviceSliceMut::place);
        let scales = out.scales().map_or(Place::bare(0), |scales| scales.place);
        let normalising = Normalising {
            parameters: Parameters {
                residual: residual.address,
                weight: weight.address,
                scales: scales.address,
                rows: u32::try_from(shape.rows).map_err(|_| Error::invalid("rows", "there are too many"))?,
                row_bytes: shape.row as u32,
                share: 1.0 / norm.columns as f32,
                epsilon: norm.epsilon,
                written: out.written(),
                unused: 0,
            },
            owners: [residual.owner, weight.owner, scales.owner],
        };
        let threads = row_threads(shape.row);
        let agreed = &engine.inner.agreed;
        let call = |statement, input| Call {
            count: self.len as u64,
            input,
            output: out.out().place,
            mode,
            data: &self.data,
            memory: self.owner(),
            norm: Some(&normalising),
            ..Call::plain(statement)
        };
        if !norm.is_fused || !self.is_direct() {
            self.reduce_in_place(op, input, stream)?;
            let grid = agreed.norm_blocks(Routine::NormAlone, number, shape, engine.tune.blocks);
            let statement = Statement { grid, ..Statement::plain(OP, None, self.statement(), threads) };
            let kernel = engine.routine(Routine::NormAlone, number)?;
            return engine.launch_beside(stream, kernel, &call(statement, self.own_place()));
        }
        let algorithm = agreed.choose_norm(shape, engine.forced)?;
        let routine = match algorithm {
            Algorithm::LowLatency => Routine::NormLowLatency,
            Algorithm::TwoShot => Routine::NormTwoShot,
            _ => Routine::NormOneShot,
        };
        let grid = agreed.norm_blocks(routine, number, shape, engine.tune.blocks);
        tracing::trace!(op = OP.name(), %algorithm, bytes = shape.bytes(), grid, threads, "norm on the device");
        let statement = Statement {
            reduction: Some((op, T::DTYPE)),
            algorithm: Some(algorithm),
            bytes: shape.bytes() as u64,
            rows: shape.rows,
            grid,
            ..Statement::plain(OP, None, self.statement(), threads)
        };
        let is_small = agreed.is_small(routine, number, (grid, threads));
        let call = Call { is_small, ..call(statement, input) };
        engine.launch(stream, engine.routine(routine, number)?, &call)
    }

    /// This memory becomes the reduction of everybody's `input`.
    fn reduce_in_place(&self, op: ReduceOp, input: Place<'_>, stream: &Stream) -> Result<()> {
        let own = self.own_place();
        self.copy_in(OP, input, stream)?;
        self.launch_all_reduce(Form::InPlace, op, own, own, stream)
    }
}

fn check_aligned(what: &'static str, address: u64) -> Result<()> {
    if address.is_multiple_of(UNIT as u64) {
        return Ok(());
    }
    let problem =
        format!("it does not begin at a multiple of {UNIT} bytes. Hint: allocate it, or cut it there");
    Err(Error::invalid(what, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreed(world: usize) -> Agreed {
        let limits = [[66; 3]; Routine::COUNT];
        Agreed { world, one_device: true, slot: 512 << 10, max_blocks: 64, preferred: None, limits }
    }

    #[test]
    fn few_rows_are_read_by_everybody_and_many_are_shared_out() {
        let choose = |world, rows| agreed(world).choose_norm(Shape { rows, row: 16 << 10 }, None).unwrap();
        assert_eq!([1, 256].map(|rows| choose(2, rows)), [Algorithm::OneShot; 2]);
        assert_eq!(
            [1, 64, 256].map(|rows| choose(4, rows)),
            [Algorithm::OneShot, Algorithm::OneShot, Algorithm::TwoShot]
        );
        // Slices that find no room in the scratch.
        assert_eq!(choose(4, 4 * 1024 + 1), Algorithm::OneShot);
    }

    #[test]
    fn an_algorithm_that_cannot_carry_the_rows_is_refused() {
        let forced = |rows, algorithm| {
            let shape = Shape { rows, row: 16 << 10 };
            agreed(2).choose_norm(shape, Some(algorithm)).map_err(|error| error.to_string())
        };
        assert_eq!(forced(32, Algorithm::LowLatency), Ok(Algorithm::LowLatency));
        assert!(forced(33, Algorithm::LowLatency).unwrap_err().contains("524288"));
        assert_eq!(forced(2048, Algorithm::TwoShot), Ok(Algorithm::TwoShot));
        assert!(forced(2049, Algorithm::TwoShot).is_err());
        for other in [Algorithm::TwoTrip, Algorithm::Multimem] {
            assert!(forced(1, other).unwrap_err().contains("one_shot"));
        }
    }

    #[test]
    fn a_row_decides_on_the_threads_and_rows_on_the_blocks() {
        assert_eq!([16, 512, 528, 8192, 16384, 32768].map(row_threads), [32, 32, 64, 512, 512, 512]);
        let blocks = |routine, rows| agreed(4).norm_blocks(routine, 0, Shape { rows, row: 16384 }, None);
        assert_eq!((blocks(Routine::NormOneShot, 3), blocks(Routine::NormOneShot, 100)), (3, 66));
        assert_eq!((blocks(Routine::NormTwoShot, 3), blocks(Routine::NormTwoShot, 100)), (1, 25));
    }

    #[test]
    fn the_parameters_are_as_large_as_the_kernels_think() {
        assert_eq!((size_of::<Parameters>(), align_of::<Parameters>()), (48, 8));
    }
}
