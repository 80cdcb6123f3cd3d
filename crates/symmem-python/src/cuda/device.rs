//! The devices that this process uses, and what can be asked about them without memory or groups.
//!
//! A device is opened once and stays open: its primary context, the one torch uses too, must not come and go.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use symmem::cuda::Device;
use symmem::topology::{self, Topology};
use symmem::{Error, Result};

use crate::context;
use crate::error::raise;

static DEVICES: Mutex<Option<HashMap<i32, Device>>> = Mutex::new(None);

fn devices() -> MutexGuard<'static, Option<HashMap<i32, Device>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device with this ordinal among the visible ones.
pub(crate) fn device(ordinal: i32) -> Result<Device> {
    if let Some(device) = devices().as_ref().and_then(|devices| devices.get(&ordinal)) {
        return Ok(device.clone());
    }
    let number = usize::try_from(ordinal).map_err(|_| Error::Invalid {
        what: "CUDA device".to_owned(),
        problem: format!("{ordinal} is negative"),
    })?;
    // Opened without the lock: the first call loads the driver and makes a context.
    let device = Device::new(number)?;
    Ok(devices().get_or_insert_default().entry(ordinal).or_insert(device).clone())
}

/// What leads from device to device.
#[pyclass(frozen, get_all, module = "symmem", name = "DmaConnectivity")]
#[derive(Debug)]
struct DmaConnectivity {
    /// The kind of device: `cuda`.
    device_type: String,
    /// The kind of link: `nvlink`.
    connection_type: String,
    /// Number of links, by device and device.
    matrix: Vec<Vec<u32>>,
}

#[pymethods]
impl DmaConnectivity {
    fn __repr__(&self) -> String {
        let Self { device_type, connection_type, matrix } = self;
        format!(
            "DmaConnectivity(device_type={device_type:?}, connection_type={connection_type:?}, matrix={matrix:?})"
        )
    }
}

/// How many direct memory links lead from each visible device to each other one: `.matrix[i][j]`.
///
/// All zeros where the links cannot be looked at; other kinds than nvlink of cuda are an error.
#[pyfunction]
#[pyo3(signature = (device_type = "cuda", connection_type = "nvlink"))]
fn detect_dma_connectivity(
    py: Python<'_>,
    device_type: &str,
    connection_type: &str,
) -> PyResult<DmaConnectivity> {
    let detected = py.detach(|| topology::detect_dma_connectivity(device_type, connection_type));
    let topology::DmaConnectivity { device_type, connection_type, matrix, .. } = detected.map_err(raise)?;
    Ok(DmaConnectivity { device_type, connection_type, matrix })
}

/// Whether a device can have addresses that reach the memory of all ranks at once. False, not an error, for
/// whatever device there is not, and where it is switched off (`SYMMEM_MULTICAST`,
/// `TORCH_SYMM_MEM_DISABLE_MULTICAST`).
#[pyfunction]
#[pyo3(signature = (device_type, index = 0))]
fn has_multicast_support(py: Python<'_>, device_type: &str, index: usize) -> PyResult<bool> {
    if device_type != "cuda" || !context::uses_multicast(&context::current(py)?) {
        return Ok(false);
    }
    // Looks without making a context.
    let topology = py.detach(Topology::detect);
    Ok(topology
        .is_ok_and(|topology| topology.devices().get(index).is_some_and(|device| device.has_multicast)))
}

/// Number of CUDA devices that can be used; 0 where there is no driver.
#[pyfunction]
fn _cuda_device_count(py: Python<'_>) -> usize {
    py.detach(Device::count).unwrap_or(0)
}

/// The headers for kernels of one's own, by name: `symmem.cuh` and what it includes. Put them on the include
/// path, or give them to NVRTC.
///
///     for name, text in symmem.device_headers().items(): ...
#[pyfunction]
fn device_headers() -> HashMap<&'static str, &'static str> {
    symmem::cuda::device_headers().iter().copied().collect()
}

pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(device_headers, module)?)?;
    module.add_class::<DmaConnectivity>()?;
    module.add_function(wrap_pyfunction!(detect_dma_connectivity, module)?)?;
    module.add_function(wrap_pyfunction!(has_multicast_support, module)?)?;
    module.add_function(wrap_pyfunction!(_cuda_device_count, module)?)
}
