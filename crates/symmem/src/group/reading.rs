//! Whether the ranks of a group can read each other's private memory through the kernel.
//!
//! Used by the pull algorithm. Yama, seccomp, a pid namespace or credentials may forbid it, on one rank or on
//! all. So it is tried once per group, when it is first wanted: every rank reads a word of every other, whose
//! value it knows, and tells the others whether it could. A single refusal, then or later, ends it for all
//! ranks alike, and for good.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::running::{Running, Stop};
use crate::Result;
use crate::operation::Signature;
use crate::sys::remote;

const UNTRIED: u8 = 0;
const ALLOWED: u8 = 1;
const REFUSED: u8 = 2;

/// What is known of it so far.
#[derive(Debug, Default)]
pub(crate) struct RemoteReading {
    state: AtomicU8,
    /// What the others read in the trial.
    word: AtomicU64,
}

impl RemoteReading {
    /// Whether nobody was refused yet.
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != REFUSED
    }
}

impl Running<'_> {
    /// Collective. Whether all ranks can read each other's memory; tried if it was not yet. Meets by
    /// `signature`.
    pub(crate) fn try_reading(&self, signature: Signature) -> Result<bool> {
        let inner = self.inner();
        let state = inner.reading.state.load(Ordering::Relaxed);
        if state != UNTRIED {
            return Ok(state == ALLOWED);
        }
        let word = &inner.reading.word;
        word.store(known(&inner.id, inner.rank), Ordering::Relaxed);
        let epoch = self.meet_with(signature, word.as_ptr().addr() as u64)?;
        let mut peers = (0..inner.world).filter(|peer| *peer != inner.rank);
        let could = peers.all(|peer| {
            let mut found = [0; size_of::<u64>()];
            // A thread of this process dies with it.
            let is_own = inner.members[peer].process == inner.members[inner.rank].process;
            let read = (is_own || inner.members[peer].life.is_known())
                && self.read_memory(peer, self.note(peer, epoch), &mut found);
            read && u64::from_ne_bytes(found) == known(&inner.id, peer)
        });
        let allowed = self.agree_on_reading(signature, could)?;
        if allowed {
            inner.reading.state.store(ALLOWED, Ordering::Relaxed);
        }
        Ok(allowed)
    }

    /// Reads private memory of `peer`, which is in this very operation. False if the kernel refuses; the
    /// process of another pid namespace is not asked, because its number is that of somebody else here.
    pub(crate) fn read_memory(&self, peer: usize, address: u64, out: &mut [u8]) -> bool {
        let (own, theirs) =
            (&self.inner().members[self.inner().rank].process, &self.inner().members[peer].process);
        let read =
            (own.pid_ns != 0 && own.pid_ns == theirs.pid_ns).then(|| remote::read(theirs.pid, address, out));
        match read {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::debug!(peer, pid = theirs.pid, %error, "private memory of a peer cannot be read");
                false
            }
            None => false,
        }
    }

    /// Fails if a rank has died, or the group has failed: what was read may be anything then. Called after
    /// the last read; `could` says whether all of them succeeded, and if not a death that explains it gets a
    /// moment to become visible.
    pub(crate) fn look_after_reading(&self, could: bool) -> Result<()> {
        let inner = self.inner();
        // Whatever was read of memory that its owner wrote after it convicted: the verdict is seen then.
        std::sync::atomic::fence(Ordering::Acquire);
        let seen = match inner.look(&|_| true) {
            Ok(()) if could => Ok(()),
            Ok(()) => inner.look_for_a_death().map_or(Ok(()), |rank| Err(Stop::Died(rank))),
            stop => stop,
        };
        seen.map_err(|stop| self.fail(symmem_store::Interrupt::Watch(Box::new(stop)), &|_| false))
    }

    /// Collective. Whether all ranks could read. If not, nobody tries again.
    pub(crate) fn agree_on_reading(&self, signature: Signature, could: bool) -> Result<bool> {
        let inner = self.inner();
        let epoch = self.meet_with(signature, could.into())?;
        let mut peers = (0..inner.world).filter(|peer| *peer != inner.rank);
        let all = could && peers.all(|peer| self.note(peer, epoch) == 1);
        if !all {
            inner.reading.state.store(REFUSED, Ordering::Relaxed);
        }
        Ok(all)
    }
}

/// The word of `rank` in group `id`, which no other rank and no other group has but by chance.
fn known(id: &str, rank: usize) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    id.bytes().chain(rank.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, mix)
}
