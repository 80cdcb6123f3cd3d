//! `Atomics`: integers of every rank that all ranks may change at once.
//!
//! Made by `Group.atomics`. The calls wait for nobody, so they keep the interpreter; making, meeting and
//! closing do not.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use symmem::{DType, Error};

use crate::collectives::Maybe;
use crate::dtype;
use crate::error::{invalid, raise};
use crate::group::Group;
use crate::interrupt::blocking;

/// Makes the enum of cells of all their types, and what is done with them whatever the type.
macro_rules! cells {
    ($($name:ident: $type:ty),*) => {
        enum Cells {
            $($name(symmem::Atomics<$type>),)*
        }

        impl Cells {
            /// Collective.
            fn new(group: &symmem::Group, dtype: DType, size: usize) -> symmem::Result<Self> {
                match dtype {
                    $(DType::$name => group.atomics::<$type>(size).map(Self::$name),)*
                    _ => Err(Error::Invalid {
                        what: "dtype".to_owned(),
                        problem: "cells are int32, uint32, int64 or uint64".to_owned(),
                    }),
                }
            }

            fn barrier(&self) -> symmem::Result<()> {
                match self {
                    $(Self::$name(cells) => cells.barrier(),)*
                }
            }

            fn close(&self) -> symmem::Result<()> {
                match self {
                    $(Self::$name(cells) => cells.close(),)*
                }
            }

            /// Does `change` to cell `index` of rank `rank`; what was there before.
            fn change(&self, rank: usize, index: usize, change: Change) -> PyResult<i128> {
                match self {
                    $(Self::$name(cells) => {
                        let value = |value: i128| <$type>::try_from(value).map_err(|_| beyond(value, DType::$name));
                        let found = match change {
                            Change::Load => cells.load(rank, index),
                            Change::Store(new) => cells.store(rank, index, value(new)?).map(|()| 0),
                            Change::Add(more) => cells.add(rank, index, value(more)?),
                            Change::Swap(new) => cells.swap(rank, index, value(new)?),
                            Change::CompareSwap(current, new) => {
                                cells.compare_swap(rank, index, value(current)?, value(new)?)
                            }
                        };
                        found.map(i128::from).map_err(raise)
                    })*
                }
            }
        }
    };
}

cells!(I32: i32, U32: u32, I64: i64, U64: u64);

/// What is done to a cell.
enum Change {
    Load,
    Store(i128),
    Add(i128),
    Swap(i128),
    CompareSwap(i128, i128),
}

fn beyond(value: i128, dtype: DType) -> PyErr {
    PyOverflowError::new_err(format!("atomics: {value} is no {}", dtype::name(dtype)))
}

/// Integers of every rank that all ranks may change at once. Made by `group.atomics(size)`.
///
/// Each call changes one cell of one rank and gives what was there before. It waits for nobody, and sums
/// wrap.
///
/// >>> import symmem
/// >>> def main(group):
/// ...     counter = group.atomics(1)
/// ...     ticket = counter.add(0, 0, 1)
/// ...     counter.barrier()
/// ...     return ticket, counter.load(0, 0)
/// >>> sorted(symmem.spawn(main, ranks=2, threads=True))
/// [(0, 2), (1, 2)]
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct Atomics {
    cells: Mutex<Option<Arc<Cells>>>,
    dtype: DType,
    size: usize,
}

impl Atomics {
    fn open(&self) -> PyResult<Arc<Cells>> {
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.clone().ok_or_else(|| raise(Error::Closed { op: "atomics" }))
    }

    fn change(&self, rank: isize, index: isize, change: Change) -> PyResult<i128> {
        // What is negative is beyond every rank and index.
        let natural = |number: isize| usize::try_from(number).unwrap_or(usize::MAX);
        self.open()?.change(natural(rank), natural(index), change)
    }
}

#[pymethods]
impl Atomics {
    /// The type of the cells.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.dtype)
    }

    /// Cells of each rank.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// What is in cell `index` of rank `rank`.
    fn load(&self, rank: isize, index: isize) -> PyResult<i128> {
        self.change(rank, index, Change::Load)
    }

    /// Cell `index` of rank `rank` becomes `value`.
    fn store(&self, rank: isize, index: isize, value: i128) -> PyResult<()> {
        self.change(rank, index, Change::Store(value)).map(drop)
    }

    /// Adds `value` to cell `index` of rank `rank`; gives what was there before.
    fn add(&self, rank: isize, index: isize, value: i128) -> PyResult<i128> {
        self.change(rank, index, Change::Add(value))
    }

    /// Cell `index` of rank `rank` becomes `value`; gives what was there before.
    fn swap(&self, rank: isize, index: isize, value: i128) -> PyResult<i128> {
        self.change(rank, index, Change::Swap(value))
    }

    /// Cell `index` of rank `rank` becomes `new` if it is `current`; gives what was there before, which is
    /// `current` exactly if it did.
    fn compare_swap(&self, rank: isize, index: isize, current: i128, new: i128) -> PyResult<i128> {
        self.change(rank, index, Change::CompareSwap(current, new))
    }

    /// Collective. Returns when every rank has come here.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let cells = self.open()?;
        blocking(py, || cells.barrier())
    }

    /// Collective. Ends the use of the cells. A second close does nothing; one that could not begin, because
    /// the group is in another operation, can be repeated.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(cells) = self.open() else { return Ok(()) };
        blocking(py, || cells.close())?;
        self.cells.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}

#[pymethods]
impl Group {
    /// Collective. `size` integers of `dtype` (int32, uint32, int64, uint64) on every rank, all of them 0,
    /// which all ranks may change at once: `Atomics`.
    #[pyo3(signature = (size, dtype = None, *, timeout_ms = 0))]
    fn atomics(
        &self,
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        dtype: Maybe<'_, '_>,
        timeout_ms: u64,
    ) -> PyResult<Atomics> {
        let group = self.membership().group("atomics", timeout_ms)?;
        let arguments = || {
            let dtype = dtype.map_or(Ok(DType::I64), dtype::parse)?;
            let is_cell = matches!(dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64);
            // Here, and not by the signature: what is no size is told to the others.
            match (is_cell, usize::try_from(size.extract::<isize>()?)) {
                (true, Ok(size)) => Ok((dtype, size)),
                (true, Err(_)) => Err(invalid("size", "it must not be negative")),
                (false, _) => Err(invalid("dtype", "cells are int32, uint32, int64 or uint64")),
            }
        };
        let (dtype, size) = self.membership().told(py, timeout_ms, arguments())?;
        let cells = blocking(py, || Cells::new(&group, dtype, size))?;
        Ok(Atomics { cells: Mutex::new(Some(Arc::new(cells))), dtype, size })
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Atomics>()
}
