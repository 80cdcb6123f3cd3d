//! Leads the fleets of all systems through the races. All are alive together, and only the one whose turn it
//! is works.
//!
//! A system that fails is told about and left out of the race; for the next one it is started again, a few
//! times.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use super::fleet::{Fleet, OrderFailure};
use super::plan::{Contender, Race};
use super::protocol::{Answer, Order};
use super::system::{Launch, System};
use super::tally::{self, Row};

/// Rounds that do not count: an idle GPU has slow clocks.
const WARM_UPS: usize = 3;
/// How often a system is started with one number of ranks.
const STARTS: usize = 3;

/// How long ranks may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until a process says who it is: eight of them import PyTorch at the same time.
    pub(super) start: Duration,
    pub(super) open: Duration,
    pub(super) prepare: Duration,
    /// A round, or a check.
    pub(super) run: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { start: seconds(180), open: seconds(120), prepare: seconds(60), run: seconds(30) }
    }
}

/// What is the same for all systems.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) ranks: usize,
    pub(super) share: Option<u32>,
    pub(super) rounds: usize,
    /// Bytes of symmetric memory of each rank.
    pub(super) arena: usize,
    /// The core of each rank, the same in every system; empty: any.
    pub(super) cores: Vec<usize>,
    /// The kernels that all systems use, once some rank of ours has compiled them.
    pub(super) kernels: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) limits: Limits,
    /// The line of progress, above which others are printed.
    pub(super) bar: ProgressBar,
}

/// A system that could not do something.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LeftOut {
    pub(super) system: String,
    pub(super) ranks: usize,
    pub(super) case: String,
    pub(super) why: String,
}

/// What a system said of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SystemFacts {
    pub(super) system: String,
    pub(super) version: String,
    pub(super) device: String,
    /// What such devices are called in a tuning, if it told.
    #[serde(skip)]
    pub(super) kind: Option<String>,
}

/// A system, and its processes if they run.
struct RunningSystem {
    system: System,
    launch: Launch,
    fleet: Option<Fleet>,
    starts: usize,
    /// Why it does not run.
    failed: String,
    startup: Option<(Answer, f64)>,
    known: Option<SystemFacts>,
}

/// All systems with one number of ranks.
pub(super) struct Conductor {
    terms: Terms,
    systems: Vec<RunningSystem>,
    left_out: Vec<LeftOut>,
}

/// A contender in the middle of a race.
struct Runner<'a> {
    contender: &'a Contender,
    info: Answer,
    rounds: Vec<f64>,
    /// Why it gave up.
    out: Option<String>,
}

impl Conductor {
    /// Starts all systems; ours must start, and be the first of them.
    pub(super) fn start(terms: Terms, systems: Vec<(System, Launch)>) -> Result<Self> {
        let running = |(system, launch)| {
            let failed = String::new();
            RunningSystem { system, launch, fleet: None, starts: 0, failed, startup: None, known: None }
        };
        let mut this =
            Self { terms, systems: systems.into_iter().map(running).collect(), left_out: Vec::new() };
        for at in 0..this.systems.len() {
            this.systems[at].ensure(&this.terms);
            let running = &this.systems[at];
            if running.fleet.is_some() {
                continue;
            }
            let why = running.failed.clone();
            if running.system == System::Symmem {
                bail!("symmem could not start: {why}");
            }
            this.leave_out(at, "start", why);
        }
        Ok(this)
    }

    /// How long the start of each system took.
    pub(super) fn startup(&self, race: &Race) -> Vec<Row> {
        let row = |running: &RunningSystem| {
            let (info, us) = running.startup.as_ref()?;
            let find = |one: &&Contender| one.system == running.system;
            let contender = race.contenders.iter().find(find)?;
            let row = Row::new(race, contender, info, &[*us], self.terms.ranks);
            Some(Row { verified: true, share: self.terms.share, ..row })
        };
        let mut rows: Vec<_> = self.systems.iter().filter_map(row).collect();
        tally::compare(&mut rows);
        rows
    }

    /// Everybody does the case, by turns; the rows of those whose results were right on all ranks.
    pub(super) fn race(&mut self, race: &Race) -> Vec<Row> {
        let mut runners: Vec<_> = race
            .contenders
            .iter()
            .map(|contender| Runner { contender, info: Answer::default(), rounds: Vec::new(), out: None })
            .collect();
        for at in 0..runners.len() {
            self.prepare(&mut runners, at);
        }
        let turns = runners.len();
        for round in 0..WARM_UPS + self.terms.rounds {
            for at in (0..turns).map(|turn| (turn + round) % turns) {
                self.round(&mut runners, at, round);
            }
        }
        let mut rows: Vec<_> = (0..turns).filter_map(|at| self.verify(&mut runners, at, race)).collect();
        for runner in &runners {
            if let (Some(why), Some(at)) = (&runner.out, self.system_at(runner.contender.system)) {
                self.leave_out(at, &format!("{} {}", race.case, runner.contender.task.variant), why.clone());
            }
        }
        self.clear();
        tally::compare(&mut rows);
        rows
    }

    /// What could not be done so far.
    #[cfg(test)]
    pub(super) fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// What systems said of themselves.
    pub(super) fn known(&self) -> impl Iterator<Item = &SystemFacts> {
        self.systems.iter().filter_map(|running| running.known.as_ref())
    }

    /// Ends all systems.
    pub(super) fn end(mut self) -> Vec<LeftOut> {
        self.systems.iter_mut().filter_map(|running| running.fleet.take()).for_each(Fleet::end);
        std::mem::take(&mut self.left_out)
    }

    fn system_at(&self, system: System) -> Option<usize> {
        self.systems.iter().position(|running| running.system == system)
    }

    fn leave_out(&mut self, running: usize, case: &str, why: String) {
        let system = self.systems[running].system.name().to_owned();
        let ranks = self.terms.ranks;
        self.terms.bar.suspend(|| eprintln!("{ranks} ranks: {system} is left out of {case}: {why}"));
        self.left_out.push(LeftOut { system, ranks, case: case.to_owned(), why });
    }

    fn prepare(&mut self, runners: &mut [Runner<'_>], at: usize) {
        if runners[at].out.is_some() {
            return;
        }
        let contender = runners[at].contender;
        if let Some(running) = self.system_at(contender.system) {
            self.systems[running].ensure(&self.terms);
        }
        let order = Order::Prepare(contender.task.clone());
        if let Some(answers) = self.ask(runners, at, &order, self.terms.limits.prepare) {
            runners[at].info = answers.into_iter().next().unwrap_or_default();
        }
    }

    fn round(&mut self, runners: &mut [Runner<'_>], at: usize, round: usize) {
        let task = &runners[at].contender.task;
        let (nodes, order) = (task.nodes, Order::Round { slot: task.slot, round });
        let Some(answers) = self.ask(runners, at, &order, self.terms.limits.run) else { return };
        match tally::slowest(&answers, nodes) {
            Some(us) if round >= WARM_UPS => runners[at].rounds.push(us),
            Some(_) => {}
            None => runners[at].out = Some("some rank did not tell its time".to_owned()),
        }
    }

    fn verify(&mut self, runners: &mut [Runner<'_>], at: usize, race: &Race) -> Option<Row> {
        let order = Order::Verify { slot: runners[at].contender.task.slot };
        let answers = self.ask(runners, at, &order, self.terms.limits.run)?;
        if let Some(why) = tally::complaint(&answers) {
            runners[at].out = Some(why);
            return None;
        }
        let runner = &runners[at];
        let row = Row::new(race, runner.contender, &runner.info, &runner.rounds, self.terms.ranks);
        Some(Row { verified: true, share: self.terms.share, ..row })
    }

    /// The answers to an order, or nothing if the runner is out, and perhaps everybody of its system with it.
    fn ask(
        &mut self,
        runners: &mut [Runner<'_>],
        at: usize,
        order: &Order,
        limit: Duration,
    ) -> Option<Vec<Answer>> {
        if runners[at].out.is_some() {
            return None;
        }
        let system = runners[at].contender.system;
        let absent = || Err(OrderFailure::Failed("it does not take part".to_owned()));
        let result =
            self.system_at(system).map_or_else(absent, |running| self.systems[running].ask(order, limit));
        match result {
            Ok(answers) => Some(answers),
            Err(OrderFailure::Cannot(why)) => {
                runners[at].out = Some(why);
                None
            }
            Err(OrderFailure::Failed(why)) => {
                let of_system = runners.iter_mut().filter(|runner| runner.contender.system == system);
                of_system
                    .filter(|runner| runner.out.is_none())
                    .for_each(|runner| runner.out = Some(why.clone()));
                None
            }
        }
    }

    fn clear(&mut self) {
        let limit = self.terms.limits.run;
        for running in self.systems.iter_mut().filter(|running| running.fleet.is_some()) {
            // One that fails here is started again for the next race, which says so if that fails.
            let _ = running.ask(&Order::Clear, limit);
        }
    }
}

impl RunningSystem {
    /// Starts the processes unless they run, or have failed too often.
    fn ensure(&mut self, terms: &Terms) {
        if self.fleet.is_some() || self.starts == STARTS {
            return;
        }
        self.starts += 1;
        match self.start(terms) {
            Ok(fleet) => self.fleet = Some(fleet),
            Err(error) => self.failed = format!("{error:#}"),
        }
    }

    fn start(&mut self, terms: &Terms) -> Result<Fleet> {
        let (mut fleet, hellos) = Fleet::start(&self.launch, terms.ranks, &terms.folder, terms.limits.start)?;
        let hello = hellos.into_iter().next().unwrap_or_default();
        compile(&mut fleet, &terms.kernels, terms.limits.open)?;
        let order = Order::Open {
            kernels: terms.kernels.clone(),
            port: hello.port,
            arena: terms.arena,
            cores: terms.cores.clone(),
        };
        let opened = fleet.ask(&order, terms.limits.open).map_err(|refusal| match refusal {
            OrderFailure::Cannot(why) | OrderFailure::Failed(why) => anyhow!(why),
        })?;
        let slowest = opened.iter().filter_map(|answer| answer.startup_us).max_by(f64::total_cmp);
        let first = opened.into_iter().next().unwrap_or_default();
        self.known.get_or_insert_with(|| SystemFacts {
            system: self.system.name().to_owned(),
            version: hello.version.unwrap_or_default(),
            device: first.device.clone().unwrap_or_default(),
            kind: first.kind.clone(),
        });
        // Only the first start is one: a later one finds caches.
        if self.startup.is_none() {
            self.startup = slowest.map(|us| (first, us));
        }
        Ok(fleet)
    }

    fn ask(&mut self, order: &Order, limit: Duration) -> Result<Vec<Answer>, OrderFailure> {
        let Some(fleet) = &mut self.fleet else { return Err(OrderFailure::Failed(self.failed.clone())) };
        let result = fleet.ask(order, limit);
        if let Err(OrderFailure::Failed(why)) = &result {
            self.failed.clone_from(why);
            self.fleet = None;
        }
        result
    }
}

/// Lets the first rank compile the kernels, unless they are there.
fn compile(fleet: &mut Fleet, kernels: &Path, limit: Duration) -> Result<()> {
    if kernels.exists() {
        return Ok(());
    }
    let order = Order::Kernels { path: kernels.to_owned() };
    fleet.ask_one(0, &order, limit).context("compiling the bench's kernels").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Form, Op};
    use crate::bench::gpu::fleet::tests::script;
    use crate::bench::gpu::plan::Wanted;
    use crate::bench::gpu::scratch::ScratchFolder;

    /// A rank that answers everything; a round takes it `us` microseconds, rank 1 a little more.
    fn answering(us: u32, more: &str) -> Launch {
        script(&format!(
            r#"echo '{{"version": "9"}}'
            while read -r line; do
                case "$line" in
                    {more}
                    *'"order":"open"'*) echo '{{"startup_us": 7000, "device": "a GPU"}}';;
                    *'"order":"prepare"'*) echo '{{"algorithm": "fast", "grid": 4, "threads": 64, "registers": 9}}';;
                    *'"order":"round"'*) echo "{{\"with_us\": $((20 * {us} + 20 * RANK + 100)), \"without_us\": 100}}";;
                    *'"order":"verify"'*) echo '{{"wrong": 0}}';;
                    *'"order":"kernels"'*) : > "$KERNELS"; echo '{{}}';;
                    *'"order":"quit"'*) exit 0;;
                    *) echo '{{}}';;
                esac
            done"#
        ))
    }

    fn conductor(scratch: &ScratchFolder, ours: Launch, torch: Launch) -> Conductor {
        let seconds = Duration::from_secs;
        let limits = Limits { start: seconds(20), open: seconds(20), prepare: seconds(20), run: seconds(3) };
        let kernels = scratch.0.join("kernels");
        let (rounds, arena, folder) = (3, 1 << 21, scratch.0.clone());
        let terms = Terms {
            ranks: 2,
            share: Some(50),
            rounds,
            arena,
            cores: Vec::new(),
            kernels: kernels.clone(),
            folder,
            limits,
            bar: ProgressBar::hidden(),
        };
        let with_kernels = |mut launch: Launch| {
            launch.env.push(("KERNELS".to_owned(), kernels.display().to_string()));
            launch
        };
        let systems = vec![(System::Symmem, with_kernels(ours)), (System::Torch, with_kernels(torch))];
        Conductor::start(terms, systems).expect("both start")
    }

    fn races() -> Vec<Race> {
        let wanted = Wanted {
            ops: vec![Op::AllReduce],
            forms: vec![Form::Out],
            sizes: vec![1 << 10, 2 << 10],
            norms: Vec::new(),
            cold: false,
            algorithms: vec!["auto".to_owned()],
            grids: vec![None],
            threads: vec![None],
            peers: vec![System::Torch],
            is_quick: false,
        };
        wanted.races(2)
    }

    #[test]
    fn systems_take_turns_and_ours_is_compared_with_the_best() {
        let scratch = ScratchFolder::new("turns");
        let log = scratch.0.join("log");
        let logging = format!(
            r#"*'"order":"round"'*'"round":4'*) [ $RANK = 0 ] && echo $line >> {0}; echo '{{"with_us": 900, "without_us": 100}}';;"#,
            log.display()
        );
        let mut conductor = conductor(&scratch, answering(2, &logging), answering(9, &logging));
        let rows = conductor.race(&races()[0]);
        let found: Vec<_> =
            rows.iter().map(|row| (row.system.as_str(), row.choice.as_str(), row.us.p50)).collect();
        // Rank 1 is slower by one, and the middle round is 40.
        let expected = [
            ("symmem", "auto", 3.0),
            ("torch", "one_shot_all_reduce_out", 10.0),
            ("torch", "two_shot_all_reduce_out", 10.0),
        ];
        assert_eq!(found, expected);
        assert_eq!(rows[0].us_by_round, [3.0, 40.0, 3.0]);
        assert_eq!(rows[0].ratios.get("torch"), Some(&0.3));
        assert_eq!((rows[0].grid, rows[0].algorithm.as_str(), rows[0].share), (Some(4), "fast", Some(50)));
        assert!(rows.iter().all(|row| row.verified));
        // In round 4 the second of three begins.
        let text = std::fs::read_to_string(&log).expect("a log");
        let slots: String = text.split("\"slot\":").skip(1).filter_map(|rest| rest.chars().next()).collect();
        assert_eq!(slots, "120");
        assert!(conductor.end().is_empty());
    }

    #[test]
    fn startup_is_that_of_the_slowest_rank() {
        let scratch = ScratchFolder::new("startup");
        let slow = r#"*'"order":"open"'*) echo "{\"startup_us\": $((RANK * 50 + 1000))}";;"#;
        let conductor = conductor(&scratch, answering(1, slow), answering(1, ""));
        let rows = conductor.startup(&races()[0]);
        assert_eq!(rows.iter().map(|row| row.us.p50).collect::<Vec<_>>(), [1050.0, 7000.0]);
        assert_eq!(rows[0].ratios.get("torch"), Some(&0.15));
        assert_eq!(conductor.known().map(|known| known.version.as_str()).collect::<Vec<_>>(), ["9", "9"]);
    }

    #[test]
    fn a_system_that_is_wrong_has_no_row() {
        let scratch = ScratchFolder::new("wrong");
        let wrong = r#"*'"order":"verify"'*) echo "{\"wrong\": $RANK}";;"#;
        let mut conductor = conductor(&scratch, answering(1, ""), answering(1, wrong));
        let rows = conductor.race(&races()[0]);
        assert_eq!(rows.iter().map(|row| row.system.as_str()).collect::<Vec<_>>(), ["symmem"]);
        assert!(rows[0].ratios.is_empty());
        let out = conductor.end();
        assert_eq!(out.len(), 2);
        assert_eq!(
            (out[0].case.as_str(), out[0].why.as_str()),
            ("all_reduce out 1K one_shot_all_reduce_out", "wrong elements by rank: [0, 1]")
        );
    }

    #[test]
    fn a_system_that_cannot_do_a_case_does_the_others() {
        let scratch = ScratchFolder::new("cannot");
        let cannot = r#"*'"order":"prepare"'*two_shot*) echo '{"cannot": "not implemented"}';;"#;
        let mut conductor = conductor(&scratch, answering(1, ""), answering(1, cannot));
        let rows = conductor.race(&races()[0]);
        assert_eq!(rows.len(), 2);
        assert_eq!(conductor.left_out()[0].why, "rank 0: not implemented");
        assert_eq!(rows[1].choice, "one_shot_all_reduce_out");
    }

    #[test]
    fn a_system_that_dies_is_started_again_for_the_next_race_but_not_for_ever() {
        let scratch = ScratchFolder::new("dies");
        let dies = r#"*'"order":"round"'*'"slot":1'*) echo 'out of memory' >&2; exit 1;;"#;
        let mut conductor = conductor(&scratch, answering(1, ""), answering(1, dies));
        for turn in 0..4 {
            let rows = conductor.race(&races()[0]);
            assert_eq!(rows.iter().map(|row| row.system.as_str()).collect::<Vec<_>>(), ["symmem"]);
            assert_eq!(conductor.left_out().len(), 2 * (turn + 1));
            assert!(conductor.left_out()[turn].why.contains("out of memory"), "{:?}", conductor.left_out());
        }
        assert_eq!(conductor.systems[1].starts, STARTS);
    }

    #[test]
    fn ours_must_start_and_the_reason_is_told() {
        let scratch = ScratchFolder::new("no-start");
        let terms = Terms {
            ranks: 1,
            share: None,
            rounds: 1,
            arena: 0,
            cores: Vec::new(),
            kernels: scratch.0.join("kernels"),
            folder: scratch.0.clone(),
            limits: Limits::default(),
            bar: ProgressBar::hidden(),
        };
        let ours = script(r#"echo '{"error": "there is no device"}'"#);
        let error = Conductor::start(terms, vec![(System::Symmem, ours)]).err().expect("it fails");
        assert_eq!(error.to_string(), "symmem could not start: rank 0: there is no device");
    }
}
