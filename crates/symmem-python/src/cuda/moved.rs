//! The other collectives of a handle on a device, whose element type is known only at run time.

use symmem::cuda::{DeviceSliceMut, Stream, SymmetricMemory};
use symmem::erased::Call;
use symmem::{Element, Error, Result};

use crate::registry::Registered;

/// Puts `call` on `stream`; `out` is the address and the number of elements of the output.
///
/// # Safety
/// As for [`DeviceSliceMut::from_raw`] of `out`, on the memory's device.
pub(super) unsafe fn run<T: Element>(
    memory: &SymmetricMemory<T>,
    call: Call<'_>,
    out: Option<(u64, usize)>,
    stream: &Stream,
) -> Result<()> {
    let (address, len) = out.unwrap_or((0, 0));
    let owner = Registered(address);
    // SAFETY: as the caller promises; nothing where there is no output.
    let output = || unsafe { DeviceSliceMut::<T>::from_owner(address, len, memory.device(), &owner) };
    let rooted = || out.map(|_| output()).transpose();
    match call {
        Call::AllReduce(op) if out.is_none() => memory.all_reduce(op, stream),
        Call::AllReduce(op) => memory.all_reduce_out(op, output()?, stream),
        Call::Reduce(op, root) => memory.reduce(op, root, rooted()?, stream),
        Call::ReduceScatter(op) => memory.reduce_scatter(op, output()?, stream),
        Call::ReduceScatterColumns(op, columns) => {
            memory.reduce_scatter_columns(op, columns, output()?, stream)
        }
        Call::AllGather => memory.all_gather(output()?, stream),
        Call::Broadcast(root) => memory.broadcast(root, stream),
        Call::AllToAll => memory.all_to_all(output()?, stream),
        Call::Gather(root) => memory.gather(root, rooted()?, stream),
        Call::Scatter(root) => memory.scatter(root, output()?, stream),
        // Refused before it comes here.
        other => Err(Error::Invalid {
            what: other.name().to_owned(),
            problem: "devices do not have it".to_owned(),
        }),
    }
}
