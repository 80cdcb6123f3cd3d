//! What every launcher of rank processes does: tells each process which rank it is, keeps it on its cores,
//! and takes it along when it dies.
//!
//! [`ProcessSpawner`](super::ProcessSpawner) and the program `symmem run` start their ranks through this. The
//! environment is that of `torchrun`, whose scripts need no other; the store must be served already, for no
//! rank serves it.

use std::ffi::OsStr;
use std::process::Command;

use super::Placement;
use crate::Result;
use crate::group::env::FRESH_RUN;
use crate::sys::{exec, ids};

/// Ranks are never restarted.
pub(super) const ATTEMPT: &str = "0";
/// How variables begin that a spawner sets for its own ranks, and for nobody whom they start.
const OF_ANOTHER_SPAWNER: &str = "SYMMEM_SPAWN_";

/// Which rank a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its rank in the job.
    pub rank: usize,
    /// How many ranks the job has.
    pub world: usize,
    /// Its rank among those of its machine.
    pub local_rank: usize,
    /// How many ranks its machine has.
    pub local_world: usize,
}

/// Starts processes as ranks that join by [`Group::from_env`](crate::Group::from_env), or by
/// `torch.distributed`.
///
/// ```no_run
/// use std::process::Command;
/// use symmem::store::{ServerLimits, TcpStoreServer};
/// use symmem::{Launcher, Placement, Seat};
///
/// let server = TcpStoreServer::bind("127.0.0.1", 0, ServerLimits::for_world(2))?;
/// let launcher = Launcher::new("127.0.0.1", server.port(), Placement::new(2, None)?)?;
/// for rank in 0..2 {
///     let mut command = Command::new("./program");
///     launcher.prepare(&mut command, Seat { rank, world: 2, local_rank: rank, local_world: 2 });
///     command.spawn()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Launcher {
    host: String,
    port: u16,
    run: String,
    placement: Placement,
}

impl Launcher {
    /// Of a new run, whose store is served at `host` and `port`. `placement` is for the ranks of this
    /// machine.
    pub fn new(host: &str, port: u16, placement: Placement) -> Result<Self> {
        Ok(Self { host: host.to_owned(), port, run: ids::hex(&ids::random::<16>()?), placement })
    }

    /// Of the run that another machine's launcher has begun: its [`Launcher::run_id`].
    pub fn of_run(mut self, run: &str) -> Self {
        run.clone_into(&mut self.run);
        self
    }

    /// What tells this run from every other one.
    pub fn run_id(&self) -> &str {
        &self.run
    }

    /// Makes `command` the rank of `seat`. Variables that `command` sets already stay as they are.
    ///
    /// The kernel kills the process when the thread that starts it ends, so start it from one that lives
    /// until the ranks have ended.
    pub fn prepare(&self, command: &mut Command, seat: Seat) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with(OF_ANOTHER_SPAWNER) && !sets(command, &name) {
                command.env_remove(name);
            }
        }
        for (name, value) in self.environment(command, seat) {
            if !sets(command, OsStr::new(name)) {
                command.env(name, value);
            }
        }
        exec::die_with_us(command, self.placement.cpus(seat.local_rank));
    }

    fn environment(&self, command: &Command, seat: Seat) -> Vec<(&'static str, String)> {
        let is_set = |name: &str| std::env::var_os(name).is_some() || sets(command, OsStr::new(name));
        let mut found = self.placement.environment(is_set);
        found.extend([
            ("RANK", seat.rank.to_string()),
            ("WORLD_SIZE", seat.world.to_string()),
            ("LOCAL_RANK", seat.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", seat.local_world.to_string()),
            ("MASTER_ADDR", self.host.clone()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_RUN_ID", self.run.clone()),
            ("TORCHELASTIC_RESTART_COUNT", ATTEMPT.to_owned()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
            // The run id is new, so nothing under it can be a leftover.
            (FRESH_RUN, "1".to_owned()),
        ]);
        found
    }
}

fn sets(command: &Command, name: &OsStr) -> bool {
    command.get_envs().any(|(own, value)| own == name && value.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_told_who_it_is_and_what_was_set_stays() {
        let launcher = Launcher::new("localhost", 1234, Placement::new(2, None).unwrap()).unwrap();
        let mut command = Command::new("true");
        command.env("MASTER_ADDR", "elsewhere").env("OMP_NUM_THREADS", "7");
        launcher.prepare(&mut command, Seat { rank: 3, world: 4, local_rank: 1, local_world: 2 });
        let told = |name: &str| {
            command.get_envs().find(|(own, _)| *own == name).and_then(|(_, value)| value?.to_str())
        };
        assert_eq!((told("RANK"), told("WORLD_SIZE")), (Some("3"), Some("4")));
        assert_eq!((told("LOCAL_RANK"), told("LOCAL_WORLD_SIZE")), (Some("1"), Some("2")));
        assert_eq!((told("MASTER_ADDR"), told("MASTER_PORT")), (Some("elsewhere"), Some("1234")));
        assert_eq!((told("OMP_NUM_THREADS"), told("MKL_NUM_THREADS")), (Some("7"), None));
        assert_eq!(told("TORCHELASTIC_RUN_ID"), Some(launcher.run_id()));
    }

    #[test]
    fn runs_differ_unless_one_is_joined() {
        let new = || Launcher::new("localhost", 1, Placement::new(1, None).unwrap()).unwrap();
        let (one, other) = (new(), new());
        assert_ne!(one.run_id(), other.run_id());
        assert_eq!(other.of_run(one.run_id()).run_id(), one.run_id());
    }
}
