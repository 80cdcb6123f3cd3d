//! What ranks tell each other before a collective whose arguments differ by rank (splits, lengths of outputs).
//!
//! Used by the collectives of this folder that have such arguments. Every rank says what all must give alike, what is its
//! own, or what is wrong with its part; everybody hears everything and judges it alike. So a disagreement is the
//! same `Mismatch`, and an argument that cannot be the same error, on every rank, before a byte is written.

use super::Call;
use crate::error::{Error, Result};
use crate::group::Running;
use crate::memory::{Element, SymmetricMemory};
use crate::sys::copy::{self, Stores};
use crate::tuning::Algorithm;

/// A named argument that all ranks must give alike.
pub(super) type Term = (&'static str, usize);

/// First word of a statement: numbers follow, or the text of an error.
const NUMBERS: u64 = 0;
const PROBLEM: u64 = 1;

/// Why a call makes no sense. All ranks find out alike, from what all have said.
pub(super) enum Refusal {
    /// Because of what this rank said.
    Rank(usize, String),
    /// Because of what all said alike.
    All(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::All(error)
    }
}

/// What all ranks said, and their memory, for as long as the call runs.
pub(super) struct Said<'a, T: Element> {
    memory: &'a SymmetricMemory<T>,
    /// Of each rank: the first element of its handle, the terms, its own numbers.
    words: Vec<Vec<usize>>,
    /// The first element of each rank's handle, which as many as this rank's handle has follow.
    addresses: Vec<*const u8>,
    terms: usize,
    stores: Stores,
}

impl<T: Element> Said<'_, T> {
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
    /// Exchanges `numbers`, or why this rank has none; lets `plan` judge what all ranks said, from nothing but what they
    /// said and what they agreed on; runs `work`, which reads everybody's memory; meets again.
    pub(super) fn state_and_read<P>(
        &self,
        call: Call,
        terms: &[Term],
        numbers: Result<Vec<usize>>,
        plan: impl FnOnce(&Said<'_, T>) -> Result<P, Refusal>,
        work: impl FnOnce(&Said<'_, T>, &P),
    ) -> Result<P> {
        self.operate(call.op, None, |running| {
            self.state_and_read_in(running, call, terms, numbers, plan, work)
        })
    }

    fn state_and_read_in<P>(
        &self,
        running: &Running<'_>,
        call: Call,
        terms: &[Term],
        numbers: Result<Vec<usize>>,
        plan: impl FnOnce(&Said<'_, T>) -> Result<P, Refusal>,
        work: impl FnOnce(&Said<'_, T>, &P),
    ) -> Result<P> {
        let borrow = self.local();
        let numbers =
            borrow.as_ref().map_err(Error::to_string).and(numbers.map_err(|error| error.to_string()));
        let said = self.sealed_by_meeting(self.state(running, &call, terms, numbers))?;
        let plan = plan(&said).map_err(|refusal| refused(running, refusal))?;
        work(&said, &plan);
        self.sealed_by_meeting(running.meet(call.signature(Algorithm::Direct, self.number())))?;
        Ok(plan)
    }

    /// The result of a meeting. If it was interrupted here, it may have succeeded for others, who then work on this rank's
    /// memory after the call has ended: nobody may touch it any more.
    pub(super) fn sealed_by_meeting<R>(&self, met: Result<R>) -> Result<R> {
        if let Err(error) = &met
            && !matches!(error, Error::Mismatch { .. } | Error::Rank { .. })
        {
            self.poison(error);
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
        call: &Call,
        terms: &[Term],
        numbers: Result<Vec<usize>, String>,
    ) -> Result<Said<'_, T>> {
        let signature = call.signature(Algorithm::Direct, self.number());
        let statement = encode(self.offset(), terms, numbers);
        let parts =
            running.all_gather(call.op, (signature.word >> 8) as usize, signature.size, &statement)?;
        let words: Result<Vec<_>, _> =
            parts.iter().enumerate().map(|(rank, part)| decode(rank, part)).collect();
        let words = words.map_err(|refusal| refused(running, refusal))?;
        let said = Said::new(self, words, terms.len()).map_err(|refusal| refused(running, refusal))?;
        said.check_terms(running, terms)?;
        Ok(said)
    }
}

impl<'a, T: Element> Said<'a, T> {
    /// Checks that every rank said something that can be: what comes next relies on this, not on the peers.
    fn new(memory: &'a SymmetricMemory<T>, words: Vec<Vec<usize>>, terms: usize) -> Result<Self, Refusal> {
        let mut addresses = Vec::with_capacity(words.len());
        for (rank, words) in words.iter().enumerate() {
            let start = words.first().filter(|_| words.len() > terms);
            let Some(address) = start.and_then(|start| memory.element_address(rank, *start, memory.len()))
            else {
                return Err(Refusal::Rank(rank, "what it said about its memory cannot be".to_owned()));
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

pub(super) fn refused(running: &Running<'_>, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Rank(rank, message) => Error::Rank { context: running.context(), rank, message },
        Refusal::All(error) => error,
    }
}

pub(super) fn encode(offset: usize, terms: &[Term], numbers: Result<Vec<usize>, String>) -> Vec<u8> {
    let numbers = match numbers {
        Ok(numbers) => numbers,
        Err(problem) => return [&PROBLEM.to_le_bytes()[..], problem.as_bytes()].concat(),
    };
    let values = terms.iter().map(|(_, value)| *value);
    let words = [offset].into_iter().chain(values).chain(numbers).map(|word| word as u64);
    [NUMBERS].into_iter().chain(words).flat_map(u64::to_le_bytes).collect()
}

pub(super) fn decode(rank: usize, part: &[u8]) -> Result<Vec<usize>, Refusal> {
    let mut words = part.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    if words.next() == Some(NUMBERS) {
        return Ok(words.map(|word| word as usize).collect());
    }
    let text = part.get(size_of_val(&PROBLEM)..).unwrap_or_default();
    Err(Refusal::Rank(rank, String::from_utf8_lossy(text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_survive_packing() {
        let part = encode(7, &[("row", 3)], Ok(vec![usize::MAX, 0]));
        assert!(matches!(decode(0, &part), Ok(words) if words == [7, 3, usize::MAX, 0]));
        let part = encode(7, &[], Err("no splits: ä".to_owned()));
        assert!(matches!(decode(5, &part), Err(Refusal::Rank(5, text)) if text == "no splits: ä"));
        assert!(matches!(decode(1, &[0, 1]), Err(Refusal::Rank(1, _))));
    }
}
