//! The launcher's side of its processes: starts them, hears them, kills them, and puts new ones in their
//! place.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::rank::now_ns;
use super::seat::{Order, SEAT, Said};
use super::traces::{MARK, Scene};

/// Ranks of every round.
pub(crate) const WORLD: usize = 4;

/// A process. Dropping it ends it.
struct Seat {
    /// Tells what a process says from what its predecessors said.
    number: u64,
    child: Child,
    orders: Option<ChildStdin>,
    listener: Option<JoinHandle<()>>,
}

/// The processes.
pub(crate) struct Seats {
    seats: VecDeque<Seat>,
    next: u64,
    heard: Receiver<(u64, Option<Said>)>,
    tell: Sender<(u64, Option<Said>)>,
    mark: String,
    temp: std::path::PathBuf,
}

/// Something that a seat said; `None` when it has ended.
pub(crate) type Heard = (usize, Option<Said>);

impl Seats {
    pub(crate) fn new(scene: &Scene) -> Self {
        let (tell, heard) = channel();
        let (mark, temp) = (scene.mark.clone(), scene.temp.clone());
        let mut seats = Self { seats: VecDeque::new(), next: 0, heard, tell, mark, temp };
        (0..WORLD).for_each(|_| seats.add());
        seats
    }

    fn add(&mut self) {
        let number = self.next;
        self.next += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(SEAT, number.to_string())
            .env(MARK, &self.mark)
            .env("TMPDIR", &self.temp)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, said) = (child.stdin.take(), child.stdout.take().unwrap());
        let tell = self.tell.clone();
        let listener = thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if let Ok(said) = serde_json::from_str(&line) {
                    let _ = tell.send((number, Some(said)));
                }
            }
            let _ = tell.send((number, None));
        });
        self.seats.push_back(Seat { number, child, orders, listener: Some(listener) });
    }

    /// Lets every process be another rank than before.
    pub(crate) fn shift(&mut self, steps: usize) {
        self.seats.rotate_left(steps % WORLD);
    }

    pub(crate) fn order(&mut self, rank: usize, order: &Order) {
        let line = format!("{}\n", serde_json::to_string(order).unwrap());
        if let Some(orders) = &mut self.seats[rank].orders {
            // A process that has ended says so itself.
            let _ = orders.write_all(line.as_bytes());
        }
    }

    /// The next thing that a process says, if it comes before `end`.
    pub(crate) fn hear(&self, end: Instant) -> Option<Heard> {
        loop {
            match self.heard.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((number, said)) => {
                    // Those who are gone have nothing to say any more.
                    if let Some(rank) = self.seats.iter().position(|seat| seat.number == number) {
                        return Some((rank, said));
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Kills a rank; returns a moment just before.
    pub(crate) fn kill(&mut self, rank: usize) -> u64 {
        let now = now_ns();
        self.seats[rank].child.kill().unwrap();
        now
    }

    /// What the kernel says of a rank that does not answer.
    pub(crate) fn describe(&self, rank: usize) -> String {
        let pid = self.seats[rank].child.id();
        let mut words = vec![format!("pid {pid}")];
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            words.push(format!("{} in {}", read("comm").trim(), read("wchan").trim()));
        }
        words.join(", ")
    }

    /// Ends these ranks' processes and puts new ones in their places.
    pub(crate) fn replace(&mut self, ranks: &[usize]) {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        for rank in ranks {
            drop(self.seats.remove(rank));
            self.add();
        }
        // A process needs a moment until it can take an order; the pipe keeps it until then.
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // One that still lives ends when its orders do; one that is stuck is killed.
        drop(self.orders.take());
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.listener.take().map(JoinHandle::join);
    }
}
