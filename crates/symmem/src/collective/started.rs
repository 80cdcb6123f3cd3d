//! Started forms of the collectives: they return at once, and a helper thread of the rank carries them.
//!
//! Called by users through the handle, or through the group for private memory. Each is its blocking form,
//! run on the helper thread with the terms of the handle it was started on; what differs is that the memory
//! is borrowed from the start to the end of the operation, and that buffers are given away and come back with
//! the result.

use crate::Result;
use crate::group::{Group, Pending};
use crate::memory::{Hold, SymmetricMemory};
use crate::numeric::{Element, ReduceOp};
use crate::operation::Op;

/// # Started collectives
///
/// They return at once with a [`Pending`], to be tested, waited for or awaited. A helper thread of this rank
/// carries them in the order they were started, which must be the same on all ranks, as for blocking calls.
/// Until the last one has ended, blocking operations of this rank on the same group give
/// [`Error::Busy`](crate::Error::Busy), for their place among the started ones would be undefined;
/// [`Group::try_clone`] gives a group for them.
///
/// From the start until it has ended a collective in place borrows the memory for writing, so that `local`
/// and `local_mut` fail, and one with an output borrows it for reading, so that `local_mut` fails. What is
/// wrong comes with the result, also [`Error::Borrowed`](crate::Error::Borrowed) for memory that was borrowed
/// at the start: the other ranks are told of it in its turn. The output buffer comes back with the result,
/// and is lost if there is an error.
impl<T: Element> SymmetricMemory<T> {
    /// Collective, started. [`SymmetricMemory::all_reduce`].
    ///
    /// ```
    /// use symmem::{Error, ReduceOp};
    /// symmem::spawn(2, |group| {
    ///     let mut mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
    ///     mem.fill(1.5)?;
    ///     let pending = mem.all_reduce_start(ReduceOp::Sum)?;
    ///     if !pending.test() {
    ///         // ... compute something else ...
    ///     }
    ///     pending.wait()?;
    ///     assert_eq!(mem.local()?[999], 3.0);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_reduce_start(&mut self, op: ReduceOp) -> Result<Pending<()>> {
        self.start_in_place(Op::AllReduce, move |memory| memory.all_reduce_held(op))
    }

    /// Collective, started. [`SymmetricMemory::broadcast`].
    pub fn broadcast_start(&mut self, root: usize) -> Result<Pending<()>> {
        self.start_in_place(Op::BroadcastMemory, move |memory| memory.broadcast_held(root))
    }

    /// Collective, started. [`SymmetricMemory::all_reduce_out`] with a buffer that comes back as the result.
    pub fn all_reduce_out_start(&self, op: ReduceOp, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_reading(Op::AllReduceOut, out, move |memory, out| memory.all_reduce_out(op, out))
    }

    /// Collective, started. [`SymmetricMemory::reduce`] with a buffer that comes back as the result.
    pub fn reduce_start(&self, op: ReduceOp, root: usize, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_reading(Op::Reduce, out, move |memory, out| memory.reduce(op, root, out))
    }

    /// Collective, started. [`SymmetricMemory::reduce_scatter`] with a buffer that comes back as the result.
    pub fn reduce_scatter_start(&self, op: ReduceOp, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_reading(Op::ReduceScatter, out, move |memory, out| memory.reduce_scatter(op, out))
    }

    /// Collective, started. [`SymmetricMemory::all_gather`] with a buffer that comes back as the result.
    ///
    /// ```
    /// symmem::spawn(3, |group| {
    ///     let mut mem = group.alloc::<u8>(2)?.rendezvous(&group)?;
    ///     mem.fill(group.rank() as u8)?;
    ///     let pending = mem.all_gather_start(vec![0; 6])?;
    ///     assert_eq!(pending.wait()?, [0, 0, 1, 1, 2, 2]);
    ///     mem.close()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_start(&self, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_reading(Op::AllGatherMemory, out, |memory, out| memory.all_gather(out))
    }

    /// Collective, started. [`SymmetricMemory::all_to_all`] with a buffer that comes back as the result.
    pub fn all_to_all_start(&self, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_reading(Op::AllToAll, out, |memory, out| memory.all_to_all(out))
    }

    /// Starts `work`, which writes this rank's memory and does not borrow it.
    pub(super) fn start_in_place<R: Send + 'static>(
        &self,
        op: Op,
        work: impl FnOnce(&Self) -> Result<R> + Send + 'static,
    ) -> Result<Pending<R>> {
        let hold = Hold::exclusive(self.block(), op.name());
        let memory = self.for_helper();
        self.group().enqueue(op, move || {
            // As the blocking form does when it borrows: what was started before may have failed.
            let sound = hold.and_then(|hold| hold.check(op.name()).map(|()| hold));
            let hold = memory.told(op, sound)?;
            hold.guarded(|| work(&memory))
        })
    }

    /// Starts `work`, which reads this rank's memory and fills `out`.
    pub(super) fn start_reading<B: Send + 'static>(
        &self,
        op: Op,
        mut out: B,
        work: impl FnOnce(&Self, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Pending<B>> {
        let hold = Hold::shared(self.block(), op.name());
        let memory = self.for_helper();
        self.group().enqueue(op, move || {
            let hold = memory.told(op, hold)?;
            hold.guarded(|| work(&memory, &mut out))?;
            Ok(out)
        })
    }
}

impl Group {
    /// Collective, started. [`Group::all_reduce`] of a buffer that comes back as the result; see [`Pending`].
    ///
    /// Started operations of a group run in the order they were started, which must be the same on all ranks.
    /// Until the last one has ended, blocking operations of this rank on the group give
    /// [`Error::Busy`](crate::Error::Busy).
    pub fn all_reduce_start<T: Element>(&self, op: ReduceOp, data: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_private(Op::PrivateAllReduce, data, move |group, data| group.all_reduce(op, data))
    }

    /// Collective, started. [`Group::reduce`] of a buffer that comes back as the result.
    pub fn reduce_start<T: Element>(
        &self,
        op: ReduceOp,
        root: usize,
        data: Vec<T>,
    ) -> Result<Pending<Vec<T>>> {
        self.start_private(Op::PrivateReduce, data, move |group, data| group.reduce(op, root, data))
    }

    /// Collective, started. [`Group::reduce_scatter`] of `input`, with a buffer that comes back as the
    /// result.
    pub fn reduce_scatter_start<T: Element>(
        &self,
        op: ReduceOp,
        input: Vec<T>,
        out: Vec<T>,
    ) -> Result<Pending<Vec<T>>> {
        let work = move |group: &Group, out: &mut Vec<T>| group.reduce_scatter(op, &input, out);
        self.start_private(Op::PrivateReduceScatter, out, work)
    }

    /// Collective, started. [`Group::all_gather_into`] of `input`, with a buffer that comes back as the
    /// result.
    ///
    /// ```
    /// symmem::spawn(2, |group| {
    ///     let pending = group.all_gather_into_start(vec![group.rank() as u8; 3], vec![0; 6])?;
    ///     assert_eq!(pending.wait()?, [0, 0, 0, 1, 1, 1]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn all_gather_into_start<T: Element>(&self, input: Vec<T>, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        let work = move |group: &Group, out: &mut Vec<T>| group.all_gather_into(&input, out);
        self.start_private(Op::PrivateAllGather, out, work)
    }

    /// Collective, started. [`Group::broadcast_into`] of a buffer that comes back as the result.
    pub fn broadcast_into_start<T: Element>(&self, root: usize, data: Vec<T>) -> Result<Pending<Vec<T>>> {
        self.start_private(Op::PrivateBroadcast, data, move |group, data| group.broadcast_into(root, data))
    }

    /// Collective, started. [`Group::all_to_all`] of `input`, with a buffer that comes back as the result.
    pub fn all_to_all_start<T: Element>(&self, input: Vec<T>, out: Vec<T>) -> Result<Pending<Vec<T>>> {
        let work = move |group: &Group, out: &mut Vec<T>| group.all_to_all(&input, out);
        self.start_private(Op::PrivateAllToAll, out, work)
    }

    /// Starts `work`, which fills `out`.
    pub(super) fn start_private<B: Send + 'static>(
        &self,
        op: Op,
        mut out: B,
        work: impl FnOnce(&Group, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Pending<B>> {
        let group = self.for_helper();
        self.enqueue(op, move || {
            work(&group, &mut out)?;
            Ok(out)
        })
    }

    /// Collective, started. [`Group::barrier`]: it ends once every rank has started it, and all that was
    /// started before has ended.
    pub fn barrier_start(&self) -> Result<Pending<()>> {
        let group = self.for_helper();
        self.enqueue(Op::Barrier, move || group.barrier())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::error::Cause;
    use crate::group::spawn;
    use std::time::Duration;

    #[test]
    fn a_panic_is_the_pendings_error_and_ends_the_group() {
        spawn(2, |group| {
            let group = group.within(Duration::from_secs(30));
            let mut mem = group.alloc::<u8>(10)?.rendezvous(&group)?;
            let pending = match group.rank() {
                0 => {
                    let hold = Hold::exclusive(mem.block(), "panic")?;
                    group.enqueue::<()>(Op::AllReduce, move || hold.guarded(|| panic!("on purpose")))?
                }
                _ => mem.all_reduce_start(ReduceOp::Sum)?,
            };
            let next = group.barrier_start()?;
            let error = pending.wait().unwrap_err();
            assert!(
                matches!(error, Error::GroupFailed { culprit: 0, cause: Cause::Panicked, .. }),
                "{error:?}"
            );
            assert_eq!(error.to_string().contains("on purpose"), group.rank() == 0, "{error}");
            assert!(matches!(next.wait(), Err(Error::GroupFailed { culprit: 0, .. })));
            assert!(matches!(mem.local(), Err(Error::Poisoned { .. })));
            Ok(())
        })
        .unwrap();
    }
}
