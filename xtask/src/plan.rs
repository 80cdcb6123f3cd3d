//! A fixed list of named steps, run in order until the first failure.

use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::bounded;
use crate::skips::Skips;
use crate::workspace::Workspace;

/// One named thing to check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Job) -> Result<Outcome>,
}

/// How a step that did not fail ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// This machine cannot run the step; the reason is printed.
    Skipped(String),
}

/// Which steps to run, and for how long.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Run only this step (may be repeated).
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave this step out (may be repeated).
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Print the steps and end.
    #[arg(long)]
    list: bool,
    /// Minutes after which a step is killed; a busy machine takes twice as long as a quiet one.
    #[arg(long, value_name = "MINUTES", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1440))]
    limit: u64,
}

/// Runs `write`, or the step `check` by itself, which then must not skip itself.
pub(crate) fn write_or_check(
    writes: bool,
    write: fn(&Job) -> Result<()>,
    check: fn(&Job) -> Result<Outcome>,
) -> Result<()> {
    /// A step of a plan has the plan's limit.
    const LIMIT: Duration = Duration::from_secs(30 * 60);
    let workspace = Workspace::find()?;
    let job = Job::new(&workspace, LIMIT);
    if writes {
        return write(&job);
    }
    match check(&job)? {
        Outcome::Passed => Ok(()),
        Outcome::Skipped(reason) => bail!("{reason}"),
    }
}

/// What a running step works with: the workspace, and the time it has.
pub(crate) struct Job<'a> {
    pub(crate) workspace: &'a Workspace,
    deadline: Instant,
    skips: Arc<Mutex<Skips>>,
}

impl<'a> Job<'a> {
    /// A job that ends after `limit`.
    pub(crate) fn new(workspace: &'a Workspace, limit: Duration) -> Self {
        Self { workspace, deadline: Instant::now() + limit, skips: Arc::default() }
    }

    /// Runs test programs, or pytest, as [`Self::run`] does, and notes which tests skip themselves. What
    /// passing tests print must come out: by `--show-output`, `--nocapture` or `-rs`.
    pub(crate) fn run_tests(&self, command: &mut Command) -> Result<()> {
        let skips = Arc::clone(&self.skips);
        lock(&skips).start();
        let show = move |line: &str| lock(&skips).line(line);
        bounded::run_watched(command, self.deadline, show)
    }

    /// When the time of this step is up.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Runs a command within the time of this step.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        bounded::run(command, self.deadline)
    }

    /// The same job with `limit` from now on, if it had more.
    pub(crate) fn within(&self, limit: Duration) -> Self {
        let deadline = self.deadline.min(Instant::now() + limit);
        Self { workspace: self.workspace, deadline, skips: Arc::clone(&self.skips) }
    }

    /// What a short command printed.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String> {
        bounded::output(command, self.deadline)
    }

    /// Runs a command within `limit`, or the time of this step if that is less.
    pub(crate) fn run_within(&self, limit: Duration, command: &mut Command) -> Result<()> {
        self.within(limit).run(command)
    }
}

/// Runs the chosen steps and prints how many passed.
pub(crate) fn run(steps: &[Step], options: &Options) -> Result<()> {
    if options.list {
        steps.iter().for_each(|step| println!("{:<10} {}", step.name, step.about));
        return Ok(());
    }
    let chosen = choose(steps, options)?;
    let workspace = Workspace::find()?;
    let limit = Duration::from_secs(options.limit * 60);
    let skips = Arc::default();
    let job = || Job { skips: Arc::clone(&skips), ..Job::new(&workspace, limit) };
    let (passed, result) = run_steps(&chosen, job);
    if let Some(summary) = lock(&skips).summary() {
        println!("{summary}");
    }
    println!("{passed} passed, {} failed", u32::from(result.is_err()));
    result
}

/// Runs steps up to the first that fails; how many passed.
fn run_steps<'a>(steps: &[&Step], job: impl Fn() -> Job<'a>) -> (u32, Result<()>) {
    let mut passed = 0;
    for (index, step) in steps.iter().enumerate() {
        println!("[{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        match run_step(step, &job()) {
            Ok(Outcome::Passed) => passed += 1,
            Ok(Outcome::Skipped(_)) => {}
            Err(error) => return (passed, Err(error)),
        }
    }
    (passed, Ok(()))
}

/// A watcher that panicked has lost a line at most.
fn lock(skips: &Mutex<Skips>) -> MutexGuard<'_, Skips> {
    skips.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The steps that `options` leave, in their fixed order.
fn choose<'a>(steps: &'a [Step], options: &Options) -> Result<Vec<&'a Step>> {
    for name in options.only.iter().chain(&options.skip) {
        if !steps.iter().any(|step| step.name == name) {
            let known: Vec<_> = steps.iter().map(|step| step.name).collect();
            bail!("there is no step `{name}`; the steps are {}", known.join(", "));
        }
    }
    let wanted = |step: &&Step| {
        let listed = |names: &[String]| names.iter().any(|name| name == step.name);
        (options.only.is_empty() || listed(&options.only)) && !listed(&options.skip)
    };
    let chosen: Vec<_> = steps.iter().filter(wanted).collect();
    if chosen.is_empty() { Err(anyhow!("no step is left to run")) } else { Ok(chosen) }
}

fn run_step(step: &Step, job: &Job) -> Result<Outcome> {
    let started = Instant::now();
    let result = (step.run)(job);
    let elapsed = started.elapsed().as_secs_f64();
    match &result {
        Ok(Outcome::Passed) => println!("{}: passed in {elapsed:.1} s\n", step.name),
        Ok(Outcome::Skipped(reason)) => {
            println!("{}: skipped, {reason}\n", step.name);
            lock(&job.skips).add_step(step.name, reason);
        }
        Err(_) => println!("{}: failed after {elapsed:.1} s\n", step.name),
    }
    result.with_context(|| format!("step `{}` failed", step.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 3] = [
        Step { name: "first", about: "passes", run: |_| Ok(Outcome::Passed) },
        Step { name: "second", about: "fails", run: |_| Err(anyhow!("it broke")) },
        Step { name: "third", about: "is skipped", run: |_| Ok(Outcome::Skipped("no reason".into())) },
    ];

    fn options(only: &[&str], skip: &[&str]) -> Options {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Options { only: owned(only), skip: owned(skip), list: false, limit: 1 }
    }

    fn chosen(only: &[&str], skip: &[&str]) -> Vec<&'static str> {
        let options = options(only, skip);
        choose(&STEPS, &options).expect("known steps").iter().map(|step| step.name).collect()
    }

    #[test]
    fn without_options_every_step_runs_in_order() {
        assert_eq!(chosen(&[], &[]), ["first", "second", "third"]);
    }

    #[test]
    fn only_and_skip_choose_steps_but_never_reorder_them() {
        assert_eq!(chosen(&["third", "first"], &[]), ["first", "third"]);
        assert_eq!(chosen(&[], &["second"]), ["first", "third"]);
        assert_eq!(chosen(&["first", "third"], &["first"]), ["third"]);
    }

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_known_ones() {
        let error = choose(&STEPS, &options(&[], &["fourth"])).err().expect("unknown");
        assert_eq!(error.to_string(), "there is no step `fourth`; the steps are first, second, third");
    }

    #[test]
    fn leaving_out_every_step_is_an_error() {
        assert!(choose(&STEPS, &options(&["first"], &["first"])).is_err());
    }

    #[test]
    fn the_first_failing_step_ends_the_run_and_is_named() {
        let error = run(&STEPS, &options(&[], &[])).expect_err("the second step fails");
        assert_eq!(format!("{error:#}"), "step `second` failed: it broke");
    }

    #[test]
    fn a_skipped_step_is_not_a_failure() {
        run(&STEPS, &options(&[], &["second"])).expect("one passes, one is skipped");
    }
}
