//! What must be proven before a rank is believed to be a member, and what is said where it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use super::Joining;
use crate::group::membership::Member;
use crate::group::seal::{Claim, SealKind, Unsealed};
use crate::sys::channel::ChannelPeers;
use crate::sys::user;
use crate::{Error, Result};

/// What is wrong with ranks of other hosts, and what to do.
pub(super) const NO_SECRET: &str = "they are on another host and no job secret proves who they are. Hint: set SYMMEM_SECRET_FILE on every rank to a file \
     with the same secret; SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS=1 lets in whoever can write the store";
const NO_UID: &str = "this process runs as the overflow uid of a user namespace, where every other user shows as the same \
                      uid. Hint: set SYMMEM_SECRET_FILE on every rank, or map this user to another uid";
const SAME_SECRET: &str = ". Hint: give every rank the same job secret (SYMMEM_SECRET_FILE)";

impl Joining<'_> {
    pub(super) fn unproven(&self, ranks: Vec<usize>, problem: impl Into<String>) -> Error {
        Error::Unproven { context: self.context(), ranks, problem: problem.into() }
    }

    /// Whether ranks of other hosts may be members without a proof.
    pub(super) fn takes_claims(&self) -> bool {
        *self.join.context.config().allow_unauthenticated_hosts
    }

    /// Refuses ranks of other hosts that nothing proves.
    pub(super) fn check_hosts(&self, members: &[Member]) -> Result<()> {
        let elsewhere = |rank: &usize| members[*rank].host != self.hello.host;
        let ranks: Vec<usize> = (0..members.len()).filter(elsewhere).collect();
        if ranks.is_empty() || self.sealer.proves() || self.takes_claims() {
            return Ok(());
        }
        Err(self.unproven(ranks, NO_SECRET))
    }

    /// Whom the fd channel takes for the ranks of this host. Where uids prove nothing, they are the processes
    /// that hellos name: sealed ones, or those of this very process, which needs no proof.
    pub(super) fn peers(&self, members: &[Member]) -> Result<ChannelPeers> {
        if user::uid_is_proof() {
            return Ok(ChannelPeers::OfThisUser);
        }
        let local = || (0..members.len()).filter(|rank| members[*rank].host == self.hello.host);
        let others: Vec<usize> =
            local().filter(|rank| members[*rank].process != self.hello.process()).collect();
        if !others.is_empty() && !self.sealer.proves() {
            return Err(self.unproven(others, NO_UID));
        }
        Ok(ChannelPeers::Known(local().map(|rank| members[rank].process).collect()))
    }

    /// Remembers whether the last value of that kind and sender was believed.
    pub(super) fn note(&self, claim: &Claim<'_>, doubt: Option<Unsealed>) {
        let of = (claim.sender, claim.kind);
        match doubt {
            // Ranks beyond the end are looked for as well, and nobody waits for them.
            Some(why) if claim.sender < self.join.world => self.doubts().insert(of, why),
            _ => self.doubts().remove(&of),
        };
    }

    /// The error for a join that waits for ranks whose values are there and are not believed, if there are
    /// such.
    pub(super) fn doubted(&self) -> Option<Error> {
        let (ranks, problem) = self.doubt()?;
        Some(self.unproven(ranks, problem))
    }

    /// The ranks that are not believed, and why the first is not.
    pub(super) fn doubt(&self) -> Option<(Vec<usize>, String)> {
        let doubts = self.doubts();
        let why = doubts.values().next()?;
        let ranks: BTreeSet<usize> = doubts.keys().map(|(rank, _)| *rank).collect();
        let hint = if *why == Unsealed::Foreign { "" } else { SAME_SECRET };
        Some((ranks.into_iter().collect(), format!("{why}{hint}")))
    }

    fn doubts(&self) -> MutexGuard<'_, BTreeMap<(usize, SealKind), Unsealed>> {
        self.doubts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
