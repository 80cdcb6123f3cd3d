//! What the one loop measures: an operation of some system, with its buffers.

use symmem::Result;

use super::reference::Accuracy;

/// One rank's part in a collective of a system. All methods but the first three and `output` are collective.
pub(in crate::bench) trait Contender {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Calls `fill` with this rank's input.
    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> Result<()>;

    /// The system's barrier.
    fn barrier(&mut self) -> Result<()>;

    /// The operation.
    fn operate(&mut self) -> Result<()>;

    /// What `judge` says about this rank's result.
    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> Result<bool>;

    /// Everybody's `words`, in rank order: for agreement between measurements.
    fn gather(&mut self, words: &[u64]) -> Result<Vec<u64>>;

    /// How near its results must be.
    fn accuracy(&self) -> Accuracy {
        Accuracy::Exact
    }
}
