//! What every symmetric memory must do, on the stages that any machine has: host memory, and devices of the
//! fakes. See `suite/mod.rs`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../fake_cuda/fake.rs"]
#[allow(dead_code)]
mod cuda;
#[path = "../fake_nccl/fake.rs"]
#[allow(dead_code)]
mod fake;

mod suite;

use suite::table::{cases, table};

table!(cases host shm_on_threads);
table!(cases host shm_on_processes);
table!(cases host shm_launched);
table!(cases host shm_past_32_bits_on_threads);
table!(cases host shm_past_32_bits_on_processes);
table!(cases host heap_on_threads);
table!(cases device vmm_of_fakes_on_threads);
table!(cases device vmm_of_fakes_on_processes);
table!(cases device slab_of_fakes_on_threads);
table!(cases device nccl_of_fakes_in_reach);
table!(cases device nccl_of_fakes_without_rank_0);
table!(cases device nccl_of_fakes_without_rank_1);
table!(cases device nccl_of_fakes_without_any);
