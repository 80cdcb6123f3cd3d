//! What does not hold yet: a stage, a behaviour, how it fails, and until when. A row whose behaviour passes fails its test, so the list is
//! true. Making the code mean what docs/memory-model.md decides ends with deleting rows here.

use super::stage::{Place, Stage};
use super::table::Behaviour;

/// Whose rows they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    #[allow(dead_code, reason = "no row is the host's")]
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
pub(crate) static ALL: &[Exception] = &[
    Exception {
        side: Side::Devices,
        behaviour: "any::meaning::a_second_rendezvous_is_local",
        fails_with: "disagree on the operation",
        until: "devices keep tables as the host does",
    },
    Exception {
        side: Side::Devices,
        behaviour: "any::meaning::a_table_is_kept_until_the_allocation_goes",
        fails_with: "disagree on the operation",
        until: "devices keep tables as the host does",
    },
    Exception {
        side: Side::Devices,
        behaviour: "any::meaning::the_pads_size_is_fixed_when_memory_is_allocated",
        fails_with: "left == right",
        until: "a device's allocation knows the size of its pad",
    },
    Exception {
        side: Side::Devices,
        behaviour: "any::meaning::close_ends_all_handles_and_the_memory_can_rendezvous_again",
        fails_with: "has no `close`",
        until: "memory of devices can be closed",
    },
    Exception {
        side: Side::Devices,
        behaviour: "any::meaning::memory_of_a_failed_group_is_poisoned",
        fails_with: "Poisoned",
        until: "memory of devices is poisoned",
    },
];

impl Exception {
    fn is_of(&self, stage: &Stage) -> bool {
        (stage.place == Place::Host) == (self.side == Side::Host)
    }
}

/// The row of `behaviour` on `stage`.
pub(crate) fn find(stage: &Stage, behaviour: &Behaviour) -> Option<&'static Exception> {
    ALL.iter().find(|exception| exception.behaviour == behaviour.name && exception.is_of(stage))
}
