//! What ranks tell each other before a collective whose arguments differ by rank (splits, lengths of
//! outputs).
//!
//! Used by the collectives of this folder that have such arguments. Every rank says what all must give alike
//! and what is its own; everybody hears everything and judges it alike. So a disagreement is the same
//! `Mismatch`, and arguments that do not fit together the same error, on every rank, before a byte is
//! written. What a rank can see to be wrong by itself it refuses.

#![allow(unsafe_code, reason = "elements in the memory of peers")]

use super::CollectiveCall;
use crate::error::{Error, Result};
use crate::group::Running;
use crate::memory::SymmetricMemory;
use crate::numeric::Element;
use crate::operation::Algorithm;
use crate::sys::copy::{self, Stores};

/// A named argument that all ranks must give alike.
pub(super) type Term = (&'static str, usize);

/// Why a call makes no sense. All ranks find out alike, from what all have said.
pub(super) enum CallRefusal {
    /// Because of what this rank said.
    Rank(usize, String),
    /// Because of what all said alike.
    All(Error),
}

impl From<Error> for CallRefusal {
    fn from(error: Error) -> Self {
        Self::All(error)
    }
}

/// What all ranks said, and their memory, for as long as the call runs.
pub(super) struct RankStatements<'a, T: Element> {
    memory: &'a SymmetricMemory<T>,
    /// Of each rank: the first element of its handle, the terms, its own numbers.
    words: Vec<Vec<usize>>,
    /// The first element of each rank's handle, which as many as this rank's handle has follow.
    addresses: Vec<*const u8>,
    terms: usize,
    stores: Stores,
}

impl<T: Element> RankStatements<'_, T> {
    /// What is `rank`'s own.
    pub(super) fn numbers(&self, rank: usize) -> &[usize] {
        &self.words[rank][1 + self.terms..]
    }

    /// The address of the first element of `rank`'s handle; as many as this rank's handle has follow.
    pub(super) fn address(&self, rank: usize) -> *const u8 {
        self.addresses[rank]
    }

    /// Copies `out.len()` elements of `rank` from `start` on.
    pub(super) fn copy(&self, rank: usize, start: usize, out: &mut [T]) {
        assert!(start <= self.memory.len() && out.len() <= self.memory.len() - start, "beyond the memory");
        // SAFETY: the address has `len` elements, which these are among; `out` is private to this rank.
        unsafe {
            let from = self.address(rank).add(start * size_of::<T>());
            copy::read_with(from, out.as_mut_ptr().cast(), size_of_val(out), self.stores);
        }
    }
}

impl<T: Element> SymmetricMemory<T> {
    /// Exchanges `numbers`, or refuses the call if this rank has none; lets `plan` judge what all ranks said,
    /// from nothing but what they said and what they agreed on; runs `work`, which reads everybody's memory;
    /// meets again.
    pub(super) fn state_and_read<P>(
        &self,
        call: CollectiveCall,
        terms: &[Term],
        numbers: Result<Vec<usize>>,
        plan: impl FnOnce(&RankStatements<'_, T>) -> Result<P, CallRefusal>,
        work: impl FnOnce(&RankStatements<'_, T>, &P),
    ) -> Result<P> {
        self.parts.operate(call.op, None, |running| {
            self.state_and_read_in(running, call, terms, numbers, plan, work)
        })
    }

    fn state_and_read_in<P>(
        &self,
        running: &Running<'_>,
        call: CollectiveCall,
        terms: &[Term],
        numbers: Result<Vec<usize>>,
        plan: impl FnOnce(&RankStatements<'_, T>) -> Result<P, CallRefusal>,
        work: impl FnOnce(&RankStatements<'_, T>, &P),
    ) -> Result<P> {
        let (_borrow, numbers) = running.told(numbers.and_then(|numbers| Ok((self.local()?, numbers))))?;
        let said = self.sealed_by_meeting(self.state(running, &call, terms, numbers))?;
        let plan = plan(&said).map_err(|refusal| refused(running, refusal))?;
        work(&said, &plan);
        self.sealed_by_meeting(running.meet(call.signature(Algorithm::Direct, self.parts.number())))?;
        Ok(plan)
    }

    /// The result of a meeting. If it was interrupted here, it may have succeeded for others, who then work
    /// on this rank's memory after the call has ended: nobody may touch it any more.
    pub(super) fn sealed_by_meeting<R>(&self, met: Result<R>) -> Result<R> {
        if let Err(error) = &met
            && !matches!(error, Error::Mismatch { .. } | Error::Rank { .. })
        {
            self.parts.poison(error);
        }
        met
    }

    /// How to write what is read from everybody: they read and write about as much.
    pub(super) fn stores(&self) -> Stores {
        let bytes = self.len() * size_of::<T>();
        Stores::for_footprint(bytes.saturating_mul(2 * self.world_size()))
    }

    fn state(
        &self,
        running: &Running<'_>,
        call: &CollectiveCall,
        terms: &[Term],
        numbers: Vec<usize>,
    ) -> Result<RankStatements<'_, T>> {
        let signature = call.signature(Algorithm::Direct, self.parts.number());
        let statement = encode(self.offset(), terms, numbers);
        let parts = running.all_gather_in_memory(signature, &statement)?;
        let words = parts.iter().map(|part| decode(part)).collect();
        let said =
            RankStatements::new(self, words, terms.len()).map_err(|refusal| refused(running, refusal))?;
        said.check_terms(running, terms)?;
        Ok(said)
    }
}

impl<'a, T: Element> RankStatements<'a, T> {
    /// Checks that every rank said something that can be: what comes next relies on this, not on the peers.
    fn new(
        memory: &'a SymmetricMemory<T>,
        words: Vec<Vec<usize>>,
        terms: usize,
    ) -> Result<Self, CallRefusal> {
        let mut addresses = Vec::with_capacity(words.len());
        for (rank, words) in words.iter().enumerate() {
            let start = words.first().filter(|_| words.len() > terms);
            let Some(address) = start.and_then(|start| memory.element_address(rank, *start, memory.len()))
            else {
                return Err(CallRefusal::Rank(
                    rank,
                    "what it announced about its memory is impossible".to_owned(),
                ));
            };
            addresses.push(address.cast_const());
        }
        let stores = memory.stores();
        Ok(Self { memory, words, addresses, terms, stores })
    }

    fn check_terms(&self, running: &Running<'_>, terms: &[Term]) -> Result<()> {
        let said = |rank: usize| &self.words[rank][1..=self.terms];
        if (1..self.words.len()).all(|rank| said(rank) == said(0)) {
            return Ok(());
        }
        let describe = |rank: usize| {
            let terms = terms.iter().zip(said(rank)).map(|((name, _), value)| format!("{name} {value}"));
            format!("rank {rank}: {}", terms.collect::<Vec<_>>().join(", "))
        };
        let values = (0..self.words.len()).map(describe).collect();
        Err(Error::Mismatch { context: running.context(), what: "the arguments", values })
    }
}

pub(super) fn refused(running: &Running<'_>, refusal: CallRefusal) -> Error {
    match refusal {
        CallRefusal::Rank(rank, message) => Error::Rank { context: running.context(), rank, message },
        CallRefusal::All(error) => error,
    }
}

pub(super) fn encode(offset: usize, terms: &[Term], numbers: Vec<usize>) -> Vec<u8> {
    let values = terms.iter().map(|(_, value)| *value);
    let words = [offset].into_iter().chain(values).chain(numbers).map(|word| word as u64);
    words.flat_map(u64::to_le_bytes).collect()
}

pub(super) fn decode(part: &[u8]) -> Vec<usize> {
    part.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_survive_packing() {
        let part = encode(7, &[("row", 3)], vec![usize::MAX, 0]);
        assert_eq!(decode(&part), [7, 3, usize::MAX, 0]);
        assert!(decode(&[0, 1]).is_empty());
    }
}
