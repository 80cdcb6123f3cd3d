//! How a stage runs behaviours.
//!
//! The first test of a stage that comes runs all behaviours that were asked for, one world after the other,
//! each world in one new process of this program (and in the ranks that it starts), and the stage's other
//! tests take their outcome from the ledger. A behaviour that fails ends its world; what comes after it is
//! run in another. Behaviours that ruin their ranks, and exceptions, have a world for themselves.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use symmem::cuda::Status;
use symmem::{Group, ProcessSpawner, Result};

use super::device::rank::{self, Rank};
use super::exceptions::{self, Exception};
use super::host::seat::Host;
use super::stage::{self, Place, Ranks, Stage};
use super::table::{self, Behaviour};
use super::{child, value};
use crate::common::{Launch, is_rank_of, serve};
use crate::fake;

/// Names the folder of a run: its plan, and what its ranks say.
const RUN: &str = "SYMMEM_TEST_RUN";
/// If set, it is printed how long each behaviour took.
const TIMES: &str = "SYMMEM_TEST_TIMES";
/// Seconds that anything of a run may take.
const TIMEOUT: &str = "SYMMEM_TIMEOUT";
/// Longer than anything takes that works.
const PATIENCE: &str = "20";
/// For what is known not to work.
const IMPATIENCE: &str = "1";
/// What a rank says that is about to be killed.
const DYING: &str = "dying";

/// How long anything may take in this run.
pub(crate) fn patience() -> Duration {
    let seconds = std::env::var(TIMEOUT).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// What came of a behaviour on a stage: in which world what was wrong.
type Outcome = std::result::Result<(), String>;

/// One test: `behaviour` on `stage`. `test` is its name, for the processes that it starts.
pub(crate) fn case(stage: &'static Stage, behaviour: &str, test: &str) {
    if let Some(folder) = std::env::var_os(RUN) {
        return Run::read(stage, folder.into()).go(test);
    }
    let behaviour = table::find(behaviour);
    if let Some(why) = stage.is_absent() {
        return println!("skipped: {why}");
    }
    let worlds = behaviour.worlds(stage);
    if worlds.is_empty() {
        return println!("left out: {}: {}", stage.name, behaviour.why_not(stage));
    }
    let outcome = match exceptions::find(stage, behaviour) {
        Some(exception) => exception_holds(stage, behaviour, exception, test, &worlds),
        None => outcome(stage, behaviour, test),
    };
    outcome.unwrap_or_else(|problem| panic!("{} on {}: {problem}", behaviour.name, stage.name));
}

/// Whether what is listed as not holding yet still does not hold, for the reason that is listed.
fn exception_holds(
    stage: &'static Stage,
    behaviour: &'static Behaviour,
    exception: &Exception,
    test: &str,
    worlds: &[usize],
) -> Outcome {
    let world = worlds.iter().copied().find(|world| *world > 1).unwrap_or(worlds[0]);
    let mut outcomes = BTreeMap::new();
    Run::new(stage, world, &[behaviour], IMPATIENCE).start(test, &mut outcomes);
    match outcomes.remove(behaviour.name) {
        Some(Err(said)) if said.contains(exception.fails_with) => {
            println!("an exception, until {}: {said}", exception.until);
            Ok(())
        }
        Some(Err(said)) => {
            Err(format!("it is listed to fail with {:?}, and fails with: {said}", exception.fails_with))
        }
        _ => Err(format!("it holds, so its row in exceptions.rs (until {}) has to go", exception.until)),
    }
}

/// The ledger of a stage: every outcome that there is.
type Ledger = Arc<Mutex<BTreeMap<&'static str, Outcome>>>;

fn ledger(stage: &Stage) -> Ledger {
    static LEDGERS: OnceLock<Mutex<HashMap<&'static str, Ledger>>> = OnceLock::new();
    let mut ledgers = LEDGERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(ledgers.entry(stage.name).or_default())
}

/// What came of `behaviour`; runs it, and what else was asked for, if nobody has yet.
fn outcome(stage: &'static Stage, behaviour: &'static Behaviour, test: &str) -> Outcome {
    let ledger = ledger(stage);
    while let Err(TryLockError::WouldBlock) = ledger.try_lock() {
        // Another test runs this stage. There may be others to run meanwhile.
        if !run_another(stage) {
            break;
        }
    }
    let mut outcomes = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    if outcomes.is_empty() {
        run_all(stage, test, &asked_for(stage), &mut outcomes);
    }
    if !outcomes.contains_key(behaviour.name) {
        run_all(stage, test, &[behaviour], &mut outcomes);
    }
    outcomes[behaviour.name].clone()
}

/// Runs a stage of this program that nobody has begun with; false if there is none.
fn run_another(than: &Stage) -> bool {
    let is_gpu = |stage: &Stage| stage.place == Place::Gpu;
    // Kernels of two stages would not fit on one GPU.
    let others =
        stage::ALL.iter().filter(|stage| !is_gpu(stage) && !is_gpu(than) && stage.is_absent().is_none());
    for stage in others {
        let ledger = ledger(stage);
        let Ok(mut outcomes) = ledger.try_lock() else { continue };
        let behaviours = asked_for(stage);
        let Some(first) = behaviours.iter().find(|behaviour| behaviour.runs_on(stage)) else { continue };
        if outcomes.is_empty() {
            let test = format!("{}::{}", stage.name, first.name);
            run_all(stage, &test, &behaviours, &mut outcomes);
            return true;
        }
    }
    false
}

/// What the arguments of this program choose among the behaviours that hold on `stage`.
fn asked_for(stage: &Stage) -> Vec<&'static Behaviour> {
    let mut arguments = std::env::args().skip(1);
    let (mut filters, mut skips) = (Vec::new(), Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skips.extend(arguments.next()),
            "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            _ => filters.push(argument),
        }
    }
    let is_chosen = |behaviour: &&'static Behaviour| {
        let name = format!("{}::{}", stage.name, behaviour.name);
        (filters.is_empty() || filters.iter().any(|filter| name.contains(&**filter)))
            && !skips.iter().any(|skip| name.contains(&**skip))
            && exceptions::find(stage, behaviour).is_none()
    };
    table::ALL.iter().filter(is_chosen).collect()
}

/// Runs `behaviours` in every world of `stage` that has what they need.
fn run_all(
    stage: &'static Stage,
    test: &str,
    behaviours: &[&'static Behaviour],
    outcomes: &mut BTreeMap<&'static str, Outcome>,
) {
    for world in stage.worlds {
        let here = behaviours.iter().filter(|behaviour| behaviour.worlds(stage).contains(world));
        let (alone, mut left): (Vec<_>, Vec<_>) = here.copied().partition(|behaviour| behaviour.is_alone());
        for behaviour in alone {
            Run::new(stage, *world, &[behaviour], PATIENCE).start(test, outcomes);
        }
        while !left.is_empty() {
            let done = Run::new(stage, *world, &left, PATIENCE).start(test, outcomes);
            left.drain(..done);
        }
    }
}

/// One world of a stage and what it does.
struct Run {
    stage: &'static Stage,
    world: usize,
    behaviours: Vec<&'static Behaviour>,
    timeout: &'static str,
    folder: PathBuf,
    /// Whether the folder is this process's to remove.
    is_first: bool,
}

impl Run {
    fn new(
        stage: &'static Stage,
        world: usize,
        behaviours: &[&'static Behaviour],
        timeout: &'static str,
    ) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("symmem-stage-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a folder for a run");
        let names: Vec<&str> = behaviours.iter().map(|behaviour| behaviour.name).collect();
        fs::write(folder.join("plan"), format!("{world} {timeout} {}", names.join(" "))).expect("a plan");
        Self { stage, world, behaviours: behaviours.to_vec(), timeout, folder, is_first: true }
    }

    /// In a process of the run: what it was started for.
    fn read(stage: &'static Stage, folder: PathBuf) -> Self {
        let plan = fs::read_to_string(folder.join("plan")).expect("the plan of the run");
        let mut words = plan.split(' ');
        let world = words.next().and_then(|word| word.parse().ok()).expect("a number of ranks");
        let timeout = if words.next() == Some(IMPATIENCE) { IMPATIENCE } else { PATIENCE };
        Self { stage, world, behaviours: words.map(table::find).collect(), timeout, folder, is_first: false }
    }

    /// Runs it and enters the outcomes. Says with how many of its behaviours it is done.
    fn start(self, test: &str, outcomes: &mut BTreeMap<&'static str, Outcome>) -> usize {
        let _alone = (self.stage.place == Place::Gpu).then(alone);
        let ended = catch_unwind(AssertUnwindSafe(|| self.go(test)));
        let said = Said::read(&self.folder);
        if std::env::var_os(TIMES).is_some() {
            said.tell_times(self.stage, self.world);
        }
        let mut done = 0;
        for behaviour in &self.behaviours {
            let outcome = said.outcome(behaviour, self.world);
            let is_over = outcome.is_err();
            let place = outcomes.entry(behaviour.name).or_insert(Ok(()));
            if place.is_ok() {
                *place = outcome.map_err(|problem| format!("{} ranks: {problem}", self.world));
            }
            done += 1;
            if is_over {
                return done;
            }
        }
        if let (Err(panic), Some(last)) = (ended, self.behaviours.last()) {
            // All were fine, and what came after was not: something is left.
            let problem = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".to_owned());
            if !last.is_deadly() {
                outcomes.insert(last.name, Err(format!("{} ranks, at the end: {problem}", self.world)));
            }
        }
        done
    }

    /// Goes on with the run, in whichever of its processes this is.
    fn go(&self, test: &str) {
        let folder = self.folder.to_str().expect("a path that is text");
        let mut vars = vec![(RUN, folder), (TIMEOUT, self.timeout)];
        match self.stage.place {
            Place::Host => {
                vars.push(("SYMMEM_PROVIDER", self.stage.provider));
                child::run(test, &vars, || self.be(test));
            }
            Place::Fakes => {
                vars.push(("FAKECUDA_UUIDS", "gpu-a,gpu-b,gpu-c,gpu-d"));
                fake::run(test, &vars, || {
                    self.be(test);
                    if self.stage.ranks == Ranks::Threads && self.timeout == PATIENCE {
                        rank::nothing_is_left();
                    }
                });
            }
            Place::Gpu => {
                // A queue for each stream of all threads; processes have few, for a server of MPS has a
                // limited number for all.
                let is_threads = self.stage.ranks == Ranks::Threads;
                vars.push(("CUDA_DEVICE_MAX_CONNECTIONS", if is_threads { "32" } else { "8" }));
                vars.push(("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1"));
                let share = (100 / if is_threads { 1 } else { self.world }).to_string();
                if self.stage.provider == "nccl" {
                    vars.push(("NCCL_MULTI_RANK_GPU_ENABLE", "1"));
                    vars.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &share));
                }
                child::run(test, &vars, || self.be(test));
            }
        }
    }

    /// In the process of the run, or in a rank that it started.
    fn be(&self, test: &str) {
        if self.timeout == PATIENCE {
            return self.be_ranks(test);
        }
        // It is known to fail, which the book says: nobody else needs to hear of it.
        std::panic::set_hook(Box::new(|_| {}));
        let _ = catch_unwind(AssertUnwindSafe(|| self.be_ranks(test)));
    }

    fn be_ranks(&self, test: &str) {
        match self.stage.ranks {
            Ranks::Threads => symmem::spawn(self.world, |group| self.perform(&group)).map(drop).unwrap(),
            Ranks::Processes => {
                let ended =
                    ProcessSpawner::new(test, self.world).run_all(|group| self.perform(&group)).unwrap();
                let is_deadly = self.behaviours.iter().any(|behaviour| behaviour.is_deadly());
                assert!(is_deadly || ended.iter().all(Result::is_ok), "{ended:?}");
            }
            Ranks::Launched => self.launch(test),
        }
    }

    fn launch(&self, test: &str) {
        #[cfg(feature = "faults")]
        if is_rank_of(test) {
            return super::leftovers::end_early_or(|world| self.perform(&world).unwrap());
        }
        if is_rank_of(test) {
            return self.perform(&Group::from_env().unwrap()).unwrap();
        }
        let agent = serve();
        let launch = Launch::new(test, self.world, agent.port());
        // Once for all that can be run together.
        #[cfg(feature = "faults")]
        if self.behaviours.len() > 1 {
            super::leftovers::leave(&launch);
        }
        let ended = launch.attempt(1).run();
        let is_deadly = self.behaviours.iter().any(|behaviour| behaviour.is_deadly());
        assert!(is_deadly || ended.iter().all(|rank| rank.ok), "{ended:?}");
    }

    /// A rank: its behaviours, one after the other.
    fn perform(&self, world: &Group) -> Result<()> {
        #[cfg(feature = "faults")]
        if self.stage.is_late {
            // Near enough to the end of 32 bits that even the shortest behaviour passes it.
            symmem::fault::set_start_epoch((1 << 32) - 3);
        }
        let world = world.within(patience());
        let late = self.stage.is_late.then(|| world.try_clone()).transpose()?;
        let world = late.as_ref().unwrap_or(&world);
        (0..if self.stage.is_late { 6 } else { 0 }).try_for_each(|_| world.barrier())?;
        match self.stage.place {
            Place::Host => self.perform_each(world, |behaviour| {
                assert_eq!(world.context().backend(), self.stage.provider);
                (behaviour.on_host.expect("it is for hosts"))(&Host::new(&world.try_clone()?))
            }),
            _ => {
                let rank = Rank::first(self.stage, world)?;
                self.perform_each(world, |behaviour| {
                    (behaviour.on_device.expect("it is for devices"))(&rank)?;
                    assert!(behaviour.is_deadly() || rank.engine.status() == Status::Whole);
                    Ok(())
                })?;
                if self.behaviours.iter().any(|behaviour| behaviour.is_deadly()) {
                    Ok(())
                } else {
                    rank.end()
                }
            }
        }
    }

    fn perform_each(&self, world: &Group, run: impl Fn(&Behaviour) -> Result<()>) -> Result<()> {
        for behaviour in &self.behaviours {
            let say = |word: &str| say(&self.folder, world.rank(), word, behaviour.name);
            say("begins");
            let start = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| run(behaviour)));
            match outcome {
                Ok(Ok(())) => say(&format!("passes {:?}", start.elapsed())),
                Ok(Err(error)) => {
                    say(&format!("fails {}", error.to_string().replace('\n', " ")));
                    return Err(error);
                }
                Err(panic) => {
                    say(&format!("fails {}", value::panic_message(&*panic).replace('\n', " ")));
                    std::panic::resume_unwind(panic);
                }
            }
            // Everybody has let go of what it made. Not all are left of a deadly one, which is alone.
            if !behaviour.is_deadly() {
                world.barrier()?;
            }
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_first {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// One test on the GPU at a time: kernels that wait for each other must all fit on the device.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line of this rank into the run's book.
fn say(folder: &Path, rank: usize, word: &str, behaviour: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(folder.join("said")).expect("the book");
    // In one piece, since all ranks write it.
    file.write_all(format!("{behaviour} {rank} {word}\n").as_bytes()).expect("room in the book");
}

/// Of a behaviour that kills this very process: it counts as what it should have done.
pub(crate) fn die(rank: usize, behaviour: &str) -> ! {
    let folder: PathBuf = std::env::var_os(RUN).expect("a run").into();
    say(&folder, rank, DYING, behaviour);
    // SAFETY: a signal to this very process, which gets no chance to say goodbye.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("killed")
}

/// What ranks said: behaviour, rank, word.
struct Said(Vec<(String, usize, String)>);

impl Said {
    fn read(folder: &Path) -> Self {
        let book = fs::read_to_string(folder.join("said")).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let name = words.next()?.to_owned();
            Some((name, words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        Self(book.lines().filter_map(line).collect())
    }

    fn tell_times(&self, stage: &Stage, world: usize) {
        for (name, _, word) in self.0.iter().filter(|(_, rank, _)| *rank == 0) {
            if let Some(time) = word.strip_prefix("passes ") {
                eprintln!("{time} {} of {world} {name}", stage.name);
            }
        }
    }

    fn outcome(&self, behaviour: &Behaviour, world: usize) -> Outcome {
        let said = || self.0.iter().filter(|(name, ..)| name == behaviour.name);
        let fails: Vec<String> = said()
            .filter(|(.., word)| word.starts_with("fails"))
            .map(|(_, rank, word)| format!("rank {rank} {word}"))
            .collect();
        if !fails.is_empty() {
            return Err(fails.join("; "));
        }
        let is_done = |word: &str| word.starts_with("passes") || (word == DYING && behaviour.is_deadly());
        let passed =
            (0..world).filter(|rank| said().any(|(_, who, word)| who == rank && is_done(word))).count();
        match passed == world {
            true => Ok(()),
            false => Err(format!("{passed} of {world} ranks came to its end")),
        }
    }
}
