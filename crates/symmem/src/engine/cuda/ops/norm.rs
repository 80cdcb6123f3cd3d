//! All-reduce, residual and RMS norm as one operation: what every layer of a transformer does twice when its
//! weights are divided among ranks.
//!
//! One kernel; or, where that is asked for or ranks are out of reach, an all-reduce and a kernel for the
//! rest, both in the order of the lane. Kernels of this crate give the same bits either way, on all ranks
//! (`kernels/norm.cuh` says why).

use super::all_reduce::{AllReduce, mode_of};
use super::copy::By;
use crate::cuda::Stream;
use crate::cuda::owner::{OwnedAddress, Owner};
use crate::device::control::{MAX_BLOCKS, SCRATCH};
use crate::engine::cuda::Region;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::{AgreedEngine, Algorithm, Form, Routine, Tune, dtype_index_of};
use crate::engine::cuda::sources::MessageLimit;
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

const OP: Op = Op::AllReduceRmsNorm;
/// Bytes of a unit, those of a row that a thread has at most, and those of the longest row: as in
/// `kernels/norm.cuh`.
pub(crate) const UNIT: usize = 16;
const UNITS: usize = 2;
pub(crate) const MAX_ROW: usize = 2048 * UNIT;
const WARP: u32 = 32;

/// How a row is written, as `Written` of `kernels/norm.cuh` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Plain = 0,
    Fp8ByTensor = 1,
    Fp8ByRow = 2,
}

/// What is reduced and normalised, and where to. What is not there is at address 0.
#[derive(Clone, Copy)]
pub(crate) struct RowsToNormalise<'a> {
    pub(crate) reduce: ReduceOp,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    /// Elements of a row.
    pub(crate) columns: usize,
    pub(crate) epsilon: f32,
    pub(crate) input: OwnedAddress<'a>,
    pub(crate) residual: OwnedAddress<'a>,
    pub(crate) weight: OwnedAddress<'a>,
    pub(crate) scales: OwnedAddress<'a>,
    pub(crate) out: OwnedAddress<'a>,
    pub(crate) written: Written,
    pub(crate) is_fused: bool,
}

/// The second parameter of kernels that normalise. Mirrored by `Norm` of `kernels/norm.cuh`; change both.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct NormParameters {
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
pub(crate) struct NormLaunch<'a> {
    pub(crate) parameters: NormParameters,
    /// Of residual, weight and scales.
    pub(crate) owners: [Option<&'a dyn Owner>; 3],
}

impl<'a> RowsToNormalise<'a> {
    /// An error for types and reductions that the kernels do not have: who carries sums may have more.
    pub(crate) fn check(&self) -> Result<()> {
        dtype_index_of(self.dtype).and(mode_of(self.reduce, self.dtype)).map(drop)
    }

    fn shape(&self) -> RowShape {
        RowShape { rows: self.rows, row: self.columns * self.dtype.size() }
    }

    fn launch(&self) -> Result<NormLaunch<'a>> {
        let Self { residual, weight, scales, columns, epsilon, written, .. } = *self;
        let RowShape { rows, row } = self.shape();
        let parameters = NormParameters {
            residual: residual.address,
            weight: weight.address,
            scales: scales.address,
            // The kernels count beyond them by their blocks.
            rows: u32::try_from(rows + MAX_BLOCKS)
                .map(|end| end - MAX_BLOCKS as u32)
                .map_err(|_| Error::invalid("rows", "there are too many"))?,
            row_bytes: row as u32,
            share: 1.0 / columns as f32,
            epsilon,
            written: written as u32,
            unused: 0,
        };
        Ok(NormLaunch { parameters, owners: [residual.owner, weight.owner, scales.owner] })
    }
}

/// Rows that memory is worked on in.
#[derive(Clone, Copy, Debug)]
struct RowShape {
    rows: usize,
    /// Bytes of a row.
    row: usize,
}

impl RowShape {
    fn bytes(self) -> usize {
        self.rows * self.row
    }

    /// Bytes of the rows that one of `world` ranks owns.
    fn slice(self, world: usize) -> usize {
        self.rows.div_ceil(world) * self.row
    }

    /// Threads of a block that works on such rows, at least.
    fn threads(self) -> u32 {
        u32::try_from(self.row.div_ceil(UNIT).div_ceil(UNITS)).unwrap_or(u32::MAX).next_multiple_of(WARP)
    }
}

impl AgreedEngine {
    /// The algorithm for rows of this shape, and its kernel: the `forced` one; or that of the settings, where
    /// it can carry them, or of the table.
    fn choose_norm(&self, shape: RowShape, forced: Option<Algorithm>) -> Result<(Algorithm, Routine)> {
        let can = |algorithm| self.norm_kernel(shape, algorithm).is_ok();
        let algorithm = forced.unwrap_or_else(|| self.norm_algorithm(shape.bytes(), can));
        match self.norm_kernel(shape, algorithm) {
            Ok(routine) => Ok((algorithm, routine)),
            Err(problem) => Err(Error::invalid(
                format!("algorithm {algorithm}"),
                format!("it cannot carry {}: {problem}", OP.name()),
            )),
        }
    }

    /// The kernel by which `algorithm` carries rows of this shape, or why it cannot.
    fn norm_kernel(&self, shape: RowShape, algorithm: Algorithm) -> Result<Routine, String> {
        let (routine, limit) = algorithm.norm().ok_or_else(|| {
            let can = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.norm().is_some());
            let names: Vec<_> = can.map(Algorithm::name).collect();
            format!("{} can, or the unfused way", names.join(" and "))
        })?;
        let slice = shape.slice(self.world);
        match limit {
            MessageLimit::Scratch if slice > SCRATCH => {
                Err(format!("its slices have at most {SCRATCH} bytes, not {slice}"))
            }
            _ => Ok(routine),
        }
    }

    /// How a norm of `rows` rows of `row` bytes runs: its algorithm, blocks, and threads of each.
    #[cfg_attr(not(feature = "bench-support"), allow(dead_code, reason = "only the bench asks"))]
    pub(in crate::engine::cuda) fn norm_plan(
        &self,
        (rows, row): (usize, usize),
        dtype: DType,
        forced: Option<Algorithm>,
        tune: &Tune,
    ) -> Result<(Algorithm, u32, u32)> {
        let shape = RowShape { rows, row };
        let (algorithm, routine) = self.choose_norm(shape, forced)?;
        let (grid, threads) = self.norm_shape(routine, dtype_index_of(dtype)?, shape, tune);
        Ok((algorithm, grid, threads))
    }

    /// Blocks, and threads of each, for `routine`. A block has whole rows, and each about as many.
    fn norm_shape(&self, routine: Routine, dtype_index: usize, shape: RowShape, tune: &Tune) -> (u32, u32) {
        let most_threads = routine.most_threads();
        let wanted = tune.threads.unwrap_or(0).next_multiple_of(WARP).min(most_threads);
        let threads = wanted.max(shape.threads());
        let rows = match routine {
            Routine::NormTwoShot => shape.rows.div_ceil(self.world),
            _ => shape.rows,
        };
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let most = match routine {
            // It waits for nobody, so only its use of the device limits it.
            Routine::NormAlone => MAX_BLOCKS as u32,
            _ => {
                // Limits are for the largest blocks; there may be more of smaller ones.
                let share = (most_threads / threads.next_power_of_two()).max(1);
                let most = tune.blocks.unwrap_or(self.max_blocks).clamp(1, MAX_BLOCKS as u32);
                most.min(self.limits[routine as usize][dtype_index].saturating_mul(share))
            }
        };
        (rows.div_ceil(rows.div_ceil(most).max(1)).max(1), threads)
    }
}

impl Region {
    pub(super) fn norm_fused(&self, work: &RowsToNormalise<'_>, stream: &Stream) -> Result<()> {
        let engine = &self.engine;
        let (dtype_index, mode) = (dtype_index_of(work.dtype)?, mode_of(work.reduce, work.dtype)?);
        if work.rows == 0 {
            return self.meet_for_nothing(OP, stream);
        }
        let (agreed, shape, norm) = (&engine.inner.agreed, work.shape(), work.launch()?);
        let (algorithm, routine) = agreed.choose_norm(shape, engine.forced)?;
        let (grid, threads) = agreed.norm_shape(routine, dtype_index, shape, &engine.tune);
        tracing::trace!(op = OP.name(), %algorithm, bytes = shape.bytes(), grid, threads, "norm on the device");
        let statement = LaunchTerms {
            reduction: Some((work.reduce, work.dtype)),
            algorithm: Some(algorithm),
            bytes: shape.bytes() as u64,
            rows: shape.rows,
            grid,
            ..LaunchTerms::plain(OP, None, self.statement(), threads)
        };
        let call = LaunchArguments {
            count: (work.rows * work.columns) as u64,
            input: work.input,
            output: work.out,
            mode,
            data: &self.data,
            memory: self.owner(),
            norm: Some(&norm),
            is_small: agreed.is_small(routine, dtype_index, (grid, threads)),
            ..LaunchArguments::plain(statement)
        };
        engine.launch(stream, engine.routine(routine, dtype_index)?, &call)
    }

    /// The same by an all-reduce and another kernel.
    pub(super) fn norm_unfused(&self, work: &RowsToNormalise<'_>, stream: &Stream) -> Result<()> {
        if work.written != Written::Plain {
            // Before private input is copied for it: an algorithm that is asked for may not be able to.
            self.engine.plan(Form::InPlace, work.dtype, self.bytes)?;
        }
        self.norm_in_steps(work, 0, stream)
    }

    /// The same by an all-reduce of whoever carries it, and then a kernel for the rest, which `mode` tells
    /// what it must know of that.
    pub(in crate::engine::cuda) fn norm_in_steps(
        &self,
        work: &RowsToNormalise<'_>,
        mode: u32,
        stream: &Stream,
    ) -> Result<()> {
        let RowsToNormalise { reduce, dtype, rows, columns, input, out, .. } = *work;
        let (dtype_index, norm) = (dtype_index_of(dtype)?, work.launch()?);
        let own = self.own_place();
        let is_own = input.address == own.address;
        let (form, input, sums) = match (work.written, is_own) {
            (Written::Plain, true) => (Form::Out, own, out),
            (Written::Plain, false) => (Form::Private, input, out),
            // fp8 has no room for sums, so this memory takes them.
            (_, true) => (Form::InPlace, own, own),
            (_, false) => {
                self.copy(OP, By::EngineInTurn, (input, own), self.bytes, stream)?;
                (Form::InPlace, own, own)
            }
        };
        let count = rows * columns;
        self.carrier.all_reduce(
            self,
            &AllReduce { form, reduce, dtype, count, input, output: sums },
            stream,
        )?;
        if rows == 0 {
            return Ok(());
        }
        let engine = &self.engine;
        let (grid, threads) =
            engine.inner.agreed.norm_shape(Routine::NormAlone, dtype_index, work.shape(), &engine.tune);
        let statement = LaunchTerms { grid, ..LaunchTerms::plain(OP, None, self.statement(), threads) };
        let call = LaunchArguments {
            input: sums,
            output: out,
            mode,
            memory: self.owner(),
            norm: Some(&norm),
            ..LaunchArguments::plain(statement)
        };
        engine.launch_in_turn(stream, engine.routine(Routine::NormAlone, dtype_index)?, &call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::control::ControlLayout;
    use crate::engine::cuda::plan::{built_in, measured};
    use crate::tuning::DeviceBounds;

    fn agreed(world: usize) -> AgreedEngine {
        AgreedEngine {
            world,
            one_device: true,
            slot: ControlLayout::new(world, 1).slot,
            max_blocks: 64,
            preferred: None,
            crossovers: built_in(world, true),
            limits: [[33; 3]; Routine::COUNT],
        }
    }

    const ROW: usize = 16 << 10;

    fn of(rows: usize) -> RowShape {
        RowShape { rows, row: ROW }
    }

    #[test]
    fn many_rows_of_several_ranks_are_shared() {
        let choose = |world, rows| agreed(world).choose_norm(of(rows), None).unwrap().0;
        let (all, shared) = (Algorithm::OneShot, Algorithm::TwoShot);
        assert_eq!([1, 256, 2048].map(|rows| choose(2, rows)), [all; 3]);
        assert_eq!([1, 64, 65].map(|rows| choose(4, rows)), [all, all, shared]);
        // Slices that find no room in the scratch.
        assert_eq!(choose(4, 4 * 1024 + 1), all);
    }

    #[test]
    fn what_was_measured_moves_the_crossover() {
        let row = |algorithm: &str, bytes| {
            DeviceBounds::from([(OP.name().to_owned(), [(algorithm.to_owned(), bytes)].into())])
        };
        let crossovers = measured(built_in(2, true), &row("one_shot", 4 * ROW)).unwrap();
        let agreed = AgreedEngine { crossovers, ..agreed(2) };
        let choose = |rows| agreed.choose_norm(of(rows), None).unwrap().0;
        assert_eq!([4, 5].map(choose), [Algorithm::OneShot, Algorithm::TwoShot]);
        // What has no kernel for norms is never chosen, whatever somebody wrote.
        let crossovers = measured(crossovers, &row("low_latency", usize::MAX)).unwrap();
        let agreed = AgreedEngine { crossovers, ..agreed };
        assert_eq!(agreed.choose_norm(of(1), None).unwrap().0, Algorithm::OneShot);
        // All-reduces do not look at it.
        assert_eq!(crossovers.map(|row| row[..3].to_vec()), built_in(2, true).map(|row| row[..3].to_vec()));
    }

    #[test]
    fn every_algorithm_with_a_kernel_for_norms_can_be_asked_for_and_the_others_say_so() {
        for algorithm in Algorithm::EVERY {
            let chosen = agreed(2).norm_plan((4, ROW), DType::BF16, Some(*algorithm), &Tune::default());
            assert_eq!(chosen.is_ok(), algorithm.norm().is_some(), "{algorithm}");
        }
    }

    #[test]
    fn an_algorithm_that_cannot_carry_the_rows_is_refused_and_not_preferred() {
        let forced = |rows, algorithm| {
            let chosen = agreed(2).choose_norm(of(rows), Some(algorithm));
            chosen.map(|(algorithm, _)| algorithm).map_err(|error| error.to_string())
        };
        assert_eq!(forced(2048, Algorithm::TwoShot), Ok(Algorithm::TwoShot));
        assert!(forced(2049, Algorithm::TwoShot).is_err());
        for other in [Algorithm::LowLatency, Algorithm::TwoTrip, Algorithm::Multimem] {
            assert!(forced(1, other).unwrap_err().contains("one_shot"));
        }
        let preferring = |algorithm, rows| {
            let agreed = AgreedEngine { preferred: Some(algorithm), ..agreed(2) };
            agreed.choose_norm(of(rows), None).unwrap().0
        };
        assert_eq!(preferring(Algorithm::TwoShot, 1), Algorithm::TwoShot);
        assert_eq!(preferring(Algorithm::TwoShot, 2049), Algorithm::OneShot);
        assert_eq!(preferring(Algorithm::LowLatency, 1), Algorithm::OneShot);
    }

    #[test]
    fn a_row_decides_on_the_threads_and_rows_on_the_blocks() {
        let threads = |row| RowShape { rows: 1, row }.threads();
        assert_eq!([16, 1024, 1040, 8192, ROW, MAX_ROW].map(threads), [32, 32, 64, 256, 512, 1024]);
        let shape = |routine, shape| agreed(4).norm_shape(routine, 0, shape, &Tune::default());
        assert_eq!(shape(Routine::NormOneShot, of(3)), (3, 512));
        // Two blocks of 512 for each of 1024, and all of them with as many rows.
        assert_eq!(shape(Routine::NormOneShot, of(256)), (64, 512));
        assert_eq!(shape(Routine::NormOneShot, of(100)), (50, 512));
        assert_eq!(shape(Routine::NormTwoShot, of(100)), (25, 512));
        assert_eq!(shape(Routine::NormOneShot, RowShape { rows: 64, row: MAX_ROW }), (32, 1024));
        assert_eq!(shape(Routine::NormAlone, of(1000)), (125, 512));
        let tune = Tune { threads: Some(1024), blocks: Some(128), ..Tune::default() };
        let tuned = |routine| agreed(4).norm_shape(routine, 0, of(256), &tune);
        assert_eq!(tuned(Routine::NormOneShot), (32, 1024));
    }

    #[test]
    fn the_parameters_are_as_large_as_the_kernels_think() {
        assert_eq!((size_of::<NormParameters>(), align_of::<NormParameters>()), (48, 8));
    }
}
