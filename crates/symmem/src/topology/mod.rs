//! How the GPUs of this machine reach each other.
//!
//! Public. What it guarantees: it only looks; what NVML cannot tell is reported as zeros with a warning,
//! never as an error.
//!
//! ```no_run
//! # fn main() -> symmem::Result<()> {
//! let topology = symmem::topology::Topology::detect()?;
//! for row in topology.links() {
//!     println!("{row:?}");
//! }
//! # Ok(())
//! # }
//! ```

mod nvlink;
mod nvml;

use cudarc::driver::sys::CUdevice_attribute;

use crate::cuda::device::{Device, Fabric, Facts};
use crate::{Error, Result};

/// A square table: a row per device, a column per device.
pub type Matrix<T> = Vec<Vec<T>>;

/// How many direct memory links lead from each device to each other one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaConnectivity {
    /// The kind of device: `cuda`.
    pub device_type: String,
    /// The kind of link: `nvlink`.
    pub connection_type: String,
    /// Number of links by device and device. Links to a switch count for every pair of devices on switches,
    /// as many as the one with fewer of them has.
    pub matrix: Matrix<u32>,
}

/// Looks for links of a kind: `detect_dma_connectivity("cuda", "nvlink")`. Other kinds are an error.
///
/// Where NVML fails the matrix is all zeros, and a warning says why.
pub fn detect_dma_connectivity(device_type: &str, connection_type: &str) -> Result<DmaConnectivity> {
    if (device_type, connection_type) != ("cuda", "nvlink") {
        let problem =
            format!("nothing detects {connection_type:?} of {device_type:?}; there is nvlink of cuda");
        return Err(Error::invalid("connection type", problem));
    }
    Ok(DmaConnectivity {
        device_type: device_type.to_owned(),
        connection_type: connection_type.to_owned(),
        matrix: nvlink::matrix(&devices()?),
    })
}

/// What the visible devices of this machine are, and how they reach each other.
#[derive(Clone, Debug)]
pub struct Topology {
    devices: Vec<Node>,
    links: Matrix<u32>,
    access: Matrix<bool>,
}

/// One visible device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Its number among the visible devices.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// What tells it apart from all others.
    pub uuid: [u8; 16],
    /// Where it sits on the PCI bus.
    pub bus_id: String,
    /// Whether it is a part of a GPU.
    pub is_mig: bool,
    /// Its place in a fabric of several machines, where it is in one.
    pub fabric: Option<Fabric>,
    /// Whether it can be part of a multicast object.
    pub has_multicast: bool,
    /// Whether its contexts are shared through an MPS server.
    pub has_mps: bool,
}

impl Topology {
    /// Looks at all visible devices, without making contexts on them.
    pub fn detect() -> Result<Self> {
        let devices = devices()?;
        let nodes = devices.iter().map(node).collect::<Result<_>>()?;
        Ok(Self { devices: nodes, links: nvlink::matrix(&devices), access: access(&devices)? })
    }

    /// The devices, by ordinal.
    pub fn devices(&self) -> &[Node] {
        &self.devices
    }

    /// NVLinks from device to device, as in [`DmaConnectivity`].
    pub fn links(&self) -> &Matrix<u32> {
        &self.links
    }

    /// Whether kernels on one device (the row) reach the memory of another (the column).
    pub fn access(&self) -> &Matrix<bool> {
        &self.access
    }

    /// Whether every device reaches every other over NVLink.
    pub fn is_fully_linked(&self) -> bool {
        let pairs = |row: usize| (0..self.links.len()).filter(move |column| *column != row);
        (0..self.links.len()).all(|row| pairs(row).all(|column| self.links[row][column] > 0))
    }

    /// Whether all devices can be in one multicast object.
    pub fn has_multicast(&self) -> bool {
        !self.devices.is_empty() && self.devices.iter().all(|device| device.has_multicast)
    }

    /// Whether an MPS server runs the work of any device.
    pub fn has_mps(&self) -> bool {
        self.devices.iter().any(|device| device.has_mps)
    }
}

impl Device {
    /// Its place in a fabric of several machines; `None` where there is none, or NVML cannot tell.
    pub fn fabric(&self) -> Option<Fabric> {
        fabric_of(self.facts())
    }
}

fn fabric_of(device: &Facts) -> Option<Fabric> {
    let bus_id = device.bus_id().ok()?;
    let nvml = nvml::nvml().inspect_err(|problem| tracing::debug!(problem, "no NVML")).ok()?;
    nvml.fabric(nvml.device(&bus_id).ok()?)
}

/// The version of the kernel's driver, or why NVML does not tell.
pub(crate) fn kernel_driver() -> std::result::Result<String, String> {
    nvml::nvml()?.driver_version()
}

/// How far the fabric manager is with the GPU at this bus id: NVML's state and status.
pub(crate) fn fabric_state_of(bus_id: &str) -> Option<(u8, u32)> {
    let nvml = nvml::nvml().ok()?;
    nvml.fabric_state(nvml.device(bus_id).ok()?)
}

pub(crate) fn devices() -> Result<Vec<Facts>> {
    (0..Device::count()?).map(Facts::of).collect()
}

fn node(device: &Facts) -> Result<Node> {
    Ok(Node {
        ordinal: device.ordinal,
        name: device.name.clone(),
        uuid: device.uuid,
        bus_id: device.bus_id()?,
        is_mig: device.is_mig,
        fabric: fabric_of(device),
        has_multicast: device.has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
        has_mps: device.has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED),
    })
}

fn access(devices: &[Facts]) -> Result<Matrix<bool>> {
    let row = |device: &Facts| devices.iter().map(|peer| device.can_access(peer)).collect();
    devices.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvlink_of_cuda_is_known() {
        for (device, connection) in [("cuda", "pcie"), ("cpu", "nvlink")] {
            let error = detect_dma_connectivity(device, connection).unwrap_err().to_string();
            assert!(error.contains(connection) && error.contains(device), "{error}");
        }
    }

    #[test]
    fn the_devices_of_this_machine() {
        let topology = match Topology::detect() {
            Ok(topology) => topology,
            Err(error) => {
                assert!(matches!(error, Error::NoCuda { .. }), "{error}");
                println!("skipped: {error}");
                return;
            }
        };
        let count = topology.devices().len();
        assert_eq!(topology.links().len(), count);
        for ordinal in 0..count {
            assert_eq!(topology.links()[ordinal][ordinal], 0);
            assert!(topology.access()[ordinal][ordinal]);
        }
        assert_eq!(&detect_dma_connectivity("cuda", "nvlink").unwrap().matrix, topology.links());
    }

    #[test]
    fn a_mesh_is_fully_linked_when_no_pair_is_without() {
        let topology = |links| Topology { devices: Vec::new(), links, access: Vec::new() };
        assert!(topology(vec![vec![0, 4], vec![4, 0]]).is_fully_linked());
        assert!(!topology(vec![vec![0, 4], vec![0, 0]]).is_fully_linked());
    }
}
