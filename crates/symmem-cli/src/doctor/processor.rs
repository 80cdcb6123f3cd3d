//! The processor: what it is, what reductions use of it, its caches, and what may slow it down.

use std::path::Path;

use symmem::machine;

use super::row::Fact;
use super::text::{field, many, read};

const CPU: &str = "/sys/devices/system/cpu/cpu0";

pub(super) fn facts() -> Vec<Fact> {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let cores = machine::cores();
    let cpus = cores.iter().map(|core| core.cpus.len()).sum();
    let frequency = |name: &str| read(Path::new(CPU).join("cpufreq").join(name));
    vec![
        model(&info, machine::instruction_set()),
        caches(&read_caches(&Path::new(CPU).join("cache"))),
        threads(cores.len(), cpus),
        governor(frequency("scaling_governor").as_deref(), frequency("scaling_driver").as_deref()),
    ]
}

/// The instruction sets that kernels are written for, as `/proc/cpuinfo` calls them.
const SETS: [(&str, &str); 5] = [
    ("avx2", "AVX2"),
    ("f16c", "F16C"),
    ("avx512f", "AVX-512"),
    ("avx512_bf16", "AVX512-BF16"),
    ("erms", "fast string copies"),
];

fn model(info: &str, chosen: &str) -> Fact {
    let name = field(info, "model name").or_else(|| field(info, "CPU part")).unwrap_or("unknown");
    let flags: Vec<&str> = field(info, "flags").unwrap_or_default().split_whitespace().collect();
    let has: Vec<&str> =
        SETS.iter().filter(|(flag, _)| flags.contains(flag)).map(|(_, name)| *name).collect();
    let has = if has.is_empty() { String::new() } else { format!(" (it has {})", has.join(", ")) };
    Fact::ok("processor", format!("{name}; reductions use {chosen}{has}"))
}

/// A cache: its level, what it holds, and its size.
type Cache = (String, String, String);

fn read_caches(folder: &Path) -> Vec<Cache> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut caches: Vec<Cache> = entries
        .filter_map(|entry| {
            let file = |name| read(entry.path().join(name));
            Some((file("level")?, file("type")?, file("size")?))
        })
        .collect();
    caches.sort();
    caches
}

fn caches(caches: &[Cache]) -> Fact {
    // Data only: instructions are none of our business.
    let of_data = caches.iter().filter(|(_, kind, _)| kind != "Instruction");
    let words: Vec<String> = of_data.map(|(level, _, size)| format!("L{level} {size}")).collect();
    match words.is_empty() {
        true => Fact::skip("caches", "the kernel does not tell"),
        false => Fact::ok("caches", words.join(", ")),
    }
}

fn threads(cores: usize, cpus: usize) -> Fact {
    const NAME: &str = "SMT";
    match (cores, cpus) {
        (0, _) => Fact::skip(NAME, "the kernel does not tell which processors are one core"),
        (cores, cpus) if cpus > cores => Fact::ok(
            NAME,
            format!("{} on {}; ranks get whole cores first", many(cpus, "processor"), many(cores, "core")),
        ),
        (cores, _) => Fact::ok(NAME, format!("none in use: {} of one thread each", many(cores, "core"))),
    }
}

fn governor(governor: Option<&str>, driver: Option<&str>) -> Fact {
    const NAME: &str = "frequency";
    let Some(governor) = governor else {
        return Fact::skip(NAME, "not visible, as in most virtual machines");
    };
    // These drivers call it so where the processor itself chooses, quickly.
    let is_own = driver.is_some_and(|driver| driver.starts_with("intel_pstate") || driver.starts_with("amd"));
    match governor {
        "powersave" if !is_own => Fact::warn(
            NAME,
            "the governor is powersave: waits and reductions run at the lowest clock",
            "cpupower frequency-set -g performance",
        ),
        governor => Fact::ok(NAME, format!("the governor is {governor}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    #[test]
    fn a_processor_is_told_with_what_is_used_of_it() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 f16c avx512f erms\n";
        let found = model(info, "AVX-512").found;
        assert_eq!(
            found,
            "AMD EPYC; reductions use AVX-512 (it has AVX2, F16C, AVX-512, fast string copies)"
        );
        assert_eq!(model("", "portable vectors").found, "unknown; reductions use portable vectors");
    }

    #[test]
    fn caches_of_data_are_listed() {
        let cache =
            |level: &str, kind: &str, size: &str| (level.to_owned(), kind.to_owned(), size.to_owned());
        let all =
            [cache("1", "Data", "32K"), cache("1", "Instruction", "32K"), cache("2", "Unified", "1024K")];
        assert_eq!(caches(&all).found, "L1 32K, L2 1024K");
        assert_eq!(caches(&[]).status, Status::Skip);
    }

    #[test]
    fn threads_of_a_core_and_its_clock() {
        assert!(threads(4, 8).found.starts_with("8 processors on 4 cores"));
        assert!(threads(4, 4).found.starts_with("none"));
        assert_eq!(threads(0, 0).status, Status::Skip);
        assert_eq!(governor(Some("powersave"), Some("acpi-cpufreq")).status, Status::Warn);
        assert_eq!(governor(Some("powersave"), Some("intel_pstate")).status, Status::Ok);
        assert_eq!(governor(Some("performance"), None).status, Status::Ok);
        assert_eq!(governor(None, None).status, Status::Skip);
    }
}
