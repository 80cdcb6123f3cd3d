//! Reduce-scatter along the last dimension: every rank gets some columns of the reduction.
//!
//! Called by users through the handle. A rank's part of a row is contiguous, so wide parts are reduced row by
//! row, straight from everybody's memory. Narrow ones would spend their time in calls of the kernel: they are
//! packed into a block that stays in the cache, many rows at once, and reduced together. Both give the same
//! bits, for the kernel works element by element.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use std::mem::MaybeUninit;

use super::check_len;
use super::rooted::check_even;
use super::statement::RankStatements;
use crate::memory::SymmetricMemory;
use crate::numeric::{Element, ReduceKernel, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// Parts of a row of at least this many bytes are not packed.
const WIDE: usize = 512;
/// Bytes of the block: a half of the smallest first-level cache, so that the output's part fits beside it.
const BLOCK: usize = 16 * 1024;

/// A rank's columns.
struct ColumnPart {
    rank: usize,
    world: usize,
    rows: usize,
    /// Bytes of an element, of a whole row, and of this rank's part of it.
    element: usize,
    row: usize,
    width: usize,
}

impl<T: Element> SymmetricMemory<T> {
    /// Collective. The memory is a matrix of `columns` columns, row after row, and the columns are divided
    /// among the ranks; `out` becomes the reduction of everybody's matrix in this rank's columns, row after
    /// row.
    ///
    /// ```
    /// use symmem::ReduceOp;
    /// symmem::spawn(2, |group| {
    ///     let mut mem = group.alloc::<i32>(6)?.rendezvous(&group)?;
    ///     mem.local_mut()?.copy_from_slice(&[1, 2, 3, 4, 5, 6]); // three rows of two
    ///     let mut out = [0; 3];
    ///     mem.reduce_scatter_columns(ReduceOp::Sum, 2, &mut out)?;
    ///     assert_eq!(out, if group.rank() == 0 { [2, 6, 10] } else { [4, 8, 12] });
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn reduce_scatter_columns(&self, op: ReduceOp, columns: usize, out: &mut [T]) -> Result<()> {
        const OP: Op = Op::ReduceScatterColumns;
        let (len, world) = (self.len(), self.world_size());
        let rows = check_columns(len, columns, world, out.len());
        let kernel =
            self.parts.told(OP, rows.and_then(|rows| Ok((rows, ReduceKernel::select(T::DTYPE, op)?))));
        let (rows, kernel) = kernel?;
        let (call, terms) = (self.call(OP, 0, Some(op)), [("columns", columns)]);
        self.state_and_read(
            call,
            &terms,
            Ok(Vec::new()),
            |_| Ok(()),
            |said, ()| {
                if rows == 0 {
                    return;
                }
                let part = ColumnPart::new(self.rank(), world, rows, columns, size_of::<T>());
                // SAFETY: `said` has everybody's matrix of `rows` rows, which nobody writes until the next
                // meeting; `out` has room for this rank's part of it, as was checked first.
                unsafe { part.reduce(kernel, said, out.as_mut_ptr().cast()) };
            },
        )
    }
}

/// Rows of a matrix of `len` elements in `columns` columns, whose part for each of `world` ranks has `out`
/// elements.
fn check_columns(len: usize, columns: usize, world: usize, out: usize) -> Result<usize> {
    const OP: Op = Op::ReduceScatterColumns;
    if !len.is_multiple_of(columns) {
        return Err(Error::invalid(
            OP.name(),
            format!("{len} elements are not divisible by {columns} columns"),
        ));
    }
    let (rows, width) = (len.checked_div(columns).unwrap_or(0), check_even(OP, columns, world)?);
    check_len(OP, "output", out, rows * width).map(|()| rows)
}

impl ColumnPart {
    /// The part of `rank` in a matrix of `rows` by `columns` elements that is in memory.
    fn new(rank: usize, world: usize, rows: usize, columns: usize, element: usize) -> Self {
        // All of a matrix is one row of it.
        let (rows, columns) = if world == 1 { (1, rows * columns) } else { (rows, columns) };
        Self { rank, world, rows, element, row: columns * element, width: columns / world * element }
    }

    /// # Safety
    /// `said` must have the addresses of matrices of this shape that nobody writes, `out` be valid for
    /// `rows * width` bytes that nobody else accesses.
    unsafe fn reduce<T: Element>(&self, kernel: &ReduceKernel, said: &RankStatements<'_, T>, out: *mut u8) {
        // This rank's part of everybody's first row.
        let parts = (0..self.world).map(|rank| said.address(rank).wrapping_add(self.rank * self.width));
        let parts: Vec<*const u8> = parts.collect();
        let mut sources = parts.clone();
        let packed = self.rows_packed();
        let mut block = [MaybeUninit::<u8>::uninit(); BLOCK];
        let block: *mut u8 = block.as_mut_ptr().cast();
        for first in (0..self.rows).step_by(packed) {
            let rows = packed.min(self.rows - first);
            // SAFETY: the rows are of everybody's matrix and of the output. The block has room for what all
            // ranks but the first have in them, and the first one's goes to where the result comes: that is
            // allowed to be a source.
            unsafe {
                let out = out.add(first * self.width);
                let slot = |rank| if rank == 0 { out } else { block.add((rank - 1) * packed * self.width) };
                for (rank, part) in parts.iter().enumerate() {
                    let from = part.add(first * self.row);
                    sources[rank] = if packed == 1 { from } else { self.pack(from, rows, slot(rank)) };
                }
                kernel.reduce(out, &sources, rows * self.width / self.element);
            }
        }
    }

    /// Rows that are packed together; 1 for none.
    fn rows_packed(&self) -> usize {
        if self.width >= WIDE || self.world == 1 {
            return 1;
        }
        (BLOCK / (self.width * (self.world - 1))).max(1)
    }

    /// Packs this rank's part of `rows` rows from `from` on, and returns where it is now.
    ///
    /// # Safety
    /// `from` must be valid for reading that many rows, `to` for writing their parts; they must not overlap.
    unsafe fn pack(&self, from: *const u8, rows: usize, to: *mut u8) -> *const u8 {
        // SAFETY: the caller's duty.
        unsafe {
            match self.width {
                1 => self.pack_words::<u8>(from, rows, to.cast()),
                2 => self.pack_words::<u16>(from, rows, to.cast()),
                4 => self.pack_words::<u32>(from, rows, to.cast()),
                8 => self.pack_words::<u64>(from, rows, to.cast()),
                16 => self.pack_words::<u128>(from, rows, to.cast()),
                width => (0..rows).for_each(|row| {
                    from.add(row * self.row).copy_to_nonoverlapping(to.add(row * width), width);
                }),
            }
        }
        to
    }

    /// [`ColumnPart::pack`] for parts that are one word: without it, choosing how to copy takes longer than
    /// copying.
    ///
    /// # Safety
    /// As for [`ColumnPart::pack`].
    unsafe fn pack_words<W: Copy>(&self, from: *const u8, rows: usize, to: *mut W) {
        for row in 0..rows {
            // SAFETY: the caller's duty.
            unsafe { to.add(row).write_unaligned(from.add(row * self.row).cast::<W>().read_unaligned()) };
        }
    }
}
