//! Who owns what an operation is given, for graphs: a captured operation keeps it.
//!
//! Used by slices of device memory, and by whatever captures. What it guarantees: asking costs nothing but a pointer until
//! something is captured.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What is kept alive by a graph.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// Something that stays as long as what it gives is kept.
pub(crate) trait Owner: fmt::Debug + Send + Sync {
    fn keep(&self) -> Keep;
}

impl<M: Any + fmt::Debug + Send + Sync> Owner for Arc<M> {
    fn keep(&self) -> Keep {
        Arc::clone(self) as _
    }
}

/// Somebody else's, of whatever type.
impl Owner for Keep {
    fn keep(&self) -> Keep {
        Arc::clone(self)
    }
}

/// An address, and who owns the memory there; `None`: whoever promised to keep it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) address: u64,
    pub(crate) owner: Option<&'a dyn Owner>,
}

impl Place<'_> {
    /// An address whose owner is kept otherwise, or that is none.
    pub(crate) const fn bare(address: u64) -> Self {
        Self { address, owner: None }
    }
}
