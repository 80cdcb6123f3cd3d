//! Who owns what an operation is given, for graphs: a captured operation keeps it.
//!
//! Public: slices of device memory have one, and anything that captures asks it. What it guarantees: it is
//! asked in captures only, so naming an owner costs a pointer.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What is kept alive by a graph.
pub(crate) type GraphKeep = Arc<dyn Any + Send + Sync>;

/// Whoever owns memory that operations are given.
pub trait Owner: fmt::Debug + Send + Sync {
    /// What keeps the memory as long as it, or a clone of it, lives. `None`: somebody else has promised to.
    fn keep(&self) -> Option<Arc<dyn Any + Send + Sync>>;
}

impl<M: Any + fmt::Debug + Send + Sync> Owner for Arc<M> {
    fn keep(&self) -> Option<GraphKeep> {
        Some(Arc::clone(self) as _)
    }
}

/// Of any type.
impl Owner for Arc<dyn Any + Send + Sync> {
    fn keep(&self) -> Option<GraphKeep> {
        Some(Arc::clone(self))
    }
}

/// An address, and who owns the memory there; `None`: whoever promised to keep it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnedAddress<'a> {
    pub(crate) address: u64,
    pub(crate) owner: Option<&'a dyn Owner>,
}

impl OwnedAddress<'_> {
    /// An address whose owner is kept otherwise, or that is none.
    #[inline]
    pub(crate) const fn bare(address: u64) -> Self {
        Self { address, owner: None }
    }
}
