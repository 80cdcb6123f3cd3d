//! A rank that cannot make a call that all ranks make tells the others why, instead of staying away.
//!
//! Used by every such call for what is wrong with this rank's own arguments: the rank gets its own error, all
//! others get [`Error::Rank`] with this rank and its words, at once, and the group goes on. What travels is a
//! meeting like any other, with a signature that no call has, so who agrees pays nothing for it. The words
//! are in the staging of the meeting's epoch, which nobody writes again before everybody has announced the
//! next one.

#![allow(unsafe_code, reason = "staging in shared memory")]

use super::{Group, Running};
use crate::operation::{Op, signature};
use crate::sync::control::staging_bytes;
use crate::sync::protocol::arrived;
use crate::sys::copy;
use crate::{Error, Result};

impl Group {
    /// Collective, in place of a collective that this rank cannot make: the others, who do make it, get
    /// [`Error::Rank`] with this rank and its `words` instead of waiting for it, and the group goes on. For
    /// callers who check more than this crate does before they call it.
    ///
    /// An error means that nobody was told: the group has failed, or another operation of this rank is
    /// running. Collectives on memory are errors everywhere on a group of several hosts, and need no refusal
    /// ([`Group::is_local`]).
    ///
    /// ```
    /// use symmem::{Error, ReduceOp};
    /// symmem::spawn(2, |group| {
    ///     if group.rank() == 1 {
    ///         group.refuse("a picture has three channels")?;
    ///     } else {
    ///         let told = group.all_reduce(ReduceOp::Sum, &mut [1.0f32; 8]);
    ///         assert!(matches!(told, Err(Error::Rank { rank: 1, message, .. }) if message.contains("three channels")));
    ///     }
    ///     group.barrier()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn refuse(&self, words: &str) -> Result<()> {
        self.operate(Op::Refusal, None, |running| running.tell(words))
    }
}

impl Running<'_> {
    /// The `arguments` of this rank; what is wrong with them is told to the others, who make the call.
    #[inline]
    pub(crate) fn told<A>(&self, arguments: Result<A>) -> Result<A> {
        match arguments {
            Ok(arguments) => Ok(arguments),
            Err(error) => Err(self.refuse(error)),
        }
    }

    /// Tells the others that this rank cannot make the call because of `error`, in place of its first
    /// meeting. Returns `error`, or what was still to be said about an operation before it.
    #[cold]
    pub(crate) fn refuse(&self, error: Error) -> Error {
        match self.tell(&error.to_string()) {
            // Whatever came of it, what is wrong here comes first.
            Ok(()) => error,
            Err(earlier) => earlier,
        }
    }

    /// Meets the others, once, to tell them these `words`. An error is about what was before: they were not
    /// told.
    fn tell(&self, words: &str) -> Result<()> {
        let inner = self.inner();
        if !inner.is_local() {
            let _ = self.all_gather_in_store(Op::Refusal, 0, 0, words.as_bytes());
            return Ok(());
        }
        let epoch = self.next_epoch()?;
        let len = words.len().min(staging_bytes(inner.world));
        // SAFETY: there is room for that many, and nobody reads this half of the staging before this rank
        // announces.
        unsafe { copy::write(words.as_ptr(), inner.map(inner.rank).staging(epoch), len) };
        let signature = signature(Op::Refusal, 0, 0);
        self.announce(epoch, signature, len as u64, &[]);
        let _ = self.hear(epoch, signature, |_| true);
        Ok(())
    }

    /// The error for a call that some rank refused at `epoch`, once all ranks are there: that of the first
    /// one that did.
    pub(super) fn refused(&self, epoch: u64) -> Option<Error> {
        let (inner, me) = (self.inner(), self.inner().rank);
        let refuses = |rank: usize| arrived(inner, me, rank, epoch) == Some(signature(Op::Refusal, 0, 0));
        let rank = (0..inner.world).filter(|rank| *rank != me).find(|rank| refuses(*rank))?;
        let len = usize::try_from(self.note(rank, epoch)).unwrap_or(usize::MAX);
        let mut words = vec![0; len.min(staging_bytes(inner.world))];
        // SAFETY: no longer than the staging, which its owner does not write before this rank announces the
        // next epoch.
        unsafe { copy::read(inner.map(rank).staging(epoch), words.as_mut_ptr(), words.len()) };
        Some(self.refused_by(rank, &words))
    }

    /// The error for a call that `rank` refused with these `words`.
    pub(super) fn refused_by(&self, rank: usize, words: &[u8]) -> Error {
        Error::Rank { context: self.context(), rank, message: String::from_utf8_lossy(words).into_owned() }
    }
}
