//! Matrices of a case, the products that are timed, and a check of some of their elements.

use std::cell::RefCell;

use anyhow::{Result, bail};
use symmem::cuda::{Buffer, DeviceMatrix, FusedWay, Stream, SymmetricMemory};
use symmem::{ReduceOp, bf16};

use super::Lab;
use crate::bench::fused::number;
use crate::bench::gpu::plan::{BenchedWork, Task};

/// Elements of a result that are compared with the reference.
const SPOTS: usize = 64;
/// Seeds of numbers: those of rank 0, the others follow.
const LEFT: usize = 1000;
const RIGHT: usize = 2000;
/// The distance of two neighbours near 1.
const STEP: f64 = 1.0 / 128.0;

/// What is multiplied in private memory, and where the result goes. Rows that are gathered are in the arena.
pub(super) struct ProductCase {
    left: Option<Buffer<bf16>>,
    right: Buffer<bf16>,
    out: RefCell<Buffer<bf16>>,
}

fn numbers(seed: usize, len: usize) -> Vec<bf16> {
    (0..len).map(|at| bf16::from_f32(number(seed, at))).collect()
}

/// What stands alone: neither a product with a collective, nor one of these.
fn is_collective(task: &Task) -> bool {
    matches!(task.variant.as_str(), "all_gather" | "reduce_scatter")
}

impl ProductCase {
    /// The matrices of `task`, if it multiplies any; this rank's rows are in the arena then.
    pub(super) fn new(lab: &Lab, task: &Task) -> Result<Option<Self>> {
        let Some([rows, inner, columns]) = task.product else { return Ok(None) };
        let (rank, ranks, stream) = (lab.rank as usize, lab.ranks as usize, &lab.stream);
        let filled = |elements: &[bf16]| Buffer::from_slice(&lab.device, elements, stream);
        let gathers = task.work == BenchedWork::AllGatherMatmul;
        let part = rows / ranks * inner;
        if gathers {
            lab.memory.slice(..part)?.write(&numbers(LEFT + rank, part), stream)?;
        }
        let left = match (gathers, task.variant.as_str()) {
            (true, "product") => {
                Some(filled(&(0..ranks).flat_map(|of| numbers(LEFT + of, part)).collect::<Vec<_>>())?)
            }
            (true, _) => None,
            (false, _) => Some(filled(&numbers(LEFT + rank, rows * inner))?),
        };
        let out = match task.variant.as_str() {
            "all_gather" => rows * inner,
            _ if gathers => rows * columns,
            "product" => rows * columns,
            _ => rows / ranks * columns,
        };
        let right = filled(&numbers(RIGHT + rank, inner * columns))?;
        Ok(Some(Self { left, right, out: RefCell::new(Buffer::new(&lab.device, out)?) }))
    }

    fn sides(&self, task: &Task) -> Result<(Option<DeviceMatrix<'_, bf16>>, DeviceMatrix<'_, bf16>)> {
        let Some([rows, inner, columns]) = task.product else { bail!("there is no product") };
        let left = self.left.as_ref().map(|left| DeviceMatrix::new(left, rows, inner)).transpose()?;
        Ok((left, DeviceMatrix::new(&self.right, inner, columns)?))
    }

    /// Collective. Has every rank load what multiplies before any of them waits for another on the GPU that
    /// they share: what is loaded then may wait for all that runs there.
    pub(super) fn prepare(&self, task: &Task, memory: &SymmetricMemory<bf16>, stream: &Stream) -> Result<()> {
        let (left, right) = self.sides(task)?;
        match left {
            _ if is_collective(task) => {}
            Some(_) if task.variant == "product" => {
                self.operate(task, memory, stream)?;
                stream.synchronize()?;
            }
            Some(left) => memory.prepare_matmul_reduce_scatter(left, right, stream)?,
            None => memory.prepare_all_gather_matmul(&[right], stream)?,
        }
        Ok(memory.group().barrier()?)
    }

    /// Puts the product, with what goes with it, on the stream.
    pub(super) fn operate(&self, task: &Task, memory: &SymmetricMemory<bf16>, stream: &Stream) -> Result<()> {
        let (left, right) = self.sides(task)?;
        let mut out = self.out.borrow_mut();
        let way = match task.variant.as_str() {
            "all_gather" => return Ok(memory.all_gather(&mut *out, stream)?),
            "reduce_scatter" => return Ok(memory.reduce_scatter(ReduceOp::Sum, &mut *out, stream)?),
            "fused" => FusedWay::Fused,
            "unfused" => FusedWay::Unfused,
            _ => FusedWay::ByShape,
        };
        match (left, task.work) {
            (Some(left), _) if task.variant == "product" => {
                memory.product_alone(left, right, out.as_slice_mut(), stream)?;
            }
            (Some(left), BenchedWork::MatmulReduceScatter) => {
                let sides = (left, right);
                memory.matmul_reduce_scatter_by(way, ReduceOp::Sum, sides, out.as_slice_mut(), stream)?;
            }
            _ => memory.all_gather_matmul_by(way, &[right], &mut [out.as_slice_mut()], None, stream)?,
        }
        Ok(())
    }

    /// Leaves nothing in the result.
    pub(super) fn poison(&self, stream: &Stream) -> Result<()> {
        Ok(self.out.borrow().fill_bytes(0xff, stream)?)
    }

    /// How many of some elements of the result are not what they must be.
    pub(super) fn wrong(&self, lab: &Lab, task: &Task) -> Result<u64> {
        let Some([rows, inner, columns]) = task.product else { bail!("there is no product") };
        if is_collective(task) {
            return Ok(0);
        }
        let (rank, ranks) = (lab.rank as usize, lab.ranks as usize);
        let found = self.out.borrow().read(&lab.stream)?;
        let part = rows / ranks;
        // Element (row, column) of the product of what rank `left` and rank `right` have.
        let term = |left: usize, right: usize, row: usize, column: usize| {
            let one = |at: usize| {
                let factor = f64::from(number(LEFT + left, row * inner + at));
                factor * f64::from(number(RIGHT + right, at * columns + column))
            };
            (0..inner).map(one).sum::<f64>()
        };
        let expected = |row: usize, column: usize| match (task.work, task.variant.as_str()) {
            (BenchedWork::AllGatherMatmul, _) => {
                let value = term(row / part, rank, row % part, column);
                (value, value.abs())
            }
            (_, "product") => {
                let value = term(rank, rank, row, column);
                (value, value.abs())
            }
            // Every rank's product is rounded.
            _ => (0..ranks).fold((0.0, 0.0), |(sum, size), of| {
                let value = term(of, of, rank * part + row, column);
                (sum + value, size + 2.0 * value.abs())
            }),
        };
        let step = (found.len() / SPOTS).max(1) | 1;
        let is_wrong = |at: &usize| {
            let (value, size) = expected(at / columns, at % columns);
            let near = (f64::from(found[*at].to_f32()) - value).abs() <= size * STEP + 1e-2;
            !near
        };
        Ok((0..found.len()).step_by(step).filter(is_wrong).count() as u64)
    }
}
