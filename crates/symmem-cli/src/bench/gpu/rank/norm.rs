//! What a norm of ours has besides the arena: residual, weight and where it goes. And what must be there
//! afterwards, worked out on the host.

use std::cell::RefCell;

use anyhow::Result;
use symmem::cuda::{Buffer, Device, DeviceSlice, Normed, RmsNorm, Stream, SymmetricMemory};
use symmem::{F8E4M3, bf16};

use crate::bench::gpu::plan::Norm;

const EPSILON: f32 = 1e-5;
/// How far a rounded number is from the number, at most: by its size.
const STEP: f64 = 1.0 / (1 << 9) as f64;

/// Memory of the norm of a case.
pub(super) struct NormMemory {
    norm: Norm,
    /// One operation at a time is given these.
    buffers: RefCell<NormBuffers>,
}

struct NormBuffers {
    residual: Buffer<bf16>,
    weight: Buffer<bf16>,
    out: Buffer<bf16>,
    fp8: Buffer<F8E4M3>,
    scales: Buffer<f32>,
}

/// What column `at` is multiplied by: exact as bf16, and of both signs.
fn weight(at: usize) -> f32 {
    (at % 13) as f32 / 4.0 - 1.5
}

impl NormMemory {
    pub(super) fn new(norm: Norm, elements: usize, device: &Device, stream: &Stream) -> Result<Self> {
        let weights: Vec<_> = (0..norm.columns).map(|at| bf16::from_f32(weight(at))).collect();
        // What is not written is small.
        let [plain, fp8] = if norm.fp8 { [1, elements] } else { [elements, 1] };
        let buffers = NormBuffers {
            residual: Buffer::new(device, elements)?,
            weight: Buffer::from_slice(device, &weights, stream)?,
            out: Buffer::new(device, plain)?,
            fp8: Buffer::new(device, fp8)?,
            scales: Buffer::new(device, (elements / norm.columns).max(1))?,
        };
        Ok(Self { norm, buffers: RefCell::new(buffers) })
    }

    /// Where the residual is, which the sum is added to.
    pub(super) fn residual(&self) -> u64 {
        self.buffers.borrow().residual.device_ptr()
    }

    /// Before a run that is checked: the residual is nothing, and the rest what no operation may leave.
    pub(super) fn clear(&self, stream: &Stream) -> Result<()> {
        let buffers = self.buffers.borrow();
        buffers.residual.fill_bytes(0, stream)?;
        buffers.out.fill_bytes(0xff, stream)?;
        buffers.fp8.fill_bytes(0xff, stream)?;
        Ok(buffers.scales.fill_bytes(0xff, stream)?)
    }

    /// Puts the norm of `memory`, or of `input` in its place, on `stream`.
    pub(super) fn operate(
        &self,
        memory: &SymmetricMemory<bf16>,
        input: Option<DeviceSlice<'_, bf16>>,
        stream: &Stream,
    ) -> Result<()> {
        let NormBuffers { residual, weight, out, fp8, scales } = &mut *self.buffers.borrow_mut();
        let mut norm = RmsNorm::new(self.norm.columns, EPSILON).weight(&*weight).residual(residual);
        if !self.norm.fused {
            norm = norm.unfused();
        }
        if let Some(input) = input {
            norm = norm.input(input);
        }
        let out = if self.norm.fp8 { Normed::fp8_by_row(fp8, scales) } else { Normed::from(out) };
        Ok(memory.all_reduce_rms_norm_with(norm, out, stream)?)
    }

    /// How many elements are not the norm of the residual, which was checked before.
    pub(super) fn wrong(&self, stream: &Stream) -> Result<u64> {
        let buffers = self.buffers.borrow();
        let (sums, columns) = (buffers.residual.read(stream)?, self.norm.columns);
        let found: Vec<f64> = match self.norm.fp8 {
            false => buffers.out.read(stream)?.iter().map(|one| one.to_f64()).collect(),
            true => {
                let scales = buffers.scales.read(stream)?;
                let scaled = |(at, one): (usize, &F8E4M3)| f64::from(one.to_f32() * scales[at / columns]);
                buffers.fp8.read(stream)?.iter().enumerate().map(scaled).collect()
            }
        };
        let rows = sums.chunks(columns).zip(found.chunks(columns));
        Ok(rows.map(|(sums, found)| wrong_in_row(sums, found, self.norm.fp8)).sum())
    }
}

/// How many elements of `found` are not the norm of the row `sums`.
fn wrong_in_row(sums: &[bf16], found: &[f64], fp8: bool) -> u64 {
    let squares: f64 = sums.iter().map(|sum| sum.to_f64().powi(2)).sum();
    let factor = 1.0 / (squares / sums.len() as f64 + f64::from(EPSILON)).sqrt();
    let wanted: Vec<f64> =
        sums.iter().enumerate().map(|(at, sum)| sum.to_f64() * factor * f64::from(weight(at))).collect();
    let largest = wanted.iter().fold(0.0_f64, |most, one| most.max(one.abs()));
    // Rounded twice, and with fp8 once more: half of a step where numbers are normal, or subnormal.
    let slack = |size: f64| match fp8 {
        false => size * (2.0 * STEP + 1e-5) + 1e-7,
        true => size / 16.0 + largest * (2.0 * STEP + 1.0 / 448.0 / 1024.0),
    };
    let is_right = |(wanted, found): (&f64, &f64)| (found - wanted).abs() <= slack(wanted.abs());
    // NaN is not right.
    wanted.iter().zip(found).filter(|pair| !is_right(*pair)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of sums, and its norm in f32, rounded.
    fn row() -> (Vec<bf16>, Vec<f32>) {
        let sums: Vec<bf16> = (0..512).map(|at| bf16::from_f32((at * 37 % 31) as f32 / 8.0 - 2.0)).collect();
        let squares: f32 = sums.iter().map(|sum| sum.to_f32().powi(2)).sum();
        let factor = 1.0 / (squares / 512.0 + EPSILON).sqrt();
        let norm = |(at, sum): (usize, &bf16)| bf16::from_f32(sum.to_f32() * factor * weight(at)).to_f32();
        let normed = sums.iter().enumerate().map(norm).collect();
        (sums, normed)
    }

    #[test]
    fn a_norm_that_is_right_has_no_wrong_elements_and_others_are_counted() {
        let (sums, normed) = row();
        let mut found: Vec<f64> = normed.iter().map(|one| f64::from(*one)).collect();
        assert_eq!(wrong_in_row(&sums, &found, false), 0);
        found[3] += 0.1;
        found[500] = f64::NAN;
        assert_eq!(wrong_in_row(&sums, &found, false), 2);
        // Without a residual of its own row, or another weight.
        found.rotate_right(1);
        assert!(wrong_in_row(&sums, &found, false) > 400);
    }

    #[test]
    fn fp8_may_be_coarse_and_no_coarser() {
        let (sums, normed) = row();
        let scale = normed.iter().fold(0.0_f32, |most, one| most.max(one.abs())) / 448.0;
        let written: Vec<F8E4M3> = normed.iter().map(|one| F8E4M3::from_f32(one / scale)).collect();
        let mut found: Vec<f64> = written.iter().map(|one| f64::from(one.to_f32() * scale)).collect();
        assert_eq!(wrong_in_row(&sums, &found, true), 0);
        found[7] *= 1.25;
        found[8] = f64::NAN;
        assert_eq!(wrong_in_row(&sums, &found, true), 2);
    }
}
