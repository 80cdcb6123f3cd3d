//! The launcher's part in the kill suite: starts ranks, kills one from outside, and hears the others.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use symmem::fault::Point;
use symmem::store::{ServerLimits, Store, TcpStore, TcpStoreServer, Wait};

use super::random::Random;
use super::rank::{ORDER, Order, REPORT, Report, now_ns};
use super::traces::{MARK, Scene};

/// Longer than ranks take to end by themselves, whatever goes wrong.
const LIMIT: Duration = Duration::from_secs(90);

/// How the victim dies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    /// By the launcher, so long after every rank is known to the others.
    Killed { after: Duration },
    /// By itself, at a crash point, after so many passes.
    At { point: Point, passes: u64 },
}

/// One kill.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) ranks: usize,
    pub(crate) victim: usize,
    pub(crate) pidfd: bool,
    /// Rank 0 serves the world's store, rather than the launcher.
    pub(crate) rank_0_serves: bool,
    /// Ranks do collectives and nothing else.
    pub(crate) only_collectives: bool,
    pub(crate) seed: u64,
    pub(crate) death: Death,
}

/// What came of it.
pub(crate) struct Outcome {
    /// Not later than the moment of death.
    pub(crate) died_ns: u64,
    pub(crate) survivors: Vec<Report>,
}

/// Whether only private memory that is read through the kernel comes by `point`.
pub(crate) fn is_of_pull(point: Point) -> bool {
    matches!(point, Point::PullEntered | Point::PullRead)
}

impl Case {
    /// Whether its ranks must read each other's private memory, whatever is built in for this machine.
    fn pulls(&self) -> bool {
        matches!(self.death, Death::At { point, .. } if is_of_pull(point))
    }

    /// Runs the case as processes of the test called `test`.
    pub(crate) fn run(&self, test: &str, scene: &Scene) -> Outcome {
        let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default()).unwrap();
        // Where the world meets.
        let port = if self.rank_0_serves { free_port(self.seed) } else { server.port() };
        let Self { ranks, victim, seed, only_collectives, .. } = *self;
        let order = Order { ranks, victim, seed, only_collectives, port: server.port() };
        let start = |rank| Rank::start(self.command(rank, test, scene, &order, port));
        let mut ranks: Vec<Rank> = (0..self.ranks).map(start).collect();
        let killed_ns = match self.death {
            Death::Killed { after } => Some(self.kill(after, &server, &mut ranks)),
            Death::At { .. } => None,
        };
        let limit = Instant::now() + LIMIT;
        let mut ended: Vec<Ended> = ranks.into_iter().map(|rank| rank.wait(limit)).collect();
        let victim = ended.remove(self.victim);
        assert_eq!(victim.status.signal(), Some(9), "{self:?}: the victim was to be killed\n{}", victim.said);
        let died_ns = killed_ns.unwrap_or_else(|| self.last_words(&victim));
        let reports: Option<Vec<Report>> = ended.iter().map(Ended::report).collect();
        // One rank's failure often explains another's.
        let said = || ended.iter().map(|ended| ended.said.as_str()).collect::<Vec<_>>().join("\n");
        let survivors = reports.unwrap_or_else(|| panic!("{self:?}: not all survivors reported\n{}", said()));
        Outcome { died_ns, survivors }
    }

    fn command(&self, rank: usize, test: &str, scene: &Scene, order: &Order, port: u16) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("TORCHELASTIC_RUN_ID", &scene.mark)
            .env("TORCHELASTIC_USE_AGENT_STORE", (!self.rank_0_serves).to_string())
            .env("SYMMEM_FRESH_RUN", "1")
            .env("SYMMEM_ALGORITHM", if self.pulls() { "private=pull" } else { "" })
            .env("SYMMEM_TIMEOUT", "60")
            .env("SYMMEM_PIDFD", u8::from(self.pidfd).to_string())
            .env("TMPDIR", &scene.temp)
            .env(MARK, &scene.mark)
            .env(ORDER, serde_json::to_string(order).unwrap());
        // Only the victim is told: when the survivors regroup, one of them takes its number.
        if let Death::At { point, passes } = self.death
            && rank == self.victim
        {
            command.env("SYMMEM_CRASH_POINT", point.name()).env("SYMMEM_CRASH_AFTER", passes.to_string());
        }
        command
    }

    /// Kills the victim; returns a moment just before.
    fn kill(&self, after: Duration, server: &TcpStoreServer, ranks: &mut [Rank]) -> u64 {
        let wait = Wait::for_at_most(Duration::from_secs(30));
        let store = TcpStore::connect("127.0.0.1", server.port(), &wait).unwrap();
        self.wait_until_known(&store, &wait);
        thread::sleep(after);
        let now = now_ns();
        ranks[self.victim].child.kill().unwrap();
        now
    }

    /// Waits until every rank has said hello or has even joined. Nobody but its launcher can notice the death
    /// of a rank that has not said a word; and when rank 0 serves the store, its death takes all the hellos
    /// with it.
    fn wait_until_known(&self, store: &TcpStore, wait: &Wait<'_>) {
        let mut known = BTreeSet::new();
        let names = |rank: usize| [format!("/hello/{rank}"), format!("joined/{rank}")];
        while known.len() < self.ranks {
            assert!(!wait.deadline().expired(), "{self:?}: only {known:?} have started");
            let keys = store.list_keys(wait).unwrap();
            let is_known =
                |rank: &usize| keys.iter().any(|key| names(*rank).iter().any(|name| key.ends_with(name)));
            known.extend((0..self.ranks).filter(is_known));
            thread::sleep(Duration::from_micros(500));
        }
    }

    /// The moment that a rank noted before it died at its crash point.
    fn last_words(&self, victim: &Ended) -> u64 {
        let Death::At { point, .. } = self.death else { unreachable!("it was killed") };
        let words = format!("crash point {} at ", point.name());
        let time = victim.said.split_once(&words).and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        time.unwrap_or_else(|| panic!("{self:?}: no last words in\n{}", victim.said))
    }
}

/// A port that is free, below those that the kernel hands out by itself, so that it is free a moment later,
/// too.
fn free_port(seed: u64) -> u16 {
    let mut random = Random::new(seed);
    let mut ports = std::iter::repeat_with(|| 20_000 + random.below(12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// A started process. Dropping it ends it.
struct Rank {
    child: Child,
    said: Vec<JoinHandle<String>>,
}

struct Ended {
    status: ExitStatus,
    /// Its output.
    said: String,
}

impl Rank {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = vec![listen(child.stdout.take().unwrap()), listen(child.stderr.take().unwrap())];
        Self { child, said }
    }

    /// Waits for its end; ends it at `limit`.
    fn wait(mut self, limit: Instant) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > limit {
                self.child.kill().unwrap();
            }
            thread::sleep(Duration::from_millis(2));
        };
        let said = self.said.drain(..).map(|said| said.join().unwrap()).collect();
        Ended { status, said }
    }
}

impl Ended {
    fn report(&self) -> Option<Report> {
        let report = self.said.lines().find_map(|line| line.strip_prefix(REPORT))?;
        Some(serde_json::from_str(report).unwrap())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut said = Vec::new();
        let _ = pipe.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    })
}
