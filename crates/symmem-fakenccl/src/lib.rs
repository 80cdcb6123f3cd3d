//! An NCCL without GPUs, for tests, beside the fake CUDA driver whose memory is host memory.
//!
//! Named by `SYMMEM_NCCL_LIBRARY` it stands in for NCCL. Ranks are threads of one process. Making, splitting
//! and finalizing a communicator and registering a window return before they are done, as NCCL does when it
//! must not block; collectives really compute, within the call, or within the end of a group. On a stream
//! that is captured they become a part of the graph, and do nothing, then or when it is launched, but use
//! their memory.
//!
//! It is strict where NCCL is forgiving: a window that outlives its communicator, memory that is freed while
//! it is registered, a call on a communicator that is gone are counted as violations.
//!
//! What it counts and has been called, and how it is made to fail, is in [`control`]; `fakenccl_break` lets a
//! communicator fail beside its calls; these variables shape it:
//!
//! | variable | meaning |
//! |---|---|
//! | `FAKENCCL_VERSION` | its version, `2.30.7` if not set |
//! | `FAKENCCL_LSA` | how many consecutive ranks load and store each other's memory; all if not set |
//! | `FAKENCCL_MULTICAST` | 1: windows have a multicast address |
//! | `FAKENCCL_PATIENCE_MS` | how long a collective waits for a rank; 10000 if not set |
//! | `FAKENCCL_WRONG_POINTERS` | 1: pointers to peers lead elsewhere |

// What these functions are and demand is written in NCCL's manual.
#![allow(clippy::missing_safety_doc, non_snake_case)]

mod clique;
mod collectives;
mod comm;
pub mod control;
mod memory;
mod reduce;
