//! Collectives on private memory: nothing needs to be allocated or rendezvoused before.
//!
//! Called by users through the group. They copy through the group's staging, so they suit what is small, or
//! what lies where it lies; symmetric memory saves the copy. Every one hears from all ranks before it changes
//! a byte, also those with a root: ranks that disagree all get the same `Mismatch`. A rank whose own
//! arguments cannot be refuses the call: it is told what is wrong with them, and so are the others, at once.
//!
//! An operation is written once, as [`Pieces`](super::pipelined::Pieces): reductions in [`reduction`], what
//! only moves elements in [`movement`], by what goes from whom to whom ([`traffic`]).

mod movement;
mod reduction;
mod splits;
mod traffic;

pub(super) use self::traffic::Pattern;
use super::CollectiveCall;
use super::pipelined::{self, Pieces};
use super::push;
use crate::Result;
use crate::group::{Group, Running};
use crate::operation::{Algorithm, Collective, Signature};
use crate::sync::control::staging_bytes;

/// Elements that large pieces are made of: no two ranks write into one cache line.
const LINE: usize = 64;

/// A collective on private memory that has begun.
pub(super) struct Private<'a> {
    running: Running<'a>,
    call: CollectiveCall,
    signature: Signature,
    algorithm: Algorithm,
}

impl Group {
    /// Begins `call`; `arguments` is what was made of this rank's, or what is wrong with them.
    pub(super) fn begin_private<A>(
        &self,
        call: CollectiveCall,
        arguments: Result<A>,
    ) -> Result<(Private<'_>, A)> {
        let running = self.begin(call.op, None)?;
        running.check_local()?;
        Private::new(running, call, arguments)
    }
}

impl<'a> Private<'a> {
    fn new<A>(running: Running<'a>, call: CollectiveCall, arguments: Result<A>) -> Result<(Self, A)> {
        let algorithm = match running.group().choices().of(Collective::Private, call.bytes) {
            Algorithm::Pull if !(call.can_be_pulled() && running.inner().reading.is_open()) => {
                Algorithm::Pipelined
            }
            algorithm => algorithm,
        };
        running.guarded(|| {
            tracing::trace!(op = call.op.name(), %algorithm, bytes = call.bytes, "collective");
        });
        match arguments.and_then(|arguments| call.check_bytes().map(|()| arguments)) {
            Ok(arguments) => {
                let signature = call.signature(algorithm, 0);
                Ok((Self { running, call, signature, algorithm }, arguments))
            }
            Err(wrong) => Err(running.guarded(|| running.refuse(wrong))),
        }
    }

    /// This rank and the number of ranks.
    pub(super) fn ranks(&self) -> (usize, usize) {
        let inner = self.running.inner();
        (inner.rank, inner.world)
    }

    fn is_pushed(&self) -> bool {
        self.algorithm == Algorithm::Push
    }

    /// Elements of `size` bytes in each of the `parts` of what a rank lays out at once; whole lines of a
    /// large one.
    pub(super) fn room(&self, parts: usize, size: usize) -> usize {
        let bytes = if self.is_pushed() { self.call.bytes } else { staging_bytes(self.ranks().1) };
        let part = (bytes / size / parts).max(1);
        if self.is_pushed() || part < LINE { part } else { part / LINE * LINE }
    }

    pub(super) fn carry(&self, pieces: &mut impl Pieces) -> Result<()> {
        self.running.guarded(|| match self.is_pushed() {
            true => push::run(&self.running, &self.call, self.signature, pieces),
            false => pipelined::run(&self.running, &self.call, self.signature, pieces),
        })
    }
}
