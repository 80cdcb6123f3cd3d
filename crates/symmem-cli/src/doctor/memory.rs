//! The machine's memory: how much, in which pages, on which NUMA nodes.

use std::path::Path;

use super::row::Fact;
use super::text::{bytes, field, kib, many, read};

const PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
const NODES: &str = "/sys/devices/system/node";

pub(super) fn facts() -> Vec<Fact> {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let page_file = |name: &str| read(Path::new(PAGES).join(name));
    let asked = std::env::var("SYMMEM_HUGE_PAGES").is_ok_and(|value| !matches!(&*value, "" | "0"));
    vec![
        amount(&meminfo),
        transparent_pages(page_file("shmem_enabled").as_deref(), page_file("enabled").as_deref(), asked),
        explicit_pages(&meminfo),
        nodes(&read_nodes(Path::new(NODES))),
    ]
}

fn amount(meminfo: &str) -> Fact {
    let (Some(total), Some(available)) = (kib(meminfo, "MemTotal"), kib(meminfo, "MemAvailable")) else {
        return Fact::skip("memory", "/proc/meminfo cannot be read");
    };
    Fact::ok("memory", format!("{}, of which {} can be had", bytes(total), bytes(available)))
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// Transparent huge pages of shared memory, which is what segments are; those of private memory are told
/// beside it.
fn transparent_pages(shared: Option<&str>, private: Option<&str>, asked: bool) -> Fact {
    const NAME: &str = "huge pages";
    let private =
        private.and_then(chosen).map(|mode| format!("; private memory: {mode}")).unwrap_or_default();
    let Some(mode) = shared.and_then(chosen) else {
        return Fact::skip(NAME, "this kernel has no transparent huge pages of shared memory");
    };
    match mode {
        "never" | "deny" if asked => Fact::warn(
            NAME,
            format!("SYMMEM_HUGE_PAGES is set, and shared memory has none ({mode}){private}"),
            format!("echo advise > {PAGES}/shmem_enabled"),
        ),
        "never" | "deny" => Fact::ok(
            NAME,
            format!(
                "shared memory: {mode}; for SYMMEM_HUGE_PAGES=1 write \"advise\" to shmem_enabled{private}"
            ),
        ),
        "advise" if !asked => {
            Fact::ok(NAME, format!("shared memory: advise; SYMMEM_HUGE_PAGES=1 asks for them{private}"))
        }
        mode => Fact::ok(NAME, format!("shared memory: {mode}{private}")),
    }
}

fn explicit_pages(meminfo: &str) -> Fact {
    let number = |key| field(meminfo, key).and_then(|text| text.parse::<u64>().ok());
    match (number("HugePages_Total"), number("HugePages_Free"), kib(meminfo, "Hugepagesize")) {
        (Some(total @ 1..), Some(free), Some(size)) => Fact::ok(
            "explicit pages",
            format!("{free} of {total} free, {} each; symmem does not use them", bytes(size)),
        ),
        _ => Fact::ok("explicit pages", "none; symmem does not use them"),
    }
}

/// A NUMA node: its number, how far each node is, and the list of its processors.
#[derive(Debug)]
struct Node {
    number: usize,
    distances: Vec<u32>,
    cpus: String,
}

fn read_nodes(folder: &Path) -> Vec<Node> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<Node> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let distances = read(entry.path().join("distance")).unwrap_or_default();
            let distances = distances.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            Some(Node { number, distances, cpus: read(entry.path().join("cpulist")).unwrap_or_default() })
        })
        .collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

fn nodes(nodes: &[Node]) -> Fact {
    if nodes.len() < 2 {
        return Fact::ok("NUMA", "one node: all memory is equally far");
    }
    let farthest = nodes.iter().flat_map(|node| &node.distances).max().copied().unwrap_or(10);
    let list = |node: &Node| match node.cpus.as_str() {
        "" => format!("{}: no processors", node.number),
        cpus => format!("{}: {cpus}", node.number),
    };
    // More would be a page.
    let shown: Vec<String> = nodes.iter().take(8).map(list).collect();
    let more = if nodes.len() > 8 { " ..." } else { "" };
    Fact::ok(
        "NUMA",
        format!(
            "{} ({}{more}), at most {:.1} times as far as the own one; keep ranks near their memory: --pin numa, SYMMEM_NUMA_NODE",
            many(nodes.len(), "node"),
            shown.join("; "),
            f64::from(farthest) / 10.0
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    const MEMINFO: &str = "MemTotal:       24660396 kB\nMemFree:         1 kB\nMemAvailable:   17825792 kB\n\
        HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n";

    #[test]
    fn memory_is_told_in_whole_sizes() {
        assert_eq!(amount(MEMINFO).found, "23.5 GiB, of which 17 GiB can be had");
        assert_eq!(amount("").status, Status::Skip);
        assert!(explicit_pages(MEMINFO).found.starts_with("none"));
        let some =
            MEMINFO.replace("Total:       0", "Total:      512").replace("Free:        0", "Free: 500");
        assert!(explicit_pages(&some).found.starts_with("500 of 512 free, 2 MiB each"), "{some}");
    }

    #[test]
    fn huge_pages_matter_to_who_asked_for_them() {
        let never = Some("always within_size advise [never] deny force");
        let private = Some("always [madvise] never");
        assert_eq!(transparent_pages(never, private, true).status, Status::Warn);
        let quiet = transparent_pages(never, private, false);
        assert_eq!(quiet.status, Status::Ok);
        assert!(quiet.found.ends_with("private memory: madvise"), "{quiet:?}");
        assert_eq!(
            transparent_pages(Some("always [advise] never"), None, true).found,
            "shared memory: advise"
        );
        assert_eq!(transparent_pages(None, private, true).status, Status::Skip);
        assert_eq!(transparent_pages(Some("garbage"), private, true).status, Status::Skip);
    }

    #[test]
    fn nodes_are_listed_with_how_far_they_are() {
        let node = |number, cpus: &str| Node { number, distances: vec![10, 32], cpus: cpus.to_owned() };
        let two = nodes(&[node(0, "0-3"), node(1, "")]).found;
        assert!(two.starts_with("2 nodes (0: 0-3; 1: no processors), at most 3.2 times"), "{two}");
        assert!(nodes(&[node(0, "0-3")]).found.starts_with("one node"));
        assert!(nodes(&[]).found.starts_with("one node"));
    }
}
