//! The CUDA engine on one device: all ranks of a test share it, as threads or as processes.
//!
//! Every test skips itself, with a printed reason, where there is no driver or device. Every wait is bounded:
//! by the device's deadline, by that of `sync`, and by the group's.

#[path = "../common/mod.rs"]
mod common;
#[path = "../trial/mod.rs"]
mod trial;

mod copies;
mod drops;
mod failure;
mod graph;
mod late;
mod local;
mod marathon;
mod multimem;
mod norm;
mod numerics;
mod order;
mod processes;
mod products;
mod pull;
mod queues;
mod signals;
mod stage;
mod traced;
// Some of it is for tests that run without MPS.
#[allow(dead_code)]
mod tools;
mod words;
