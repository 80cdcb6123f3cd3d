//! GPUs: the driver, the devices, how they reach each other, and NVIDIA's libraries. Runs within
//! [`super::part`].
//!
//! A machine without a driver has one row that says why.

mod libraries;

use symmem::Error;
use symmem::cuda::driver_version;
use symmem::machine::gpu::{self, FabricState, Gpu};
use symmem::topology::{Matrix, Topology};

use super::row::{Fact, split_hint};
use super::text::{bytes, many};

/// The oldest compute capability whose instructions the kernels use.
const OLDEST: (u32, u32) = (7, 0);

/// All facts; one that is skipped where there is no driver or no device.
pub(super) fn facts() -> Vec<Fact> {
    let found = driver_version().and_then(|version| Ok((version, gpu::gpus()?)));
    let (version, devices) = match found {
        Ok(found) => found,
        Err(error) => return vec![none(&error)],
    };
    if devices.is_empty() {
        return vec![Fact::skip(
            "GPUs",
            "there is a driver, and no device is visible (CUDA_VISIBLE_DEVICES?)",
        )];
    }
    let mut facts = vec![driver(version, gpu::kernel_driver())];
    facts.extend(devices.iter().map(device));
    if let Ok(topology) = Topology::detect().inspect_err(|error| facts.push(reach_unknown(error))) {
        facts.extend(reach(topology.access(), topology.links()));
    }
    facts.push(fabric(&devices));
    facts.push(mps(&devices));
    facts.extend(libraries::facts());
    facts
}

/// Why there is no GPU: no failure, since most of the library needs none. The hint is for who expected one.
fn none(error: &Error) -> Fact {
    let (found, hint) = split_hint(&error.to_string());
    let hint = hint.map(|hint| format!("; if there should be one: {hint}")).unwrap_or_default();
    Fact::skip("GPUs", format!("{found}{hint}"))
}

fn driver((major, minor): (u32, u32), kernel: Result<String, String>) -> Fact {
    let kernel = match kernel {
        Ok(version) => format!("driver {version}"),
        Err(problem) => format!("NVML does not tell the driver's version ({problem})"),
    };
    Fact::ok("driver", format!("speaks CUDA {major}.{minor}; {kernel}"))
}

fn device(gpu: &Gpu) -> Fact {
    let name = format!("GPU {}", gpu.ordinal);
    let (major, minor) = gpu.capability;
    let what = format!(
        "{}{}, {}, compute capability {major}.{minor}",
        gpu.name,
        if gpu.is_mig { " (a MIG instance, which no other device reaches)" } else { "" },
        bytes(gpu.memory as u64)
    );
    let attributes = [
        (gpu.has_vmm, "virtual memory"),
        (gpu.has_descriptors, "descriptors"),
        (gpu.has_fabric_handles, "fabric handles"),
        (gpu.has_multicast, "multicast"),
        (gpu.has_unified_addresses, "unified addresses"),
        (gpu.has_cooperative_launch, "cooperative launch"),
    ];
    let list = |has: bool| {
        let names: Vec<_> = attributes.iter().filter(|(it, _)| *it == has).map(|(_, name)| *name).collect();
        names.join(", ")
    };
    let without = if list(false).is_empty() { String::new() } else { format!("; without {}", list(false)) };
    let found = format!("{what}; has {}{without}", list(true));
    if !gpu.has_vmm || !(gpu.has_descriptors || gpu.has_fabric_handles) {
        return Fact::fail(
            name,
            found,
            "its memory cannot be shared by the driver; WSL and vGPU often lack that, bare Linux has it",
        );
    }
    if gpu.capability < OLDEST {
        return Fact::warn(name, found, "kernels are written for compute capability 7.0 and newer");
    }
    Fact::ok(name, found)
}

fn reach_unknown(error: &Error) -> Fact {
    Fact::warn("peer access", error.to_string(), "nvidia-smi topo -m tells what the driver sees")
}

/// Which devices reach which, and by how many NVLinks. Nothing for a single one.
fn reach(access: &Matrix<bool>, links: &Matrix<u32>) -> Vec<Fact> {
    const NAME: &str = "peer access";
    let count = access.len();
    if count < 2 {
        return vec![Fact::ok(
            NAME,
            "one device; ranks that share it need SYMMEM_ALLOW_OVERLAPPING_DEVICES=1",
        )];
    }
    let pairs = || (0..count).flat_map(|row| (0..count).map(move |column| (row, column)));
    let apart: Vec<String> = pairs()
        .filter(|(row, column)| row < column && !(access[*row][*column] && access[*column][*row]))
        .map(|(row, column)| format!("{row}-{column}"))
        .collect();
    let first = match apart.is_empty() {
        true => Fact::ok(NAME, format!("each of {} reaches every other", many(count, "device"))),
        false => Fact::warn(
            NAME,
            format!("not between {}", shortened(&apart)),
            "ranks on these cannot share memory directly; IOMMU and ACS settings may forbid it, or NCCL carries it (SYMMEM_PROVIDER=nccl)",
        ),
    };
    let line = |row: usize| links[row].iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let matrix: Vec<String> = (0..count).map(|row| format!("{row}: {}", line(row))).collect();
    let is_linked = pairs().any(|(row, column)| links[row][column] > 0);
    let second = match is_linked {
        true => Fact::ok("NVLink", format!("links from each device to each: {}", matrix.join("; "))),
        false => Fact::ok("NVLink", "none seen: devices reach each other over PCIe"),
    };
    vec![first, second]
}

/// The first few, and how many more.
fn shortened(list: &[String]) -> String {
    match list.len() {
        ..=8 => list.join(", "),
        len => format!("{} and {} more pairs", list[..8].join(", "), len - 8),
    }
}

/// The fabric manager, as the GPUs know it: without it, NVSwitches do not connect.
fn fabric(devices: &[Gpu]) -> Fact {
    const NAME: &str = "fabric manager";
    let is = |state: FabricState| devices.iter().any(|gpu| gpu.fabric == state);
    let failed = devices.iter().find_map(|gpu| match gpu.fabric {
        FabricState::Failed(status) => Some((gpu.ordinal, status)),
        _ => None,
    });
    const HINT: &str = "systemctl status nvidia-fabricmanager; multicast and NVLink through switches need it";
    if let Some((ordinal, status)) = failed {
        return Fact::fail(NAME, format!("it has refused GPU {ordinal} (NVML error {status})"), HINT);
    }
    if is(FabricState::NotStarted) || is(FabricState::InProgress) {
        return Fact::warn(NAME, "GPUs wait for it to make them members of the fabric", HINT);
    }
    match is(FabricState::Member) {
        true => Fact::ok(NAME, "all GPUs are members of its fabric"),
        false => Fact::ok(NAME, "no fabric here, so none is needed"),
    }
}

fn mps(devices: &[Gpu]) -> Fact {
    match devices.iter().any(|gpu| gpu.has_mps) {
        true => Fact::ok("MPS", "runs: processes on one GPU work at the same time"),
        false => Fact::ok("MPS", "does not run; only processes that share a GPU want it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    #[test]
    fn no_driver_is_no_failure_and_says_what_to_do() {
        let problem = "libcuda.so.1 cannot be loaded. Hint: install the NVIDIA driver".to_owned();
        let fact = none(&Error::NoCuda { problem });
        assert_eq!(fact.status, Status::Skip);
        assert!(fact.found.ends_with("if there should be one: install the NVIDIA driver"), "{}", fact.found);
    }

    #[test]
    fn devices_that_do_not_reach_each_other_are_named() {
        let access = vec![vec![true, true, false], vec![true, true, true], vec![false, true, true]];
        let facts = reach(&access, &vec![vec![0, 4, 0], vec![4, 0, 0], vec![0, 0, 0]]);
        assert_eq!((facts[0].status, facts[0].found.as_str()), (Status::Warn, "not between 0-2"));
        assert!(facts[1].found.ends_with("0: 0 4 0; 1: 4 0 0; 2: 0 0 0"), "{:?}", facts[1]);
        let all = reach(&vec![vec![true; 2]; 2], &vec![vec![0; 2]; 2]);
        assert_eq!(all[0].status, Status::Ok);
        assert!(all[1].found.starts_with("none seen"));
        assert_eq!(reach(&vec![vec![true]], &vec![vec![0]]).len(), 1);
    }

    #[test]
    fn many_pairs_are_shortened() {
        let pairs: Vec<String> = (0..12).map(|pair| pair.to_string()).collect();
        assert_eq!(shortened(&pairs), "0, 1, 2, 3, 4, 5, 6, 7 and 4 more pairs");
    }
}
