//! Groups made from groups: by their members only, in any order, from any thread.
//!
//! The members find each other through the parent's store under a boot name that holds the parent's id, the
//! member list, the name, and how often this rank has made that very subgroup. Nothing counts per process or
//! per parent, so a rank that sits one out stays in step.
//!
//! Which processes the members are, and on which hosts, is what the parent knows; what the store says about
//! it is ignored or refused. So a store that somebody changes can keep a subgroup from being made, and cannot
//! change what it is: its members prove themselves again, to the kernel or with the job secret, exactly as in
//! the first join. A key of the group's own, passed on in memory, would add nothing: it would keep out
//! processes of the same user only, which are trusted.

use std::sync::Arc;

use super::Group;
use super::join::{Join, Parent};
use crate::{Error, Result};

impl Group {
    /// Collective over `members` only: a group of these ranks of this group, in this order. Other ranks must
    /// not call it. Several may be made at once from several threads as long as their names differ; names may
    /// recur.
    ///
    /// It fails when this group fails meanwhile, also through a rank that is no member, and the error is
    /// about this group. Once made, the new group does not depend on it.
    ///
    /// ```
    /// symmem::spawn(3, |group| {
    ///     if group.rank() != 1 {
    ///         let pair = group.subgroup(&[2, 0], "pair")?;
    ///         assert_eq!(pair.rank(), if group.rank() == 2 { 0 } else { 1 });
    ///     }
    ///     group.barrier()
    /// })?;
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn subgroup(&self, members: &[usize], name: &str) -> Result<Self> {
        if crate::sys::fork::is_child() {
            return Err(Error::Forked { op: "subgroup" });
        }
        let rank = self.place_in(members)?;
        let list: Vec<String> = members.iter().map(usize::to_string).collect();
        let what = format!("{}/{name}", list.join("-"));
        let count = self.count_subgroup(&what);
        let boot = format!("symmem/{}/sub/{what}/{count}", self.id());
        let store = Arc::clone(&self.inner.store);
        let mut join = Join::new(self.context(), store, rank, members.len(), name, boot);
        join.fresh = true;
        join.terms = self.terms.clone();
        join.server = self.inner.server.clone();
        join.known = Some(members.iter().map(|member| self.inner.members[*member].clone()).collect());
        join.parent = Some(Parent { inner: Arc::clone(&self.inner), members: members.to_vec() });
        join.run()
    }

    /// Collective. A second group of the same ranks, for a parallel stream of operations. Threads of a rank
    /// that clone at once get clones by the order of their calls; use [`Group::subgroup`] with a name each to
    /// tell them apart.
    pub fn try_clone(&self) -> Result<Self> {
        self.subgroup(&(0..self.size()).collect::<Vec<_>>(), self.name())
    }

    /// Collective. The group of the ranks on this host (same kernel boot id, never the same host name).
    pub fn local(&self) -> Result<Self> {
        let host = |rank: &usize| &self.inner.members[*rank].host;
        let members: Vec<usize> = (0..self.size()).filter(|rank| host(rank) == host(&self.rank())).collect();
        self.subgroup(&members, "local")
    }

    /// This rank's place in `members`.
    fn place_in(&self, members: &[usize]) -> Result<usize> {
        for (place, member) in members.iter().enumerate() {
            self.check_rank("subgroup", *member)?;
            if members[..place].contains(member) {
                return Err(Error::invalid("subgroup members", format!("rank {member} appears twice")));
            }
        }
        members.iter().position(|member| *member == self.rank()).ok_or_else(|| {
            let problem =
                format!("rank {} is not one of {members:?}: only members make a subgroup", self.rank());
            Error::invalid("subgroup members", problem)
        })
    }

    /// How often this rank has made the subgroup `what` before.
    fn count_subgroup(&self, what: &str) -> u64 {
        let mut counts = self.inner.subgroups.lock().unwrap_or_else(|poison| poison.into_inner());
        let count = counts.entry(what.to_owned()).or_insert(0);
        *count += 1;
        *count - 1
    }
}
