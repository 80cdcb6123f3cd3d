//! What a rank that failed did last.

use rustix::process::Pid;
use symmem::inspect;

/// The last operation of the process `failed` in words, if it is known. `all` are the processes of this
/// machine's ranks: what a dead one has written lies in memory that the living ones still have, so this is
/// asked before they are ended.
pub(super) fn last_operation(failed: Pid, all: &[Pid]) -> Option<String> {
    let number = |pid: &Pid| pid.as_raw_nonzero().get() as u32;
    let pids: Vec<u32> = all.iter().map(number).collect();
    // The group of all ranks is the oldest one, and the first that was made.
    let groups = inspect::groups_of(&pids).ok()?;
    let mut ranks = groups.iter().flat_map(|group| &group.ranks);
    let rank = ranks.find(|rank| rank.pid == Some(number(&failed)))?;
    rank.operation.as_ref().map(ToString::to_string)
}
