//! Elements that do not lie side by side.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::ops::Range;

use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::{Error, Result};

/// A view of elements in private memory by shape and strides (in elements), read in row-major order.
///
/// ```
/// use symmem::Strided;
/// let matrix = [1, 2, 3, 4, 5, 6]; // 2 x 3
/// let transposed = Strided::new(&matrix, &[3, 2], &[1, 3])?;
/// assert_eq!(transposed.iter().collect::<Vec<_>>(), [1, 4, 2, 5, 3, 6]);
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    data: &'a [T],
    shape: &'a [usize],
    strides: &'a [usize],
    len: usize,
}

impl<'a, T: Element> Strided<'a, T> {
    /// The elements of `data` that `shape` and `strides` say, which must lie within it.
    pub fn new(data: &'a [T], shape: &'a [usize], strides: &'a [usize]) -> Result<Self> {
        let wrong = |problem: String| Err(Error::invalid("strided view", problem));
        if shape.len() != strides.len() {
            return wrong(format!("{} dimensions, but {} strides", shape.len(), strides.len()));
        }
        let Some(len) = shape.iter().try_fold(1usize, |len, size| len.checked_mul(*size)) else {
            return wrong(format!("shape {shape:?} has more elements than can be counted"));
        };
        let steps = shape.iter().zip(strides);
        let last = steps.clone().try_fold(0usize, |last, (size, stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        if len > 0 && last.is_none_or(|last| last >= data.len()) {
            return wrong(format!(
                "shape {shape:?} by strides {strides:?} leaves its {} elements",
                data.len()
            ));
        }
        Ok(Self { data, shape, strides, len })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len).map(|index| self.data[self.position(index)])
    }

    /// Where in `data` the element of this index lies.
    fn position(&self, index: usize) -> usize {
        let mut rest = index;
        let steps = self.shape.iter().zip(self.strides).rev();
        steps.fold(0, |position, (size, stride)| {
            let step = rest % size;
            rest /= size;
            position + step * stride
        })
    }

    /// Copies the elements of `range` to `to`, run by run of the last dimension.
    ///
    /// # Safety
    /// `to` must be valid for as many elements, of any alignment, and be nobody else's.
    pub(super) unsafe fn copy_to(&self, range: Range<usize>, to: *mut u8) {
        let (inner, stride) = match (self.shape.last(), self.strides.last()) {
            (Some(size), Some(stride)) => (*size, *stride),
            _ => (1, 1),
        };
        let mut done = range.start;
        while done < range.end {
            let run = (inner - done % inner).min(range.end - done);
            let first = self.position(done);
            // SAFETY: `new` checked that all positions lie within the data; there is room by the caller's
            // duty.
            unsafe {
                let to = to.add((done - range.start) * size_of::<T>()).cast::<T>();
                match stride {
                    1 => to.cast::<u8>().copy_from_nonoverlapping(
                        self.data[first..first + run].as_ptr().cast(),
                        run * size_of::<T>(),
                    ),
                    _ => (0..run)
                        .for_each(|step| to.add(step).write_unaligned(self.data[first + step * stride])),
                }
            }
            done += run;
        }
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Local. Copies the elements of `from`, which are as many as the memory's, into this rank's memory side
    /// by side.
    pub fn copy_from_strided(&mut self, from: Strided<'_, T>) -> Result<()> {
        if from.len() != self.len() {
            let problem = format!("{} elements do not fill {}", from.len(), self.len());
            return Err(Error::invalid("copy_from_strided", problem));
        }
        let mut local = self.local_mut()?;
        // SAFETY: just as many elements, borrowed for writing.
        unsafe { from.copy_to(0..from.len(), local.as_mut_ptr().cast()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_copy_what_the_iterator_gives() {
        let data: Vec<i32> = (0..200).collect();
        for (shape, strides) in [
            (vec![5, 7], vec![7, 1]),
            (vec![7, 5], vec![1, 7]),
            (vec![3, 4, 2], vec![40, 3, 20]),
            (vec![4, 3], vec![0, 1]),
            (vec![], vec![]),
            (vec![2, 0, 3], vec![1, 1, 1]),
        ] {
            let view = Strided::new(&data, &shape, &strides).unwrap();
            let expected: Vec<i32> = view.iter().collect();
            for start in 0..=view.len() {
                let mut out = vec![-1; view.len() - start];
                // SAFETY: `out` has room.
                unsafe { view.copy_to(start..view.len(), out.as_mut_ptr().cast()) };
                assert_eq!(out, expected[start..], "{shape:?} {strides:?} from {start}");
            }
        }
    }

    #[test]
    fn a_view_beyond_its_data_is_refused() {
        let data = [0u8; 10];
        assert!(Strided::new(&data, &[2, 5], &[5, 1]).is_ok());
        assert!(Strided::new(&data, &[2, 5], &[6, 1]).is_err());
        assert!(Strided::new(&data, &[2], &[1, 1]).is_err());
        assert!(Strided::new(&data, &[usize::MAX, 2], &[1, 1]).is_err());
        assert!(Strided::new(&data, &[2], &[usize::MAX]).is_err());
        assert!(Strided::new(&data, &[0, usize::MAX], &[usize::MAX, 1]).is_ok());
    }
}
