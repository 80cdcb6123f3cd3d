//! RMSNorm of rows, in f32.
//!
//! Used by the fused collectives. The bits do not depend on the instruction set: squares are added up in a
//! fixed order, sixteen apart, and nothing is fused.

use super::environment::Environment;
use super::product::convert::{narrow_slice, widen_slice};
use super::{DType, Element};
use crate::{Error, Result};

/// Sums of squares that are made side by side.
const LANES: usize = 16;

/// An error unless rows of `dtype` can be normalised, for a call of `op`.
pub(crate) fn check(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        _ => Err(Error::invalid(
            op,
            format!("rows of {dtype}: only those of f32, bf16 and f16 are normalised"),
        )),
    }
}

/// What rows are normalised with, and room for a row.
#[derive(Clone)]
pub(crate) struct RowNormaliser {
    weight: Vec<f32>,
    epsilon: f32,
    row: Vec<f32>,
    residual: Vec<f32>,
}

impl RowNormaliser {
    pub(crate) fn new<T: Element>(weight: &[T], epsilon: f32) -> Self {
        let mut wide = vec![0.0; weight.len()];
        widen_slice(weight, &mut wide);
        Self { row: wide.clone(), residual: wide.clone(), weight: wide, epsilon }
    }

    /// `residual` becomes itself and `row`, rounded, and `out` that over the root of the mean of its squares,
    /// times the weight, rounded. All are as long as the weight.
    pub(crate) fn add_and_normalise<T: Element>(&mut self, row: &[T], residual: &mut [T], out: &mut [T]) {
        let _environment = Environment::enter();
        widen_slice(row, &mut self.row);
        widen_slice(residual, &mut self.residual);
        self.row.iter_mut().zip(&self.residual).for_each(|(row, residual)| *row += residual);
        narrow_slice(&self.row, residual);
        // What is normalised is what was kept, so that a rank can do it again from there.
        widen_slice(residual, &mut self.row);
        let scale = 1.0 / (mean_of_squares(&self.row) + self.epsilon).sqrt();
        self.row.iter_mut().zip(&self.weight).for_each(|(row, weight)| *row = *row * scale * weight);
        narrow_slice(&self.row, out);
    }
}

fn mean_of_squares(row: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum += value * value);
    }
    sums.iter_mut().zip(rest).for_each(|(sum, value)| *sum += value * value);
    sums.iter().sum::<f32>() / row.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::bf16;

    #[test]
    fn rows_are_added_and_normalised() {
        for len in [1, 15, 16, 17, 1000] {
            let row: Vec<f32> = (0..len).map(|at| (at % 7) as f32 - 3.0).collect();
            let weight: Vec<f32> = (0..len).map(|at| 1.0 + (at % 3) as f32).collect();
            let (mut residual, mut out) = (vec![0.5f32; len], vec![0.0f32; len]);
            RowNormaliser::new(&weight, 1e-5).add_and_normalise(&row, &mut residual, &mut out);
            let squares: f64 = row.iter().map(|value| f64::from(value + 0.5).powi(2)).sum();
            let scale = 1.0 / (squares / len as f64 + 1e-5).sqrt();
            for at in 0..len {
                assert_eq!(residual[at], row[at] + 0.5);
                let right = f64::from(residual[at]) * scale * f64::from(weight[at]);
                assert!((f64::from(out[at]) - right).abs() < 1e-5 * (1.0 + right.abs()), "{len} {at}");
            }
        }
    }

    #[test]
    fn what_is_normalised_is_the_residual_as_it_was_rounded() {
        let row = [1.0, 1e-3, -2.0].map(bf16::from_f32);
        let weight = [bf16::ONE; 3];
        let (mut residual, mut out) = ([1.0, 1.0, 1.0].map(bf16::from_f32), [bf16::ZERO; 3]);
        RowNormaliser::new(&weight, 0.0).add_and_normalise(&row, &mut residual, &mut out);
        assert_eq!(residual.map(bf16::to_f32), [2.0, 1.0, -1.0]);
        let scale = 1.0 / 2f32.sqrt();
        assert_eq!(out, [2.0, 1.0, -1.0].map(|value| bf16::from_f32(value * scale)));
    }
}
