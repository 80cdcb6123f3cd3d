//! Which groups are meant.

use symmem::inspect::GroupState;

/// The groups that `job` means: those of that name, else those of that process, else those whose id begins
/// so; all if nothing is said.
pub(crate) fn of_job<'a>(groups: &'a [GroupState], job: Option<&str>) -> Vec<&'a GroupState> {
    let Some(job) = job else { return groups.iter().collect() };
    let pid: Option<u32> = job.parse().ok();
    let by_name = |group: &GroupState| group.name == job;
    let by_process = |group: &GroupState| pid.is_some_and(|pid| group.is_of(&[pid]));
    let by_id = |group: &GroupState| !job.is_empty() && group.id.starts_with(job);
    let ways: [&dyn Fn(&GroupState) -> bool; 3] = [&by_name, &by_process, &by_id];
    let chosen =
        ways.iter().map(|is_meant| groups.iter().filter(|group| is_meant(group)).collect::<Vec<_>>());
    chosen.into_iter().find(|chosen| !chosen.is_empty()).unwrap_or_default()
}

/// The complaint that `job` is none of `groups`, which it lists.
pub(crate) fn not_found(groups: &[GroupState], job: &str) -> anyhow::Error {
    const MOST: usize = 10;
    if groups.is_empty() {
        return anyhow::anyhow!("there is no group {job:?}: no group of this user runs on this machine");
    }
    let name = |group: &GroupState| {
        let pid = group.ranks.iter().find_map(|rank| rank.pid);
        let pid = pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        format!("{:?} (id {}{pid})", group.name, group.id)
    };
    let mut names: Vec<String> = groups.iter().take(MOST).map(name).collect();
    if groups.len() > MOST {
        names.push(format!("and {} more", groups.len() - MOST));
    }
    anyhow::anyhow!(
        "{job:?} is neither the name of a group, nor a process of one, nor the beginning of an id; there are: {}",
        names.join(", ")
    )
}
