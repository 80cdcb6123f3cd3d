//! Ranks that die without a word, by `kill -9` from outside and at named crash points: every survivor must
//! say who, soon, in the call that it was in or in its next one; then the survivors regroup, and nothing is
//! left behind.
//!
//! The time of death is taken just before the kill: by the launcher, or by the victim at its crash point. So
//! no delay of the kernel or the scheduler is lost, and the times below are upper bounds of what the library
//! needs.

#[path = "kill/launch.rs"]
mod launch;
#[path = "kill/random.rs"]
mod random;
#[path = "kill/rank.rs"]
mod rank;
#[path = "kill/traces.rs"]
mod traces;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use symmem::ProcessSpawner;
use symmem::fault::Point;
use symmem::store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};

use launch::{Case, Death, Outcome, is_of_pull};
use random::{Random, entropy};
use rank::Order;
use traces::Scene;

/// How soon survivors must know: half of them, and the last of them.
const MEDIAN: Duration = Duration::from_millis(200);
const MAX: Duration = Duration::from_secs(1);

/// The cases share two cores badly, and the times are measured.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn survivors_of_random_kills_blame_the_victim_and_regroup() {
    run("survivors_of_random_kills_blame_the_victim_and_regroup", || random_kills(100, true));
}

#[test]
fn survivors_of_random_kills_blame_the_victim_and_regroup_without_pidfds() {
    run("survivors_of_random_kills_blame_the_victim_and_regroup_without_pidfds", || random_kills(100, false));
}

#[test]
fn survivors_of_a_kill_at_each_crash_point_blame_the_victim_and_regroup() {
    run("survivors_of_a_kill_at_each_crash_point_blame_the_victim_and_regroup", || crash_points(true));
}

#[test]
fn survivors_of_a_kill_at_each_crash_point_blame_the_victim_and_regroup_without_pidfds() {
    run("survivors_of_a_kill_at_each_crash_point_blame_the_victim_and_regroup_without_pidfds", || {
        crash_points(false)
    });
}

#[test]
fn survivors_of_random_kills_amid_collectives_blame_the_victim_and_regroup() {
    run("survivors_of_random_kills_amid_collectives_blame_the_victim_and_regroup", || {
        let kills = random_kills(24, true).into_iter();
        kills.map(|case| Case { only_collectives: true, rank_0_serves: false, ..case }).collect()
    });
}

/// Kills at random moments, every rank in turn.
fn random_kills(kills: usize, pidfd: bool) -> Vec<Case> {
    let seed = std::env::var("SYMMEM_KILL_SEED").map_or_else(|_| entropy(), |seed| seed.parse().unwrap());
    println!("SYMMEM_KILL_SEED={seed}");
    let mut random = Random::new(seed);
    (0..kills).map(|kill| random_kill(kill, pidfd, &mut random)).collect()
}

fn random_kill(kill: usize, pidfd: bool, random: &mut Random) -> Case {
    let victim = kill % 4;
    let smallest = (victim + 1).max(2);
    let ranks = smallest + random.below(5 - smallest);
    // Every third during the first join or just after it, the others in the middle of their work.
    let longest = if kill.is_multiple_of(3) { 15_000 } else { 300_000 };
    let after = Duration::from_micros(random.below(longest) as u64);
    let rank_0_serves = kill % 5 == 4;
    let (seed, death) = (random.next(), Death::Killed { after });
    Case { ranks, victim, pidfd, rank_0_serves, only_collectives: false, seed, death }
}

/// A kill at each crash point, the first time the victim comes by and some later time.
fn crash_points(pidfd: bool) -> Vec<Case> {
    let mut random = Random::new(entropy());
    let can = can_pull();
    // That of elections is passed by who has lost a rank already: see survivors.rs.
    let passed = |point: Point| point != Point::Elected && (can || !is_of_pull(point));
    let points = Point::ALL.iter().enumerate().filter(|(_, point)| passed(**point));
    points
        .flat_map(|(at, point)| [(at, *point, 0), (at + 1, *point, 1 + at as u64 % 5)])
        .map(|(at, point, passes)| {
            // Different victims with and without pidfds.
            let victim = (at + usize::from(pidfd)) % 4;
            let ranks = (victim + 1).max(2 + at % 3);
            let death = Death::At { point, passes };
            let seed = random.next();
            Case { ranks, victim, pidfd, rank_0_serves: false, only_collectives: false, seed, death }
        })
        .collect()
}

/// Whether ranks are let to read each other's memory here.
fn can_pull() -> bool {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let can = matches!(scope.trim(), "" | "0") || rustix::process::geteuid().is_root();
    if !can {
        println!("skipped: crash points of pull: Yama keeps ranks from reading each other's memory");
    }
    can
}

/// Runs the cases of `test`, or this process' part in one of them.
fn run(test: &str, cases: impl FnOnce() -> Vec<Case>) {
    if let Some(order) = Order::from_env() {
        return order.carry_out();
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = cases();
    check_victims(&cases);
    let scene = Scene::new();
    let mut tally = Tally::default();
    for case in &cases {
        tally.count(case, &case.run(test, &scene));
    }
    scene.check();
    tally.check(cases.len());
}

/// Every rank, 0 included, is a victim often enough.
fn check_victims(cases: &[Case]) {
    let enough = cases.len() / 5;
    for rank in 0..4 {
        let times = cases.iter().filter(|case| case.victim == rank).count();
        assert!(times >= enough, "rank {rank} is a victim {times} times of {}", cases.len());
    }
}

#[derive(Default)]
struct Tally {
    delays: Vec<Duration>,
    /// How often survivors noticed in which operation.
    ops: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, case: &Case, outcome: &Outcome) {
        assert_eq!(outcome.survivors.len(), case.ranks - 1);
        for report in &outcome.survivors {
            let blame = &report.blame;
            assert!(blame.tells_of_a_death && blame.culprit == Some(case.victim), "{case:?}: {report:?}");
            assert_eq!(report.after, report.before, "{case:?}: {report:?}");
            // A survivor that came to the library after the death could not have known before.
            let since = outcome.died_ns.max(report.called_ns);
            let delay = Duration::from_nanos(blame.at_ns.saturating_sub(since));
            assert!(delay <= MAX, "{case:?}: {delay:?} after the death: {report:?}");
            self.delays.push(delay);
            *self.ops.entry(blame.op.clone()).or_default() += 1;
        }
    }

    fn check(mut self, kills: usize) {
        self.delays.sort();
        let (median, max) = (self.delays[self.delays.len() / 2], self.delays[self.delays.len() - 1]);
        println!("{kills} kills, {} survivors; median {median:.1?}, max {max:.1?}", self.delays.len());
        println!("noticed in: {:?}", self.ops);
        assert!(median <= MEDIAN, "median {median:?}");
    }
}

#[test]
fn ranks_die_with_their_launcher() {
    const NAME: &str = "ranks_die_with_their_launcher";
    const PORT: &str = "SYMMEM_KILL_PORT";
    let wait = Wait::for_at_most(Duration::from_secs(60));
    if let Ok(port) = std::env::var(PORT) {
        let store = TcpStore::connect("127.0.0.1", port.parse().unwrap(), &wait).unwrap();
        let launched = ProcessSpawner::new(NAME, 3).run(|group| {
            store.set(&format!("pid/{}", group.rank()), std::process::id().to_string().as_bytes(), &wait)?;
            // Rank 0 never comes, so the others are inside a call when it happens, and rank 0 is not.
            if group.rank() != 0 {
                return group.barrier();
            }
            std::thread::sleep(Duration::from_secs(60));
            Ok(())
        });
        panic!("the launcher outlived the kill: {launched:?}");
    }
    let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default()).unwrap();
    let store = TcpStore::connect("127.0.0.1", server.port(), &wait).unwrap();
    let mut launcher = Command::new(std::env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
        .env(PORT, server.port().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pids = store.multi_get(&["pid/0", "pid/1", "pid/2"], &wait);
    let ranks = pids.map(|pids| pids.iter().map(|pid| pidfd(pid)).collect::<Vec<_>>());
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    for (rank, fd) in ranks.unwrap().iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let ended = poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left.try_into().unwrap())).unwrap();
        assert_eq!(ended, 1, "rank {rank} outlives its launcher");
    }
}

/// A handle of the process whose number is written in `pid`; it becomes readable when the process ends.
fn pidfd(pid: &[u8]) -> OwnedFd {
    let pid = std::str::from_utf8(pid).unwrap().parse().unwrap();
    pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap()
}
