//! cuBLASLt, in the same library: products of f32 and bf16 are made, those of other types use their memory
//! and nothing else. An algorithm is there for everything.
//!
//! Descriptions are numbers in a table, so one that was given back is found out.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::node::{NodeWork, give};
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Out, Outcome, SUCCESS, call, put};
use crate::state::state;

/// `cublasStatus_t` of what failed: there is one.
const INTERNAL_ERROR: c_int = 14;
/// `CUDA_R_32F` and `CUDA_R_16BF`.
const R_32F: c_int = 0;
const R_16BF: c_int = 14;

/// A matrix, column after column, as the library has it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Layout {
    dtype: c_int,
    rows: u64,
    columns: u64,
    stride: i64,
    batch: i32,
    step: i64,
}

impl Layout {
    /// Bytes from its first element to behind its last.
    fn bytes(&self) -> usize {
        let size = if self.dtype == R_32F { 4 } else { 2 };
        let last = |count: u64| count.saturating_sub(1);
        let end = last(self.batch as u64) * self.step as u64 + last(self.columns) * self.stride as u64;
        (end + self.rows) as usize * size
    }

    /// Where an element is, by its place.
    fn at(&self, base: u64, [batch, row, column]: [u64; 3]) -> u64 {
        let index = batch * self.step as u64 + column * self.stride as u64 + row;
        base + if self.dtype == R_32F { 4 } else { 2 } * index
    }

    /// An element; the caller has checked that the matrix can be accessed.
    fn get(&self, base: u64, place: [u64; 3]) -> f32 {
        let at = self.at(base, place);
        // SAFETY: accessible, as checked, and aligned as cuBLASLt demands.
        unsafe {
            match self.dtype {
                R_32F => *(at as *const f32),
                _ => f32::from_bits(u32::from(*(at as *const u16)) << 16),
            }
        }
    }

    /// Sets an element, as above.
    fn set(&self, base: u64, place: [u64; 3], value: f32) {
        let (at, bits) = (self.at(base, place), value.to_bits());
        // SAFETY: as above. To the nearest, and of two to the even one.
        unsafe {
            match self.dtype {
                R_32F => *(at as *mut f32) = value,
                _ => *(at as *mut u16) = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16,
            }
        }
    }
}

/// A product: both sides and the result.
#[derive(Clone, Copy)]
pub(crate) struct ProductNode {
    places: [(u64, Layout); 3],
}

impl ProductNode {
    /// Does it. Its memory can be accessed.
    pub(crate) fn run(&self) {
        let [(left_at, left), (right_at, right), (out_at, out)] = self.places;
        if ![R_32F, R_16BF].contains(&out.dtype) {
            return;
        }
        for batch in 0..out.batch as u64 {
            for column in 0..out.columns {
                for row in 0..out.rows {
                    let term = |inner| {
                        let factor = left.get(left_at, [batch, row, inner]);
                        factor * right.get(right_at, [batch, inner, column])
                    };
                    out.set(out_at, [batch, row, column], (0..left.columns).map(term).sum());
                }
            }
        }
    }
}

/// Layouts by number; anything else that is described has nothing to say.
fn layouts() -> MutexGuard<'static, HashMap<u64, Layout>> {
    static LAYOUTS: OnceLock<Mutex<HashMap<u64, Layout>>> = OnceLock::new();
    LAYOUTS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library's code for what a call came to.
fn status(code: Code) -> c_int {
    if code == SUCCESS { 0 } else { INTERNAL_ERROR }
}

fn make(to: Out<'_, u64>, layout: Layout) -> Outcome {
    let number = state().number();
    layouts().insert(number, layout);
    put(to, number)
}

fn end(number: u64) -> c_int {
    if layouts().remove(&number).is_some() { 0 } else { INTERNAL_ERROR }
}

fn made(to: Out<'_, u64>) -> c_int {
    status(make(to, Layout::default()).err().unwrap_or(SUCCESS))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusString(_code: c_int) -> *const c_char {
    c"an error of the fake library".as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtCreate(to: Out<'_, u64>) -> c_int {
    status(call(c"cublasLtCreate", |state| put(to, state.number())))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtDestroy(_handle: u64) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescCreate(to: Out<'_, u64>, _compute: c_int, _scale: c_int) -> c_int {
    made(to)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulDescDestroy(number: u64) -> c_int {
    end(number)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceCreate(to: Out<'_, u64>) -> c_int {
    made(to)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceDestroy(number: u64) -> c_int {
    end(number)
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    number: u64,
    _attribute: c_int,
    _value: *const c_void,
    _bytes: usize,
) -> c_int {
    if layouts().contains_key(&number) { 0 } else { INTERNAL_ERROR }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutCreate(
    to: Out<'_, u64>,
    dtype: c_int,
    rows: u64,
    columns: u64,
    stride: i64,
) -> c_int {
    if stride < rows as i64 {
        return INTERNAL_ERROR;
    }
    let layout = Layout { dtype, rows, columns, stride, batch: 1, step: 0 };
    status(make(to, layout).err().unwrap_or(SUCCESS))
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtMatrixLayoutDestroy(number: u64) -> c_int {
    end(number)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    number: u64,
    attribute: c_int,
    value: *const c_void,
    bytes: usize,
) -> c_int {
    let mut layouts = layouts();
    let Some(layout) = layouts.get_mut(&number) else { return INTERNAL_ERROR };
    match (attribute, bytes) {
        // SAFETY: the caller's value of this size.
        (5, 4) => layout.batch = unsafe { value.cast::<i32>().read_unaligned() },
        // SAFETY: as above.
        (6, 8) => layout.step = unsafe { value.cast::<i64>().read_unaligned() },
        _ => return INTERNAL_ERROR,
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _handle: u64,
    _product: u64,
    left: u64,
    right: u64,
    _before: u64,
    out: u64,
    _wanted: u64,
    _most: c_int,
    _choices: *mut c_void,
    found: Out<'_, c_int>,
) -> c_int {
    status(call(c"cublasLtMatmulAlgoGetHeuristic", |_| {
        let layouts = layouts();
        let of = |number: &u64| layouts.get(number).copied().ok_or(INVALID_HANDLE);
        let (left, right, out) = (of(&left)?, of(&right)?, of(&out)?);
        let fits = left.rows == out.rows && right.columns == out.columns && left.columns == right.rows;
        if !fits || [left, right].iter().any(|side| side.batch != out.batch) {
            return Err(NOT_SUPPORTED);
        }
        // What the caller has zeroed will do for an algorithm.
        put(found, 1)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    _handle: u64,
    _product: u64,
    _alpha: *const f32,
    left_at: u64,
    left: u64,
    right_at: u64,
    right: u64,
    _beta: *const f32,
    _before_at: u64,
    _before: u64,
    out_at: u64,
    out: u64,
    _algorithm: *const c_void,
    workspace: u64,
    workspace_bytes: usize,
    stream: u64,
) -> c_int {
    status(call(c"cublasLtMatmul", |state| {
        let layouts = layouts();
        let of = |number: &u64| layouts.get(number).copied().ok_or(INVALID_VALUE);
        let places = [(left_at, of(&left)?), (right_at, of(&right)?), (out_at, of(&out)?)];
        let mut ranges: Vec<_> = places.iter().map(|(at, layout)| (*at, layout.bytes())).collect();
        ranges.push((workspace, workspace_bytes));
        give(state, stream, &ranges, NodeWork::Product(ProductNode { places }))
    }))
}
