//! Parts of a group: a subgroup that its ranks are listed for, and one part per color.

use pyo3::prelude::*;
use symmem::Error;

use super::{Group, Membership, NonMember};
use crate::Any;
use crate::error::raise;
use crate::interrupt::blocking;

/// A part of a group, for a rank that is in it and for one that is not.
#[derive(IntoPyObject)]
enum GroupPart {
    In(Group),
    Out(NonMember),
}

#[pymethods]
impl Group {
    /// Collective over `ranks` only: a group of these ranks of this group, in this order. For a rank that is
    /// not among them the call is local and gives a `NonMember`, which is falsy and refused by every call.
    ///
    ///     even = group.subgroup(range(0, group.size, 2))
    #[pyo3(signature = (ranks, name = ""))]
    fn subgroup(&self, ranks: &Any<'_>, name: &str) -> PyResult<GroupPart> {
        let (op, py) = ("subgroup", ranks.py());
        let ranks = ranks.try_iter()?.map(|rank| rank?.extract()).collect::<PyResult<Vec<usize>>>()?;
        let group = self.membership().group(op, 0)?;
        let world = group.size();
        if let Some(rank) = ranks.iter().copied().find(|rank| *rank >= world) {
            return Err(raise(Error::RankOutOfRange { op, rank, world }));
        }
        if !ranks.contains(&group.rank()) {
            return Ok(GroupPart::Out(NonMember::of_subgroup(self.membership(), &ranks)));
        }
        let made = blocking(py, || group.subgroup(&ranks, name))?;
        self.related(py, op, 0, &made).map(GroupPart::In)
    }

    /// Collective. One group per `color`, of the ranks that name it, in the order of `key` and then of rank.
    /// A rank that passes None is in none of them, and gets a `NonMember`.
    ///
    ///     row = group.split(group.rank // 4)
    #[pyo3(signature = (color, key = 0, *, timeout_ms = 0))]
    fn split(&self, py: Python<'_>, color: Option<i64>, key: i64, timeout_ms: u64) -> PyResult<GroupPart> {
        let group = self.membership().group("split", timeout_ms)?;
        let mine = [i64::from(color.is_some()), color.unwrap_or(0), key];
        let all = blocking(py, || group.all_gather(&mine))?;
        let Some(color) = color else { return Ok(GroupPart::Out(NonMember::of_split(self.membership()))) };
        let is_here = |rank: &usize| all[*rank][..2] == [1, color];
        let mut ranks: Vec<usize> = (0..group.size()).filter(is_here).collect();
        // Stable: equal keys leave ranks in their order.
        ranks.sort_by_key(|rank| all[*rank][2]);
        let made = blocking(py, || group.subgroup(&ranks, &format!("color {color}")))?;
        self.related(py, "split", timeout_ms, &made).map(GroupPart::In)
    }
}

impl Group {
    /// A group made from this one by the call `op`, by the same rank in the same context.
    pub(super) fn related(
        &self,
        py: Python<'_>,
        op: &'static str,
        timeout_ms: u64,
        made: &symmem::Group,
    ) -> PyResult<Self> {
        let lasting = self.membership().lasting(op, timeout_ms)?;
        let group = lasting.map(|lasting| made.on_terms_of(&lasting));
        let group = group.as_ref().unwrap_or(made);
        Membership::new(group, self.membership().context(), None).with_mail(py).map(Self::of)
    }
}
