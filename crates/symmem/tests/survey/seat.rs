//! A process of the survey: it is a rank of one round after the other, until it is killed or no order comes.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use symmem::store::{Store, TcpStore, Wait};
use symmem::{Deadline, Group};

use super::activity::Activity;
use super::rank::{Blame, now_ns, verify};
use super::traces::Holdings;

/// Says that a process is a seat.
pub(crate) const SEAT: &str = "SYMMEM_SURVEY_SEAT";
/// Longer than anything takes when all is well.
const LONG: Duration = Duration::from_secs(20);

/// What a seat is told for one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) round: u64,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    /// Who will be left at the end.
    pub(crate) left: Vec<usize>,
    pub(crate) port: u16,
    pub(crate) run: String,
    pub(crate) activity: String,
    pub(crate) pidfd: bool,
    pub(crate) seed: u64,
}

/// What a seat says, one line each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It is at work.
    Ready { round: u64 },
    /// It has noticed, regrouped and cleaned up.
    Done(Box<Report>),
    /// Something is wrong.
    Failed { round: u64, problem: String },
}

/// What a survivor of a round says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) round: u64,
    pub(crate) rank: usize,
    /// When it called the library for this round.
    pub(crate) called_ns: u64,
    pub(crate) blame: Blame,
    pub(crate) before: Holdings,
    pub(crate) after: Holdings,
    /// Names of the sockets it listened on while it was in the group.
    pub(crate) sockets: BTreeSet<String>,
}

pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(SEAT).is_some()
}

fn say(said: &Said) {
    let mut line = serde_json::to_string(said).unwrap();
    line.push('\n');
    let mut out = std::io::stdout().lock();
    // A launcher that is gone hears nothing, and its end ends this process.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Takes one order after the other.
pub(crate) fn sit() {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let order: Order = serde_json::from_str(&line).unwrap();
        let round = order.round;
        match std::panic::catch_unwind(|| order.carry_out()) {
            Ok(report) => say(&Said::Done(Box::new(report))),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                say(&Said::Failed { round, problem: text.unwrap_or_else(|| "a panic".to_owned()) });
                // What unwinding left behind must not count for later rounds.
                std::process::exit(1);
            }
        }
    }
}

impl Order {
    fn carry_out(&self) -> Report {
        self.set_environment();
        let before = Holdings::now();
        let called_ns = now_ns();
        let (blame, sockets) = self.live();
        let after = Holdings::settled(before);
        Report { round: self.round, rank: self.rank, called_ns, blame, before, after, sockets }
    }

    fn set_environment(&self) {
        let variables = [
            ("RANK", self.rank.to_string()),
            ("WORLD_SIZE", self.world.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run.clone()),
            ("TORCHELASTIC_USE_AGENT_STORE", "1".to_owned()),
            ("SYMMEM_FRESH_RUN", "1".to_owned()),
            ("SYMMEM_TIMEOUT", "60".to_owned()),
            ("SYMMEM_PIDFD", u8::from(self.pidfd).to_string()),
        ];
        for (name, value) in variables {
            // SAFETY: between rounds this process has one thread, as `Holdings` checks after every round.
            unsafe { std::env::set_var(name, value) };
        }
    }

    /// Joins, works until somebody dies, and regroups with who is left.
    fn live(&self) -> (Blame, BTreeSet<String>) {
        let wait = Wait::for_at_most(LONG);
        let store = TcpStore::connect("127.0.0.1", self.port, &wait).unwrap();
        let everybody: Vec<usize> = (0..self.world).collect();
        let ready = || say(&Said::Ready { round: self.round });
        let activity = Activity::from_name(&self.activity).unwrap();
        let (group, blame, sockets) = match Group::from_env() {
            Ok(group) => {
                store.set(&format!("joined/{}", self.rank), b"", &wait).unwrap();
                let sockets = own_sockets();
                let (error, members) = activity.work(&group, self.seed, ready);
                let blame = Blame::new(&error, members.as_ref().unwrap_or(&everybody));
                (Some(group), blame, sockets)
            }
            Err(error) => (None, Blame::new(&error, &everybody), BTreeSet::new()),
        };
        self.regroup(group, store);
        (blame, sockets)
    }

    /// Goes on with who is left; nothing of it stays.
    fn regroup(&self, group: Option<Group>, store: TcpStore) {
        let wait = Wait::for_at_most(LONG);
        let key = |rank: &usize| format!("has-a-group/{rank}");
        if self.left.len() + 1 < self.world {
            let group = group.expect("nobody dies in this join");
            return self.survive(group);
        }
        store.set(&key(&self.rank), &[u8::from(group.is_some())], &wait).unwrap();
        let keys: Vec<String> = self.left.iter().map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let have = store.multi_get(&keys, &wait).unwrap();
        let new = match group.filter(|_| have.iter().all(|has| has == &[1])) {
            Some(group) => group.survivors(Deadline::after(LONG)),
            None => {
                let place = self.left.iter().position(|rank| *rank == self.rank).unwrap();
                Group::from_store(Arc::new(store), place, self.left.len(), "regroup")
            }
        };
        verify(&new.unwrap(), self.left.len()).unwrap();
    }

    /// Regroups while another rank dies: until a group works that has nobody but those who will be left.
    fn survive(&self, mut group: Group) {
        let end = Deadline::after(LONG);
        loop {
            let outcome = group.survivors(end).map(|new| {
                let tried = verify(&new, new.size());
                (new, tried)
            });
            match outcome {
                Ok((new, Ok(()))) if new.size() == self.left.len() => return,
                // The second victim may live for a moment more, or die in the new group: regroup from there.
                Ok((new, _)) => {
                    assert!(new.size() > self.left.len(), "a group of {} was left", new.size());
                    group = new;
                    // Until it is gone there is nobody to go on without.
                    while group.barrier().is_ok() {
                        assert!(!end.expired(), "the second victim did not die");
                    }
                }
                Err(error) if error.is_group_failure() && !end.expired() => {}
                Err(error) => panic!("survivors: {error}"),
            }
        }
    }
}

/// Names of this process' own sockets of the fd channel.
fn own_sockets() -> BTreeSet<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let target = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    let own: BTreeSet<String> = links.filter_map(target).filter_map(inode).collect();
    named_sockets().into_iter().filter(|(inode, _)| own.contains(inode)).map(|(_, name)| name).collect()
}

/// Inode and name of every socket of an fd channel that there is.
pub(crate) fn named_sockets() -> Vec<(String, String)> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let row = |line: &str| {
        let mut words = line.split_whitespace().skip(6);
        let (inode, name) = (words.next()?, words.next()?);
        name.contains("symmem-").then(|| (inode.to_owned(), name.to_owned()))
    };
    table.lines().filter_map(row).collect()
}
