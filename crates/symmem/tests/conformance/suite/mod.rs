//! What every symmetric memory does, whatever its provider, whoever does the work, and however its ranks came
//! to be.
//!
//! There is one table of behaviours (`table.rs`). A behaviour is a function, named after what it states. Most
//! are written once, over a [`Seat`](seat::Seat): the neutral form of one rank's memory and operations
//! (`any/`). What only host memory has (`host/`), or only devices have (`device/`), is in the same table. A
//! stage (`stage.rs`) is a provider, an engine and a way to run ranks. Each stage runs each behaviour, as a
//! test of its own named `stage::module::behaviour`, unless the stage lacks what the behaviour needs, which
//! is said with its reason. `exceptions.rs` lists what does not hold yet; a row whose behaviour passes fails.
//! `names.txt` says which tests of earlier suites became which behaviour.
//!
//! Two test programs share all of it: `conformance` has the stages that run on any machine, `devices` those
//! on a GPU. A new provider is a stage here, and is done when its tests pass. The suite uses the public
//! interface only.

pub(crate) mod any {
    //! Behaviours of every memory.
    pub(crate) mod barrier;
    pub(crate) mod collectives;
    pub(crate) mod failure;
    pub(crate) mod groups;
    pub(crate) mod lifetime;
    pub(crate) mod meaning;
    pub(crate) mod memory;
    pub(crate) mod place;
    pub(crate) mod rendezvous;
    pub(crate) mod signals;
}
pub(crate) mod host {
    //! Behaviours that only host memory has: borrowed views, exchanges, waits that can be taken back.
    pub(crate) mod allocation;
    pub(crate) mod borrow;
    pub(crate) mod exchange;
    pub(crate) mod failure;
    pub(crate) mod groups;
    pub(crate) mod large;
    pub(crate) mod memory;
    pub(crate) mod seat;
    pub(crate) mod signal;
}
pub(crate) mod device {
    //! Behaviours that only devices have: streams, graphs, words, engines.
    pub(crate) mod allocation;
    pub(crate) mod barrier;
    pub(crate) mod collectives;
    pub(crate) mod failure;
    pub(crate) mod graphs;
    pub(crate) mod groups;
    pub(crate) mod memory;
    pub(crate) mod order;
    pub(crate) mod rank;
    pub(crate) mod seat;
    pub(crate) mod signals;
    pub(crate) mod words;
}
mod child;
mod exceptions;
#[cfg(feature = "faults")]
mod leftovers;
mod names;
pub(crate) mod run;
pub(crate) mod seat;
pub(crate) mod stage;
pub(crate) mod table;
pub(crate) mod value;
