//! Where ranks run, for the package's `spawn`.

use pyo3::prelude::*;
use symmem::{Pin, Placement};

use crate::error::raise;

/// The processors of each rank, a rank's threads, and variables with their values.
type RankPlaces = (Vec<Vec<usize>>, usize, Vec<(&'static str, String)>);

/// For `ranks` ranks that are kept on cores as `pin` says ("cores", "numa" or None): the processors of each
/// (empty: any), how many threads each has cores for, and what to add to the environment of ranks that are
/// processes, given the one that the user wants (`has` says what is in it).
#[pyfunction]
fn _place(ranks: usize, pin: Option<&str>, has: &Bound<'_, PyAny>) -> PyResult<RankPlaces> {
    let pin = pin.map(str::parse::<Pin>).transpose().map_err(raise)?;
    let placement = Placement::new(ranks, pin).map_err(raise)?;
    let is_set = |variable: &str| has.contains(variable).unwrap_or(false);
    let cpus = (0..ranks).map(|rank| placement.cpus(rank)).collect();
    Ok((cpus, placement.threads(), placement.environment(is_set)))
}

/// Adds what this module has to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(_place, module)?)
}
