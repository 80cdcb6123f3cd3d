//! NVLinks between the visible devices, counted as PyTorch counts them.
//!
//! Called by the topology only. What it guarantees: a matrix, all zeros where NVML fails.

use super::Matrix;
use super::nvml::{self, Nvml, PciAddress};
use crate::Result;
use crate::cuda::device::Facts;

/// More links than any GPU has.
const MAX_LINKS: u32 = 64;

/// What is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// The GPU at this address.
    Gpu(PciAddress),
    /// A switch.
    Switch,
    /// Something else.
    Other,
}

/// Number of links from each device to each other one; zeros, with a warning, where NVML fails.
pub(super) fn matrix(devices: &[Facts]) -> Matrix<u32> {
    let found = nvml::nvml().and_then(|nvml| look(nvml, devices));
    found.unwrap_or_else(|problem| {
        tracing::warn!(problem, "NVLinks cannot be counted; none are reported");
        vec![vec![0; devices.len()]; devices.len()]
    })
}

fn look(nvml: &Nvml, devices: &[Facts]) -> Result<Matrix<u32>, String> {
    let bus_id = |device: &Facts| device.bus_id().map_err(|error| error.to_string());
    let handles =
        devices.iter().map(|device| nvml.device(&bus_id(device)?)).collect::<Result<Vec<_>, _>>()?;
    let addresses = handles.iter().map(|handle| nvml.address(*handle)).collect::<Result<Vec<_>, _>>()?;
    count(&addresses, |device, link| nvml.remote(handles[device], link))
}

/// Counts what `remote` tells of each device's links; `None` is the end of them. A link to a GPU counts for
/// that pair, and links to switches for all pairs of devices that have some, as many as the smaller number.
fn count(
    addresses: &[PciAddress],
    remote: impl Fn(usize, u32) -> Result<Option<Remote>, String>,
) -> Result<Matrix<u32>, String> {
    let devices = addresses.len();
    let mut matrix = vec![vec![0; devices]; devices];
    let mut switches = vec![0u32; devices];
    for device in 0..devices {
        for link in 0..MAX_LINKS {
            match remote(device, link)? {
                Some(Remote::Gpu(address)) => {
                    let peer = addresses.iter().position(|known| *known == address);
                    if let Some(peer) = peer.filter(|peer| *peer != device) {
                        matrix[device][peer] += 1;
                    }
                }
                Some(Remote::Switch) => switches[device] += 1,
                Some(Remote::Other) => {}
                None => break,
            }
        }
    }
    for (device, row) in matrix.iter_mut().enumerate() {
        for (peer, links) in row.iter_mut().enumerate().filter(|(peer, _)| *peer != device) {
            *links += switches[device].min(switches[peer]);
        }
    }
    Ok(matrix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bus: u32) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0 }
    }

    /// Counts for devices at buses 1, 2, ... whose links lead to `ends`.
    fn counted(ends: &[&[Remote]]) -> Matrix<u32> {
        let addresses: Vec<_> = (1..=ends.len() as u32).map(at).collect();
        count(&addresses, |device, link| Ok(ends[device].get(link as usize).copied())).unwrap()
    }

    #[test]
    fn links_between_gpus_count_for_the_pair() {
        let (one, two) = (Remote::Gpu(at(1)), Remote::Gpu(at(2)));
        assert_eq!(counted(&[&[two, two, Remote::Other, two], &[one, one]]), [[0, 3], [2, 0]]);
    }

    #[test]
    fn a_device_that_is_not_visible_or_the_same_does_not_count() {
        assert_eq!(counted(&[&[Remote::Gpu(at(9)), Remote::Gpu(at(1))], &[]]), [[0, 0], [0, 0]]);
    }

    #[test]
    fn switches_link_everybody_by_the_smaller_number() {
        let switch = Remote::Switch;
        let matrix = counted(&[&[switch; 18], &[switch; 12], &[]]);
        assert_eq!(matrix, [[0, 12, 0], [12, 0, 0], [0, 0, 0]]);
    }

    #[test]
    fn a_failure_is_no_matrix() {
        assert!(count(&[at(1)], |_, _| Err("lost".to_owned())).is_err());
    }
}
