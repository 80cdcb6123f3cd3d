//! Loom models of the synchronisation protocols in `symmem`.
//!
//! The crate compiles `symmem`'s folder `sync/protocol` a second time, with loom's atomics instead of real
//! ones, and lets loom run every schedule and every value a load may legally see.
//! `cargo xtask test --only loom` runs it, with `--cfg loom`; without that flag the crate is empty and does
//! not depend on loom.
//!
//! | module | what it states |
//! |---|---|
//! | `wait` | nobody sleeps through what it waits for |
//! | `pad` | a signal carries the sender's writes, and its slot's return the receiver's reads |
//! | `meeting` | a barrier carries everybody's writes; two halves of a slot and two parities of staging are enough |
//! | `staging` | a rank that need not hear from all may go on, if its next operation waits for them |
//! | `borrow` | nobody borrows what a peer may still be at, and a borrow sees what the one before it left |
//! | `ring` | a slot of mail is filled after it was emptied and emptied after it was filled |
//! | `ballot` | a ballot is read whole or not at all |
//! | `mutants` | each fence, ordering and wait that the protocols name is needed: without it one of these models fails |
#![cfg(all(test, loom))]

mod ballot;
mod borrow;
mod harness;
mod meeting;
mod mutants;
/// As much of the names of operations as the protocols carry.
mod operation {
    pub(crate) use crate::words::Signature;
}
mod pad;
#[path = "../../symmem/src/sync/protocol/mod.rs"]
mod protocol;
mod ring;
mod staging;
mod wait;
#[path = "../../symmem/src/operation/words.rs"]
mod words;
