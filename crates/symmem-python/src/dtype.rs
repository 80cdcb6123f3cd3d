//! Element types as Python names them.
//!
//! Python says `float32` where Rust says `f32`; numpy, torch, ml_dtypes and jax agree on those names.
//! Arguments go through [`parse`], which reads other words as numpy does and refuses those that mean another
//! type here; functions that work on elements choose their Rust type by [`dispatch`].

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyImportError, PyModuleNotFoundError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use symmem::DType;

/// Another library's dtype objects, of which each has one per type.
type DTypeTable = Vec<(Py<PyAny>, DType)>;

/// How many dtype objects are remembered: ml_dtypes has three for us, and some come twice.
const SEEN_DTYPES: usize = 8;

/// Runs `$body` with `$T` standing for the Rust type of `$dtype`: `dispatch!(dtype, T => work::<T>())`. For a
/// type this build does not know, which [`parse`] never returns, it is the body for `u8`.
macro_rules! dispatch {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::dtype::dispatch!($dtype, $T => $body;
            I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64, F8E4M3: symmem::F8E4M3, F8E5M2: symmem::F8E5M2,
            F16: symmem::f16, BF16: symmem::bf16, F32: f32, F64: f64, Bool: symmem::Bool)
    };
    ($dtype:expr, $T:ident => $body:expr; $($name:ident: $type:ty),*) => {
        match $dtype {
            $(symmem::DType::$name => {
                type $T = $type;
                $body
            })*
            _ => {
                type $T = u8;
                $body
            }
        }
    };
}
pub(crate) use dispatch;

/// Its name in numpy, torch and messages to Python users: `float32`, `bfloat16`, `float8_e4m3fn` ...
pub(crate) fn name(dtype: DType) -> &'static str {
    dtype.long_name()
}

/// Its format in the buffer protocol; those that numpy itself does not have, have none.
pub(crate) fn buffer_format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::U16 => c"H",
        DType::I16 => c"h",
        DType::U32 => c"I",
        DType::I32 => c"i",
        // What C calls long: numpy has a type of its own for long long.
        DType::U64 => c"L",
        DType::I64 => c"l",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::Bool => c"?",
        _ => return None,
    })
}

/// The type of a buffer's `format`, with items of `size` bytes.
pub(crate) fn of_buffer_format(format: &[u8], size: usize) -> Option<DType> {
    let code = match format {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    let kind = match code {
        b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => b'u',
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => b'i',
        b'e' | b'f' | b'd' => b'f',
        b'?' => b'b',
        b'c' => b'u',
        _ => return None,
    };
    of_kind(kind, size)
}

/// The type of an array interface's `kind` with items of `size` bytes.
pub(crate) fn of_kind(kind: u8, size: usize) -> Option<DType> {
    Some(match (kind, size) {
        (b'u', 1) => DType::U8,
        (b'i', 1) => DType::I8,
        (b'u', 2) => DType::U16,
        (b'i', 2) => DType::I16,
        (b'u', 4) => DType::U32,
        (b'i', 4) => DType::I32,
        (b'u', 8) => DType::U64,
        (b'i', 8) => DType::I64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        (b'b', 1) => DType::Bool,
        _ => return None,
    })
}

/// Its type string in the array interfaces; those that numpy itself does not have, have none.
pub(crate) fn typestr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::Bool => "|b1",
        _ => return None,
    })
}

/// The type that numpy, torch and ml_dtypes all call by this name.
pub(crate) fn of_name(text: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| name(*dtype) == text)
}

/// The type that this library or torch calls by this name: "f32", "half", "torch.float".
///
/// Without the prefix, "float" and "int" are numpy's: they are Python's words too, and everybody's habit.
fn of_own_name(text: &str) -> Option<DType> {
    let (bare, is_torchs) = match text.strip_prefix("torch.") {
        Some(bare) => (bare, true),
        None => (text, false),
    };
    of_name(bare).or(match bare {
        "half" => Some(DType::F16),
        "double" => Some(DType::F64),
        "short" => Some(DType::I16),
        "long" => Some(DType::I64),
        "float" if is_torchs => Some(DType::F32),
        "int" if is_torchs => Some(DType::I32),
        _ if is_torchs => None,
        _ => DType::ALL.into_iter().find(|dtype| dtype.name() == bare),
    })
}

/// The element type that a string names: numpy's word for it, else this library's or torch's. Where those are
/// two types, neither.
fn of_text(object: &Bound<'_, PyString>) -> PyResult<DType> {
    let text = object.to_str()?;
    // On these all agree.
    if let Some(dtype) = of_name(text) {
        return Ok(dtype);
    }
    let py = object.py();
    let own = of_own_name(text);
    let Ok(numpys) = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "dtype"), (object,)) else {
        return own.ok_or_else(|| unknown(object));
    };
    let Some(own) = own else { return of_dtype(&numpys)?.ok_or_else(|| unknown(object)) };
    let theirs = of_dtype(&numpys)?;
    if theirs == Some(own) {
        return Ok(own);
    }
    let (numpys, own) = (numpys.getattr(intern!(py, "name"))?, name(own));
    let hint = match theirs {
        Some(theirs) => format!("write {:?} or {own:?}", name(theirs)),
        None => format!("write {own:?}; there is no {numpys} here"),
    };
    Err(PyTypeError::new_err(format!(
        "dtype {text:?} is {numpys} to numpy and {own} to symmem. Hint: {hint}"
    )))
}

/// The type of a numpy dtype, or of anything else with such a name; an error where its bytes are in another
/// machine's order.
fn of_dtype(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let py = object.py();
    // A numpy dtype knows whether its bytes are in this machine's order.
    if object.getattr_opt(intern!(py, "isnative"))?.is_some_and(|native| !native.is_truthy().unwrap_or(true))
    {
        let native = object.getattr(intern!(py, "name"))?;
        let problem = format!(
            "dtype {object} is not in this machine's byte order. Hint: {native} is; x.astype({native:?}) converts"
        );
        return Err(PyTypeError::new_err(problem));
    }
    let name = object.getattr_opt(intern!(py, "name"))?;
    let name = name.as_ref().and_then(|name| name.cast::<PyString>().ok());
    name.map_or(Ok(None), |name| Ok(of_name(name.to_str()?)))
}

/// The element type that `object` names: a string ("float32", "f4", "bf16"), a numpy, ml_dtypes or torch
/// dtype, or a type.
pub(crate) fn parse(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = object.py();
    if let Some(dtype) = of_torch(object)? {
        return Ok(dtype);
    }
    if let Ok(text) = object.cast::<PyString>() {
        return of_text(text);
    }
    if let Ok(class) = object.cast::<PyType>() {
        return of_class(class)?.ok_or_else(|| unknown(object));
    }
    if let Some(dtype) = of_dtype(object)? {
        return Ok(dtype);
    }
    // What jax calls a dtype is a scalar maker that has one.
    match object.getattr_opt(intern!(py, "dtype"))? {
        Some(inner) if !inner.is(object) => parse(&inner).map_err(|_| unknown(object)),
        _ => Err(unknown(object)),
    }
}

/// The type of a numpy dtype that is not one of numpy's own kinds. numpy makes one object for each, so they
/// are remembered.
pub(crate) fn of_numpy(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    static SEEN: Mutex<DTypeTable> = Mutex::new(Vec::new());
    let lock = || SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, dtype)) = lock().iter().find(|(theirs, _)| theirs.is(object)) {
        return Ok(*dtype);
    }
    let dtype = parse(object)?;
    let mut seen = lock();
    if seen.len() < SEEN_DTYPES {
        seen.push((object.clone().unbind(), dtype));
    }
    Ok(dtype)
}

/// Scalar types, as numpy takes them: Python's own, and those of numpy and ml_dtypes.
fn of_class(class: &Bound<'_, PyType>) -> PyResult<Option<DType>> {
    if let Some(dtype) = of_name(class.name()?.to_str()?) {
        return Ok(Some(dtype));
    }
    let py = class.py();
    let numpys = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "dtype"), (class,));
    numpys.map_or(Ok(None), |numpys| of_dtype(&numpys))
}

/// `object` names no type that there is here.
#[cold]
pub(crate) fn unknown(object: &Bound<'_, PyAny>) -> PyErr {
    let names: Vec<&str> = DType::ALL.into_iter().map(name).collect();
    let given = object.repr().map_or_else(|_| "this".to_owned(), |text| text.to_string());
    PyTypeError::new_err(format!("symmetric memory has no elements of {given}; it has {}", names.join(", ")))
}

/// The `numpy.dtype`; that of bf16 and fp8 comes from ml_dtypes, and is an ImportError without it.
pub(crate) fn numpy_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static MADE: [PyOnceLock<Py<PyAny>>; DType::ALL.len()] = [const { PyOnceLock::new() }; DType::ALL.len()];
    let make = || {
        let scalar = match buffer_format(dtype) {
            Some(_) => py.import("numpy")?.getattr(name(dtype))?,
            None => ml_dtypes(py, dtype)?.getattr(name(dtype))?,
        };
        Ok::<_, PyErr>(py.import("numpy")?.getattr("dtype")?.call1((scalar,))?.unbind())
    };
    match MADE.get(dtype as usize) {
        Some(cell) => Ok(cell.get_or_try_init(py, make)?.bind(py).clone()),
        None => Ok(make()?.into_bound(py)),
    }
}

fn ml_dtypes(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyModule>> {
    py.import("ml_dtypes").map_err(|cause| {
        let problem = format!(
            "numpy has no {}; install ml_dtypes (pip install ml_dtypes), or use torch() or __dlpack__",
            name(dtype)
        );
        let error = PyImportError::new_err(problem);
        error.set_cause(py, Some(cause));
        error
    })
}

/// The module torch; without it, an ImportError that says what there is instead.
pub(crate) fn torch(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import(intern!(py, "torch")).map_err(|cause| {
        // A torch that is there and cannot be imported has its own words.
        if !cause.is_instance_of::<PyModuleNotFoundError>(py) {
            return cause;
        }
        let problem = "torch is not installed (pip install torch); numpy() and __dlpack__ do without it";
        let error = PyImportError::new_err(problem);
        error.set_cause(py, Some(cause));
        error
    })
}

/// The `torch.dtype`; an ImportError without torch.
pub(crate) fn torch_dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    torch(py)?.getattr(name(dtype))
}

/// The type of a `torch.dtype`; none if `object` is something else, or torch is not imported.
pub(crate) fn of_torch(object: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    static TORCH: PyOnceLock<DTypeTable> = PyOnceLock::new();
    let py = object.py();
    let table = match TORCH.get(py) {
        Some(table) => table,
        None => {
            let Some(torch) = imported(py, "torch")? else { return Ok(None) };
            let Some(table) = torch_table(&torch)? else { return Ok(None) };
            TORCH.get_or_init(py, || table)
        }
    };
    Ok(table.iter().find(|(theirs, _)| theirs.is(object)).map(|(_, dtype)| *dtype))
}

/// Torch's types; none while torch is being imported. Old ones lack some.
fn torch_table(torch: &Bound<'_, PyAny>) -> PyResult<Option<DTypeTable>> {
    let mut table = Vec::new();
    for dtype in DType::ALL {
        if let Some(theirs) = torch.getattr_opt(name(dtype))? {
            table.push((theirs.unbind(), dtype));
        }
    }
    let whole = torch.getattr_opt("Tensor")?.is_some() && torch.getattr_opt("from_dlpack")?.is_some();
    Ok(whole.then_some(table))
}

/// The module `name`, if somebody has imported it.
pub(crate) fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    match modules.cast::<pyo3::types::PyDict>() {
        Ok(modules) => Ok(modules.get_item(name)?.filter(|module| !module.is_none())),
        Err(_) => Ok(None),
    }
}

/// Python's name of the element type that `dtype` names: `"f4"`, `"f32"`, `numpy.float32` and `torch.float32`
/// are `"float32"`.
#[pyfunction]
fn dtype_name(dtype: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    parse(dtype).map(name)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(dtype_name, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_name_that_comes_back() {
        for dtype in DType::ALL {
            assert_eq!(of_name(name(dtype)), Some(dtype));
            assert_eq!(of_own_name(dtype.name()), Some(dtype));
            assert_eq!(of_own_name(&format!("torch.{}", name(dtype))), Some(dtype));
        }
        assert_eq!(of_own_name("float"), None, "numpy's");
        assert_eq!(of_own_name("torch.float"), Some(DType::F32));
        assert_eq!(of_own_name("torch.f32"), None, "torch has no such name");
    }

    #[test]
    fn formats_and_type_strings_come_back() {
        for dtype in DType::ALL {
            let Some(format) = buffer_format(dtype) else {
                assert_eq!(typestr(dtype), None);
                continue;
            };
            assert_eq!(of_buffer_format(format.to_bytes(), dtype.size()), Some(dtype));
            let kind = typestr(dtype).unwrap().as_bytes()[1];
            assert_eq!(of_kind(kind, dtype.size()), Some(dtype));
        }
        assert_eq!(of_buffer_format(b">f", 4), None);
        assert_eq!(of_buffer_format(b"Zd", 16), None);
    }

    #[test]
    fn dispatch_names_the_type() {
        for dtype in DType::ALL {
            assert_eq!(dispatch!(dtype, T => <T as symmem::Element>::DTYPE), dtype);
        }
    }
}
