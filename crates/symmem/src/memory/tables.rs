//! The rendezvous of one allocation so far: on which groups, as which rank's memory, and with which table.
//!
//! Used by the rendezvous of host memory and of device memory. What it guarantees: memory is that of one rank of a group at a
//! time. Ranks may be threads that share an allocation; the tables of two ranks of a group differ, so one that found the
//! other's would borrow its memory and work on its own. A rank claims the memory before the ranks compare what they bring,
//! and says so there if another one has it: the same error on all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::group::Group;
use crate::{Error, Result};

/// What keeps a table, or remembers it.
pub(crate) trait Holder {
    /// The table.
    type Table;

    /// The table, if it is still there.
    fn table(&self) -> Option<Arc<Self::Table>>;
}

impl<T> Holder for Arc<T> {
    type Table = T;

    fn table(&self) -> Option<Arc<T>> {
        Some(Arc::clone(self))
    }
}

impl<T> Holder for Weak<T> {
    type Table = T;

    fn table(&self) -> Option<Arc<T>> {
        self.upgrade()
    }
}

/// The tables of one allocation, by group, rank, and what else tells them apart: the `key`.
#[derive(Debug)]
pub(crate) struct Tables<H> {
    places: Mutex<Vec<Place<H>>>,
}

#[derive(Debug)]
struct Place<H> {
    group: String,
    rank: usize,
    key: String,
    /// Rendezvous that are under way.
    claims: usize,
    holder: Option<H>,
}

impl<H: Holder> Place<H> {
    fn is_of(&self, group: &Group, key: &str) -> bool {
        self.group == group.id() && self.rank == group.rank() && self.key == key
    }

    fn table(&self) -> Option<Arc<H::Table>> {
        self.holder.as_ref().and_then(Holder::table)
    }

    fn is_free(&self) -> bool {
        self.claims == 0 && self.table().is_none()
    }
}

impl<H> Default for Tables<H> {
    fn default() -> Self {
        Self { places: Mutex::default() }
    }
}

impl<H: Holder> Tables<H> {
    fn places(&self) -> MutexGuard<'_, Vec<Place<H>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of this rank of `group`, if there is one.
    pub(crate) fn find(&self, group: &Group, key: &str) -> Option<Arc<H::Table>> {
        self.places().iter().find(|place| place.is_of(group, key))?.table()
    }

    /// Takes the memory for a rendezvous of this rank of `group`, until the claim is dropped; from then on as long as the
    /// table lasts, if it got one. An error if the memory is another rank's.
    pub(crate) fn claim(&self, group: &Group, key: &str) -> Result<Claim<'_, H>> {
        let mut places = self.places();
        places.retain(|place| !place.is_free());
        let others = |place: &&Place<H>| place.group == group.id() && place.rank != group.rank();
        if let Some(taken) = places.iter().find(others) {
            let problem = format!(
                "it is what rank {} brought to this group. Hint: each rank brings an allocation of its own",
                taken.rank
            );
            return Err(Error::invalid("allocation", problem));
        }
        match places.iter_mut().find(|place| place.is_of(group, key)) {
            Some(place) => place.claims += 1,
            None => places.push(Place {
                group: group.id().to_owned(),
                rank: group.rank(),
                key: key.to_owned(),
                claims: 1,
                holder: None,
            }),
        }
        Ok(Claim { tables: self, group: group.share(), key: key.to_owned() })
    }

    /// Gives the memory free, for any rank of `group`, unless it has got another table than `table` since.
    pub(crate) fn forget(&self, group: &Group, key: &str, table: &Arc<H::Table>) {
        let is_it = |place: &Place<H>| place.table().is_some_and(|theirs| Arc::ptr_eq(&theirs, table));
        self.places().retain(|place| !(place.is_of(group, key) && place.claims == 0 && is_it(place)));
    }
}

/// A rank's right to the memory while it rendezvouses. Dropping it gives the memory free, unless a table is kept.
pub(crate) struct Claim<'a, H: Holder> {
    tables: &'a Tables<H>,
    group: Group,
    key: String,
}

impl<H: Holder> Claim<'_, H> {
    /// Keeps what came of it.
    pub(crate) fn keep(&self, holder: H) {
        self.change(|place| place.holder = Some(holder));
    }

    fn change(&self, change: impl FnOnce(&mut Place<H>)) {
        if let Some(place) = self.tables.places().iter_mut().find(|place| place.is_of(&self.group, &self.key))
        {
            change(place);
        }
    }
}

impl<H: Holder> Drop for Claim<'_, H> {
    fn drop(&mut self) {
        self.change(|place| place.claims -= 1);
    }
}
