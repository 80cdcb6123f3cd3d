//! Groups from the environment, as `torchrun`, `symmem run` and `spawn_processes` set it.

use std::error::Error as StdError;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use symmem_store::{
    Deadline, ServerLimits, Store, StoreError, TcpStore, TcpStoreServer, Wait, Watch, served_on_loopback,
};

use super::RankContext;
use super::join::Join;
use super::{Group, Notice};
use crate::operation::Op;
use crate::sys::fork;
use crate::{Error, Result};

/// Says that the run id was made up for this launch, so that nothing under it can be a leftover.
pub(super) const FRESH_RUN: &str = "SYMMEM_FRESH_RUN";

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| {
        let problem = "the environment variable is not set. Hint: start the program with torchrun, or set RANK, \
                       WORLD_SIZE, MASTER_ADDR and MASTER_PORT; symmem::spawn needs none of them";
        Error::invalid(name, problem)
    })
}

fn number<T: std::str::FromStr>(name: &str) -> Result<T> {
    let text = variable(name)?;
    text.trim().parse().map_err(|_| Error::invalid(name, format!("{text:?} is not a number in range")))
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| matches!(value.trim(), "1" | "true" | "True"))
}

impl Group {
    /// Collective. Joins the group that the environment describes: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`,
    /// `MASTER_PORT`; also `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` (a restarted job is not
    /// fooled by the keys of the attempt before) and `TORCHELASTIC_USE_AGENT_STORE` (somebody else serves the
    /// store; otherwise rank 0 does, at `MASTER_ADDR` or where `SYMMEM_STORE_BIND` says).
    pub fn from_env() -> Result<Self> {
        Self::from_env_in(&RankContext::from_env()?)
    }

    /// Collective. [`Group::from_env`] with a context of one's own.
    pub fn from_env_in(context: &RankContext) -> Result<Self> {
        Self::from_env_as(context, "world")
    }

    /// Collective. [`Group::from_env_in`] under another name than "world", for messages to people. The ranks
    /// are the same.
    pub fn from_env_as(context: &RankContext, name: &str) -> Result<Self> {
        // Before a port is taken or the store is told anything.
        if fork::is_child() {
            return Err(Error::Forked { op: Op::Join.name() });
        }
        let (rank, world): (usize, usize) = (number("RANK")?, number("WORLD_SIZE")?);
        let (host, port): (String, u16) = (variable("MASTER_ADDR")?, number("MASTER_PORT")?);
        if port == 0 {
            return Err(Error::invalid("MASTER_PORT", "0 is not a port that ranks can meet at"));
        }
        if rank >= world {
            return Err(Error::invalid(
                "RANK",
                format!("{rank} must be in [0, WORLD_SIZE), which is {world}"),
            ));
        }
        let run = std::env::var("TORCHELASTIC_RUN_ID").unwrap_or_else(|_| "none".to_owned());
        let attempt = std::env::var("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|_| "0".to_owned());
        let serves = rank == 0 && !is_set("TORCHELASTIC_USE_AGENT_STORE");
        let bind = context.config().get_store_bind().unwrap_or(&host);
        let serve = || TcpStoreServer::bind(bind, port, ServerLimits::for_world(world));
        let server = serves.then(serve).transpose()?;
        // Who serves it must not depend on how others reach this machine.
        let nearest = server.as_ref().map(|server| server.own_addr().ip().to_string());
        let store = connect(context, nearest.as_deref().unwrap_or(&host), port)?;
        let loopback = server.as_ref().map(|server| server.local_addr().ip()).filter(IpAddr::is_loopback);
        let mut join = Join::new(context, store, rank, world, name, world_boot(&run, &attempt));
        join.server = server.map(Arc::new);
        join.fresh = is_set(FRESH_RUN);
        let here = number("LOCAL_WORLD_SIZE").unwrap_or(0);
        let elsewhere = || loopback.filter(|_| here < world).map(served_on_loopback);
        join.run().map_err(|error| error.timeout_with_note(elsewhere))
    }

    /// This process' rank among those on its host, from `LOCAL_RANK`; 0 when unset.
    pub fn local_rank_from_env() -> Result<usize> {
        if std::env::var_os("LOCAL_RANK").is_none() { Ok(0) } else { number("LOCAL_RANK") }
    }
}

/// The boot name of the group that a launcher's environment describes.
pub(super) fn world_boot(run: &str, attempt: &str) -> String {
    format!("symmem/{run}/{attempt}/world")
}

/// Tells people that the store does not answer.
struct StoreWatch<'a> {
    host: &'a str,
    port: u16,
    notice: Notice,
}

impl Watch for StoreWatch<'_> {
    fn look(&self) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(())
    }

    fn still_waiting(&self, elapsed: Duration) {
        let Self { host, port, .. } = self;
        self.notice.say(elapsed, || format!("this process has waited for the store at {host}:{port}"));
    }
}

/// A client of the store at `host:port`, within the context's timeout.
pub(super) fn connect(context: &RankContext, host: &str, port: u16) -> Result<Arc<dyn Store>, StoreError> {
    let deadline = context.config().timeout.map_or(Deadline::never(), Deadline::after);
    let watch = StoreWatch { host, port, notice: Notice::new(*context.config().wait_notice) };
    Ok(Arc::new(TcpStore::connect(host, port, &Wait::new(deadline).with_watch(&watch))?))
}
