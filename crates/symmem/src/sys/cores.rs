//! Which processors this process may use, which of them are one physical core, and which are on one NUMA
//! node.
//!
//! Read from `/sys`, where a rank is to be kept on cores of its own. What cannot be read does not divide: a
//! processor without siblings is a core of its own, and all without a node are on one.

use std::fs;
use std::path::Path;

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{Error, Result};

/// A physical core: the processors of it that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Their numbers.
    pub cpus: Vec<usize>,
    /// The NUMA node that they are on.
    pub node: usize,
}

/// The physical cores that this process may use, those of one node beside each other. None on machines with
/// more than 1024 processors, whose masks are longer than what is asked for.
pub fn usable() -> Vec<Core> {
    // The main thread's, for this one may be a rank that was pinned.
    let set = sched_getaffinity(Some(getpid())).unwrap_or_else(|_| CpuSet::new());
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    read(Path::new("/sys/devices/system"), &allowed)
}

/// Keeps the calling thread, and what it starts, on `cpus`. Makes one system call and allocates nothing.
pub(crate) fn stay_on(cpus: &[usize]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// As [`stay_on`], with an error of this crate.
pub(crate) fn pin(cpus: &[usize]) -> Result<()> {
    stay_on(cpus).map_err(|error| Error::sys("keeping a rank on its cores", error))
}

/// The cores of a machine that `root` describes.
fn read(root: &Path, allowed: &[usize]) -> Vec<Core> {
    let nodes = nodes(&root.join("node"));
    let node_of =
        |cpu: usize| nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |(node, _)| *node);
    let mut cores: Vec<Core> = Vec::new();
    for cpu in allowed.iter().copied() {
        let path = root.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
        let siblings = fs::read_to_string(path).map(|text| list(&text)).unwrap_or_default();
        match cores.iter_mut().find(|core| siblings.contains(&core.cpus[0])) {
            Some(core) => core.cpus.push(cpu),
            None => cores.push(Core { cpus: vec![cpu], node: node_of(cpu) }),
        }
    }
    // Stable: the kernel's order within a node.
    cores.sort_by_key(|core| core.node);
    cores
}

/// The nodes and their processors.
fn nodes(folder: &Path) -> Vec<(usize, Vec<usize>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((node, list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)))
        })
        .collect()
}

/// The numbers of a list as the kernel writes it: `0-3,8,10-11`. What is no such list is empty.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let ranges = text.trim().split(',').filter_map(range);
    ranges
        .filter(|(_, last)| *last < CpuSet::MAX_CPU)
        .flat_map(|(first, last): (usize, usize)| first..=last)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::Folder;

    /// A machine of these nodes; `siblings` says which processors are one core with it.
    fn machine(nodes: &[&str], cpus: usize, siblings: impl Fn(usize) -> String) -> Folder {
        let folder = Folder::new();
        for (node, cpus) in nodes.iter().enumerate() {
            folder.write(&format!("node/node{node}/cpulist"), &format!("{cpus}\n"));
        }
        folder.write("node/possible", "0-1\n");
        for cpu in 0..cpus {
            let file = format!("cpu/cpu{cpu}/topology/thread_siblings_list");
            folder.write(&file, &format!("{}\n", siblings(cpu)));
        }
        folder
    }

    fn core(cpus: &[usize], node: usize) -> Core {
        Core { cpus: cpus.to_vec(), node }
    }

    #[test]
    fn siblings_are_one_core_and_nodes_stay_together() {
        // Two nodes whose processors alternate, two threads a core: 0 and 4, 1 and 5 ...
        let folder = machine(&["0,2,4,6", "1,3,5,7"], 8, |cpu| format!("{},{}", cpu % 4, cpu % 4 + 4));
        let all: Vec<usize> = (0..8).collect();
        let expected = [core(&[0, 4], 0), core(&[2, 6], 0), core(&[1, 5], 1), core(&[3, 7], 1)];
        assert_eq!(read(folder.path(), &all), expected);
        // What the process may not use is not there, and half a core is a core.
        assert_eq!(read(folder.path(), &[4, 3]), [core(&[4], 0), core(&[3], 1)]);
        assert_eq!(read(folder.path(), &[]), []);
    }

    #[test]
    fn what_cannot_be_read_does_not_divide() {
        let folder = Folder::new();
        assert_eq!(read(folder.path(), &[0, 1]), [core(&[0], 0), core(&[1], 0)]);
        folder.write("cpu/cpu0/topology/thread_siblings_list", "garbage");
        folder.write("node/node0/cpulist", "0-99999999999999999999,-,7-3");
        assert_eq!(read(folder.path(), &[0, 1]), [core(&[0], 0), core(&[1], 0)]);
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(list("5\n"), [5]);
        assert_eq!(list(""), [0usize; 0]);
    }

    #[test]
    fn a_thread_can_be_kept_on_a_core() {
        let cores = usable();
        let Some(core) = cores.last() else { return };
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    pin(&core.cpus).unwrap();
                    assert_eq!(sched_getaffinity(None).unwrap().count() as usize, core.cpus.len());
                    // What others may use is what the process may.
                    assert_eq!(usable(), cores);
                })
                .join()
                .unwrap();
        });
        assert!(pin(&[]).is_err());
    }
}
