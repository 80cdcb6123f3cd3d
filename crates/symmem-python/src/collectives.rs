//! Collectives: which output they have, and whether memory is symmetric.
//!
//! Called by the methods of `SymmetricMemory` and of `Group`. What is wrong with this rank's arguments is
//! checked here and told to the others (`refusal`); what ranks may disagree on is the library's to compare.

use std::cell::Cell;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use symmem::collectives::Output;
use symmem::erased::{Call, Rows};
use symmem::{CancelToken, DType, ReduceOp};

use crate::error::invalid;
use crate::group::{Group, Membership, NonMember};
use crate::memory::{SymmetricMemory, find_known};
use crate::operand::{Operand, Place};
use crate::pending::Pending;
use crate::private::PrivateCall;
use crate::{cuda, dtype};

/// An argument that may be None.
pub(crate) type Maybe<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// What a method asks for: a collective, or what is wrong with its arguments, and where the output goes.
pub(crate) type AskedCollective<'a, 'py> = (PyResult<Call<'a>>, Maybe<'a, 'py>);

/// The methods of a class for its collectives. In each row: the method, its started form, their arguments
/// with defaults, and what they ask for, where the object is `$this`. Of all rows alike are an argument
/// before theirs, those after them, which have names only, and what the class's own `run` and `start` are
/// called with besides.
macro_rules! methods {
    (
        impl $class:ident as $this:ident, $given:tt, $terms:tt, $more:tt;
        $($(#[doc = $doc:tt])+ $run:ident, $start:ident $args:tt => $asked:expr;)*
    ) => {
        $($crate::collectives::methods! {
            @ $class, $this, $given, $args, $terms, $more, $asked; $(#[doc = $doc])+ $run, $start
        })*
    };
    (
        @ $class:ident, $this:ident, ($($given:ident: $Given:ty)?),
        ($($(#[$($how:tt)*])? $arg:ident: $Arg:ty $(= $value:tt)?),*), ($($term:ident: $Term:ty = $default:tt),*),
        ($($more:expr),*), $asked:expr; $(#[doc = $doc:tt])+ $run:ident, $start:ident
    ) => {
        #[pymethods]
        #[allow(unused_variables, clippy::too_many_arguments)] // Most rows ask the object nothing; some have many arguments.
        impl $class {
            $(#[doc = $doc])+
            #[pyo3(signature = ($($given,)? $($arg $(= $value)?,)* *, $($term = $default),*))]
            fn $run(
                &self,
                py: Python<'_>,
                $($given: $Given,)?
                $($(#[$($how)*])? $arg: $Arg,)*
                $($term: $Term),*
            ) -> PyResult<Py<PyAny>> {
                let $this = self;
                self.run(py, $asked, $($more),*)
            }

            #[doc = concat!("Starts `", stringify!($run), "`.")]
            #[pyo3(signature = ($($given,)? $($arg $(= $value)?,)* *, $($term = $default),*))]
            fn $start(
                &self,
                py: Python<'_>,
                $($given: $Given,)?
                $($(#[$($how)*])? $arg: $Arg,)*
                $($term: $Term),*
            ) -> PyResult<Pending> {
                let $this = self;
                self.start(py, $asked, $($more),*)
            }
        }
    };
}
pub(crate) use methods;

/// An `op=` argument: a name. What else is passed there mostly was meant for another argument.
pub(crate) fn op_name<'a>(op: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    if let Ok(name) = op.cast::<PyString>() {
        return name.to_str();
    }
    let kind = op.get_type().qualname()?;
    let hint = if op.is_instance_of::<Group>() || op.is_instance_of::<NonMember>() {
        " Hint: pass group=..."
    } else if Operand::view(op).is_ok() {
        " Hint: pass an array to put the result in as out=...; a handle reduces its own elements"
    } else {
        ""
    };
    Err(PyTypeError::new_err(format!(
        "op: expected a name such as 'sum', not {} {kind}.{hint}",
        article(kind.to_str()?)
    )))
}

fn article(noun: &str) -> &'static str {
    if noun.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// The reduce operation called `name`.
pub(crate) fn reduce_op(name: &str) -> PyResult<ReduceOp> {
    ReduceOp::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| {
        let names: Vec<&str> = ReduceOp::ALL.iter().map(|op| op.name()).collect();
        invalid("op", format!("{name:?} is not one of {}", names.join(", ")))
    })
}

/// The root `root`. Whether it is one of the group is the library's to check.
pub(crate) fn root_of(root: isize) -> PyResult<usize> {
    let problem = || PyIndexError::new_err(format!("root: rank {root} must not be negative"));
    usize::try_from(root).map_err(|_| problem())
}

/// The reduction by the operation called `op` to `root`.
pub(crate) fn reduce_to(op: &str, root: isize) -> PyResult<Call<'static>> {
    Ok(Call::Reduce(reduce_op(op)?, root_of(root)?))
}

/// A `counts=` argument: rows of each rank, or what is wrong with it, which is told to the others.
pub(crate) struct Counts {
    rows: Vec<usize>,
    wrong: Cell<Option<PyErr>>,
}

/// Never an error of its own: the call is refused with it.
pub(crate) fn counts_of(counts: &Bound<'_, PyAny>) -> PyResult<Counts> {
    Ok(match counts.extract() {
        Ok(rows) => Counts { rows, wrong: Cell::new(None) },
        Err(wrong) => Counts { rows: Vec::new(), wrong: Cell::new(Some(wrong)) },
    })
}

/// The call that `make` makes of `counts`. How long their rows are the array says.
pub(crate) fn counted<'a>(
    counts: &'a Counts,
    make: impl FnOnce(Rows<'a>) -> PyResult<Call<'a>>,
) -> PyResult<Call<'a>> {
    match counts.wrong.take() {
        Some(wrong) => Err(wrong),
        None => make(Rows { counts: &counts.rows, row: 1 }),
    }
}

/// `call` on arrays of `shape`, with `parts` elements to a number: its rows are along the first dimension.
pub(crate) fn in_rows<'a>(call: Call<'a>, shape: &[usize], parts: usize) -> PyResult<Call<'a>> {
    let Some(rows) = call.rows() else { return Ok(call) };
    if shape.is_empty() {
        return Err(invalid(call.name(), "a scalar has no rows"));
    }
    Ok(call.with_rows(Rows { row: shape.iter().skip(1).product::<usize>() * parts, ..rows }))
}

/// Whether `call` can work in place: its array is its result.
pub(crate) fn is_in_place(call: Call<'_>) -> bool {
    matches!(call, Call::AllReduce(_)) || call.row().output == Output::InPlace
}

/// `call`, if it has a started form.
pub(crate) fn check_start(call: Call<'_>) -> PyResult<Call<'_>> {
    if call.row().started {
        return Ok(call);
    }
    Err(invalid(call.name(), "it has no started form. Hint: call it in a thread of its own"))
}

/// An error if `operand`, which `call` works on in place, is read-only.
pub(crate) fn check_writes(call: Call<'_>, operand: &Operand<'_>) -> PyResult<()> {
    if operand.writable {
        return Ok(());
    }
    let hint = match call {
        Call::AllReduce(_) => "pass out=, where the result goes; arrays of jax are read-only",
        _ => "pass a writable copy, numpy.array(x)",
    };
    Err(invalid(call.name(), format!("the array is read-only, and this works in place. Hint: {hint}")))
}

/// Whether rank `rank` has an output of `call` that is not its input.
pub(crate) fn has_output(call: Call<'_>, rank: usize, given: bool) -> bool {
    match call.root() {
        _ if is_in_place(call) => given && matches!(call, Call::AllReduce(_)),
        Some(root) => rank == root || !call.row().is_to_root(),
        None => true,
    }
}

/// An error if an input of `shape` has not one part per rank along its first dimension, for calls that divide
/// it.
pub(crate) fn check_parts(call: Call<'_>, shape: &[usize], world: usize) -> PyResult<()> {
    let row = call.row();
    // Columns are parts of the last one.
    match row.parts
        && !row.counts
        && row.output != Output::Whole
        && !matches!(call, Call::ReduceScatterColumns(..))
    {
        true => divide(call, shape.to_vec().first_mut(), world),
        false => Ok(()),
    }
}

/// The shape of the output of `call` on `rank`, for an input of `shape` on each of `world` ranks.
pub(crate) fn output_shape(
    call: Call<'_>,
    shape: &[usize],
    (rank, world): (usize, usize),
) -> PyResult<Vec<usize>> {
    let mut shape = shape.to_vec();
    if let (Some(rows), Some(first)) = (call.rows(), shape.first_mut()) {
        *first = match call.row().output {
            // One that is missing the library tells the ranks of.
            Output::Share => rows.counts.get(rank).copied().unwrap_or(0),
            _ => rows.counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
        };
        return Ok(shape);
    }
    match (call.row().output, call) {
        (Output::Whole, _) => match shape.first_mut() {
            Some(first) => *first *= world,
            None => shape.push(world),
        },
        (Output::Share, Call::ReduceScatterColumns(..)) => divide(call, shape.last_mut(), world)?,
        (Output::Share, _) => divide(call, shape.first_mut(), world)?,
        _ => {}
    }
    Ok(shape)
}

fn divide(call: Call<'_>, side: Option<&mut usize>, world: usize) -> PyResult<()> {
    match side {
        Some(side) if side.is_multiple_of(world) => {
            *side /= world;
            Ok(())
        }
        Some(side) => {
            Err(invalid(call.name(), format!("a side of {side} is not divisible by {world} ranks")))
        }
        None => Err(invalid(call.name(), "a scalar cannot be divided among ranks")),
    }
}

/// A new array for an output: torch's for torch, else numpy's; on a device torch's or cupy's.
pub(crate) fn new_output<'py>(
    py: Python<'py>,
    torch: bool,
    place: Place,
    shape: &[usize],
    dtype: DType,
) -> PyResult<Bound<'py, PyAny>> {
    if torch {
        let arguments = [("dtype", dtype::torch_dtype(py, dtype)?)];
        let arguments = pyo3::types::IntoPyDict::into_py_dict(arguments, py)?;
        arguments.set_item("device", place.to_string())?;
        return py.import("torch")?.call_method("empty", (shape.to_vec(),), Some(&arguments));
    }
    match place {
        Place::Cpu => {
            py.import("numpy")?.call_method1("empty", (shape.to_vec(), dtype::numpy_dtype(py, dtype)?))
        }
        Place::Cuda(_) => new_on_device(py, place, shape, dtype),
    }
}

/// Of whichever library for devices the program has imported.
fn new_on_device<'py>(
    py: Python<'py>,
    place: Place,
    shape: &[usize],
    dtype: DType,
) -> PyResult<Bound<'py, PyAny>> {
    let modules = py.import("sys")?.getattr("modules")?;
    if modules.contains("torch")? {
        return new_output(py, true, place, shape, dtype);
    }
    if !modules.contains("cupy")? {
        let problem = "there is neither torch nor cupy to make one on a device. Hint: pass out=";
        return Err(invalid("out", problem));
    }
    let cupy = py.import("cupy")?;
    let Place::Cuda(ordinal) = place else { return Err(invalid("out", "not on a device")) };
    let device = cupy.getattr("cuda")?.call_method1("Device", (ordinal,))?;
    device.call_method0("__enter__")?;
    let made = cupy.call_method1("empty", (shape.to_vec(), dtype::numpy_dtype(py, dtype)?));
    device.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    made
}

/// A collective on a handle, ready to run: its output, and what it returns.
pub(crate) struct Plan<'a, 'py> {
    pub(crate) call: Call<'a>,
    pub(crate) out: Option<Operand<'py>>,
    pub(crate) result: Py<PyAny>,
}

impl<'a, 'py> Plan<'a, 'py> {
    /// `call` on `memory` into `out`; `x` is what a call in place returns, by default the memory's own array.
    pub(crate) fn new(
        py: Python<'py>,
        memory: &SymmetricMemory,
        call: Call<'a>,
        out: Option<&Bound<'py, PyAny>>,
        x: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let (rank, world) = (memory.membership().rank(), memory.membership().size());
        if matches!(memory.place(), Place::Cuda(_)) && !call.row().devices {
            return Err(invalid(call.name(), "devices do not have it. Hint: use memory of the host"));
        }
        let call = in_rows(call, &memory.span().shape, 1)?;
        if !has_output(call, rank, out.is_some()) {
            let result = match (is_in_place(call), x) {
                (false, _) => py.None(),
                (true, Some(x)) => x.clone().unbind(),
                (true, None) => memory.result_array(py, call.name())?,
            };
            return Ok(Self { call, out: None, result });
        }
        let span = memory.span();
        check_parts(call, &span.shape, world)?;
        let object = match out {
            Some(out) => out.clone(),
            None => {
                let shape = output_shape(call, &span.shape, (rank, world))?;
                new_output(py, memory.is_torch(), memory.place(), &shape, span.dtype)?
            }
        };
        let operand = Operand::any_output(&object)?;
        memory.check_operand("out", &operand)?;
        let result = object.unbind();
        // Reducing into one's own elements is reducing in place.
        if matches!(call, Call::AllReduce(_)) && memory.is_own(&operand) {
            return Ok(Self { call, out: None, result });
        }
        memory.check_apart(&operand)?;
        Ok(Self { call, out: Some(operand), result })
    }
}

/// `x` as an operand, if it is a contiguous array. What is not can still be private memory, where its own
/// errors are told.
fn seen<'py>(x: &Bound<'py, PyAny>) -> Option<Operand<'py>> {
    if x.is_none() { None } else { Operand::input(x).ok() }
}

/// The handle of `x` if it is symmetric on this group.
pub(crate) fn symmetric(
    membership: &Membership,
    x: &Bound<'_, PyAny>,
    timeout_ms: u64,
) -> PyResult<Option<SymmetricMemory>> {
    seen(x).map_or(Ok(None), |operand| find_known(&operand, membership, timeout_ms))
}

/// `call`, unless it writes symmetric memory through an array that is read-only.
fn writable<'a>(call: PyResult<Call<'a>>, x: &Operand<'_>) -> PyResult<Call<'a>> {
    let call = call?;
    if is_in_place(call) {
        check_writes(call, x)?;
    }
    Ok(call)
}

/// The name of a call, in messages that do not come to look at what is wrong with it.
pub(crate) fn name_of(call: &PyResult<Call<'_>>) -> &'static str {
    call.as_ref().map_or("collective", |call| call.name())
}

impl Group {
    /// A collective on `x`: zero-copy where it is symmetric on this group.
    pub(crate) fn run<'py>(
        &self,
        py: Python<'py>,
        (call, out): AskedCollective<'_, 'py>,
        x: &Bound<'py, PyAny>,
        timeout_ms: u64,
    ) -> PyResult<Py<PyAny>> {
        let (membership, seen) = (self.membership(), seen(x));
        if let Some(operand) = &seen
            && let Some(memory) = find_known(operand, membership, timeout_ms)?
        {
            return memory.run(py, (writable(call, operand), out), Some(x), timeout_ms, None);
        }
        let group = membership.group(name_of(&call), timeout_ms)?;
        match call.and_then(|call| PrivateCall::new(&group, call, (x, seen), out)) {
            Ok(job) => match job.place() {
                Place::Cpu => {
                    let shaped = job.shaped(membership, &group);
                    job.run(py, shaped.as_ref().unwrap_or(&group))
                }
                Place::Cuda(ordinal) => job.run_on(py, membership, ordinal, timeout_ms),
            },
            Err(error) => match Operand::any(x) {
                Ok(x) if let Place::Cuda(ordinal) = x.device => {
                    Err(cuda::Private::refuse(py, membership, ordinal, &x, error))
                }
                _ if membership.is_on_host(x) => Err(membership.refuse(py, timeout_ms, error)),
                _ => Err(error),
            },
        }
    }

    /// Starts what [`Group::run`] runs.
    pub(crate) fn start<'py>(
        &self,
        py: Python<'py>,
        (call, out): AskedCollective<'_, 'py>,
        x: &Bound<'py, PyAny>,
        timeout_ms: u64,
    ) -> PyResult<Pending> {
        let membership = self.membership();
        if let Some(operand) = seen(x)
            && let Some(memory) = find_known(&operand, membership, timeout_ms)?
        {
            return memory.start(py, (writable(call, &operand), out), Some(x), timeout_ms, None);
        }
        // Ctrl-C ends waiting for the operation, not the operation, which peers count on.
        let group = membership.group(name_of(&call), timeout_ms)?.cancelled_by(&CancelToken::new());
        match call.and_then(check_start).and_then(|call| PrivateCall::new(&group, call, (x, None), out)) {
            Ok(job) => {
                let shaped = job.shaped(membership, &group);
                job.start(shaped.as_ref().unwrap_or(&group))
            }
            Err(error) if membership.is_on_host(x) => Err(membership.refuse_started(py, timeout_ms, error)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use symmem::collectives::ROWS;

    use super::*;

    #[test]
    fn calls_are_what_the_librarys_table_says() {
        // What varies has a method of its own and no `Call`.
        for row in ROWS.iter().filter(|row| row.python.is_some() && row.output != Output::Varies) {
            let name = row.name;
            let call = Call::of(row, ReduceOp::Sum, 0, &[4; 4]).expect(name);
            assert_eq!(Some(call.name()), row.python, "{name}");
            assert_eq!(call.row().started, row.started, "{name}");
            assert_eq!(call.reduction().is_some(), row.reduces, "{name}");
            assert_eq!(call.root().is_some(), row.root, "{name}");
            let given = name == "all_reduce_out";
            assert_eq!(has_output(call, 0, given), row.output != Output::InPlace, "{name}");
            assert!(!row.is_to_root() || !has_output(call, 1, given), "{name}");
            let shape: usize = output_shape(call, &[4, 4], (0, 2)).unwrap().iter().product();
            let expected = match row.output {
                Output::Whole if row.counts => 64,
                Output::Share if row.counts => 16,
                Output::Whole => 32,
                Output::Share => 8,
                _ => 16,
            };
            assert_eq!(shape, expected, "{name}");
        }
    }
}
