//! `NonMember`: what a rank gets in place of a group that it is not in.
//!
//! `None` would not do: in place of a group it means the current one, so a forgotten `if` would run a
//! collective on the wrong ranks. This is falsy too, and everything else refuses it.

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;

use super::{Group, Membership};
use crate::error::invalid;

/// What `subgroup` and `split` give a rank that is not in the group they made. It is falsy; whatever is asked
/// of it, and every call that it is passed to as a group, raises `Invalid`.
///
///     even = group.subgroup(range(0, group.size, 2))
///     if even:
///         even.barrier()
#[pyclass(frozen, weakref, module = "symmem")]
pub(crate) struct NonMember {
    /// Who is not in which group.
    sentence: String,
}

impl NonMember {
    /// For a rank that is not among `ranks` of its group.
    pub(super) fn of_subgroup(membership: &Membership, ranks: &[usize]) -> Self {
        Self::new(membership, &format!("the subgroup of its ranks {ranks:?}"))
    }

    /// For a rank that named no color.
    pub(super) fn of_split(membership: &Membership) -> Self {
        Self::new(membership, "a part of its split (it passed color=None)")
    }

    fn new(membership: &Membership, place: &str) -> Self {
        let (rank, group) = (membership.rank(), membership.name());
        Self { sentence: format!("rank {rank} of group {group:?} is not in {place}") }
    }

    /// The refusal of the call `op`.
    #[cold]
    fn refusal(&self, py: Python<'_>, op: &str) -> PyErr {
        let problem = format!(
            "this rank is not in that subgroup: {}. Hint: ask `if sub:` before it is used",
            self.sentence
        );
        let error = invalid(op, problem);
        // A name without the exception would help nobody.
        let _ = error.value(py).setattr("op", op);
        error
    }
}

#[pymethods]
impl NonMember {
    fn __bool__(&self) -> bool {
        false
    }

    fn __repr__(&self) -> String {
        format!("<symmem.NonMember: {}>", self.sentence)
    }

    /// Reached for what the class itself does not have. Names that Python and its tools ask for are just not
    /// there.
    fn __getattr__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        if name.starts_with('_') {
            let problem = format!("'NonMember' object has no attribute {name:?}");
            return Err(PyAttributeError::new_err(problem));
        }
        Err(self.refusal(py, name))
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        Err(self.refusal(py, "with"))
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {}

    /// Raises, for code around this package that takes groups of several kinds.
    fn _refuse(&self, py: Python<'_>, op: &str) -> PyResult<()> {
        Err(self.refusal(py, op))
    }
}

impl Group {
    /// The argument `group` of the call `op`.
    pub(crate) fn given<'a, 'py>(group: &'a Bound<'py, PyAny>, op: &str) -> PyResult<&'a Bound<'py, Self>> {
        if let Ok(group) = group.cast::<Self>() {
            return Ok(group);
        }
        if let Ok(outside) = group.cast::<NonMember>() {
            return Err(outside.get().refusal(group.py(), op));
        }
        let kind = group.get_type().name()?;
        Err(PyTypeError::new_err(format!("{op}: group must be a symmem.Group, not {kind}")))
    }
}
