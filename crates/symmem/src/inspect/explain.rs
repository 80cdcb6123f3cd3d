//! What a state means, in a sentence.

use std::fmt;
use std::time::Duration;

use super::{GroupState, Life, OperationState, RankState};
use crate::group::list_ranks;

/// Shorter waits are what every group does all the time.
const LONG: Duration = Duration::from_secs(1);
/// Culprits that a sentence has room for.
const MOST: usize = 3;

impl GroupState {
    /// One sentence, without a full stop: who waits for whom, in which operation, for how long, and who is to
    /// blame.
    ///
    /// ```
    /// let groups = symmem::inspect::groups()?;
    /// for group in groups {
    ///     println!("{}: {}", group.name, group.explain());
    /// }
    /// # Ok::<(), symmem::Error>(())
    /// ```
    pub fn explain(&self) -> String {
        if let Some(failure) = &self.failure {
            let reason = match failure.reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            let last = self.ranks.get(failure.culprit).and_then(|rank| rank.operation.as_ref());
            let last = last.map(|last| format!("; its last operation was {last}")).unwrap_or_default();
            return format!("failed: {} {}{reason}{last}", self.named(failure.culprit), failure.cause);
        }
        if self.is_stuck() && !self.cycle.is_empty() {
            return self.explain_cycle();
        }
        if self.is_stuck() && !self.culprits.is_empty() {
            let blame: Vec<String> =
                self.culprits.iter().take(MOST).map(|rank| self.explain_culprit(*rank)).collect();
            return format!("{}; {}", self.explain_waits(), blame.join("; "));
        }
        let gone: Vec<usize> =
            self.ranks.iter().filter(|rank| rank.life == Life::Dead).map(|rank| rank.rank).collect();
        match gone.as_slice() {
            [] => "no wait has lasted a second".to_owned(),
            gone => format!("{} {} dead; no wait has lasted a second", list_ranks(gone), are(gone)),
        }
    }

    /// Whether a rank has waited for a second or longer.
    pub fn is_stuck(&self) -> bool {
        self.waits().any(|(_, since)| since >= LONG)
    }

    fn waits(&self) -> impl Iterator<Item = (&RankState, Duration)> {
        self.ranks.iter().filter_map(|rank| Some((rank, rank.waiting.as_ref()?.since)))
    }

    fn named(&self, rank: usize) -> String {
        match self.ranks.get(rank).and_then(|rank| rank.pid) {
            Some(pid) => format!("rank {rank} (pid {pid})"),
            None => format!("rank {rank}"),
        }
    }

    /// Who waits for the culprits, in what, for how long.
    fn explain_waits(&self) -> String {
        let is_immediate = |rank: &RankState| {
            rank.waiting
                .as_ref()
                .is_some_and(|wait| wait.ranks.iter().any(|rank| self.culprits.contains(rank)))
        };
        let mut waits: Vec<(&RankState, Duration)> =
            self.waits().filter(|(rank, _)| is_immediate(rank)).collect();
        waits.sort_by_key(|(_, since)| std::cmp::Reverse(*since));
        let Some((longest, since)) = waits.first() else { return String::new() };
        let mut ranks: Vec<usize> = waits.iter().map(|(rank, _)| rank.rank).collect();
        ranks.sort_unstable();
        let have = if ranks.len() == 1 { "has" } else { "have" };
        let whom = list_ranks(&self.culprits);
        format!(
            "{} {have} waited for {whom} in {} for {}",
            list_ranks(&ranks),
            waits_in(longest),
            time(*since)
        )
    }

    fn explain_cycle(&self) -> String {
        let wait = |rank: &usize| {
            let state = self.ranks.get(*rank)?;
            let wait = state.waiting.as_ref()?;
            Some(format!(
                "rank {rank} for {} in {} for {}",
                list_ranks(&wait.ranks),
                waits_in(state),
                time(wait.since)
            ))
        };
        let waits: Vec<String> = self.cycle.iter().take(MOST).filter_map(wait).collect();
        format!("{} wait for each other: {}", list_ranks(&self.cycle), waits.join(", "))
    }

    fn explain_culprit(&self, rank: usize) -> String {
        let name = self.named(rank);
        let Some(state) = self.ranks.get(rank) else { return name };
        let last = state.operation.as_ref();
        match (state.life, state.pid) {
            (Life::Stopped, Some(pid)) => format!("{name} is stopped: kill -CONT {pid} lets it go on"),
            (Life::Stopped, None) => format!("{name} is stopped"),
            (Life::Dead, _) => format!("{name} is dead"),
            (Life::Left, _) => format!("{name} has left the group"),
            (Life::Elsewhere, _) => format!("{name} is on another host"),
            (Life::Unknown, _) => format!("{name} cannot be seen from here"),
            (Life::Running | Life::Sleeping, _) => match last {
                Some(last) => format!("{name} is {} in its own code, after {last}", state.life),
                None => format!("{name} is {} in its own code", state.life),
            },
        }
    }
}

/// What a rank that waits does, with all that is known of it.
fn waits_in(rank: &RankState) -> String {
    let name = rank.waiting.as_ref().map_or("", |wait| wait.operation);
    match (&rank.operation, rank.waiting.as_ref().and_then(|wait| wait.lane)) {
        (_, Some((device, lane))) => {
            let device = rank.devices.get(device).map_or(device, |state| state.device);
            format!("{name} (GPU {device}, lane {lane})")
        }
        (Some(operation), None) if operation.name == name => operation.to_string(),
        _ => name.to_owned(),
    }
}

fn are(ranks: &[usize]) -> &'static str {
    if ranks.len() == 1 { "is" } else { "are" }
}

/// `all_reduce (64 KB, operation 41)`.
impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.map(size);
        let channel = self.channel.map(|channel| format!("channel {channel}"));
        let root = self.root.map(|root| format!("root {root}"));
        let sequence = self.sequence.map(|sequence| format!("operation {sequence}"));
        let details: Vec<String> = [bytes, root, channel, sequence].into_iter().flatten().collect();
        match details.is_empty() {
            true => f.write_str(self.name),
            false => write!(f, "{} ({})", self.name, details.join(", ")),
        }
    }
}

/// Bytes for people: `64 KB`, `1.5 MB`.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

/// A time as people say it: `350 ms`, `12.3 s`, `4 min`, `2.5 h`.
///
/// ```
/// let time = std::time::Duration::from_millis(12_345);
/// assert_eq!(symmem::inspect::time(time), "12.3 s");
/// ```
pub fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{} ms", time.as_millis()),
        seconds if seconds < 120.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        let sizes = [0, 100, 1024, 65_536, 1_572_864, 3 << 30].map(size);
        assert_eq!(sizes, ["0 bytes", "100 bytes", "1 KB", "64 KB", "1.5 MB", "3 GB"]);
        let times = [0.35, 12.34, 240.0, 9000.0].map(|seconds| time(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["350 ms", "12.3 s", "4 min", "2.5 h"]);
    }
}
