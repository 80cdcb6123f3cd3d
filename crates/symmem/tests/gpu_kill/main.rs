//! What takes a process or its context away while ranks share a device.
//!
//! Not under MPS, whose clients share one context on the device: what becomes of them when one is killed at
//! work is not defined, and an error of one is an error of all. Without it, processes take turns on the
//! device. Every test skips itself, with a printed reason, where there is no device or where there is MPS.

#[path = "../common/mod.rs"]
mod common;
// The tests of the engine use all of these.
#[allow(dead_code)]
#[path = "../gpu_engine/stage.rs"]
mod stage;
#[allow(dead_code)]
#[path = "../gpu_engine/tools.rs"]
mod tools;

mod killed;
mod lost_context;

/// Whether the tests can run here; if not, a reason is printed.
fn can_run() -> bool {
    let Some(device) = stage::device() else { return false };
    if device.has_mps() {
        println!("skipped: clients of MPS do not survive each other's failures; run it without");
    }
    !device.has_mps()
}
