//! Collectives: what they mean, what ranks must agree on, and which algorithm runs.
//!
//! Called by users through the handle, or through the group for private memory. Every collective publishes a
//! signature (operation, element type, reduce operation, root, algorithm, memory, bytes); disagreement is the
//! same `Mismatch` on every rank before a byte changes. A rank whose own part of a call cannot be (a length,
//! a root, memory that is borrowed) does not stay away: it refuses the call (`HostParts::told`), has
//! its own error, and all others get [`Error::Rank`] with its words. The exception are small messages of
//! symmetric memory that go one way, to or from a root: a rank that need not hear from all (in a broadcast:
//! from the root alone) may have returned, with the root's bytes, before it could know that another rank
//! disagreed. Then its next operation gives the `Mismatch` instead of running; nobody misses an epoch. A
//! rank's memory is borrowed for the length of the call. A collective that fails between the two meetings of
//! [`direct`] poisons the memory; the other algorithms change nothing before their one meeting.
//!
//! An operation is written once, over [`Peers`]; the algorithms, one file each, say where these are found.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

mod call;
mod columns;
mod counted;
pub(crate) mod device;
mod direct;
pub(crate) mod erased;
mod experts;
mod fused;
mod low_contention;
mod movement;
mod peers;
mod pipelined;
mod private;
mod pull;
mod push;
mod reduction;
mod rooted;
mod scan;
mod staged;
mod started;
mod statement;
mod strided;
mod symmetric;
mod two_shot;
mod variable;

use crate::group::{Group, Running};
use crate::memory::SymmetricMemory;
use crate::numeric::{Element, ReduceOp};
use crate::operation::{Algorithm, Op};
use crate::sys::copy;
use crate::tuning::Choices;
use crate::{Error, Result};

use self::call::CollectiveCall;
pub use self::fused::{BytesMatrix, MatrixView, Side};
use self::peers::Peers;
use self::push::Parcels;
pub use self::started::Starter;
pub use self::strided::Strided;
pub use self::symmetric::Symmetric;
pub use self::variable::Received;

impl<T: Element> SymmetricMemory<T> {
    fn call(&self, op: Op, root: usize, reduce: Option<ReduceOp>) -> CollectiveCall {
        let shape = self.group().shape;
        CollectiveCall { op, root, dtype: T::DTYPE, reduce, bytes: self.len() * size_of::<T>(), shape }
    }

    /// Runs `work`, which only reads everybody's elements.
    fn read_all(&self, call: &CollectiveCall, work: impl FnOnce(&Peers<T>)) -> Result<()> {
        let _borrow = self.parts.told(call.op, self.local())?;
        self.run(call, work)
    }

    /// Runs `work` by the algorithm that the group has agreed on, or that this handle must have. This rank's
    /// memory is borrowed.
    #[inline]
    fn run(&self, call: &CollectiveCall, work: impl FnOnce(&Peers<T>)) -> Result<()> {
        let algorithm = match call.op.row().and_then(|row| row.tuned) {
            Some(collective) => self.parts.told(call.op, self.algorithm(collective))?,
            None => Algorithm::Direct,
        };
        tracing::trace!(op = call.op.name(), %algorithm, bytes = call.bytes, "collective");
        self.parts.operate(call.op, None, |running| {
            self.carry(call, (self.len(), call.bytes), algorithm, running, work)
        })
    }

    /// Everybody has `len` elements there, of which this rank gives `given` bytes.
    #[inline(always)]
    fn carry(
        &self,
        call: &CollectiveCall,
        (len, given): (usize, usize),
        algorithm: Algorithm,
        running: &Running<'_>,
        work: impl FnOnce(&Peers<T>),
    ) -> Result<()> {
        let signature = call.signature(algorithm, self.parts.number());
        let (inner, me) = (running.inner(), self.rank());
        let own = self.own_address();
        // SAFETY: there is room for as many bytes as the call has.
        let fill = |to: *mut u8| unsafe { copy::write(own, to, given) };
        match algorithm {
            Algorithm::Push => {
                let mut parcels = Parcels::new();
                self.parts.seal(push::exchange(running, call, signature, &mut parcels, fill))?;
                let parcels = parcels.addresses();
                let address = |rank| if rank == me { own } else { parcels[rank] };
                // SAFETY: the parcels are on the stack and hold the call's bytes.
                work(&unsafe { Peers::new(inner, len, false, address) });
                Ok(())
            }
            Algorithm::Staged => {
                let epoch = self.parts.seal(staged::exchange(running, call, signature, |_, to| fill(to)))?;
                let address = |rank| if rank == me { own } else { inner.map(rank).staging(epoch) };
                // SAFETY: staging holds the call's bytes, and this rank announces nothing before `work` is
                // done.
                work(&unsafe { Peers::new(inner, len, false, address) });
                Ok(())
            }
            _ => direct::run(self, len, running, signature, work),
        }
    }

    fn own_address(&self) -> *mut u8 {
        // The handle's own range is within the allocation.
        self.element_address(self.rank(), self.offset(), self.len()).unwrap_or_default()
    }
}

impl Group {
    /// What the ranks agreed on: it decides on the algorithms of collectives.
    #[inline]
    pub(crate) fn choices(&self) -> &Choices {
        &self.inner.choices
    }
}

fn check_len(op: Op, what: &str, len: usize, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    Err(Error::invalid(op.name(), format!("the {what} has {len} elements, but {expected} are needed")))
}
