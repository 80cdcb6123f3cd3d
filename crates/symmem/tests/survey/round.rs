//! One round of the survey: a world of four, one or two kills, and what the others say.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use symmem::store::{ServerLimits, TcpStore, TcpStoreServer, Wait};

use super::activity::{Activity, wait_until_known};
use super::random::Random;
use super::seat::{Order, Report, Said, named_sockets};
use super::seats::{Seats, WORLD};
use super::tally::Tally;
use super::traces::Scene;

/// How long survivors may take for all of it before they count as hung.
const LIMIT: Duration = Duration::from_secs(15);

pub(crate) struct Round {
    activity: Activity,
    /// Who dies, in this order.
    victims: Vec<usize>,
    /// How long after all are at work, and after one another.
    after: [Duration; 2],
    pidfd: bool,
    seed: u64,
    shift: usize,
}

impl Round {
    pub(crate) fn random(random: &mut Random, only: Option<&str>) -> Self {
        let any = Activity::random(random);
        let wanted =
            |name| Activity::from_name(name).unwrap_or_else(|| panic!("there is no activity {name}"));
        let activity = only.map_or(any, wanted);
        let first = random.below(WORLD);
        let second = (first + 1 + random.below(WORLD - 1)) % WORLD;
        let victims = if activity == Activity::Survivors { vec![first, second] } else { vec![first] };
        let mut moment = |most: usize| Duration::from_micros(random.below(most) as u64);
        // A join takes some milliseconds, and so does a regrouping; other work goes on for ever.
        let longest = if activity == Activity::Join { 12_000 } else { 30_000 };
        let after = [moment(longest), moment(15_000)];
        let pidfd = random.below(4) > 0;
        Self { activity, victims, after, pidfd, seed: random.next(), shift: random.below(WORLD) }
    }

    fn left(&self) -> Vec<usize> {
        (0..WORLD).filter(|rank| !self.victims.contains(rank)).collect()
    }

    pub(crate) fn run(&self, scene: &Scene, seats: &mut Seats, tally: &mut Tally) {
        let number = tally.begin();
        seats.shift(self.shift);
        let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default()).unwrap();
        for rank in 0..WORLD {
            seats.order(rank, &self.order(number, rank, scene, &server));
        }
        let mut gone = BTreeSet::new();
        if let Err(problem) = self.wait_until_busy(number, &server, seats) {
            tally.hung(format!("{}: {problem}", self.words(number)));
            gone.extend(0..WORLD);
        } else {
            let died_ns = self.kill(seats);
            gone.extend(self.victims.iter().copied());
            let reports = self.listen(number, seats, tally, &mut gone);
            self.judge(number, died_ns, &reports, tally);
            drop(server);
            self.look_for_sockets(number, &reports, tally);
        }
        seats.replace(&gone.into_iter().collect::<Vec<_>>());
    }

    fn order(&self, round: u64, rank: usize, scene: &Scene, server: &TcpStoreServer) -> Order {
        Order {
            round,
            rank,
            world: WORLD,
            left: self.left(),
            port: server.port(),
            run: format!("{}-{round}", scene.mark),
            activity: self.activity.name().to_owned(),
            pidfd: self.pidfd,
            seed: self.seed,
        }
    }

    fn words(&self, round: u64) -> String {
        let Self { victims, pidfd, .. } = self;
        format!("round {round}, {}, ranks {victims:?} die, pidfds {pidfd}", self.activity.name())
    }

    fn wait_until_busy(&self, round: u64, server: &TcpStoreServer, seats: &Seats) -> Result<(), String> {
        let end = Instant::now() + LIMIT;
        if self.activity == Activity::Join {
            let wait = Wait::for_at_most(LIMIT);
            let store =
                TcpStore::connect("127.0.0.1", server.port(), &wait).map_err(|error| error.to_string())?;
            let known = wait_until_known(&store, WORLD, &wait);
            return known.then_some(()).ok_or_else(|| "not all ranks said hello".to_owned());
        }
        let mut ready = BTreeSet::new();
        while ready.len() < WORLD {
            match seats.hear(end) {
                Some((rank, Some(Said::Ready { round: theirs }))) if theirs == round => {
                    _ = ready.insert(rank)
                }
                Some((_, Some(Said::Ready { .. }))) => {}
                Some(other) => return Err(format!("before anybody was killed: {other:?}")),
                None => {
                    let stuck = (0..WORLD).filter(|rank| !ready.contains(rank));
                    let stuck: Vec<String> = stuck.map(|rank| seats.describe(rank)).collect();
                    return Err(format!("never got to work: {stuck:?}"));
                }
            }
        }
        Ok(())
    }

    /// Kills the victims; returns a moment just before the first of them died: whose death is noticed.
    fn kill(&self, seats: &mut Seats) -> u64 {
        let mut died_ns = u64::MAX;
        for (victim, after) in self.victims.iter().zip(self.after) {
            thread::sleep(after);
            died_ns = died_ns.min(seats.kill(*victim));
        }
        died_ns
    }

    /// What the survivors report. Who does not, or has something else to say, is counted and will be
    /// replaced.
    fn listen(
        &self,
        round: u64,
        seats: &Seats,
        tally: &mut Tally,
        gone: &mut BTreeSet<usize>,
    ) -> BTreeMap<usize, Report> {
        let end = Instant::now() + LIMIT;
        let mut reports = BTreeMap::new();
        let mut missing: BTreeSet<usize> = self.left().into_iter().collect();
        while !missing.is_empty() {
            match seats.hear(end) {
                Some((rank, Some(Said::Done(report)))) if report.round == round => {
                    missing.remove(&rank);
                    reports.insert(rank, *report);
                }
                Some((rank, Some(Said::Failed { problem, .. }))) => {
                    tally.wrong(format!("{}: rank {rank}: {problem}", self.words(round)));
                    missing.remove(&rank);
                    gone.insert(rank);
                }
                Some((rank, None)) if missing.remove(&rank) => {
                    tally.wrong(format!("{}: rank {rank} ended", self.words(round)));
                    gone.insert(rank);
                }
                Some(_) => {}
                None => {
                    for rank in std::mem::take(&mut missing) {
                        tally.hung(format!("{}: rank {rank}: {}", self.words(round), seats.describe(rank)));
                        gone.insert(rank);
                    }
                }
            }
        }
        reports
    }

    fn judge(&self, round: u64, died_ns: u64, reports: &BTreeMap<usize, Report>, tally: &mut Tally) {
        let mut last = Duration::ZERO;
        for report in reports.values() {
            let blame = &report.blame;
            let culprit = blame.culprit.is_some_and(|culprit| self.victims.contains(&culprit));
            if !blame.tells_of_a_death || !culprit {
                tally.wrong(format!("{}: {blame:?}", self.words(round)));
            }
            if report.after != report.before {
                tally.leaked(format!("{}: {:?} became {:?}", self.words(round), report.before, report.after));
            }
            // A survivor that came to the library after the death could not have known before.
            let since = died_ns.max(report.called_ns);
            last = last.max(Duration::from_nanos(blame.at_ns.saturating_sub(since)));
            tally.noticed(&blame.op);
        }
        let late = tally.killed(self.activity.name(), self.victims.len(), last);
        if late {
            tally.wrong(format!("{}: the last survivor knew after {last:.1?}", self.words(round)));
        }
    }

    /// The sockets that the ranks had are gone with the group.
    fn look_for_sockets(&self, round: u64, reports: &BTreeMap<usize, Report>, tally: &mut Tally) {
        let had: BTreeSet<&String> = reports.values().flat_map(|report| &report.sockets).collect();
        let left = named_sockets().into_iter().filter(|(_, name)| had.contains(name)).count();
        if left > 0 {
            tally.leaked(format!("{}: {left} sockets", self.words(round)));
        }
    }
}
