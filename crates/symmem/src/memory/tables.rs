//! The rendezvous of one allocation so far: on which groups, as which rank's memory, and with which table.
//!
//! Used by the rendezvous of host memory and of device memory. What it guarantees: memory is that of one rank
//! of a group at a time. Ranks may be threads that share an allocation. The tables of two ranks of a group
//! differ, so a rank that found the other's table would borrow one memory and work on another. So a rank
//! claims the memory before the ranks compare what they bring; if another rank has it, it says so there, and
//! all ranks get the same error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::group::Group;
use crate::{Error, Result};

/// The tables of one allocation, by group, rank, and what else tells them apart: the `key`.
#[derive(Debug)]
pub(crate) struct Tables<T> {
    places: Mutex<Vec<TableSlot<T>>>,
}

#[derive(Debug)]
struct TableSlot<T> {
    group: String,
    rank: usize,
    key: usize,
    /// Rendezvous that are under way.
    claims: usize,
    table: Option<Arc<T>>,
}

impl<T> TableSlot<T> {
    fn is_of(&self, group: &Group, key: usize) -> bool {
        self.group == group.id() && self.rank == group.rank() && self.key == key
    }

    fn is_free(&self) -> bool {
        self.claims == 0 && self.table.is_none()
    }
}

impl<T> Default for Tables<T> {
    fn default() -> Self {
        Self { places: Mutex::default() }
    }
}

impl<T> Tables<T> {
    fn places(&self) -> MutexGuard<'_, Vec<TableSlot<T>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of this rank of `group`, if there is one.
    pub(crate) fn find(&self, group: &Group, key: usize) -> Option<Arc<T>> {
        self.places().iter().find(|place| place.is_of(group, key))?.table.clone()
    }

    /// All tables that there are.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.places().iter().filter_map(|place| place.table.clone()).collect()
    }

    /// Takes out the tables for which `is_over`, unless somebody rendezvouses there. To be dropped without
    /// the lock.
    pub(crate) fn take(&self, is_over: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut places = self.places();
        let idle = places.iter_mut().filter(|place| place.claims == 0);
        idle.filter_map(|place| place.table.take_if(|table| is_over(table))).collect()
    }

    /// Takes the memory for a rendezvous of this rank of `group`, until the claim is dropped; from then on as
    /// long as the table lasts, if it got one. An error if the memory is another rank's.
    pub(crate) fn claim(&self, group: &Group, key: usize) -> Result<MemoryClaim<'_, T>> {
        let mut places = self.places();
        places.retain(|place| !place.is_free());
        let others = |place: &&TableSlot<T>| place.group == group.id() && place.rank != group.rank();
        if let Some(taken) = places.iter().find(others) {
            let problem = format!(
                "it is what rank {} brought to this group. Hint: each rank brings an allocation of its own",
                taken.rank
            );
            return Err(Error::invalid("allocation", problem));
        }
        match places.iter_mut().find(|place| place.is_of(group, key)) {
            Some(place) => place.claims += 1,
            None => places.push(TableSlot {
                group: group.id().to_owned(),
                rank: group.rank(),
                key,
                claims: 1,
                table: None,
            }),
        }
        Ok(MemoryClaim { tables: self, group: group.share(), key })
    }

    /// Gives the memory free, for any rank of `group`, unless it has got another table than `table` since.
    pub(crate) fn forget(&self, group: &Group, key: usize, table: &Arc<T>) {
        let is_it =
            |place: &TableSlot<T>| place.table.as_ref().is_some_and(|theirs| Arc::ptr_eq(theirs, table));
        self.places().retain(|place| !(place.is_of(group, key) && place.claims == 0 && is_it(place)));
    }
}

/// A rank's right to the memory while it rendezvouses. Dropping it gives the memory free, unless a table is
/// kept.
pub(crate) struct MemoryClaim<'a, T> {
    tables: &'a Tables<T>,
    group: Group,
    key: usize,
}

impl<T> MemoryClaim<'_, T> {
    /// Keeps what came of it.
    pub(crate) fn keep(&self, table: Arc<T>) {
        // What was there goes without the lock: the last mapping frees memory.
        let mut old = None;
        self.change(|place| old = place.table.replace(table));
    }

    fn change(&self, change: impl FnOnce(&mut TableSlot<T>)) {
        if let Some(place) = self.tables.places().iter_mut().find(|place| place.is_of(&self.group, self.key))
        {
            change(place);
        }
    }
}

impl<T> Drop for MemoryClaim<'_, T> {
    fn drop(&mut self) {
        self.change(|place| place.claims -= 1);
    }
}
