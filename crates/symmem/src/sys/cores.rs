//! Which processors this process may use, which of them are one physical core, and which are on one NUMA
//! node.
//!
//! Read from `/sys`, where a rank is to be kept on cores of its own. What cannot be read does not divide: a
//! processor without siblings is a core of its own, and all without a node are on one.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

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

/// Has the calling thread go on on another processor than `cpu`, of those that it may use, on the same NUMA
/// node; false if it may use no other. It is kept nowhere: the scheduler may move it again at once.
///
/// Somebody who sets this thread's processors at the same time may be overruled.
pub(crate) fn leave(cpu: usize) -> bool {
    static NODES: OnceLock<Vec<(usize, Vec<usize>)>> = OnceLock::new();
    let nodes = NODES.get_or_init(|| nodes(Path::new("/sys/devices/system/node")));
    let Ok(allowed) = sched_getaffinity(None) else {
        return false;
    };
    let others = others(cpu, nodes, |other| allowed.is_set(other));
    if others.count() == 0 || sched_setaffinity(None, &others).is_err() {
        return false;
    }
    // A refusal would leave the thread with fewer processors, and nothing to do about it.
    let _ = sched_setaffinity(None, &allowed);
    true
}

/// The processors on the node of `cpu` that are `allowed`, without it.
fn others(cpu: usize, nodes: &[(usize, Vec<usize>)], allowed: impl Fn(usize) -> bool) -> CpuSet {
    let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
    let is_near = |other: usize| node.is_none_or(|(_, cpus)| cpus.contains(&other));
    let mut others = CpuSet::new();
    (0..CpuSet::MAX_CPU)
        .filter(|other| *other != cpu && allowed(*other) && is_near(*other))
        .for_each(|other| others.set(other));
    others
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

    #[test]
    fn who_leaves_a_core_stays_on_its_node_and_on_what_it_may_use() {
        let nodes = [(0, vec![0, 2, 4]), (1, vec![1, 3, 5])];
        let left = |cpu, nodes: &[(usize, Vec<usize>)], most: usize| -> Vec<usize> {
            let others = others(cpu, nodes, |other| other < most);
            (0..CpuSet::MAX_CPU).filter(|cpu| others.is_set(*cpu)).collect()
        };
        assert_eq!(left(2, &nodes, 6), [0, 4]);
        assert_eq!(left(2, &nodes, 3), [0]);
        assert!(left(1, &nodes, 3).is_empty());
        // Of a processor that no node has, or without nodes, all are near.
        assert_eq!(left(9, &nodes, 3), [0, 1, 2]);
        assert_eq!(left(1, &[], 3), [0, 2]);
    }

    #[test]
    fn who_left_a_core_may_use_it_again() {
        let allowed = sched_getaffinity(None).unwrap();
        let here = crate::sys::cpu::current().unwrap() as usize;
        if leave(here) {
            assert!(allowed.count() > 1);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        std::thread::spawn(move || {
            stay_on(&[here]).unwrap();
            assert!(!leave(here), "there is no other");
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        })
        .join()
        .unwrap();
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
