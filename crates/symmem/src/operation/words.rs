//! What a rank announces of its operation: two words, which the protocols of `sync` carry and compare.
//!
//! [`signature`](super::signature) packs them. `symmem-models` compiles this file a second time, so it needs
//! nothing else.

/// What a rank says it is doing: all ranks of a meeting must say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Op, channel, root, dtype and reduce op, packed by the caller.
    pub(crate) word: u64,
    /// Bytes, or whatever number else the caller wants agreed.
    pub(crate) size: u64,
}

/// The bit of a signature's word that says that ranks must agree on a shape too.
pub(crate) const SHAPED: u64 = 1 << 7;
