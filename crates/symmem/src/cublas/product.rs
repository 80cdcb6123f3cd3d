//! Products of matrices that lie row after row.
//!
//! cuBLASLt's matrices lie column after column. What is a matrix there is its transpose here, so a product is
//! asked for with its sides swapped, and nothing is transposed. The algorithm for a shape is chosen once, by
//! the library's heuristic, and used from then on.

#![allow(unsafe_code, reason = "calls of cuBLASLt")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUresult};

use super::library::{CublasLibrary, Opaque, RawAlgorithm, RawChoice, StatusCode, cublas};
use crate::cuda::device::Bound;
use crate::cuda::driver::check;
use crate::cuda::{Device, Stream, queues};
use crate::numeric::DType;
use crate::{Error, Result};

/// Bytes of memory that a product may need beside its matrices: what NVIDIA advises for compute capability
/// 9.0.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// `CUBLAS_COMPUTE_32F`: f32 throughout. TF32 would be another one.
const COMPUTE_32F: c_int = 68;
/// `CUDA_R_32F`, `CUDA_R_16F` and `CUDA_R_16BF`.
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
/// Attributes of a layout: products made at once, and elements from one to the next.
const BATCH_COUNT: c_int = 5;
const BATCH_STEP: c_int = 6;
/// What is asked for when an algorithm is chosen: the workspace; how parts of one sum become it; the
/// alignment of both sides, and of the result twice.
const MAX_WORKSPACE: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// Parts of one sum are added up in f32, not in the type of the result.
const IN_F32: u32 = 2;
/// The most that alignment counts for.
const ALIGNMENT: u64 = 256;

/// What products are alike in. Matrices are row after row; the result's rows, and the results of several
/// products, follow each other without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductShape {
    pub(crate) dtype: DType,
    /// Of the left side and of the result.
    pub(crate) rows: usize,
    /// Columns of the left side, rows of the right one.
    pub(crate) inner: usize,
    /// Of the right side and of the result.
    pub(crate) columns: usize,
    /// Elements from a row to the next, of both sides.
    pub(crate) strides: [usize; 2],
    /// Products with the same right side.
    pub(crate) batch: usize,
    /// Elements from the left side of one of them to that of the next.
    pub(crate) step: usize,
}

impl ProductShape {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0 || self.columns == 0 || self.batch == 0
    }

    /// Elements of a result.
    fn result(&self) -> usize {
        self.rows * self.columns
    }
}

/// A product: its shape, and where its sides and its result are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) shape: ProductShape,
    pub(crate) left: u64,
    pub(crate) right: u64,
    pub(crate) out: u64,
}

/// What an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProductKey {
    shape: ProductShape,
    /// Of left side, right side and result.
    alignments: [u32; 3],
}

impl Product {
    fn key(&self) -> ProductKey {
        let of = |address: u64| (1 << address.trailing_zeros().min(ALIGNMENT.trailing_zeros())) as u32;
        ProductKey { shape: self.shape, alignments: [self.left, self.right, self.out].map(of) }
    }
}

/// Multiplies on one device.
#[derive(Debug)]
pub(crate) struct Multiplier {
    device: Device,
    library: &'static CublasLibrary,
    /// The library's handle: it takes it from every thread.
    handle: usize,
    plans: Mutex<HashMap<ProductKey, Arc<ProductPlan>>>,
}

/// How a product is made.
#[derive(Debug)]
pub(crate) struct ProductPlan {
    /// `None`: there is nothing to multiply, and the result is zeros.
    chosen: Option<ChosenAlgorithm>,
}

/// An algorithm, and what the product and its matrices are described by.
#[derive(Debug)]
struct ChosenAlgorithm {
    product: Described,
    left: Described,
    right: Described,
    out: Described,
    algorithm: RawAlgorithm,
}

/// A description that the library has made.
struct Described {
    raw: usize,
    destroy: unsafe extern "C" fn(Opaque) -> StatusCode,
}

impl std::fmt::Debug for Described {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Described")
    }
}

impl Described {
    fn raw(&self) -> Opaque {
        self.raw as Opaque
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: made by the library, and nobody has it any more. What was launched has copies.
        unsafe { (self.destroy)(self.raw()) };
    }
}

impl Multiplier {
    /// Finds the library, and makes a handle of it.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let library = cublas()?;
        let _bound = device.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle; the context is bound.
        library.check("cublasLtCreate", unsafe { (library.functions.create)(&mut handle) })?;
        Ok(Self { device: device.clone(), library, handle: handle as usize, plans: Mutex::default() })
    }

    fn plans(&self) -> MutexGuard<'_, HashMap<ProductKey, Arc<ProductPlan>>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How products like this one are made, if that was chosen before.
    pub(crate) fn known(&self, product: &Product) -> Option<Arc<ProductPlan>> {
        self.plans().get(&product.key()).cloned()
    }

    /// How products like this one are made, from now on.
    pub(crate) fn plan(&self, product: &Product) -> Result<Arc<ProductPlan>> {
        if let Some(known) = self.known(product) {
            return Ok(known);
        }
        let key = product.key();
        let chosen = if key.shape.inner == 0 { None } else { Some(self.choose(&key)?) };
        let plan = Arc::new(ProductPlan { chosen });
        Ok(Arc::clone(self.plans().entry(key).or_insert(plan)))
    }

    /// Gives `stream` the product, whose plan is `plan`.
    ///
    /// The matrices and `workspace`, of [`WORKSPACE`] bytes, are mapped on the device until the work is done:
    /// in a capture, until no graph is left that was made of it. Nobody else uses the workspace meanwhile.
    pub(crate) unsafe fn give(
        &self,
        plan: &ProductPlan,
        product: &Product,
        workspace: u64,
        (stream, _): (&Stream, &Bound<'_>),
    ) -> Result<()> {
        let shape = &product.shape;
        if shape.is_empty() {
            return Ok(());
        }
        let _turn = queues::turn();
        let Some(ChosenAlgorithm { product: what, left, right, out, algorithm }) = &plan.chosen else {
            let bytes = shape.batch * shape.result() * shape.dtype.size();
            // SAFETY: the result, as the caller promises.
            return check("cuMemsetD8Async", unsafe {
                sys::cuMemsetD8Async(product.out, 0, bytes, stream.raw())
            });
        };
        let (one, nothing) = (1.0f32, 0.0f32);
        // SAFETY: the caller's promise; descriptions and algorithm are those of the plan, which live. The
        // sides are swapped, see the head. What was there of the result is not read.
        self.library.check("cublasLtMatmul", unsafe {
            (self.library.functions.multiply)(
                self.handle as Opaque,
                what.raw(),
                &one,
                product.right,
                right.raw(),
                product.left,
                left.raw(),
                &nothing,
                product.out,
                out.raw(),
                product.out,
                out.raw(),
                algorithm,
                workspace,
                WORKSPACE,
                stream.raw().cast(),
            )
        })
    }

    /// Describes products of a kind, and has the library choose an algorithm for them.
    fn choose(&self, key: &ProductKey) -> Result<ChosenAlgorithm> {
        let ProductKey { shape, alignments: [left_alignment, right_alignment, out_alignment] } = *key;
        let functions = &self.library.functions;
        let _bound = self.device.bind()?;
        let product = self.described("cublasLtMatmulDescCreate", functions.product_destroy, |to| {
            // SAFETY: writes one description.
            unsafe { (functions.product_create)(to, COMPUTE_32F, R_32F) }
        })?;
        // Of each matrix its columns are what the library takes for rows.
        let layout = |[rows, columns, stride]: [usize; 3], step: usize| {
            let dtype = dtype_of(shape.dtype)?;
            let made = self.described("cublasLtMatrixLayoutCreate", functions.layout_destroy, |to| {
                // SAFETY: writes one description.
                unsafe { (functions.layout_create)(to, dtype, columns as u64, rows as u64, stride as i64) }
            })?;
            if shape.batch > 1 {
                self.set_layout(&made, BATCH_COUNT, &(shape.batch as i32).to_ne_bytes())?;
                self.set_layout(&made, BATCH_STEP, &(step as i64).to_ne_bytes())?;
            }
            Ok::<_, Error>(made)
        };
        let left = layout([shape.rows, shape.inner, shape.strides[0]], shape.step)?;
        let right = layout([shape.inner, shape.columns, shape.strides[1]], 0)?;
        let out = layout([shape.rows, shape.columns, shape.columns], shape.result())?;
        let wanted = self.described(
            "cublasLtMatmulPreferenceCreate",
            functions.preference_destroy,
            // SAFETY: writes one description.
            |to| unsafe { (functions.preference_create)(to) },
        )?;
        self.prefer(&wanted, MAX_WORKSPACE, &WORKSPACE.to_ne_bytes())?;
        self.prefer(&wanted, REDUCTION_SCHEMES, &IN_F32.to_ne_bytes())?;
        let alignments = [right_alignment, left_alignment, out_alignment, out_alignment];
        for (attribute, alignment) in ALIGNMENTS.iter().zip(alignments) {
            self.prefer(&wanted, *attribute, &alignment.to_ne_bytes())?;
        }
        let (mut choice, mut found) = (RawChoice::default(), 0);
        // SAFETY: descriptions that live; one choice and one number are written.
        let code = unsafe {
            (functions.choose)(
                self.handle as Opaque,
                product.raw(),
                right.raw(),
                left.raw(),
                out.raw(),
                out.raw(),
                wanted.raw(),
                1,
                &mut choice,
                &mut found,
            )
        };
        const CALL: &str = "cublasLtMatmulAlgoGetHeuristic";
        self.library.check(CALL, code)?;
        const NOT_SUPPORTED: StatusCode = 15;
        if found < 1 {
            return Err(self.library.error(CALL, NOT_SUPPORTED));
        }
        self.library.check(CALL, choice.state)?;
        tracing::debug!(?shape, workspace = choice.workspace, "algorithm of a product");
        Ok(ChosenAlgorithm { product, left, right, out, algorithm: choice.algorithm })
    }

    /// What `make` makes by `call`.
    fn described(
        &self,
        call: &'static str,
        destroy: unsafe extern "C" fn(Opaque) -> StatusCode,
        make: impl FnOnce(*mut Opaque) -> StatusCode,
    ) -> Result<Described> {
        let mut raw = ptr::null_mut();
        self.library.check(call, make(&mut raw))?;
        Ok(Described { raw: raw as usize, destroy })
    }

    fn set_layout(&self, layout: &Described, attribute: c_int, value: &[u8]) -> Result<()> {
        // SAFETY: reads the value, whose size is the attribute's.
        self.library.check("cublasLtMatrixLayoutSetAttribute", unsafe {
            let value_at: *const c_void = value.as_ptr().cast();
            (self.library.functions.layout_set)(layout.raw(), attribute, value_at, value.len())
        })
    }

    fn prefer(&self, wanted: &Described, attribute: c_int, value: &[u8]) -> Result<()> {
        // SAFETY: as above.
        self.library.check("cublasLtMatmulPreferenceSetAttribute", unsafe {
            let value_at: *const c_void = value.as_ptr().cast();
            (self.library.functions.preference_set)(wanted.raw(), attribute, value_at, value.len())
        })
    }
}

impl Drop for Multiplier {
    fn drop(&mut self) {
        // Descriptions go before the handle.
        self.plans().clear();
        self.device.release("cublasLtDestroy", || {
            // SAFETY: made here, and nobody has it any more.
            unsafe { (self.library.functions.destroy)(self.handle as Opaque) };
            CUresult::CUDA_SUCCESS
        });
    }
}

/// The library's number of an element type.
fn dtype_of(dtype: DType) -> Result<c_int> {
    match dtype {
        DType::F32 => Ok(R_32F),
        DType::F16 => Ok(R_16F),
        DType::BF16 => Ok(R_16BF),
        other => Err(Error::invalid("element type", format!("{other} is not multiplied on devices"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_counts_up_to_a_limit() {
        let shape = ProductShape {
            dtype: DType::F32,
            rows: 2,
            inner: 3,
            columns: 4,
            strides: [3, 4],
            batch: 1,
            step: 0,
        };
        let product = Product { shape, left: 0x1000, right: 0x104, out: 0x2010 };
        assert_eq!(product.key().alignments, [256, 4, 16]);
        assert!(!shape.is_empty() && ProductShape { rows: 0, ..shape }.is_empty());
    }

    #[test]
    fn types_without_products_are_refused() {
        assert_eq!(dtype_of(DType::BF16).unwrap(), R_16BF);
        assert!(matches!(dtype_of(DType::F64), Err(Error::Invalid { .. })));
    }
}
