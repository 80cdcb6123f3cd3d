//! Parts of symmetric memory that are reduced again and again: cut and typed once, looked up from then on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use symmem::cuda::{Form, Stream, SymmetricMemory};
use symmem::erased::Call;
use symmem::{DType, ReduceOp, Result};

use super::reduced::{Choice, Reduced, ReducedElements};

/// Parts that are remembered. More than models have tensors; fewer than would be felt.
const MOST: usize = 4096;

/// The bytes of symmetric memory, and the parts of it that were reduced so far.
#[derive(Debug)]
pub(crate) struct ReducedParts {
    pub(crate) memory: SymmetricMemory<u8>,
    known: Mutex<HashMap<ReducedPart, Arc<Reduced>>>,
}

/// A part, and how it is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReducedPart {
    /// Bytes into the memory.
    start: usize,
    /// Elements.
    len: usize,
    dtype: DType,
    form: Form,
    choice: Choice,
}

/// Elements of an allocation: first byte in it, number, type.
pub(crate) type Range = (usize, usize, DType);

impl ReducedParts {
    pub(crate) fn new(memory: SymmetricMemory<u8>) -> Self {
        Self { memory, known: Mutex::default() }
    }

    /// Whether all of `range` is in this memory.
    #[inline]
    pub(crate) fn hold(&self, (start, len, dtype): Range) -> bool {
        let end = len.checked_mul(dtype.size()).and_then(|bytes| bytes.checked_add(start));
        let offset = self.memory.offset();
        start >= offset && end.is_some_and(|end| end <= offset + self.memory.len())
    }

    /// Reduces `range`, which this memory holds.
    ///
    /// # Safety
    /// As for [`Reduced::all_reduce`].
    #[inline]
    pub(crate) unsafe fn all_reduce(
        &self,
        (start, len, dtype): Range,
        op: ReduceOp,
        elements: ReducedElements,
        choice: Choice,
        stream: &Stream,
    ) -> Result<()> {
        let start = start - self.memory.offset();
        let reduced = self.part(ReducedPart { start, len, dtype, form: elements.form(), choice })?;
        // SAFETY: as the caller promises.
        unsafe { reduced.all_reduce(op, elements, stream) }
    }

    /// Another collective of `range`, which this memory holds, of a type that devices reduce.
    ///
    /// # Safety
    /// As for [`Reduced::run`].
    #[inline]
    pub(crate) unsafe fn run(
        &self,
        (start, len, dtype): Range,
        call: Call<'_>,
        out: Option<(u64, usize)>,
        stream: &Stream,
    ) -> Result<()> {
        let start = start - self.memory.offset();
        let part = ReducedPart { start, len, dtype, form: Form::Out, choice: Choice::Table };
        // SAFETY: as the caller promises.
        unsafe { self.part(part)?.run(call, out, stream) }
    }

    #[inline]
    fn part(&self, part: ReducedPart) -> Result<Arc<Reduced>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&part) {
            return Ok(Arc::clone(known));
        }
        let end = part.start + part.len * part.dtype.size();
        let slice = self.memory.slice(part.start..end)?;
        let reduced = Arc::new(Reduced::new(&slice, part.dtype, part.form, part.choice)?);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(part, Arc::clone(&reduced));
        Ok(reduced)
    }
}
