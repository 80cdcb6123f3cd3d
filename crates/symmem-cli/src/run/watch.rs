//! Watches the ranks of this node from their start to their end.
//!
//! The main loop: signals are passed on, the first failure ends the other ranks (SIGTERM, and SIGKILL after a
//! grace), and nothing that ranks leave behind keeps it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTSTP};

use super::last_operation::last_operation;
use super::nodes::{News, OtherNodes};
use super::output::{Output, readable};
use super::rank::{How, Rank};
use super::report::Failure;
use super::signals::{Came, Signals};

/// Between two looks at processes that nobody reports the end of.
const LOOK: Duration = Duration::from_millis(20);
/// Signals that end programs.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// The ranks, and what has happened to them.
pub(super) struct Watch {
    pub(super) ranks: Vec<Rank>,
    pub(super) node: u32,
    pub(super) grace: Duration,
    pub(super) signals: Signals,
    /// Rung by other threads.
    pub(super) wake: Arc<OwnedFd>,
    pub(super) nodes: Option<OtherNodes>,
    /// The first failure of the job.
    pub(super) failure: Option<Failure>,
    /// The first signal that ends programs.
    pub(super) interrupt: Option<i32>,
    /// How often SIGINT or SIGTERM came.
    insisted: u32,
    /// When what still runs is killed.
    kill_at: Option<Instant>,
    over: bool,
}

impl Watch {
    pub(super) fn new(
        ranks: Vec<Rank>,
        node: u32,
        grace: Duration,
        signals: Signals,
        wake: Arc<OwnedFd>,
        nodes: Option<OtherNodes>,
    ) -> Self {
        let (failure, interrupt, kill_at) = (None, None, None);
        let over = nodes.is_none();
        Self { ranks, node, grace, signals, wake, nodes, failure, interrupt, insisted: 0, kill_at, over }
    }

    /// Returns when all ranks have ended, those of other nodes too, and `output` is written.
    pub(super) fn until_the_end(&mut self, output: Option<&Output>) {
        self.look(&[]);
        while self.ranks.iter().any(|rank| rank.end.is_none()) {
            self.wait(self.kill_at);
            self.kill_if_late();
        }
        self.ranks.iter_mut().for_each(Rank::reap);
        self.end_what_is_left();
        if let Some(nodes) = &self.nodes {
            nodes.done();
        }
        if let Some(output) = output {
            output.finish();
        }
        let is_written = || output.is_none_or(Output::is_finished);
        // Who sends a signal now does not want to wait for a reader of the output, or for other nodes.
        while !(self.over && is_written()) {
            if self.wait(Some(Instant::now() + Duration::from_millis(500))) {
                return;
            }
        }
    }

    /// Waits for something to happen, or `until`, and sees to it; whether it was a signal that ends programs.
    fn wait(&mut self, until: Option<Instant>) -> bool {
        readable(&[self.signals.fd(), self.wake.as_fd()], until);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let (mut children, mut ending) = (Vec::new(), false);
        for came in self.signals.take() {
            match came {
                Came::Child(child) => children.extend(child),
                Came::ForRanks { signal, by_terminal } => {
                    ending |= ENDING.contains(&signal);
                    self.pass_on(signal, by_terminal);
                }
            }
        }
        self.look(&children);
        self.hear();
        ending
    }

    fn pass_on(&mut self, signal: i32, by_terminal: bool) {
        self.send(signal, by_terminal);
        if signal == SIGTSTP {
            // Until SIGCONT, which is passed on as well.
            let _ = kill_process(getpid(), Signal::STOP);
        }
        if ENDING.contains(&signal) {
            // One that is stopped could not follow.
            self.send(SIGCONT, by_terminal);
            self.interrupt.get_or_insert(signal);
        }
        if matches!(signal, SIGINT | SIGTERM) {
            self.insisted += 1;
            match self.insisted {
                1 => {}
                2 => self.end_ranks(),
                _ => self.send(SIGKILL, false),
            }
        }
    }

    fn send(&self, signal: i32, by_terminal: bool) {
        self.ranks.iter().for_each(|rank| rank.signal(signal, by_terminal));
    }

    /// Sees which ranks have ended, `first` before the others.
    fn look(&mut self, first: &[Pid]) {
        let asked = self.kill_at.is_some();
        let order = |rank: &Rank| first.iter().position(|pid| *pid == rank.pid).unwrap_or(usize::MAX);
        let mut ended: Vec<&mut Rank> =
            self.ranks.iter_mut().filter_map(|rank| rank.look(asked).then_some(rank)).collect();
        // Of those that ended at the same time, one that was killed hardly followed one that gave up.
        ended.sort_by_key(|rank| {
            (order(rank), !rank.end.is_some_and(|end| matches!(end.how, How::Killed(_))))
        });
        let failed = |rank: &&mut Rank| rank.end.is_some_and(|end| end.how.is_failure());
        let failed = ended.into_iter().find(failed).map(|rank| (rank.rank, rank.pid, rank.end));
        if let (None, Some((rank, pid, Some(end)))) = (&self.failure, failed) {
            let all: Vec<Pid> = self.ranks.iter().map(|rank| rank.pid).collect();
            let what = format!("{} after {:.1} s", end.how.words(false), end.after.as_secs_f64());
            let (status, last_operation) = (end.how.status(), last_operation(pid, &all));
            let failure = Failure { node: self.node, rank: Some(rank), what, status, last_operation };
            if let Some(nodes) = &self.nodes {
                nodes.failed(failure.clone());
            }
            self.failure = Some(failure);
            self.end_ranks();
        }
    }

    /// Hears what other nodes say.
    fn hear(&mut self) {
        let news: Vec<News> = self.nodes.iter().flat_map(OtherNodes::news).collect();
        for news in news {
            match news {
                News::Failed(failure) => {
                    self.failure = Some(failure);
                    self.end_ranks();
                }
                News::Over => self.over = true,
            }
        }
    }

    /// Begins to end the ranks. Those that got a signal that ends programs have been asked already.
    fn end_ranks(&mut self) {
        if self.kill_at.is_some() {
            return;
        }
        self.kill_at = Some(Instant::now() + self.grace);
        if self.interrupt.is_none() || self.insisted > 1 {
            self.send(SIGTERM, false);
            self.send(SIGCONT, false);
        }
    }

    fn kill_if_late(&mut self) {
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.send(SIGKILL, false);
            // They end soon, but not at once.
            self.kill_at = Some(Instant::now() + LOOK);
        }
    }

    /// After a failure, ends what ranks have started and left behind. After success that may go on.
    fn end_what_is_left(&mut self) {
        let Some(kill_at) = self.kill_at else { return };
        while self.ranks.iter().any(Rank::left_something) {
            let late = kill_at <= Instant::now();
            let left = self.ranks.iter().filter(|rank| rank.left_something());
            if late {
                left.for_each(|rank| rank.signal(SIGKILL, false));
                return;
            }
            self.wait(Some(kill_at.min(Instant::now() + LOOK)));
        }
    }
}
