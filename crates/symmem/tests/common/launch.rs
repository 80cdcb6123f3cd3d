//! Processes started the way `torchrun` starts them: the test program again, with the launcher's variables
//! set.

use std::process::{Command, Output, Stdio};

/// Says which test the process is a rank of.
const TEST: &str = "SYMMEM_TEST_RANK_OF";
/// Starts a line that a rank says to its launcher.
const MARK: &str = "@@ ";
/// Variables that a launcher or spawner above this process may have set.
const INHERITED: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "SYMMEM_FRESH_RUN",
];

/// Whether this process is a rank of `test` rather than its launcher.
pub(crate) fn is_rank_of(test: &str) -> bool {
    std::env::var(TEST).is_ok_and(|name| name == test)
}

/// Says `text`, one line, to the launcher.
pub(crate) fn report(text: impl std::fmt::Display) {
    // The harness may have left its own line open.
    println!("\n{MARK}{}", text.to_string().replace('\n', " "));
}

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) ok: bool,
    code: Option<i32>,
    pub(crate) said: Vec<String>,
    output: String,
}

impl Ended {
    fn new(output: Output) -> Self {
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let said = text[0].lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect();
        Self { ok: output.status.success(), code: output.status.code(), said, output: text.concat() }
    }

    /// Whether a test of it failed and said `words`.
    pub(crate) fn has_failed_with(&self, words: &str) -> bool {
        self.code == Some(101) && self.output.contains(words)
    }

    /// What the rank reported, once it has ended well.
    pub(crate) fn expect(self) -> Vec<String> {
        assert!(self.ok, "a rank failed: {}", self.output);
        self.said
    }
}

/// Starts `test` of this program again with `vars` and nothing of a launcher above; returns when it has
/// ended.
pub(crate) fn start(test: &str, vars: &[(String, String)]) -> Ended {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    for name in INHERITED {
        command.env_remove(name);
    }
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(TEST, test)
        .env("SYMMEM_TIMEOUT", "30");
    command.envs(vars.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
    Ended::new(command.output().expect("the test program starts"))
}

/// One attempt of a launcher: `world` ranks of `test` that meet at `port`.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    test: String,
    world: usize,
    port: u16,
    attempt: u32,
    vars: Vec<(String, String)>,
}

impl Launch {
    pub(crate) fn new(test: &str, world: usize, port: u16) -> Self {
        Self { test: test.to_owned(), world, port, attempt: 0, vars: Vec::new() }
    }

    /// The same with another number of ranks.
    pub(crate) fn world(mut self, world: usize) -> Self {
        self.world = world;
        self
    }

    pub(crate) fn ranks(&self) -> usize {
        self.world
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How often the launcher has started the ranks before.
    pub(crate) fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.vars.push((name.to_owned(), value.to_string()));
        self
    }

    /// What `torchrun` tells rank `rank`, its agent serving the store.
    fn vars_of(&self, rank: usize) -> Vec<(String, String)> {
        let vars = [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", self.world.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_RUN_ID", "test".to_owned()),
            ("TORCHELASTIC_RESTART_COUNT", self.attempt.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ];
        let vars = vars.into_iter().map(|(name, value)| (name.to_owned(), value));
        // Later ones win.
        vars.chain(self.vars.iter().cloned()).collect()
    }

    /// Runs rank `rank` to its end.
    pub(crate) fn run_one(&self, rank: usize) -> Ended {
        start(&self.test, &self.vars_of(rank))
    }

    /// Runs all ranks to their end, in rank order.
    pub(crate) fn run(&self) -> Vec<Ended> {
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..self.world).map(|rank| scope.spawn(move || self.run_one(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a launcher's thread")).collect()
        })
    }
}
