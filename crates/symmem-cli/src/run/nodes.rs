//! The launchers of a job's nodes, while it runs: a failure on one ends the ranks on all, and all return the
//! same status.
//!
//! Each has a thread that talks through the store: it counts upwards, so that node 0 sees who is gone, and
//! looks whether somebody has failed. Node 0, which serves the store, ends last.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use symmem::store::{Store, StoreError, TcpStore, Wait};

use super::meeting::KEYS;
use super::output::ring;
use super::report::Failure;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a launcher may be silent. Machines do stall; a store that is gone is seen at once.
const LOST: Duration = Duration::from_secs(30);
/// How long node 0 serves the store after the end, for those who have not read of it.
const FAREWELL: Duration = Duration::from_secs(5);

/// What this node's launcher tells.
enum Tell {
    Failed(Failure),
    Done,
}

/// What it is told.
pub(super) enum News {
    /// The first failure of the job.
    Failed(Failure),
    /// All nodes have ended.
    Over,
}

/// The other nodes, as the main loop sees them.
pub(super) struct OtherNodes {
    tell: Sender<Tell>,
    news: Receiver<News>,
}

impl OtherNodes {
    /// Starts the thread for node `node` of `nodes`. It rings `wake` for news.
    pub(super) fn new(store: TcpStore, node: u32, nodes: u32, wake: Arc<OwnedFd>) -> Result<Self> {
        let (tell, told) = channel();
        let (send, news) = channel();
        let beats = vec![(0, Instant::now()); nodes as usize];
        let mut agent = Agent { store, node, nodes, beats, done: false, failed: false };
        let run = move || {
            let hear = |news| {
                // Who does not listen any more needs no news.
                let _ = send.send(news);
                ring(&wake);
            };
            match agent.run(&told, &hear) {
                Err(error) if !agent.failed => hear(News::Failed(agent.cut_off(&error))),
                // After a failure, nodes may end without a word.
                Ok(()) | Err(_) => {}
            }
            hear(News::Over);
        };
        thread::Builder::new().name("symmem-nodes".into()).spawn(run).context("starting a thread")?;
        Ok(Self { tell, news })
    }

    /// Tells all nodes of a failure here. The answer is the news of the first one in the job, which may be
    /// another.
    pub(super) fn failed(&self, failure: Failure) {
        let _ = self.tell.send(Tell::Failed(failure));
    }

    /// Says that no rank runs here any more.
    pub(super) fn done(&self) {
        let _ = self.tell.send(Tell::Done);
    }

    /// What is new.
    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.news.try_iter()
    }
}

/// What the thread works with.
struct Agent {
    store: TcpStore,
    node: u32,
    nodes: u32,
    /// How far each node has counted, and since when.
    beats: Vec<(i64, Instant)>,
    done: bool,
    failed: bool,
}

impl Agent {
    fn run(&mut self, told: &Receiver<Tell>, hear: &impl Fn(News)) -> Result<(), StoreError> {
        loop {
            let wait = Wait::for_at_most(LOST);
            match told.recv_timeout(PERIOD) {
                Ok(Tell::Failed(failure)) => self.publish(&failure, &wait)?,
                Ok(Tell::Done) => {
                    self.store.add(&key("done", self.node), 1, &wait)?;
                    self.done = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.store.add(&key("beat", self.node), 1, &wait)?;
            let running = if self.node == 0 { self.look_at_others(&wait)? } else { 1 };
            if !self.failed && self.store.check(&[&failed()], &wait)? {
                self.failed = true;
                if let Ok(failure) = serde_json::from_slice(&self.store.get(&failed(), &wait)?) {
                    hear(News::Failed(failure));
                }
            }
            if self.done && self.node == 0 && running == 0 {
                self.dismiss();
                return Ok(());
            }
            if self.done && self.node != 0 && self.store.check(&[&over()], &wait)? {
                self.store.add(&heard(), 1, &wait)?;
                return Ok(());
            }
        }
    }

    fn publish(&self, failure: &Failure, wait: &Wait<'_>) -> Result<(), StoreError> {
        let text = serde_json::to_vec(failure).unwrap_or_default();
        self.store.compare_set(&failed(), b"", &text, wait).map(drop)
    }

    /// How many of the other nodes still have ranks. One that is silent for too long has none, and is a
    /// failure.
    fn look_at_others(&mut self, wait: &Wait<'_>) -> Result<usize, StoreError> {
        let mut running = 0;
        for node in 1..self.nodes {
            if self.store.check(&[&key("done", node)], wait)? {
                continue;
            }
            let count = self.store.add(&key("beat", node), 0, wait)?;
            let (before, since) = &mut self.beats[node as usize];
            if count != *before {
                (*before, *since) = (count, Instant::now());
            }
            if since.elapsed() < LOST {
                running += 1;
                continue;
            }
            let what = format!("failed first: its launcher has been silent for {} s", LOST.as_secs());
            self.publish(&Failure { node, rank: None, what, status: 1, last_operation: None }, wait)?;
        }
        Ok(running)
    }

    /// Node 0's last act: serves the others until they have seen that it is over, or for a while. Then
    /// nothing can fail any more.
    fn dismiss(&self) {
        let wait = Wait::for_at_most(FAREWELL);
        let mut heard_by = self.store.set(&over(), b"1", &wait).map(|()| 0);
        while heard_by.is_ok_and(|nodes| nodes < i64::from(self.nodes) - 1) {
            thread::sleep(PERIOD / 10);
            heard_by = self.store.add(&heard(), 0, &wait);
        }
    }

    /// The failure that it is for this node not to reach the store any more.
    fn cut_off(&self, error: &StoreError) -> Failure {
        let what = format!("failed first: its launcher does not answer node {} any more: {error}", self.node);
        Failure { node: 0, rank: None, what, status: 1, last_operation: None }
    }
}

/// Tells the other nodes of a `failure` before any rank of this one runs.
pub(super) fn give_up(store: &TcpStore, failure: &Failure) {
    let wait = Wait::for_at_most(FAREWELL);
    let text = serde_json::to_vec(failure).unwrap_or_default();
    // They see the silence of this node if they do not hear of it.
    let _ = store.compare_set(&failed(), b"", &text, &wait);
    let _ = store.add(&key("done", failure.node), 1, &wait);
    let _ = store.add(&heard(), 1, &wait);
}

fn key(what: &str, node: u32) -> String {
    format!("{KEYS}/{what}/{node}")
}

fn failed() -> String {
    format!("{KEYS}/failed")
}

fn over() -> String {
    format!("{KEYS}/over")
}

fn heard() -> String {
    format!("{KEYS}/heard")
}
