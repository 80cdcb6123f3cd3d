//! What does not hold yet: a stage, a behaviour, how it fails, and until when. A row whose behaviour passes
//! fails its test, so the list is true. Making the code mean what docs/memory-model.md decides ends with
//! deleting rows here.

use super::stage::{Place, Stage};
use super::table::Behaviour;

/// Whose rows they are.
#[allow(dead_code, reason = "the rows may be those of one side only, or none")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Host,
    Devices,
}

/// A behaviour that does not hold on a kind of memory.
#[derive(Debug)]
pub(crate) struct Exception {
    side: Side,
    pub(crate) behaviour: &'static str,
    /// Words of its failure.
    pub(crate) fails_with: &'static str,
    pub(crate) until: &'static str,
}

/// Every exception.
pub(crate) static ALL: &[Exception] = &[];

impl Exception {
    fn is_of(&self, stage: &Stage) -> bool {
        (stage.place == Place::Host) == (self.side == Side::Host)
    }
}

/// The row of `behaviour` on `stage`.
pub(crate) fn find(stage: &Stage, behaviour: &Behaviour) -> Option<&'static Exception> {
    ALL.iter().find(|exception| exception.behaviour == behaviour.name && exception.is_of(stage))
}
