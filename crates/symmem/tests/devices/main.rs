//! The conformance suite on the stages that need a GPU: memory of the driver or of NCCL, threads or
//! processes, all in reach of each other or some, or all, marked as out of reach, so that NCCL carries the
//! work. All ranks share one device. See `tests/conformance/suite/mod.rs`. Without a GPU, or an NCCL that
//! lets ranks share one, tests skip themselves with a printed reason.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fake_cuda/fake.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../fake_nccl/fake.rs"]
#[allow(dead_code)]
mod fake;

#[path = "../conformance/suite/mod.rs"]
mod suite;

use suite::table::{cases, table};

table!(cases device vmm_on_threads);
table!(cases device vmm_on_processes);
table!(cases device nccl_on_threads);
table!(cases device nccl_on_processes);
table!(cases device nccl_without_rank_0);
table!(cases device nccl_without_rank_1);
table!(cases device nccl_without_any);
