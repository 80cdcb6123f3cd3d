//! Products and then reduce-scatter.
//!
//! A rank makes what the other ranks get first, those after it before those before it, and announces it; then
//! it makes its own part, while others still make theirs for it. Partial products are f32 in the workspace,
//! which is everybody's symmetric memory; a rank adds up those of all ranks for its part, in rank order, and
//! rounds once.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::{MatrixView, check, multiply, rows_of};
use crate::collective::CollectiveCall;
use crate::group::{Group, Running};
use crate::memory::SymmetricMemory;
use crate::numeric::product::{self, Panels, RawMatrix};
use crate::numeric::{DType, Element, ReduceKernel, ReduceOp};
use crate::operation::{Algorithm, Op, Signature};
use crate::sys::copy::Stores;
use crate::{Error, Result};

/// Sums that are rounded at once: they stay in the first-level cache.
const SUMS: usize = 2048;

/// What is made, and for whom.
struct ScatterPlan<'a, T: Element> {
    op: Op,
    kernel: &'static ReduceKernel,
    way: Algorithm,
    a: MatrixView<'a, T>,
    b: MatrixView<'a, T>,
    /// Of a rank's part.
    rows: usize,
    columns: usize,
}

impl SymmetricMemory<f32> {
    /// Collective. `out` becomes this rank's rows of the reduction (`Sum` or `Avg`) of everybody's product
    /// `a @ b`: the rows are divided among the ranks. For `f32`, `bf16` and `f16`; products and sums are made
    /// in `f32`, the ranks' in rank order, and rounded once.
    ///
    /// The memory is the workspace, of at least as many elements as the product has; it may be used again and
    /// again, and its content is of no meaning afterwards. A rank makes the parts of the others first and its
    /// own last. [`using`](SymmetricMemory::using) [`Algorithm::Direct`] all of it is made and then reduced;
    /// the bits are the same.
    ///
    /// ```
    /// use symmem::{MatrixView, ReduceOp};
    /// symmem::spawn(2, |group| {
    ///     let mut workspace = group.alloc::<f32>(4)?.rendezvous(&group)?;
    ///     let a = [1.0f32, 2.0].map(|value| value + group.rank() as f32); // 2 x 1
    ///     let (a, b) = (MatrixView::new(&a, 2, 1)?, MatrixView::new(&[1.0, 10.0], 1, 2)?);
    ///     let mut out = [0.0; 2];
    ///     workspace.matmul_reduce_scatter(ReduceOp::Sum, a, b, &mut out)?;
    ///     assert_eq!(out, if group.rank() == 0 { [3.0, 30.0] } else { [5.0, 50.0] });
    ///     workspace.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn matmul_reduce_scatter<T: Element>(
        &mut self,
        op: ReduceOp,
        a: MatrixView<'_, T>,
        b: MatrixView<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let group = self.group().shaped(&[a.rows(), b.columns()]);
        self.multiply_and_scatter(&group, Op::MatmulReduceScatter, op, (a, b), out)
    }

    /// Collective. [`SymmetricMemory::matmul_reduce_scatter`] that divides the columns of the product among
    /// the ranks: `out` becomes this rank's columns of all rows.
    ///
    /// ```
    /// use symmem::{MatrixView, ReduceOp};
    /// symmem::spawn(2, |group| {
    ///     let mut workspace = group.alloc::<f32>(4)?.rendezvous(&group)?;
    ///     let (a, b) = (MatrixView::new(&[1.0f32, 2.0], 2, 1)?, MatrixView::new(&[1.0, 10.0], 1, 2)?);
    ///     let mut out = [0.0; 2];
    ///     workspace.matmul_reduce_scatter_columns(ReduceOp::Avg, a, b, &mut out)?;
    ///     assert_eq!(out, if group.rank() == 0 { [1.0, 2.0] } else { [10.0, 20.0] });
    ///     workspace.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn matmul_reduce_scatter_columns<T: Element>(
        &mut self,
        op: ReduceOp,
        a: MatrixView<'_, T>,
        b: MatrixView<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let group = self.group().shaped(&[a.rows(), b.columns()]);
        self.multiply_and_scatter(&group, Op::MatmulReduceScatterColumns, op, (a, b), out)
    }

    /// The shape that `group` says is that of the product.
    pub(super) fn multiply_and_scatter<T: Element>(
        &mut self,
        group: &Group,
        op: Op,
        reduce: ReduceOp,
        (a, b): (MatrixView<'_, T>, MatrixView<'_, T>),
        out: &mut [T],
    ) -> Result<()> {
        let plan = self.parts.told(op, self.plan_scatter(op, reduce, (a, b), out.len()))?;
        let _borrow = self.parts.told(op, self.borrow_exclusive(op.name()))?;
        let bytes = a.rows() * b.columns() * size_of::<T>();
        let call =
            CollectiveCall { dtype: T::DTYPE, bytes, shape: group.shape, ..self.call(op, 0, Some(reduce)) };
        self.parts.told(op, call.check_bytes())?;
        let signature = call.signature(plan.way, self.parts.number());
        tracing::trace!(op = op.name(), algorithm = %plan.way, bytes, "collective");
        self.parts.operate_as(group, op, |running| {
            let epoch = self.sealed_by_meeting(self.make_parts(running, signature, &plan))?;
            let parts = self.parts_of_all(running, epoch, plan.rows * plan.columns)?;
            // SAFETY: all ranks have announced that their parts are made, and nobody writes them until the
            // meeting; each has as many elements as `out`, which is this rank's alone.
            unsafe { plan.reduce(&parts, out) };
            self.sealed_by_meeting(running.meet(signature)).map(drop)
        })
    }

    fn plan_scatter<'a, T: Element>(
        &self,
        op: Op,
        reduce: ReduceOp,
        (a, b): (MatrixView<'a, T>, MatrixView<'a, T>),
        out: usize,
    ) -> Result<ScatterPlan<'a, T>> {
        product::check(op.name(), T::DTYPE)?;
        check(op, matches!(reduce, ReduceOp::Sum | ReduceOp::Avg), || {
            format!("{reduce} of products: there are sum and avg")
        })?;
        let (world, [m, k], n) = (self.world_size(), [a.rows(), a.columns()], b.columns());
        check(op, k == b.rows(), || format!("{m} x {k} elements times {} x {n}", b.rows()))?;
        let (what, divided) = if op == Op::MatmulReduceScatter { ("rows", m) } else { ("columns", n) };
        check(op, divided.is_multiple_of(world), || {
            format!("the {divided} {what} of a product of {m} x {n} cannot be divided among {world} ranks")
        })?;
        let (rows, columns) = if op == Op::MatmulReduceScatter { (m / world, n) } else { (m, n / world) };
        check(op, rows.checked_mul(columns) == Some(out), || {
            format!("the output has {out} elements, but {rows} x {columns} are needed")
        })?;
        check(op, out.checked_mul(world).is_some_and(|whole| whole <= self.len()), || {
            format!("a workspace of {} elements for a product of {m} x {n}", self.len())
        })?;
        let kernel = ReduceKernel::select(DType::F32, reduce)?;
        Ok(ScatterPlan { op, kernel, way: self.way()?, a, b, rows, columns })
    }

    /// Makes every rank's part of this rank's product in the workspace, and hears that all have made this
    /// rank's. The epoch whose notes say where the
    /// workspaces begin.
    fn make_parts<T: Element>(
        &self,
        running: &Running<'_>,
        signature: Signature,
        plan: &ScatterPlan<'_, T>,
    ) -> Result<u64> {
        let (me, world) = (self.rank(), self.world_size());
        let mut maker = PartMaker { memory: self, plan, panels: None };
        if plan.way == Algorithm::Direct {
            (0..world).for_each(|rank| maker.make(rank));
            return running.meet_with(signature, self.offset() as u64);
        }
        // All agree before anybody reads; who is late is waited for when there is nothing else to do.
        let agreed = running.next_epoch()?;
        running.announce(agreed, signature, 0, &[]);
        (1..world).for_each(|step| maker.make((me + step) % world));
        running.hear(agreed, signature, |_| true)?;
        let made = running.next_epoch()?;
        running.announce(made, signature, self.offset() as u64, &[]);
        maker.make(me);
        running.hear(made, signature, |_| true)?;
        Ok(made)
    }

    /// Where every rank's partial product for this rank is.
    fn parts_of_all(&self, running: &Running<'_>, epoch: u64, len: usize) -> Result<Vec<*const u8>> {
        let start = self.rank() * len;
        let address = |rank: usize| {
            let own = rank == self.rank();
            let offset = if own { self.offset() } else { running.note(rank, epoch) as usize };
            let address = offset.checked_add(start).and_then(|at| self.element_address(rank, at, len));
            address.map(<*mut u8>::cast_const).ok_or_else(|| {
                let message = "what it announced about its memory is impossible".to_owned();
                Error::Rank { context: running.context(), rank, message }
            })
        };
        (0..self.world_size()).map(address).collect()
    }
}

/// Makes the parts of this rank's product.
struct PartMaker<'a, T: Element> {
    memory: &'a SymmetricMemory<f32>,
    plan: &'a ScatterPlan<'a, T>,
    /// What the rows are multiplied with, where all parts have the same.
    panels: Option<Panels>,
}

impl<T: Element> PartMaker<'_, T> {
    /// Makes the part of `rank` in the workspace.
    fn make(&mut self, rank: usize) {
        let ScatterPlan { op, a, b, rows, columns, .. } = *self.plan;
        let len = rows * columns;
        let start = self.memory.offset() + rank * len;
        let Some(at) = self.memory.element_address(self.memory.rank(), start, len) else { return };
        let out = RawMatrix { dtype: DType::F32, at, stride: columns };
        let by_rows = op == Op::MatmulReduceScatter;
        if !by_rows {
            self.panels = None;
        }
        let panels = self.panels.get_or_insert_with(|| {
            let b = b.raw().skip(0, if by_rows { 0 } else { rank * columns });
            // SAFETY: these columns of a matrix that is borrowed.
            unsafe { Panels::pack(b, a.columns(), columns) }
        });
        let a = a.raw().skip(if by_rows { rank * rows } else { 0 }, 0);
        // SAFETY: these rows of a matrix that is borrowed; the workspace is borrowed for writing, and peers
        // read this part only once it is announced.
        unsafe { multiply(self.memory.threads(), &[(a, panels)], rows, out) };
    }
}

impl<T: Element> ScatterPlan<'_, T> {
    /// `out` becomes the reduction of `parts`, in this order, rounded once.
    ///
    /// # Safety
    /// Each of `parts` must be valid for reading as many f32 as `out` has elements, which nobody writes.
    unsafe fn reduce(&self, parts: &[*const u8], out: &mut [T]) {
        let mut sums = [0.0f32; SUMS];
        for (index, out) in out.chunks_mut(SUMS).enumerate() {
            let skip = index * SUMS * size_of::<f32>();
            let parts: Vec<_> = parts.iter().map(|part| part.wrapping_add(skip)).collect();
            let to = sums.as_mut_ptr().cast();
            // SAFETY: as many as the parts have from there on, by the caller's duty, and room for them.
            unsafe {
                self.kernel.reduce_to_many(&[to], &parts, out.len(), Stores::Cached);
                product::narrow_row(&sums[..out.len()], rows_of(out, out.len()));
            }
        }
    }
}
