//! How much memory and how many cores this process may use.
//!
//! Called before memory is reserved and when the wait ladder is set up. Looks at cgroups v1 and v2 with all
//! ancestors, at the machine, and at the process' own limits. What cannot be read does not limit; nothing
//! fails.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Memory that can still be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLeft {
    /// Bytes; a small part is held back for page tables.
    pub(crate) left: u64,
    /// What limits it: a file, or a resource limit.
    pub(crate) limit: String,
}

/// Memory this process can still get without being refused or killed.
pub(crate) fn memory_left() -> MemoryLeft {
    let left = Roots::system().memory_left();
    // A file may not grow beyond this; the kernel sends SIGXFSZ to whoever tries.
    match getrlimit(Resource::Fsize).current {
        Some(bytes) if bytes < left.left => {
            MemoryLeft { left: bytes, limit: "the largest file of this process (ulimit -f)".into() }
        }
        _ => left,
    }
}

/// A cgroup's bound on memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Bytes that its processes may have.
    pub limit: u64,
    /// Bytes that they have, without file cache that the kernel would drop.
    pub used: u64,
    /// The file with the limit.
    pub file: PathBuf,
}

/// A cgroup's bound on processes and threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupTasks {
    /// As many as there may be.
    pub limit: u64,
    /// As many as there are.
    pub used: u64,
    /// The file with the limit.
    pub file: PathBuf,
}

/// The bound on memory that leaves the least, of all cgroups that this process is in.
pub fn cgroup_memory() -> Option<CgroupMemory> {
    Roots::system().cgroup_memory()
}

/// The same for processes and threads.
pub fn cgroup_tasks() -> Option<CgroupTasks> {
    Roots::system().cgroup_tasks()
}

/// The cores that quotas of cgroups leave, rounded up.
pub fn cgroup_cores() -> Option<usize> {
    Roots::system().cores()
}

/// What a launcher that keeps its ranks on cores tells them: its process, and the cores that all of them have
/// together.
pub(crate) const SPAWN_CORES: &str = "SYMMEM_SPAWN_CORES";

/// Cores that the ranks of this machine can keep busy: the affinity mask of this process and its cgroups'
/// quotas, at least 1. The process is taken for all of them, unless its launcher has kept it on a part of the
/// cores and says so.
pub fn usable_cores() -> usize {
    let told =
        std::env::var(SPAWN_CORES).ok().and_then(|told| told_cores(&told, rustix::process::getppid()?));
    told.unwrap_or_else(own_cores)
}

/// The value of [`SPAWN_CORES`] for the ranks of this process.
pub(crate) fn tell_cores() -> String {
    format!("{}:{}", rustix::process::getpid().as_raw_nonzero(), usable_cores())
}

/// What `told` says, if it is from `parent`: what a rank starts has its environment too, and is no rank.
fn told_cores(told: &str, parent: rustix::process::Pid) -> Option<usize> {
    let (launcher, cores) = told.split_once(':')?;
    let is_from_it = launcher == parent.as_raw_nonzero().to_string();
    cores.parse().ok().filter(|cores| is_from_it && *cores > 0)
}

fn own_cores() -> usize {
    // The main thread's mask: a thread that is a rank may be kept on a part of it.
    let allowed = match rustix::thread::sched_getaffinity(Some(rustix::process::getpid())) {
        Ok(set) => set.count() as usize,
        // Machines with more than 1024 cores.
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let quota = Roots::system().cores().unwrap_or(usize::MAX);
    allowed.min(quota).max(1)
}

/// Where to look, so that tests can look at a made-up machine.
struct Roots {
    /// Stands for `/proc`.
    proc: PathBuf,
    /// Put before the mount points that `/proc/self/mountinfo` names.
    files: PathBuf,
}

/// A cgroup hierarchy's version: they differ in file names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CgroupVersion {
    V1,
    V2,
}

impl Roots {
    fn system() -> Self {
        Self { proc: "/proc".into(), files: "/".into() }
    }

    fn memory_left(&self) -> MemoryLeft {
        let of_cgroup = |found: CgroupMemory| MemoryLeft {
            left: found.limit.saturating_sub(found.used),
            limit: found.file.display().to_string(),
        };
        let tightest = self
            .cgroup_memory()
            .map(of_cgroup)
            .into_iter()
            .chain(self.available())
            .min_by_key(|found| found.left)
            .unwrap_or_else(|| MemoryLeft { left: u64::MAX, limit: "no known limit".into() });
        // Mapping memory costs page tables: 1/512 of it on most machines.
        MemoryLeft { left: tightest.left - tightest.left / 256, ..tightest }
    }

    fn cgroup_memory(&self) -> Option<CgroupMemory> {
        let cgroups = self.cgroups("memory").into_iter();
        let bounds = cgroups.filter_map(|(version, dir)| memory_of(version, &dir));
        bounds.min_by_key(|found| found.limit.saturating_sub(found.used))
    }

    fn cgroup_tasks(&self) -> Option<CgroupTasks> {
        let bounds = self.cgroups("pids").into_iter().filter_map(|(_, dir)| {
            let file = dir.join("pids.max");
            // "max" does not parse: no limit here.
            let (limit, used) = (number(&file)?, number(&dir.join("pids.current")).unwrap_or(0));
            Some(CgroupTasks { limit, used, file })
        });
        bounds.min_by_key(|found| found.limit.saturating_sub(found.used))
    }

    fn available(&self) -> Option<MemoryLeft> {
        let path = self.proc.join("meminfo");
        let text = fs::read_to_string(&path).ok()?;
        let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(MemoryLeft {
            left: kib.saturating_mul(1024),
            limit: format!("MemAvailable of {}", path.display()),
        })
    }

    fn cores(&self) -> Option<usize> {
        self.cgroups("cpu").into_iter().filter_map(|(version, dir)| cores_of(version, &dir)).min()
    }

    /// The directories of this process' cgroup and all its visible ancestors, in every hierarchy that may
    /// have `controller`.
    fn cgroups(&self, controller: &str) -> Vec<(CgroupVersion, PathBuf)> {
        let read = |name: &str| fs::read_to_string(self.proc.join(name)).unwrap_or_default();
        let own = read("self/cgroup");
        let mut found = Vec::new();
        for mount in read("self/mountinfo").lines().filter_map(|line| Mount::parse(line, controller)) {
            let Some(path) = own.lines().find_map(|line| own_cgroup(line, mount.version, controller)) else {
                continue;
            };
            let top = self.files.join(mount.point.trim_start_matches('/'));
            // In a container the mount shows only a part of the tree, and our path may lie outside of it.
            let inside = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let dirs = inside.ancestors().map(|part| (mount.version, top.join(part)));
            found.extend(dirs);
        }
        found
    }
}

/// A mounted cgroup hierarchy.
struct Mount {
    version: CgroupVersion,
    /// The part of the hierarchy that is mounted.
    root: String,
    point: String,
}

impl Mount {
    /// Parses a line of mountinfo: `36 35 98:0 /root /point options [tags] - type source super-options`.
    fn parse(line: &str, controller: &str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (unescape(mount.next()?), unescape(mount.next()?));
        let mut filesystem = filesystem.split(' ');
        let version = match filesystem.next()? {
            "cgroup2" => CgroupVersion::V2,
            "cgroup" => CgroupVersion::V1,
            _ => return None,
        };
        let options = filesystem.nth(1)?;
        let holds = version == CgroupVersion::V2 || options.split(',').any(|option| option == controller);
        holds.then_some(Self { version, root, point })
    }
}

/// The path in a line of `/proc/self/cgroup` (`id:controllers:/path`) if the line is about the hierarchy
/// asked for.
fn own_cgroup<'a>(line: &'a str, version: CgroupVersion, controller: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let matches = match version {
        CgroupVersion::V2 => controllers.is_empty(),
        CgroupVersion::V1 => controllers.split(',').any(|name| name == controller),
    };
    matches.then_some(path)
}

/// Undoes mountinfo's octal escapes of blanks and backslashes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn memory_of(version: CgroupVersion, dir: &Path) -> Option<CgroupMemory> {
    let (limit, used, cache) = match version {
        CgroupVersion::V2 => ("memory.max", "memory.current", "inactive_file"),
        CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    };
    let path = dir.join(limit);
    // "max" does not parse: no limit here.
    let limit = number(&path)?;
    let used = number(&dir.join(used)).unwrap_or(0);
    // The kernel drops clean file cache before it refuses memory.
    let used = used.saturating_sub(stat(dir, cache).unwrap_or(0));
    Some(CgroupMemory { limit, used, file: path })
}

fn cores_of(version: CgroupVersion, dir: &Path) -> Option<usize> {
    let (quota, period) = match version {
        CgroupVersion::V2 => {
            let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        // No limit is -1, which does not parse.
        CgroupVersion::V1 => {
            (number(&dir.join("cpu.cfs_quota_us"))?, number(&dir.join("cpu.cfs_period_us"))?)
        }
    };
    let quota: u64 = quota;
    (period > 0).then(|| quota.div_ceil(period) as usize)
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn stat(dir: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(dir.join("memory.stat")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::Folder;

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNTS: &str = "33 32 0:29 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        34 32 0:30 /docker/x /sys/fs/cgroup/mem\\040ory rw shared:1 - cgroup cgroup rw,memory\n";

    /// A machine with these mounts, in these cgroups, with 1 GiB available.
    fn machine(mounts: &str, cgroups: &str) -> Folder {
        let folder = Folder::new();
        folder.write("proc/self/mountinfo", mounts);
        folder.write("proc/self/cgroup", cgroups);
        folder.write("proc/meminfo", "MemTotal:  4194304 kB\nMemFree: 1 kB\nMemAvailable:    1048576 kB\n");
        folder
    }

    fn roots(folder: &Folder) -> Roots {
        Roots { proc: folder.path().join("proc"), files: folder.path().into() }
    }

    /// What is left of `bytes` once page tables are paid for.
    fn usable(bytes: u64) -> u64 {
        bytes - bytes / 256
    }

    #[test]
    fn without_cgroups_the_machine_limits() {
        let folder = machine("", "");
        let found = roots(&folder).memory_left();
        assert_eq!(found.left, usable(1 << 30));
        assert!(found.limit.contains("MemAvailable"), "{}", found.limit);
        assert_eq!(roots(&folder).cores(), None);
    }

    #[test]
    fn nothing_readable_is_no_limit() {
        let nowhere = Roots { proc: "/nonexistent".into(), files: "/nonexistent".into() };
        assert_eq!(nowhere.memory_left().limit, "no known limit");
        assert!(nowhere.memory_left().left > 1 << 60);
    }

    #[test]
    fn version_2_counts_ancestors_and_gives_cache_back() {
        let folder = machine(V2_MOUNT, "0::/a/b\n");
        folder.write("sys/fs/cgroup/a/b/memory.max", "max\n");
        folder.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        folder.write("sys/fs/cgroup/a/memory.max", "1000000\n");
        folder.write("sys/fs/cgroup/a/memory.current", "700000\n");
        folder.write("sys/fs/cgroup/a/memory.stat", "file 5\ninactive_file 100000\nactive_file 9\n");
        folder.write("sys/fs/cgroup/a/memory.high", "1\n");
        folder.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        let found = roots(&folder).memory_left();
        assert_eq!(found.left, usable(400_000));
        assert!(found.limit.ends_with("/sys/fs/cgroup/a/memory.max"), "{}", found.limit);
        assert_eq!(roots(&folder).cores(), Some(2));
        let bound = roots(&folder).cgroup_memory().unwrap();
        assert_eq!((bound.limit, bound.used), (1_000_000, 600_000));
        folder.write("sys/fs/cgroup/a/pids.max", "max\n");
        assert_eq!(roots(&folder).cgroup_tasks(), None);
        folder.write("sys/fs/cgroup/a/pids.max", "200\n");
        folder.write("sys/fs/cgroup/a/pids.current", "12\n");
        let tasks = roots(&folder).cgroup_tasks().unwrap();
        assert_eq!((tasks.limit, tasks.used), (200, 12));
        // A tighter leaf wins, and use beyond the limit leaves nothing.
        folder.write("sys/fs/cgroup/a/b/memory.max", "500\n");
        folder.write("sys/fs/cgroup/a/b/memory.current", "600\n");
        let found = roots(&folder).memory_left();
        assert_eq!(found.left, 0);
        assert!(found.limit.ends_with("/a/b/memory.max"), "{}", found.limit);
    }

    #[test]
    fn version_1_in_a_container_sees_its_part_of_the_tree() {
        let folder = machine(V1_MOUNTS, "5:memory:/docker/x/inner\n4:cpu,cpuacct:/docker/x\n0::/\n");
        let memory = "sys/fs/cgroup/mem ory";
        folder.write(&format!("{memory}/inner/memory.limit_in_bytes"), "9223372036854771712\n");
        folder.write(&format!("{memory}/memory.limit_in_bytes"), "2000000\n");
        folder.write(&format!("{memory}/memory.usage_in_bytes"), "1500000\n");
        folder.write(&format!("{memory}/memory.stat"), "inactive_file 1\ntotal_inactive_file 250000\n");
        folder.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
        folder.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        let found = roots(&folder).memory_left();
        assert_eq!(found.left, usable(750_000));
        assert!(found.limit.ends_with("mem ory/memory.limit_in_bytes"), "{}", found.limit);
        assert_eq!(roots(&folder).cores(), Some(1));
        folder.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        assert_eq!(roots(&folder).cores(), None);
    }

    #[test]
    fn a_cgroup_outside_the_mount_counts_by_the_mount() {
        let folder = machine(V2_MOUNT, "0::/../other\n");
        folder.write("sys/fs/cgroup/memory.max", "1000\n");
        assert_eq!(roots(&folder).memory_left().left, usable(1000));
    }

    #[test]
    fn garbage_is_ignored() {
        let mounts = "x\n - \n1 2 3 - cgroup2\n1 2 3 / /sys/fs/cgroup rw - cgroup2 a b\n";
        let folder = machine(mounts, "::\n\n0::/\nx");
        folder.write("sys/fs/cgroup/memory.max", "not a number");
        folder.write("sys/fs/cgroup/cpu.max", "1 0");
        folder.write("proc/meminfo", "MemAvailable: many kB\n");
        assert_eq!(roots(&folder).memory_left().limit, "no known limit");
        assert_eq!(roots(&folder).cores(), None);
    }

    #[test]
    fn a_launchers_word_counts_for_its_own_ranks_only() {
        let launcher = rustix::process::getpid();
        let own = launcher.as_raw_nonzero();
        let told = tell_cores();
        assert_eq!(told_cores(&told, launcher), Some(usable_cores()));
        assert_eq!(told_cores(&told, rustix::process::Pid::INIT), None);
        for nonsense in ["", "8", "x:8", &format!("{own}:x"), &format!("{own}:0")] {
            assert_eq!(told_cores(nonsense, launcher), None, "{nonsense}");
        }
    }

    #[test]
    fn this_machine_has_memory_and_cores() {
        assert!(memory_left().left > 0, "{:?}", memory_left());
        assert!(usable_cores() >= 1);
    }
}
