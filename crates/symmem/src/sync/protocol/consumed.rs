//! The consumed-wait: a rank that need not hear from everybody goes on at once, and its next operation waits
//! for the rest.
//!
//! Used by `group::Running` alone, for one operation of a rank at a time. *Ready* proves that a peer
//! produced; only its next announcement proves that it consumed (see [`meet`](super::meet)). So a rank learns
//! the number of its next epoch, and with it which half of slots, parcels and staging it may write, only when
//! it has heard from every rank in the current one.
//!
//! How a rank waits, and what a wait that fails means, is the caller's: the functions here take it as `wait`.
//!
//! # Memory ordering
//! The epoch and what is owed are private to the rank, and whatever lets one operation run after the other
//! orders them (`busy`, of the group). What a peer wrote and read before it announced comes with the
//! announcement, which `wait` acquires.

use super::atomic::{AtomicU64, Ordering, Site, is_kept};
use crate::operation::Signature;

/// What a rank announced last, if it has not heard from everybody there. Only the running operation uses it.
#[derive(Debug)]
pub(crate) struct Owed {
    /// 0: nothing. No signature's word is 0.
    word: AtomicU64,
    size: AtomicU64,
    /// Of a signature that says that there is one.
    shape: AtomicU64,
}

impl Default for Owed {
    fn default() -> Self {
        Self { word: AtomicU64::new(0), size: AtomicU64::new(0), shape: AtomicU64::new(0) }
    }
}

impl Owed {
    #[inline]
    fn set(&self, signature: Signature) {
        self.word.store(signature.word, Ordering::Relaxed);
        self.size.store(signature.size, Ordering::Relaxed);
    }

    /// The shape that goes with what is owed.
    pub(crate) fn set_shape(&self, shape: u64) {
        self.shape.store(shape, Ordering::Relaxed);
    }

    /// What [`Owed::set_shape`] said.
    pub(crate) fn shape(&self) -> u64 {
        self.shape.load(Ordering::Relaxed)
    }

    /// What is owed, which the caller now waits for.
    #[inline]
    pub(crate) fn take(&self) -> Option<Signature> {
        let word = self.word.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        self.word.store(0, Ordering::Relaxed);
        Some(Signature { word, size: self.size.load(Ordering::Relaxed) })
    }
}

/// The epoch after `epoch`. Before that, `hear` waits for all ranks at `epoch` with the signature that is
/// owed there, if one is. Once the next epoch is known, nobody reads what this rank laid out for the last but
/// one any more.
#[inline(always)]
pub(crate) fn next_epoch<E>(
    epoch: &AtomicU64,
    owed: &Owed,
    hear: impl FnOnce(u64, Signature) -> Result<(), E>,
) -> Result<u64, E> {
    let epoch = epoch.load(Ordering::Relaxed);
    if is_kept(Site::ConsumedWait)
        && let Some(signature) = owed.take()
    {
        hear(epoch, signature)?;
    }
    Ok(epoch + 1)
}

/// Hears, by `wait`, what every rank of `who` but `me` announced; whether all of them said `signature`. If
/// there are others, they are owed: [`next_epoch`] waits for them.
#[inline(always)]
pub(crate) fn hear<E>(
    world: usize,
    me: usize,
    owed: &Owed,
    signature: Signature,
    who: impl Fn(usize) -> bool,
    wait: impl Fn(usize) -> Result<Signature, E>,
) -> Result<bool, E> {
    let mut agree = true;
    for peer in (0..world).filter(|peer| *peer != me) {
        if !who(peer) {
            owed.set(signature);
            continue;
        }
        agree &= wait(peer)? == signature;
    }
    Ok(agree)
}
