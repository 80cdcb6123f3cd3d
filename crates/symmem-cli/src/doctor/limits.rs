//! How much this process may have, and whether that is enough for so many ranks.

use rustix::process::{Resource, Rlimit, getrlimit};
use symmem::machine::{self, CgroupMemory, CgroupTasks};

use super::row::Fact;
use super::text::{bytes, many, read};

/// Mappings that a program has before it has any of ours, and then some.
const FEW_MAPPINGS: u64 = 16_384;
/// Too little memory to do anything with.
const NO_MEMORY: u64 = 64 << 20;
/// Little memory.
const LITTLE_MEMORY: u64 = 1 << 30;

pub(super) fn facts(ranks: usize) -> Vec<Fact> {
    let number = |path: &str| read(path).and_then(|text| text.parse().ok());
    let (left, limit) = machine::memory_left();
    vec![
        cores(machine::usable_cores(), machine::cores().len(), machine::cgroup_cores(), ranks),
        open_files(getrlimit(Resource::Nofile), ranks),
        processes(getrlimit(Resource::Nproc), machine::cgroup_tasks(), ranks),
        memory_left(left, &limit),
        cgroup_memory(machine::cgroup_memory()),
        address_space(getrlimit(Resource::As)),
        file_size(getrlimit(Resource::Fsize)),
        locked_memory(getrlimit(Resource::Memlock)),
        mappings(number("/proc/sys/vm/max_map_count")),
        overcommit(number("/proc/sys/vm/overcommit_memory")),
    ]
}

/// What a process must be able to open: a pidfd and descriptors under way for each rank of the machine; the
/// rest is for the program.
fn files_needed(ranks: usize) -> (u64, u64) {
    let ranks = ranks as u64;
    (24 + 3 * ranks, 256 + 8 * ranks)
}

fn open_files(limit: Rlimit, ranks: usize) -> Fact {
    const NAME: &str = "open files";
    let Some(most) = limit.current else { return Fact::ok(NAME, "unlimited") };
    let (least, good) = files_needed(ranks);
    let raise = match limit.maximum {
        Some(hard) if hard < good => {
            format!("the hard limit is {hard}: raise it (limits.conf, or --ulimit nofile= of the container)")
        }
        _ => format!("ulimit -n {good}"),
    };
    let found = format!("{most} a process, for {}", many(ranks, "rank"));
    if most < least {
        Fact::fail(NAME, format!("{found}: at least {least} are needed"), raise)
    } else if most < good {
        Fact::warn(NAME, format!("{found}: {good} leave room for large jobs and the program"), raise)
    } else {
        Fact::ok(NAME, found)
    }
}

fn processes(limit: Rlimit, cgroup: Option<CgroupTasks>, ranks: usize) -> Fact {
    const NAME: &str = "processes";
    // A rank with the threads of its libraries.
    let good = 64 + 16 * ranks as u64;
    if let Some(CgroupTasks { limit, used, file }) = cgroup {
        let found = format!("{used} of {limit} in this cgroup ({})", file.display());
        let left = limit.saturating_sub(used);
        if left < ranks as u64 {
            let found = format!("{found}: not enough for {}", many(ranks, "rank"));
            return Fact::fail(NAME, found, "raise pids.max, or --pids-limit of the container");
        }
        if left < good {
            return Fact::warn(
                NAME,
                format!("{found}: ranks and their threads count"),
                "raise pids.max, or --pids-limit of the container",
            );
        }
        return Fact::ok(NAME, found);
    }
    match limit.current {
        None => Fact::ok(NAME, "unlimited"),
        Some(most) if most < good => {
            Fact::warn(NAME, format!("{most} of this user, threads included"), format!("ulimit -u {good}"))
        }
        Some(most) => Fact::ok(NAME, format!("{most} of this user, threads included")),
    }
}

fn cores(usable: usize, physical: usize, quota: Option<usize>, ranks: usize) -> Fact {
    let of = if physical > 0 {
        format!("; the process may run on {}", many(physical, "physical core"))
    } else {
        String::new()
    };
    let by = quota.map(|quota| format!("; the cgroup's quota is {quota}")).unwrap_or_default();
    let found = format!("{} for ranks{of}{by}", many(usable, "core"));
    if usable >= ranks {
        return Fact::ok("cores", found);
    }
    Fact::warn(
        "cores",
        found,
        format!(
            "{ranks} ranks outnumber them: they yield instead of spinning, which costs microseconds a wait"
        ),
    )
}

fn memory_left(left: u64, limit: &str) -> Fact {
    const NAME: &str = "memory left";
    let found = format!("{} for this process, by {limit}", bytes(left));
    const HINT: &str = "allocations beyond that are refused with an error; end something, or raise the limit";
    match left {
        ..NO_MEMORY => Fact::fail(NAME, found, HINT),
        NO_MEMORY..LITTLE_MEMORY => Fact::warn(NAME, found, HINT),
        _ => Fact::ok(NAME, found),
    }
}

fn cgroup_memory(bound: Option<CgroupMemory>) -> Fact {
    const NAME: &str = "cgroup memory";
    // What version 1 writes where there is none.
    const NONE: u64 = i64::MAX as u64 - (1 << 20);
    let Some(CgroupMemory { limit, used, file }) = bound.filter(|bound| bound.limit < NONE) else {
        return Fact::ok(NAME, "no limit");
    };
    let found = format!("{} of {} used ({})", bytes(used), bytes(limit), file.display());
    if used > limit / 10 * 9 {
        return Fact::warn(
            NAME,
            found,
            "nine tenths are used: ranks may be killed; raise the container's limit",
        );
    }
    Fact::ok(NAME, found)
}

fn address_space(limit: Rlimit) -> Fact {
    const NAME: &str = "address space";
    match limit.current {
        None => Fact::ok(NAME, "unlimited"),
        Some(most) => Fact::warn(
            NAME,
            format!(
                "{} a process: every rank maps the memory of all ranks, and CUDA maps far more",
                bytes(most)
            ),
            "ulimit -v unlimited",
        ),
    }
}

fn file_size(limit: Rlimit) -> Fact {
    const NAME: &str = "file size";
    match limit.current {
        None => Fact::ok(NAME, "unlimited"),
        Some(most) => {
            let found =
                format!("{}: no allocation can be larger, since memory is in memory files", bytes(most));
            // Less than a small group's own segments.
            match most {
                ..4_194_304 => Fact::fail(NAME, found, "ulimit -f unlimited"),
                _ => Fact::warn(NAME, found, "ulimit -f unlimited"),
            }
        }
    }
}

fn locked_memory(limit: Rlimit) -> Fact {
    let found = limit.current.map_or_else(|| "unlimited".to_owned(), bytes);
    let note = if limit.current.is_some() { "; InfiniBand (NCCL across machines) wants more" } else { "" };
    Fact::ok("locked memory", format!("{found}: symmem locks none{note}"))
}

fn mappings(most: Option<u64>) -> Fact {
    const NAME: &str = "mappings";
    match most {
        None => Fact::skip(NAME, "vm.max_map_count cannot be read"),
        Some(most) if most < FEW_MAPPINGS => Fact::warn(
            NAME,
            format!("vm.max_map_count is {most}: a rank has one for each array of each rank"),
            "sysctl vm.max_map_count=65530",
        ),
        Some(most) => Fact::ok(NAME, format!("vm.max_map_count is {most}")),
    }
}

fn overcommit(mode: Option<u64>) -> Fact {
    const NAME: &str = "overcommit";
    match mode {
        Some(0) => Fact::ok(NAME, "0, heuristic"),
        Some(1) => Fact::ok(NAME, "1, always"),
        Some(2) => Fact::warn(
            NAME,
            "2, never: all memory that programs reserve counts, CUDA's address ranges too",
            "sysctl vm.overcommit_memory=0, unless the machine needs it so",
        ),
        _ => Fact::skip(NAME, "vm.overcommit_memory cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    fn limit(current: u64) -> Rlimit {
        Rlimit { current: Some(current), maximum: None }
    }

    const UNLIMITED: Rlimit = Rlimit { current: None, maximum: None };

    #[test]
    fn open_files_must_be_enough_for_the_ranks() {
        assert_eq!(open_files(limit(1024), 2).status, Status::Ok);
        assert_eq!(open_files(limit(1024), 128).status, Status::Warn);
        assert_eq!(open_files(limit(256), 128).status, Status::Fail);
        assert_eq!(open_files(UNLIMITED, 9999).status, Status::Ok);
        let hint = open_files(Rlimit { current: Some(20), maximum: Some(64) }, 2).hint.expect("a hint");
        assert!(hint.contains("hard limit is 64"), "{hint}");
        assert_eq!(open_files(limit(20), 2).hint.as_deref(), Some("ulimit -n 272"));
    }

    #[test]
    fn a_cgroup_may_have_too_few_processes() {
        let tasks = |limit, used| Some(CgroupTasks { limit, used, file: "/c/pids.max".into() });
        assert_eq!(processes(limit(100_000), tasks(100, 98), 4).status, Status::Fail);
        assert_eq!(processes(limit(100_000), tasks(100, 10), 4).status, Status::Warn);
        assert_eq!(processes(limit(10), tasks(10_000, 10), 4).status, Status::Ok);
        assert_eq!(processes(limit(10), None, 4).status, Status::Warn);
        assert_eq!(processes(UNLIMITED, None, 4).status, Status::Ok);
    }

    #[test]
    fn ranks_that_outnumber_the_cores_are_a_warning() {
        assert_eq!(cores(8, 8, None, 8).status, Status::Ok);
        let few = cores(2, 8, Some(2), 8);
        assert_eq!(few.status, Status::Warn);
        assert!(few.found.contains("quota is 2") && few.found.contains("8 physical cores"), "{few:?}");
    }

    #[test]
    fn memory_runs_out_by_degrees() {
        assert_eq!(memory_left(1 << 40, "x").status, Status::Ok);
        assert_eq!(memory_left(500 << 20, "x").status, Status::Warn);
        assert_eq!(memory_left(1 << 20, "x").status, Status::Fail);
        let bound = |limit, used| Some(CgroupMemory { limit, used, file: "/c/memory.max".into() });
        assert_eq!(cgroup_memory(bound(100, 95)).status, Status::Warn);
        assert_eq!(cgroup_memory(bound(8 << 30, 1 << 30)).found, "1 GiB of 8 GiB used (/c/memory.max)");
        assert_eq!(cgroup_memory(bound(9_223_372_036_854_771_712, 1)).found, "no limit");
        assert_eq!(cgroup_memory(None).found, "no limit");
    }

    #[test]
    fn limits_that_ulimit_sets_are_told_with_the_command() {
        assert_eq!(address_space(limit(1 << 30)).hint.as_deref(), Some("ulimit -v unlimited"));
        assert_eq!(file_size(limit(1 << 10)).status, Status::Fail);
        assert_eq!(file_size(limit(1 << 30)).status, Status::Warn);
        assert_eq!(locked_memory(limit(64 << 10)).status, Status::Ok);
        for fact in [address_space(UNLIMITED), file_size(UNLIMITED), locked_memory(UNLIMITED)] {
            assert_eq!(fact.status, Status::Ok);
        }
    }

    #[test]
    fn settings_of_the_machine() {
        assert_eq!(mappings(Some(1000)).status, Status::Warn);
        assert_eq!(mappings(Some(65_530)).status, Status::Ok);
        assert_eq!(mappings(None).status, Status::Skip);
        assert_eq!(overcommit(Some(2)).status, Status::Warn);
        assert_eq!(overcommit(Some(0)).status, Status::Ok);
    }
}
