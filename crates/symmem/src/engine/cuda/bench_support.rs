//! What `symmem bench` puts around the operations it times: the kernels of `kernels/bench.cu`, and plain
//! copies; and kernels made ahead for machines without a compiler.
//!
//! Not part of the interface: only the program `symmem` may call this. All systems that it compares run the
//! same compiled kernels.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::path::Path;

use cudarc::driver::sys;

pub use super::plan::Tune;
use super::plan::{AgreedEngine, Limits, built_in, kind};
use super::sources::{ANY, BENCH, COLUMNS, NORM, WORLDS};
use super::{Algorithm, Engine, Form, control, kernels};
use crate::Result;
use crate::cuda::driver::check;
use crate::cuda::{Device, Module, Stream};
use crate::numeric::DType;

/// The bench's kernels, compiled for `device`.
pub fn compile(device: &Device) -> Result<Vec<u8>> {
    let (name, text) = BENCH;
    Module::image(device, name, text)
}

/// Compiles the engine's kernels for devices of this compute capability, into a folder that
/// `SYMMEM_CACHE_DIR` may name elsewhere. Needs NVRTC, and no device.
pub fn compile_engine(folder: &Path, capability: (u32, u32)) -> Result<()> {
    kernels::compile_into(folder, capability)
}

/// What the devices of `engine` are called in a tuning.
pub fn kind_of(engine: &Engine) -> String {
    kind(engine.device().name(), engine.inner.agreed.one_device)
}

/// An engine of `world` ranks on devices of their own, as far as choices go.
fn agreed(world: usize) -> AgreedEngine {
    AgreedEngine {
        world,
        one_device: false,
        slot: control::ControlLayout::new(world, 1).slot,
        max_blocks: 1,
        preferred: None,
        crossovers: built_in(world, false),
        limits: Limits::default().map(|row| row.map(|_| 1)),
    }
}

/// Whether `algorithm` can carry `bytes` bytes in a group of `world` ranks.
pub fn carries(algorithm: Algorithm, form: Form, world: usize, bytes: usize) -> bool {
    agreed(world).choose(form, bytes, Some(algorithm), &Tune::default()).is_ok()
}

/// Whether `algorithm` can carry a norm of bf16: so many `rows` of so many bytes each.
pub fn carries_norm(algorithm: Algorithm, world: usize, rows: (usize, usize)) -> bool {
    agreed(world).norm_plan(rows, DType::BF16, Some(algorithm), &Tune::default()).is_ok()
}

/// How `engine` carries a norm of bf16: so many `rows` of so many bytes each. Its algorithm, blocks, and
/// threads of each.
pub fn norm_plan(engine: &Engine, rows: (usize, usize)) -> Result<(Algorithm, u32, u32)> {
    engine.inner.agreed.norm_plan(rows, DType::BF16, engine.forced, &engine.tune)
}

/// Every size at which the dispatcher goes from one algorithm to another one by what is built in: of
/// all-reduces, or of norms.
pub fn crossovers(of_norms: bool) -> Vec<usize> {
    let tables = WORLDS.into_iter().flat_map(|world| [built_in(world, false), built_in(world, true)]);
    let columns = if of_norms { NORM..COLUMNS } else { 0..NORM };
    let all = tables.flatten().flat_map(|row| row[columns.clone()].to_vec());
    all.filter(|bytes| !matches!(bytes >> 10, 0 | ANY)).collect()
}

/// Puts a copy within the device of `stream` on it.
///
/// # Safety
/// Both are memory of that device, of at least `bytes` bytes, that lives until the copy has run.
pub unsafe fn copy(to: u64, from: u64, bytes: usize, stream: &Stream) -> Result<()> {
    let _bound = stream.device().bind()?;
    // SAFETY: as promised by the caller; the context is current.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.raw()) })
}
