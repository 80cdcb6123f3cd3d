//! Containers and what guards processes from each other: what each means for ranks, and for who looks at
//! them.

use std::path::Path;

use symmem::machine;

use super::row::Fact;
use super::text::{field, read};

pub(super) fn facts() -> Vec<Fact> {
    let status = read("/proc/self/status").unwrap_or_default();
    vec![
        container(&Marks::found()),
        user_namespace(&read("/proc/self/uid_map").unwrap_or_default(), machine::uid_is_proof()),
        ptrace(read("/proc/sys/kernel/yama/ptrace_scope").as_deref()),
        filters(&status),
        capabilities(&status),
    ]
}

/// What containers leave behind for those inside to see.
#[derive(Debug, Default)]
struct Marks {
    /// Files that are there.
    files: Vec<&'static str>,
    /// Variables that are set.
    variables: Vec<&'static str>,
    /// The value of the variable `container`, or of systemd's file with it.
    name: Option<String>,
    cgroup: String,
}

const FILES: [(&str, &str); 4] = [
    ("/run/.containerenv", "Podman"),
    ("/.dockerenv", "Docker"),
    ("/.singularity.d", "Apptainer"),
    ("/run/host/container-manager", "a container"),
];
const VARIABLES: [(&str, &str); 3] = [
    ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
    ("APPTAINER_CONTAINER", "Apptainer"),
    ("SINGULARITY_CONTAINER", "Apptainer"),
];
const CGROUPS: [(&str, &str); 5] = [
    ("kubepods", "Kubernetes"),
    ("libpod", "Podman"),
    ("docker", "Docker"),
    ("lxc", "LXC"),
    ("containerd", "containerd"),
];

impl Marks {
    fn found() -> Self {
        let named = std::env::var("container").ok().filter(|name| !name.is_empty());
        Self {
            files: FILES.iter().map(|(file, _)| *file).filter(|file| Path::new(file).exists()).collect(),
            variables: VARIABLES
                .iter()
                .map(|(name, _)| *name)
                .filter(|name| std::env::var_os(name).is_some())
                .collect(),
            name: named.or_else(|| read("/run/systemd/container")),
            cgroup: read("/proc/self/cgroup").unwrap_or_default(),
        }
    }
}

/// The kind of container, and by what it is known. The outer one first: Kubernetes says more than the Docker
/// below it.
fn kind(marks: &Marks) -> Option<(String, String)> {
    let known = |kind: &str, by: &str| Some((kind.to_owned(), by.to_owned()));
    let variable = VARIABLES.iter().find(|(name, _)| marks.variables.contains(name));
    if let Some((name, kind)) = variable {
        return known(kind, name);
    }
    if let Some((_, kind)) = CGROUPS.iter().find(|(word, _)| marks.cgroup.contains(word)) {
        return known(kind, "its cgroup");
    }
    if let Some((file, kind)) = FILES.iter().find(|(file, _)| marks.files.contains(file)) {
        return known(kind, file);
    }
    marks.name.as_ref().and_then(|name| known(name, "the name that systemd tells"))
}

fn container(marks: &Marks) -> Fact {
    match kind(marks) {
        None => Fact::ok("container", "none seen"),
        Some((kind, by)) => Fact::ok(
            "container",
            format!(
                "{kind} (by {by}); ranks in several containers of a machine: share the pid and network namespaces, or set SYMMEM_SOCKET_DIR"
            ),
        ),
    }
}

fn user_namespace(map: &str, uid_is_proof: bool) -> Fact {
    const NAME: &str = "user namespace";
    let fields: Vec<&str> = map.split_whitespace().collect();
    let is_initial = fields == ["0", "0", "4294967295"];
    match (is_initial, uid_is_proof) {
        (true, _) => Fact::ok(NAME, "the first one: a uid proves who a rank is"),
        (false, true) => Fact::ok(
            NAME,
            format!("one of its own (uid map {}); uids still prove who a rank is", fields.join(" ")),
        ),
        (false, false) => Fact::warn(
            NAME,
            "this uid is that of everybody unknown: ranks prove themselves by their processes instead",
            "ranks must be able to see each other's /proc; or run as a uid that the namespace maps",
        ),
    }
}

fn ptrace(scope: Option<&str>) -> Fact {
    const NAME: &str = "ptrace";
    let who = match scope {
        None => return Fact::ok(NAME, "no Yama: debuggers may attach to processes of the same user"),
        Some("0") => "processes of the same user",
        Some("1") => "their own children only",
        Some("2") => "anything only with CAP_SYS_PTRACE",
        Some("3") => "nothing",
        Some(other) => {
            return Fact::skip(NAME, format!("ptrace_scope is {other:?}, which is not known here"));
        }
    };
    Fact::ok(
        NAME,
        format!("scope {}: debuggers attach to {who}; symmem attaches to nobody", scope.unwrap_or_default()),
    )
}

/// Seccomp and no_new_privs, by `/proc/self/status`.
fn filters(status: &str) -> Fact {
    let seccomp = match field(status, "Seccomp") {
        Some("0") => "no filter of system calls".to_owned(),
        Some("1") => "strict seccomp".to_owned(),
        Some("2") => {
            let filters = field(status, "Seccomp_filters").unwrap_or("some");
            format!("system calls are filtered ({filters}); what symmem needs of them is tried above")
        }
        _ => return Fact::skip("seccomp", "the kernel does not tell"),
    };
    let privileges = match field(status, "NoNewPrivs") {
        Some("1") => "; no_new_privs is set, which does not matter here",
        _ => "",
    };
    Fact::ok("seccomp", format!("{seccomp}{privileges}"))
}

/// Capabilities that change what can be done, with their numbers.
const CAPABILITIES: [(u32, &str, &str); 3] = [
    (19, "CAP_SYS_PTRACE", "look at other users' jobs"),
    (14, "CAP_IPC_LOCK", "lock memory without limit"),
    (23, "CAP_SYS_NICE", "keep ranks on any core"),
];

fn capabilities(status: &str) -> Fact {
    const NAME: &str = "capabilities";
    let Some(set) = field(status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok()) else {
        return Fact::skip(NAME, "the kernel does not tell");
    };
    let has: Vec<String> = CAPABILITIES
        .iter()
        .filter(|(bit, ..)| set & (1 << bit) != 0)
        .map(|(_, name, what)| format!("{name} ({what})"))
        .collect();
    Fact::ok(
        NAME,
        match has.is_empty() {
            true => "none that matter: `symmem inspect` sees jobs of this user".to_owned(),
            false => format!("{}; none is needed", has.join(", ")),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::row::Status;
    use super::*;

    #[test]
    fn containers_are_told_apart() {
        let by = |marks: Marks| kind(&marks).map(|(kind, _)| kind);
        assert_eq!(by(Marks::default()), None);
        assert_eq!(by(Marks { files: vec!["/.dockerenv"], ..Marks::default() }).as_deref(), Some("Docker"));
        let podman =
            Marks { files: vec!["/run/.containerenv"], name: Some("podman".into()), ..Marks::default() };
        assert_eq!(by(podman).as_deref(), Some("Podman"));
        let pod = Marks {
            variables: vec!["KUBERNETES_SERVICE_HOST"],
            files: vec!["/.dockerenv"],
            ..Marks::default()
        };
        assert_eq!(by(pod).as_deref(), Some("Kubernetes"));
        let pod = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1a2b.scope\n".to_owned();
        assert_eq!(by(Marks { cgroup: pod, ..Marks::default() }).as_deref(), Some("Kubernetes"));
        let docker = "12:memory:/docker/0f3e\n11:cpu,cpuacct:/docker/0f3e\n".to_owned();
        assert_eq!(by(Marks { cgroup: docker, ..Marks::default() }).as_deref(), Some("Docker"));
        let nspawn = Marks { name: Some("systemd-nspawn".into()), ..Marks::default() };
        assert_eq!(by(nspawn).as_deref(), Some("systemd-nspawn"));
    }

    #[test]
    fn a_uid_that_proves_nothing_is_a_warning() {
        assert_eq!(user_namespace("         0          0 4294967295", true).status, Status::Ok);
        assert!(user_namespace("0 1000 1\n", true).found.contains("uid map 0 1000 1"));
        assert_eq!(user_namespace("65534 1000 1\n", false).status, Status::Warn);
    }

    #[test]
    fn ptrace_scopes_are_told_in_words() {
        assert!(ptrace(None).found.starts_with("no Yama"));
        assert!(ptrace(Some("1")).found.contains("own children"));
        assert_eq!(ptrace(Some("9")).status, Status::Skip);
    }

    const STATUS: &str =
        "Name:\tsh\nCapEff:\t00000000a80425fb\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn filters_and_capabilities_are_read_from_the_status() {
        let found = filters(STATUS).found;
        assert!(found.contains("filtered (1)") && found.contains("no_new_privs"), "{found}");
        assert_eq!(filters("Seccomp:\t0\nNoNewPrivs:\t0\n").found, "no filter of system calls");
        assert_eq!(filters("").status, Status::Skip);
        assert!(capabilities(STATUS).found.starts_with("none that matter"), "Docker's default");
        assert!(capabilities("CapEff:\t000001ffffffffff").found.contains("CAP_SYS_PTRACE"));
        assert_eq!(capabilities("CapEff:\tx").status, Status::Skip);
    }
}
