//! Data that is quick to lay out and to check: a random stretch, repeated.

use symmem::ReduceOp;

use super::{Number, Random};

/// Elements before the data repeats: a prime, so that it is in step with nothing that the library cuts.
const PERIOD: usize = 1009;

/// One rank's elements for one call. What a reduction makes of several of them is one as well.
#[derive(Clone)]
pub(crate) struct Pattern<T>(Vec<T>);

impl<T: Number> Pattern<T> {
    /// The elements of `rank`, `len` of them.
    pub(crate) fn new(seed: u64, rank: usize, len: usize) -> Self {
        let mut random = Random::new(seed ^ (rank as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self((0..len.clamp(1, PERIOD)).map(|_| T::any(&mut random)).collect())
    }

    /// The reduction of `ranks`, which are of one length.
    pub(crate) fn reduced(op: ReduceOp, ranks: &[Self]) -> Self {
        let column = |at: usize| ranks.iter().map(|rank| rank.0[at]).collect::<Vec<_>>();
        Self((0..ranks[0].0.len()).map(|at| T::reduce(op, &column(at))).collect())
    }

    /// Writes the elements from `start` on.
    pub(crate) fn write(&self, start: usize, out: &mut [T]) {
        let mut done = 0;
        while done < out.len() {
            let from = &self.0[(start + done) % self.0.len()..];
            let run = from.len().min(out.len() - done);
            out[done..done + run].copy_from_slice(&from[..run]);
            done += run;
        }
    }

    /// The elements from `start` to `end`.
    pub(crate) fn to_vec(&self, start: usize, end: usize) -> Vec<T> {
        let mut out = vec![T::zeroed(); end - start];
        self.write(start, &mut out);
        out
    }

    /// Whether `found` are the elements from `start` on, bit by bit; else the first one that is not.
    pub(crate) fn check(&self, start: usize, found: &[T]) -> Result<(), String> {
        let mut done = 0;
        while done < found.len() {
            let expected = &self.0[(start + done) % self.0.len()..];
            let run = expected.len().min(found.len() - done);
            same(&expected[..run], &found[done..done + run])
                .map_err(|(at, what)| format!("element {}: {what}", start + done + at))?;
            done += run;
        }
        Ok(())
    }
}

/// Compares bit by bit; else the first index and its two values.
pub(crate) fn same<T: Number>(expected: &[T], found: &[T]) -> Result<(), (usize, String)> {
    let bytes = |elements| bytemuck::cast_slice::<T, u8>(elements);
    if bytes(expected) == bytes(found) {
        return Ok(());
    }
    let differs = |at: &usize| bytemuck::bytes_of(&expected[*at]) != bytemuck::bytes_of(&found[*at]);
    let at = (0..expected.len()).find(differs).unwrap_or(0);
    let show = |element: &T| format!("{:02x?}", bytemuck::bytes_of(element));
    Err((at, format!("expected bytes {}, found {}", show(&expected[at]), show(&found[at]))))
}
