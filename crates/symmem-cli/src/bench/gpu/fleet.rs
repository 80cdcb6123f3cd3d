//! The processes of one system: they start together, are led over pipes, and end together.
//!
//! Every wait here has a limit. A rank that dies, complains or is late takes its fleet down; the conductor
//! may start it again. Ranks die with this process.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use symmem::store::{ServerLimits, TcpStoreServer};

use super::protocol::{Answer, Order};
use super::system::Launch;

/// How long ranks that were told to quit may take: longer than their kernels wait for each other, because MPS
/// does not survive a client that is killed at work.
const QUIT_WITHIN: Duration = Duration::from_secs(25);

/// What came of an order.
#[derive(Debug)]
pub(super) enum OrderFailure {
    /// Some rank cannot do this case; all are ready for the next order.
    Cannot(String),
    /// The fleet is of no use any more.
    Failed(String),
}

/// A system's running processes.
pub(super) struct Fleet {
    members: Vec<Member>,
    inbox: Receiver<(usize, Option<String>)>,
    /// What ranks of ours meet in.
    _store: Option<TcpStoreServer>,
}

struct Member {
    child: Child,
    /// `None` once it was told to end.
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Fleet {
    /// Starts `ranks` processes and waits until each has said who it is. Their logs go to `folder`.
    pub(super) fn start(
        launch: &Launch,
        ranks: usize,
        folder: &Path,
        limit: Duration,
    ) -> Result<(Self, Vec<Answer>)> {
        let bind = || TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::default());
        let store = launch.needs_store.then(bind).transpose().context("serving a store")?;
        let run = run_id();
        let (sender, inbox) = channel();
        let mut fleet = Self { members: Vec::new(), inbox, _store: store };
        for rank in 0..ranks {
            let port = fleet._store.as_ref().map(TcpStoreServer::port);
            let mut command = command(launch, rank, ranks, port, &run);
            let log = folder.join(format!("{run}-{rank}.log"));
            let file = File::create(&log).with_context(|| format!("{} cannot be made", log.display()))?;
            let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).spawn();
            let mut child =
                spawned.with_context(|| format!("{} cannot be started", launch.program.display()))?;
            let stdin = child.stdin.take();
            listen(&mut child, rank, sender.clone());
            fleet.members.push(Member { child, stdin, log });
        }
        match fleet.answers(limit) {
            Ok(hellos) => Ok((fleet, hellos)),
            Err(OrderFailure::Cannot(why) | OrderFailure::Failed(why)) => bail!(why),
        }
    }

    /// Gives all ranks an order; their answers, in rank order.
    pub(super) fn ask(&mut self, order: &Order, limit: Duration) -> Result<Vec<Answer>, OrderFailure> {
        self.tell(order).map_err(|error| OrderFailure::Failed(format!("{error:#}")))?;
        self.answers(limit)
    }

    /// Gives one rank an order.
    pub(super) fn ask_one(&mut self, rank: usize, order: &Order, limit: Duration) -> Result<Answer> {
        let line = line_of(order)?;
        let member = self.members.get_mut(rank).context("there is no such rank")?;
        member.send(&line).with_context(|| format!("rank {rank} does not listen"))?;
        let end = Instant::now() + limit;
        let (_, answer) = self.next(end).map_err(|why| anyhow!(why))?;
        match answer.error.or(answer.cannot.clone()) {
            Some(why) => bail!("rank {rank}: {why}"),
            None => Ok(Answer { error: None, ..answer }),
        }
    }

    /// Ends all ranks: those that do not go by themselves are killed.
    pub(super) fn end(mut self) {
        self.quit();
    }

    fn tell(&mut self, order: &Order) -> Result<()> {
        let line = line_of(order)?;
        for (rank, member) in self.members.iter_mut().enumerate() {
            let sent = member.send(&line);
            sent.with_context(|| format!("rank {rank} does not listen{}", last_words(&member.log)))?;
        }
        Ok(())
    }

    /// One answer of each rank. The first complaint ends the wait: the others may be waiting for that rank.
    fn answers(&mut self, limit: Duration) -> Result<Vec<Answer>, OrderFailure> {
        let end = Instant::now() + limit;
        let mut answers: Vec<Option<Answer>> = vec![None; self.members.len()];
        while answers.iter().any(Option::is_none) {
            let (rank, answer) = self.next(end).map_err(|why| {
                let missing: Vec<_> = (0..answers.len()).filter(|rank| answers[*rank].is_none()).collect();
                OrderFailure::Failed(format!("{why} (no answer from ranks {missing:?})"))
            })?;
            if let Some(why) = answer.error {
                return Err(OrderFailure::Failed(format!("rank {rank}: {why}")));
            }
            answers[rank] = Some(answer);
        }
        let answers: Vec<_> = answers.into_iter().flatten().collect();
        match answers.iter().enumerate().find_map(|(rank, answer)| Some((rank, answer.cannot.clone()?))) {
            Some((rank, why)) => Err(OrderFailure::Cannot(format!("rank {rank}: {why}"))),
            None => Ok(answers),
        }
    }

    /// Whatever comes next from any rank, before `end`.
    fn next(&mut self, end: Instant) -> Result<(usize, Answer), String> {
        let left = end.saturating_duration_since(Instant::now());
        match self.inbox.recv_timeout(left) {
            Ok((rank, Some(line))) => match serde_json::from_str(&line) {
                Ok(answer) => Ok((rank, answer)),
                Err(_) => Err(format!("rank {rank} answered {}", short(&line))),
            },
            Ok((rank, None)) => Err(format!("rank {rank} ended{}", self.words(rank))),
            Err(RecvTimeoutError::Timeout) => Err("it is late".to_owned()),
            Err(RecvTimeoutError::Disconnected) => Err("all ranks have ended".to_owned()),
        }
    }

    fn words(&self, rank: usize) -> String {
        self.members.get(rank).map(|member| last_words(&member.log)).unwrap_or_default()
    }

    fn quit(&mut self) {
        // Politely first: killing a process that has work on the GPU is bad for those it shares the GPU with.
        if let Ok(line) = line_of(&Order::Quit) {
            for member in &mut self.members {
                let _ = member.send(&line);
                member.stdin = None;
            }
        }
        let end = Instant::now() + QUIT_WITHIN;
        let mut running = |member: &mut Member| !matches!(member.child.try_wait(), Ok(Some(_)));
        while Instant::now() < end && self.members.iter_mut().any(&mut running) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        self.members.clear();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.quit();
    }
}

impl Member {
    fn send(&mut self, line: &[u8]) -> Result<()> {
        // An order is far smaller than a pipe, and ranks have answered the one before.
        let pipe = self.stdin.as_mut().context("it was told to end")?;
        pipe.write_all(line)?;
        Ok(pipe.flush()?)
    }
}

fn line_of(order: &Order) -> Result<Vec<u8>> {
    Ok((serde_json::to_string(order)? + "\n").into_bytes())
}

fn command(launch: &Launch, rank: usize, ranks: usize, port: Option<u16>, run: &str) -> Command {
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
    command.env("WORLD_SIZE", ranks.to_string()).env("TORCHELASTIC_RUN_ID", run);
    if let Some(port) = port {
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("TORCHELASTIC_RESTART_COUNT", "0");
    }
    // SAFETY: runs between fork and exec and makes one system call, which is safe there.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
    command
}

/// Passes on what a rank prints, line by line, and in the end that it ended.
fn listen(child: &mut Child, rank: usize, inbox: Sender<(usize, Option<String>)>) {
    let Some(stdout) = child.stdout.take() else { return };
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if inbox.send((rank, Some(line))).is_err() {
                return;
            }
        }
        // Nobody listens any more when the fleet has ended.
        let _ = inbox.send((rank, None));
    });
}

/// A name for this start that no other has.
fn run_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("gpu-bench-{}-{}", std::process::id(), now.as_nanos())
}

/// The last line of a log.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.map(|line| format!(": {}", short(line))).unwrap_or_default()
}

fn short(text: &str) -> String {
    text.chars().take(300).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::gpu::scratch::ScratchFolder;

    /// A rank that is a shell script.
    pub(in crate::bench::gpu) fn script(text: &str) -> Launch {
        let args = vec!["-c".to_owned(), text.to_owned()];
        Launch { program: "sh".into(), args, env: Vec::new(), needs_store: false }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    fn start(text: &str, ranks: usize, scratch: &ScratchFolder) -> Result<(Fleet, Vec<Answer>)> {
        Fleet::start(&script(text), ranks, &scratch.0, LIMIT)
    }

    fn failed<T: std::fmt::Debug>(result: Result<T, OrderFailure>) -> String {
        match result {
            Err(OrderFailure::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn answers_come_in_rank_order() {
        let scratch = ScratchFolder::new("fleet-order");
        let text = r#"sleep 0.$((2 - RANK)); echo "{\"version\": \"$RANK of $WORLD_SIZE\"}"
            while read -r line; do echo "{\"with_us\": $RANK.5}"; done"#;
        let (mut fleet, hellos) = start(text, 3, &scratch).expect("a fleet");
        let versions: Vec<_> = hellos.into_iter().map(|hello| hello.version.unwrap_or_default()).collect();
        assert_eq!(versions, ["0 of 3", "1 of 3", "2 of 3"]);
        let answers = fleet.ask(&Order::Clear, LIMIT).expect("answers");
        assert_eq!(
            answers.iter().map(|answer| answer.with_us).collect::<Vec<_>>(),
            [Some(0.5), Some(1.5), Some(2.5)]
        );
        assert_eq!(fleet.ask_one(1, &Order::Clear, LIMIT).expect("an answer").with_us, Some(1.5));
        fleet.end();
    }

    #[test]
    fn a_rank_that_cannot_is_named_and_the_fleet_goes_on() {
        let scratch = ScratchFolder::new("fleet-cannot");
        let text = r#"echo {}
            while read -r line; do
                case "$RANK $line" in *round*) echo {};; 1*) echo '{"cannot": "no such op"}';; *) echo {};; esac
            done"#;
        let (mut fleet, _) = start(text, 2, &scratch).expect("a fleet");
        match fleet.ask(&Order::Clear, LIMIT) {
            Err(OrderFailure::Cannot(why)) => assert_eq!(why, "rank 1: no such op"),
            other => panic!("{other:?}"),
        }
        fleet.ask(&Order::Round { slot: 0, round: 0 }, LIMIT).expect("all are ready");
    }

    #[test]
    fn a_rank_that_dies_is_named_with_its_last_words_while_others_still_work() {
        let scratch = ScratchFolder::new("fleet-dies");
        let text = r#"echo {}; read -r line
            if [ $RANK = 1 ]; then echo 'out of luck' >&2; exit 1; fi; exec sleep 100"#;
        let (mut fleet, _) = start(text, 2, &scratch).expect("a fleet");
        let why = failed(fleet.ask(&Order::Clear, LIMIT));
        assert_eq!(why, "rank 1 ended: out of luck (no answer from ranks [0, 1])");
    }

    #[test]
    fn a_complaint_is_passed_on_at_once() {
        let scratch = ScratchFolder::new("fleet-error");
        let text = r#"echo {}; read -r line
            if [ $RANK = 0 ]; then exec sleep 100; fi; echo '{"error": "no memory"}'; exec sleep 100"#;
        let (mut fleet, _) = start(text, 2, &scratch).expect("a fleet");
        assert_eq!(failed(fleet.ask(&Order::Clear, LIMIT)), "rank 1: no memory");
    }

    #[test]
    fn a_rank_that_is_late_or_speaks_nonsense_is_a_failure() {
        let scratch = ScratchFolder::new("fleet-late");
        let text = r#"echo {}; read -r line; [ $RANK = 0 ] && echo {}; exec sleep 100"#;
        let (mut fleet, _) = start(text, 2, &scratch).expect("a fleet");
        let why = failed(fleet.ask(&Order::Clear, Duration::from_millis(300)));
        assert_eq!(why, "it is late (no answer from ranks [1])");
        let error = start("echo hello", 1, &scratch).err().expect("no JSON").to_string();
        assert!(error.starts_with("rank 0 answered hello"), "{error}");
        let error = start("exit 3", 1, &scratch).err().expect("it ends").to_string();
        assert!(error.starts_with("rank 0 ended"), "{error}");
    }
}
