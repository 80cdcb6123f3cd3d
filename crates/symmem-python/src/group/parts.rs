//! Parts of a group: a subgroup that its ranks are listed for, and one part per color.

use pyo3::prelude::*;
use symmem::Error;

use super::{Group, Membership, NonMember};
use crate::error::raise;
use crate::interrupt::blocking;

/// A part of a group, for a rank that is in it and for one that is not.
#[derive(IntoPyObject)]
pub(super) enum Part {
    In(Group),
    Out(NonMember),
}

impl Group {
    /// The group of `ranks` of this one.
    pub(super) fn part(&self, py: Python<'_>, ranks: &[usize], name: &str) -> PyResult<Part> {
        let group = self.membership().group("subgroup", 0)?;
        if let Some(rank) = ranks.iter().copied().find(|rank| *rank >= group.size()) {
            return Err(raise(Error::RankOutOfRange { op: "subgroup", rank, world: group.size() }));
        }
        if !ranks.contains(&group.rank()) {
            return Ok(Part::Out(NonMember::of_subgroup(self.membership(), ranks)));
        }
        let made = blocking(py, || group.subgroup(ranks, name))?;
        self.related(py, "subgroup", 0, &made).map(Part::In)
    }

    /// The group of the ranks that name the same color, by key and then by rank.
    pub(super) fn part_of_color(
        &self,
        py: Python<'_>,
        color: Option<i64>,
        key: i64,
        timeout_ms: u64,
    ) -> PyResult<Part> {
        let group = self.membership().group("split", timeout_ms)?;
        let mine = [i64::from(color.is_some()), color.unwrap_or(0), key];
        let all = blocking(py, || group.all_gather(&mine))?;
        let Some(color) = color else { return Ok(Part::Out(NonMember::of_split(self.membership()))) };
        let is_here = |rank: &usize| all[*rank][..2] == [1, color];
        let mut ranks: Vec<usize> = (0..group.size()).filter(is_here).collect();
        // Stable: equal keys leave ranks in their order.
        ranks.sort_by_key(|rank| all[*rank][2]);
        let made = blocking(py, || group.subgroup(&ranks, &format!("color {color}")))?;
        self.related(py, "split", timeout_ms, &made).map(Part::In)
    }

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
