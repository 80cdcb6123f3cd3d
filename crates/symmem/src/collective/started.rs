//! Started forms of the collectives: they return at once, and a helper thread of the rank carries them.
//!
//! Called by users through [`Starter`]. Each is its blocking form, run on the helper thread with the terms of
//! the handle it was started on; what differs is that the memory is borrowed from the start to the end of the
//! operation, and that buffers are given away and come back with the result. So they are rows of a table
//! (`started_forms`), but for those without such a buffer.

use crate::Result;
use crate::group::{Group, Pending};
use crate::memory::{Hold, SymmetricMemory};
use crate::numeric::{Element, ReduceOp};
use crate::operation::Op;

/// Starts collectives: on symmetric memory ([`SymmetricMemory::start`]) or on private memory
/// ([`Group::start`]). Its methods have the names, arguments and meaning of the blocking ones, but that
/// buffers are given away: the one with the result comes back, and is lost if there is an error.
///
/// They return at once with a [`Pending`], to be tested, waited for or awaited. A helper thread of this rank
/// carries them in the order they were started, which must be the same on all ranks, as for blocking calls.
/// Until the last one has ended, blocking operations of this rank on the same group give
/// [`Error::Busy`](crate::Error::Busy), for their place among the started ones would be undefined;
/// [`Group::try_clone`] gives a group for them.
///
/// From the start until it has ended a collective in place borrows symmetric memory for writing, so that
/// `local` and `local_mut` fail, and one with an output borrows it for reading, so that `local_mut` fails.
/// That outlives the call, so it is no borrow that the compiler knows, and no method needs the handle `mut`.
/// What is wrong comes with the result, also [`Error::Borrowed`](crate::Error::Borrowed) for memory that was
/// borrowed at the start: the other ranks are told of it in its turn.
///
/// ```
/// use symmem::ReduceOp;
/// symmem::spawn(2, |group| {
///     let mut mem = group.alloc::<f32>(1000)?.rendezvous(&group)?;
///     mem.fill(1.5)?;
///     let pending = mem.start().all_reduce(ReduceOp::Sum)?;
///     if !pending.test() {
///         // ... compute something else ...
///     }
///     pending.wait()?;
///     assert_eq!(mem.local()?[999], 3.0);
///     mem.close()
/// })?;
/// # Ok::<(), symmem::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is started before one of its methods is called"]
pub struct Starter<'a, H>(&'a H);

/// Writes a started form for each row: its name, its arguments and the buffer that comes back; its operation,
/// and what the blocking form of that name gets before the buffer.
macro_rules! started_forms {
    ($of:literal: $($(#[$more:meta])* $name:ident$(<$T:ident>)?($($argument:ident: $kind:ty),*; $buffer:ident)
        = $op:ident($($given:expr),*);)*) => {$(
        #[doc = concat!("Collective, started. [`", $of, stringify!($name), "`]; `", stringify!($buffer),
            "` comes back as the result.")]
        $(#[$more])*
        pub fn $name$(<$T: Element>)?(&self, $($argument: $kind,)* $buffer: Vec<T>) -> Result<Pending<Vec<T>>> {
            self.fill(Op::$op, $buffer, move |on, buffer| on.$name($($given,)* buffer))
        }
    )*};
}

impl<T: Element> SymmetricMemory<T> {
    /// Local. Starts collectives on this memory.
    pub fn start(&self) -> Starter<'_, Self> {
        Starter(self)
    }
}

impl<T: Element> Starter<'_, SymmetricMemory<T>> {
    /// Collective, started. [`SymmetricMemory::all_reduce`].
    pub fn all_reduce(&self, op: ReduceOp) -> Result<Pending<()>> {
        self.in_place(Op::AllReduce, move |memory| memory.all_reduce_held(op))
    }

    /// Collective, started. [`SymmetricMemory::broadcast`].
    pub fn broadcast(&self, root: usize) -> Result<Pending<()>> {
        self.in_place(Op::BroadcastMemory, move |memory| memory.broadcast_held(root))
    }

    started_forms! { "SymmetricMemory::":
        all_reduce_out(op: ReduceOp; out) = AllReduceOut(op);
        reduce(op: ReduceOp, root: usize; out) = Reduce(op, root);
        reduce_scatter(op: ReduceOp; out) = ReduceScatter(op);
        /// ```
        /// symmem::spawn(3, |group| {
        ///     let mut mem = group.alloc::<u8>(2)?.rendezvous(&group)?;
        ///     mem.fill(group.rank() as u8)?;
        ///     let pending = mem.start().all_gather(vec![0; 6])?;
        ///     assert_eq!(pending.wait()?, [0, 0, 1, 1, 2, 2]);
        ///     mem.close()
        /// })?;
        /// # Ok::<(), symmem::Error>(())
        /// ```
        all_gather(; out) = AllGatherMemory();
        all_to_all(; out) = AllToAll();
        scan(op: ReduceOp; out) = Scan(op);
        exclusive_scan(op: ReduceOp; out) = ExclusiveScan(op);
        all_gather_v(counts: Vec<usize>; out) = AllGatherV(&counts);
        gather_v(root: usize, counts: Vec<usize>; out) = GatherV(root, &counts);
        scatter_v(root: usize, counts: Vec<usize>; out) = ScatterV(root, &counts);
    }

    /// Starts `work`, which writes this rank's memory and does not borrow it.
    pub(super) fn in_place<R: Send + 'static>(
        &self,
        op: Op,
        work: impl FnOnce(&SymmetricMemory<T>) -> Result<R> + Send + 'static,
    ) -> Result<Pending<R>> {
        let hold = Hold::exclusive(self.0.block(), op.name());
        let memory = self.0.for_helper();
        self.0.group().enqueue(op, move || {
            // As the blocking form does when it borrows: what was started before may have failed.
            let sound = hold.and_then(|hold| hold.check(op.name()).map(|()| hold));
            let hold = memory.parts.told(op, sound)?;
            hold.guarded(|| work(&memory))
        })
    }

    /// Starts `work`, which reads this rank's memory and fills `out`.
    pub(super) fn fill<B: Send + 'static>(
        &self,
        op: Op,
        mut out: B,
        work: impl FnOnce(&SymmetricMemory<T>, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Pending<B>> {
        let hold = Hold::shared(self.0.block(), op.name());
        let memory = self.0.for_helper();
        self.0.group().enqueue(op, move || {
            let hold = memory.parts.told(op, hold)?;
            hold.guarded(|| work(&memory, &mut out))?;
            Ok(out)
        })
    }
}

impl Group {
    /// Local. Starts collectives of this group on private memory.
    pub fn start(&self) -> Starter<'_, Self> {
        Starter(self)
    }
}

impl Starter<'_, Group> {
    started_forms! { "Group::":
        all_reduce<T>(op: ReduceOp; data) = PrivateAllReduce(op);
        reduce<T>(op: ReduceOp, root: usize; data) = PrivateReduce(op, root);
        reduce_scatter<T>(op: ReduceOp, input: Vec<T>; out) = PrivateReduceScatter(op, &input);
        /// ```
        /// symmem::spawn(2, |group| {
        ///     let pending = group.start().all_gather_into(vec![group.rank() as u8; 3], vec![0; 6])?;
        ///     assert_eq!(pending.wait()?, [0, 0, 0, 1, 1, 1]);
        ///     Ok(())
        /// })?;
        /// # Ok::<(), symmem::Error>(())
        /// ```
        all_gather_into<T>(input: Vec<T>; out) = PrivateAllGather(&input);
        broadcast_into<T>(root: usize; data) = PrivateBroadcast(root);
        all_to_all<T>(input: Vec<T>; out) = PrivateAllToAll(&input);
        scan<T>(op: ReduceOp, input: Vec<T>; out) = PrivateScan(op, &input);
        exclusive_scan<T>(op: ReduceOp, input: Vec<T>; out) = PrivateExclusiveScan(op, &input);
        all_gather_v<T>(input: Vec<T>, counts: Vec<usize>; out) = PrivateAllGatherV(&input, &counts);
        gather_v<T>(root: usize, input: Vec<T>, counts: Vec<usize>; out)
            = PrivateGatherV(root, &input, &counts);
        scatter_v<T>(root: usize, input: Vec<T>, counts: Vec<usize>; out)
            = PrivateScatterV(root, &input, &counts);
    }

    /// Collective, started. [`Group::barrier`]: it ends once every rank has started it, and all that was
    /// started before has ended.
    pub fn barrier(&self) -> Result<Pending<()>> {
        self.fill(Op::Barrier, (), |group, ()| group.barrier())
    }

    /// Collective, started. [`Group::refuse`] in place of a started collective, in its turn.
    pub fn refuse(&self, words: &str) -> Result<Pending<()>> {
        let words = words.to_owned();
        self.fill(Op::Refusal, (), move |group, ()| group.refuse(&words))
    }

    /// Starts `work`, which fills `out`.
    pub(super) fn fill<B: Send + 'static>(
        &self,
        op: Op,
        mut out: B,
        work: impl FnOnce(&Group, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Pending<B>> {
        let group = self.0.for_helper();
        self.0.enqueue(op, move || {
            work(&group, &mut out)?;
            Ok(out)
        })
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
            let mem = group.alloc::<u8>(10)?.rendezvous(&group)?;
            let pending = match group.rank() {
                0 => {
                    let hold = Hold::exclusive(mem.block(), "panic")?;
                    group.enqueue::<()>(Op::AllReduce, move || hold.guarded(|| panic!("on purpose")))?
                }
                _ => mem.start().all_reduce(ReduceOp::Sum)?,
            };
            let next = group.start().barrier()?;
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
