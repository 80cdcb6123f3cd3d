//! Makes states of what was found: one group for each id, its ranks from their own segments and from what
//! others know of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::find::{ControlSegment, FoundFiles};
use super::{
    DeviceFailure, DeviceState, Failure, GroupState, LaneState, LastOperation, Life, OperationState,
    RankState, WaitState,
};
use crate::device::status;
use crate::group::Counters;
use crate::operation::{Announced, Op, announced};
use crate::sync::about::Seated;
use crate::sync::waiting::SeenWait;
use crate::sys::clock;
use crate::sys::life::{ProcessId, Stat, proc_is_ours};

/// All groups, the oldest first.
pub(super) fn read(found: &FoundFiles) -> Vec<GroupState> {
    let now_ns = clock::boottime_ns();
    let mut groups: BTreeMap<String, Vec<&ControlSegment>> = BTreeMap::new();
    for segment in &found.segments {
        let id = segment.map.control().about.id();
        // A segment without an id is being made.
        if !id.is_empty() {
            groups.entry(id).or_default().push(segment);
        }
    }
    let namespace = if proc_is_ours() { ProcessId::own().pid_ns } else { 0 };
    let mut states: Vec<GroupState> = groups
        .into_iter()
        .map(|(id, segments)| {
            let engines = found.engines.iter().filter(|examined| examined.engine.id == id).collect();
            Looking::new(segments, engines, now_ns, namespace).group(id)
        })
        .collect();
    states.sort_by(|a, b| b.made.cmp(&a.made).then_with(|| (&a.name, &a.id).cmp(&(&b.name, &b.id))));
    states
}

/// What is known of one group.
struct Looking<'a> {
    world: usize,
    /// By rank.
    segments: Vec<Option<&'a ControlSegment>>,
    engines: Vec<&'a status::ExaminedEngine>,
    now_ns: u64,
    /// The pid namespace that `/proc` shows; 0 if that is not known.
    namespace: u64,
}

impl<'a> Looking<'a> {
    /// Of a group that has at least one segment.
    fn new(
        found: Vec<&'a ControlSegment>,
        mut engines: Vec<&'a status::ExaminedEngine>,
        now_ns: u64,
        namespace: u64,
    ) -> Self {
        let world = found.iter().map(|segment| segment.map.world()).max().unwrap_or(0);
        let mut segments = vec![None; world];
        for segment in found.into_iter().filter(|segment| segment.map.world() == world) {
            segments[segment.rank] = Some(segment);
        }
        engines.sort_by_key(|examined| examined.engine.made_ns);
        Self { world, segments, engines, now_ns, namespace }
    }

    fn there(&self) -> impl Iterator<Item = &'a ControlSegment> {
        self.segments.iter().flatten().copied()
    }

    fn ago(&self, then_ns: u64) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(then_ns))
    }

    fn group(&self, id: String) -> GroupState {
        let name = self.there().next().map(|segment| segment.map.control().about.name());
        let made = self.there().map(|segment| self.ago(segment.map.control().about.made_ns())).max();
        GroupState {
            name: name.unwrap_or_default(),
            id,
            world: self.world,
            made: made.unwrap_or_default(),
            ranks: (0..self.world).map(|rank| self.rank(rank)).collect(),
            failure: self.failure(),
            culprits: Vec::new(),
            cycle: Vec::new(),
        }
    }

    fn failure(&self) -> Option<Failure> {
        let known = |segment: &ControlSegment| {
            let control = segment.map.control();
            control.verdict().or_else(|| control.heard())
        };
        let verdict = self.there().find_map(known)?;
        let culprit = self.segments.get(verdict.culprit)?;
        let reason = culprit.map(|segment| segment.map.control().reason()).unwrap_or_default();
        Some(Failure { culprit: verdict.culprit, cause: verdict.cause, reason })
    }

    fn rank(&self, rank: usize) -> RankState {
        let segment = self.segments[rank];
        let (pid, life) = self.life(rank);
        let waiting = segment.filter(|_| !life.is_gone()).and_then(|segment| {
            let control = segment.map.control();
            let seen = control.waiting.get().or_else(|| control.mail_waiting.get())?;
            let ranks = self.awaited(segment, &seen);
            let (operation, since) = (seen.wanted.op.name(), self.ago(seen.since_ns));
            (!ranks.is_empty()).then_some((WaitState { operation, ranks, since, lane: None }, seen))
        });
        let (waiting, seen) = waiting.unzip();
        let mut last = segment.map(|segment| segment.map.control().last_ops()).unwrap_or_default();
        last.sort_by_key(|(sequence, _)| u64::MAX - sequence);
        RankState {
            rank,
            pid,
            life,
            operation: self.operation(rank, seen.as_ref(), last.first().copied()),
            waiting,
            last: last
                .iter()
                .map(|(sequence, op)| LastOperation { sequence: *sequence, name: op.name() })
                .collect(),
            counters: segment.map(|segment| Counters::from(&segment.map.control().counters)),
            devices: self.devices(rank),
        }
    }

    /// The process of `rank`, by its number here, and whether it lives.
    fn life(&self, rank: usize) -> (Option<u32>, Life) {
        let segment = self.segments[rank];
        let seated = self.there().find_map(|segment| segment.map.seat(rank).get());
        let own = segment.map(|segment| {
            let control = segment.map.control();
            let (pid, start) =
                (control.pid.load(Ordering::Relaxed), control.start_time.load(Ordering::Relaxed));
            let started_then = |holder| Stat::read(holder).is_ok_and(|stat| stat.start_time == start);
            own_process(&segment.holders, pid, started_then).map(|pid| (pid, start))
        });
        let process = own.flatten().or(match seated {
            Some(Seated { process, is_here: true })
                if self.namespace != 0 && process.pid_ns == self.namespace =>
            {
                Some((process.pid, process.start_time))
            }
            _ => None,
        });
        let has_left = self.there().any(|segment| segment.map.seat(rank).has_left())
            || segment.is_some_and(|segment| segment.map.control().has_left());
        let life = match (process, seated) {
            _ if has_left => Life::Left,
            (Some((pid, start)), _) => life_of(pid, start),
            (None, Some(Seated { is_here: false, .. })) => Life::Elsewhere,
            _ => Life::Unknown,
        };
        (process.map(|(pid, _)| pid), life)
    }

    /// The ranks that the owner of `segment` waits for.
    fn awaited(&self, segment: &ControlSegment, seen: &SeenWait) -> Vec<usize> {
        let others = || (0..self.world).filter(|rank| *rank != segment.rank);
        let wanted = &seen.wanted;
        let told = |rank: &usize| match seen.awaited {
            Some(bits) => bits[rank / 64] >> (rank % 64) & 1 == 1,
            // It has not looked around yet. Where there is a root, the others need not wait for each other.
            None if wanted.epoch != 0 && !has_root(wanted.op) => true,
            None => wanted.peer.is_none_or(|peer| peer == *rank),
        };
        // Who has arrived since is not waited for any more, whatever a rank that cannot run still says.
        let has_arrived = |rank: &usize| {
            let latest = segment.map.slot(*rank).latest();
            wanted.epoch != 0 && latest.is_some_and(|(epoch, ..)| epoch >= wanted.epoch)
        };
        others().filter(|rank| told(rank) && !has_arrived(rank)).collect()
    }

    /// What `rank` told the others last.
    fn announced(&self, rank: usize) -> Option<(u64, Announced)> {
        let others = self.there().filter(|segment| segment.rank != rank);
        let latest = others.filter_map(|segment| segment.map.slot(rank).latest());
        let (epoch, signature, _) = latest.max_by_key(|(epoch, ..)| *epoch)?;
        Some((epoch, announced((signature, 0))?))
    }

    /// What `rank` does or did last: what it waits in, else what it began, else what it told the others.
    fn operation(
        &self,
        rank: usize,
        seen: Option<&SeenWait>,
        last: Option<(u64, Op)>,
    ) -> Option<OperationState> {
        let announced = self.announced(rank);
        let waits_in =
            seen.map(|seen| (seen.wanted.op, Some(seen.wanted.sequence).filter(|sequence| *sequence > 0)));
        let begun = waits_in.or_else(|| last.map(|(sequence, op)| (op, Some(sequence))));
        let (op, sequence) = match (begun, announced) {
            (Some(begun), _) => begun,
            (None, Some((_, announced))) => (announced.op, None),
            (None, None) => return None,
        };
        let details = announced.filter(|(_, announced)| announced.op == op);
        let told = details.map(|(_, announced)| announced);
        let channel = seen.and_then(|seen| seen.wanted.channel);
        Some(OperationState {
            name: op.name(),
            sequence,
            epoch: details.map(|(epoch, _)| epoch),
            channel: channel.or_else(|| told?.channel),
            bytes: told.and_then(|told| told.bytes),
            root: told.and_then(|told| told.root),
            dtype: told.and_then(|told| told.dtype),
            reduce: told.and_then(|told| told.reduce),
            algorithm: told.and_then(|told| told.algorithm),
        })
    }

    fn devices(&self, rank: usize) -> Vec<DeviceState> {
        let own = self.engines.iter().filter(|examined| examined.engine.rank == rank);
        own.map(|examined| self.device(examined)).collect()
    }

    fn device(&self, examined: &status::ExaminedEngine) -> DeviceState {
        let lane = |lane: &status::board::LaneLaunch| LaneState {
            launches: lane.launches,
            meetings: lane.meetings,
            last: lane.last.map(|(op, _)| op.name()),
            ago: lane.last.map(|(_, at_ns)| self.ago(at_ns)),
        };
        let failure = examined.verdict.map(|word| DeviceFailure {
            culprit: word.culprit.into(),
            reporter: word.reporter.into(),
            cause: word.cause.describe(),
            operation: Op::from_u8(word.op).map(Op::name),
            epoch: word.epoch,
        });
        DeviceState {
            device: examined.engine.device,
            lanes: examined.engine.lanes.iter().map(lane).collect(),
            failure,
            is_aborted: examined.is_aborted,
        }
    }
}

fn has_root(op: Op) -> bool {
    op == Op::Broadcast || op.row().is_some_and(|row| row.root)
}

/// What the kernel says of the process with this number that started then; 0 if it is not known when.
fn life_of(pid: u32, start_time: u64) -> Life {
    let stat = match Stat::read(pid) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Life::Dead,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Life::Dead,
        Err(_) => return Life::Unknown,
    };
    match stat.state {
        _ if stat.ended || start_time != 0 && stat.start_time != start_time => Life::Dead,
        b'T' | b't' => Life::Stopped,
        b'R' => Life::Running,
        _ => Life::Sleeping,
    }
}

/// The rank's own process among those that have its file. From a namespace above its own that has another
/// number than `pid`, but has `started_then`. So has, perhaps, somebody who looks on, and has the file open
/// for a moment: the number comes first.
fn own_process(holders: &[u32], pid: u32, started_then: impl Fn(u32) -> bool) -> Option<u32> {
    let holds = holders.contains(&pid).then_some(pid);
    let by_time = || holders.iter().copied().find(|holder| started_then(*holder));
    holds.filter(|pid| started_then(*pid)).or_else(by_time).or(holds)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "writes garbage into a segment")]
mod tests {
    use super::super::blame;
    use super::*;
    use crate::sync::control::{ControlMap, ExaminedFile};
    use crate::sys::memfd::{self, Mapping};

    /// A small random number generator.
    fn next(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    #[test]
    fn no_bytes_in_a_segment_do_any_harm() {
        const WORLD: usize = 3;
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        let words = ControlMap::bytes(WORLD) / 8;
        for round in 0..40 {
            let (file, map) = ControlMap::create("garbage", 1, WORLD, ProcessId::own()).unwrap();
            let pointer = file.mapping().ptr().cast::<u64>();
            for word in 0..words {
                // Small numbers and empty words lead further than large ones.
                let value = match next(&mut seed) % 4 {
                    0 => 0,
                    1 => next(&mut seed) % 64,
                    2 => (next(&mut seed) % 64) | ((next(&mut seed) % 64) << 32),
                    _ => next(&mut seed),
                };
                let is_head = word < 5;
                let is_staging = word > 2048 && word % 64 != round % 64;
                if !is_head && !is_staging {
                    // SAFETY: a word of the mapping, which nobody else has.
                    unsafe { pointer.add(word).write(value) };
                }
            }
            map.control().about.set("garbage", "1");
            if round % 2 == 0 {
                map.seat(2).set(Seated { process: ProcessId::own(), is_here: true });
            }
            let mapping = Mapping::look_at(file.fd()).unwrap();
            let ExaminedFile::Segment(map, rank) = ControlMap::examine(mapping) else {
                panic!("it has a head")
            };
            let segments = vec![ControlSegment { map, rank, holders: vec![std::process::id(), u32::MAX] }];
            let found = FoundFiles { segments, engines: Vec::new(), unreadable: 0, other_versions: 0 };
            let mut groups = read(&found);
            groups.iter_mut().for_each(blame::judge);
            assert_eq!((groups.len(), groups[0].ranks.len()), (1, WORLD));
            assert!(groups[0].culprits.iter().all(|rank| *rank < WORLD), "{:?}", groups[0]);
            assert!(!groups[0].explain().is_empty());
            serde_json::to_string(&groups).unwrap();
        }
    }

    #[test]
    fn who_looks_on_is_not_taken_for_a_rank_that_started_at_the_same_time() {
        assert_eq!(own_process(&[5, 7, 9], 7, |_| true), Some(7));
        assert_eq!(own_process(&[5, 7, 9], 7, |holder| holder == 9), Some(9), "of another namespace");
        assert_eq!(own_process(&[5, 7, 9], 7, |_| false), Some(7), "nobody knows when it started");
        assert_eq!(own_process(&[5, 9], 7, |_| false), None);
    }

    #[test]
    fn files_that_are_no_segments_are_not_taken_for_one() {
        let examine = |file: &memfd::Segment| ControlMap::examine(Mapping::look_at(file.fd()).unwrap());
        let (file, map) = ControlMap::create("x", 0, 2, ProcessId::own()).unwrap();
        assert!(matches!(examine(&file), ExaminedFile::Segment(_, 0)));
        map.control().world.store(1024, Ordering::Relaxed);
        assert!(matches!(examine(&file), ExaminedFile::Nothing), "too small for so many");
        map.control().world.store(u32::MAX, Ordering::Relaxed);
        assert!(matches!(examine(&file), ExaminedFile::Nothing));
        map.control().version.store(1, Ordering::Relaxed);
        assert!(matches!(examine(&file), ExaminedFile::OtherVersion));
        let small = memfd::Segment::create("symmem:x:0", 16).unwrap();
        assert!(matches!(examine(&small), ExaminedFile::Nothing));
    }
}
