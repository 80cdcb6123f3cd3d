//! Matrices in private memory, for products.

use crate::numeric::Element;
use crate::numeric::product::RawMatrix;
use crate::{Error, Result};

/// A matrix in private memory, row after row: all of a slice, or some columns of a wider one.
///
/// ```
/// use symmem::MatrixView;
/// let data = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let matrix = MatrixView::new(&data, 2, 3)?;
/// let last = matrix.part(1..3)?; // 2 x 2: 2, 3 and 5, 6
/// assert_eq!((last.rows(), last.columns()), (2, 2));
/// assert!(MatrixView::new(&data, 3, 3).is_err());
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a, T> {
    /// From the first element on.
    data: &'a [T],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, T: Element> MatrixView<'a, T> {
    /// The elements of `data` as `rows` rows of `columns`, which must be as many.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Result<Self> {
        if rows.checked_mul(columns) != Some(data.len()) {
            let problem = format!("{rows} x {columns} elements, but the slice has {}", data.len());
            return Err(Error::invalid("matrix", problem));
        }
        Ok(Self { data, rows, columns, stride: columns })
    }

    /// `rows` rows of `columns` elements of `data`, each row `stride` elements after the one before.
    ///
    /// ```
    /// use symmem::MatrixView;
    /// let data = [0.0f32; 10];
    /// assert!(MatrixView::strided(&data, 3, 2, 4).is_ok());
    /// assert!(MatrixView::strided(&data, 3, 3, 4).is_err());
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn strided(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Result<Self> {
        let last = rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(columns));
        if stride < columns || last.is_none_or(|last| last > data.len()) {
            let problem = format!("{rows} x {columns} elements, rows {stride} apart, in {}", data.len());
            return Err(Error::invalid("matrix", problem));
        }
        Ok(Self { data, rows, columns, stride })
    }

    /// These columns of it.
    pub fn part(&self, columns: std::ops::Range<usize>) -> Result<Self> {
        if columns.start > columns.end || columns.end > self.columns {
            let problem = format!("{columns:?} of {} columns", self.columns);
            return Err(Error::invalid("matrix", problem));
        }
        let data = self.data.get(columns.start..).unwrap_or_default();
        Ok(Self { data, columns: columns.len(), ..*self })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Where it is.
    pub(super) fn raw(&self) -> RawMatrix {
        RawMatrix { dtype: T::DTYPE, at: self.data.as_ptr().cast_mut().cast(), stride: self.stride }
    }
}
