//! NCCL on one GPU that all ranks share, as processes, best under MPS.
//!
//! Every test skips itself, with a printed reason, where there is no driver, device or NCCL, or too old a
//! one: ranks share a GPU from 2.30.3 on. Older ones are tried as well, over sockets, where
//! `SYMMEM_TEST_OLD_NCCL` names a library. Every wait is bounded: by the communicator's, the engine's and the
//! group's deadline.

#[path = "../common/mod.rs"]
mod common;
#[path = "../nccl_cases/mod.rs"]
mod nccl_cases;

mod carried;
mod collectives;
mod older;
mod stage;
mod windows;
