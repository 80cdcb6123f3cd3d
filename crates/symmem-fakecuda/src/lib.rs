//! A CUDA driver without a GPU, for tests.
//!
//! Put into a folder as `libcuda.so` and `libcuda.so.1`, and found through `LD_LIBRARY_PATH`, it stands in
//! for the driver. Device memory is a memfd, an exported handle its descriptor, a mapping a mapping of the
//! host, so that processes really share it and copies really copy. Streams are synchronous. What is captured
//! is recorded, and done when the graph is launched. Kernels load and launch, and do nothing, but that the
//! lane's turn goes on; those that only record do it (`marks.rs`). The same file also stands in for NVRTC
//! (`SYMMEM_NVRTC_LIBRARY`), where every program compiles to nothing, for cuBLASLt
//! (`SYMMEM_CUBLASLT_LIBRARY`), which really multiplies f32 and bf16, and as `libnvidia-ml.so.1` for the part
//! of NVML that tells where a device is in a fabric.
//!
//! It is strict where the driver is forgiving: an address that is not mapped, a range freed with something in
//! it, a multicast object bound before all devices were added are errors.
//!
//! What it counts, and how it is made to fail, is in [`control`]; these variables shape it:
//!
//! | variable | meaning |
//! |---|---|
//! | `FAKECUDA_UUIDS` | the devices, by name, with commas between; `fake-gpu` if not set |
//! | `FAKECUDA_NO_PEER` | 1: no device reaches another |
//! | `FAKECUDA_NO_ATOMICS` | 1: devices reach each other, but not with atomics |
//! | `FAKECUDA_MIG` | numbers of devices, with commas between, that are parts of a GPU |
//! | `FAKECUDA_NO_EXPORT` | numbers of devices whose memory cannot be exported as a descriptor |
//! | `FAKECUDA_RDMA` | 0: no device has GPUDirect RDMA; `refused`: they have, but no memory with it can be made |
//! | `FAKECUDA_FABRIC` | 1: fabric handles work; `lies`: the attribute says so, but they do not |
//! | `FAKECUDA_CLIQUES` | the clique of each device, with commas between, in one cluster; not set: NVML does not start |
//! | `FAKECUDA_MULTICAST` | 1: devices have multicast |
//! | `FAKECUDA_CAPABILITY` | the first number of the compute capability; 9 if not set |
//! | `FAKECUDA_GRANULARITY` | what sizes must be a multiple of; 2 MiB if not set |
//! | `FAKECUDA_FAIL` | n: the n-th call of the process fails, by any thread |

// What these functions are and demand is written in the driver's manual.
#![allow(clippy::missing_safety_doc, non_snake_case)]

pub mod control;
mod copy;
mod cublaslt;
mod device;
mod graph;
mod marks;
mod memory;
mod module;
mod multicast;
mod node;
mod nvml;
mod nvrtc;
mod nvtx;
mod result;
mod state;
mod stream;
