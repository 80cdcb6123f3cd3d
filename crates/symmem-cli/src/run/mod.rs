//! `symmem run`: starts a program as the ranks of a job, and is there until they have ended.
//!
//! - `meeting`: where the ranks meet, and which ones this node has
//! - `rank`: one process
//! - `lines`, `output`: what ranks write
//! - `signals`, `watch`: the main loop
//! - `nodes`: the launchers of other nodes
//! - `report`, `last_operation`: what is told at the end
//!
//! The environment of the ranks is `symmem::Launcher`'s, plus what torchrun's scripts may ask for.

mod last_operation;
mod lines;
mod meeting;
mod nodes;
mod output;
mod rank;
mod report;
mod signals;
mod watch;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Result, bail};
use symmem::{Config, Placement, Seat};

use self::meeting::Meeting;
use self::nodes::OtherNodes;
use self::output::Streams;
pub(crate) use self::rank::How;
use self::rank::Rank;
use self::report::{Failure, Report};
use self::signals::Signals;
use self::watch::Watch;
use crate::args::RunArgs;

const SECRET_FILE: &str = "SYMMEM_SECRET_FILE";

/// Runs the job. The status is that of the first failure.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    if args.node_rank >= args.nnodes {
        bail!("--node-rank {} must be less than --nnodes, which is {}", args.node_rank, args.nnodes);
    }
    if let Some(path) = &args.new_secret {
        Config::new_secret_file(path)?;
        if args.command.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if args.nnodes > 1 {
        check_secret(args.new_secret.as_deref())?;
    }
    let ranks = match args.ranks {
        Some(ranks) => ranks as usize,
        None => Placement::new(1, None)?.threads(),
    };
    let meeting = meeting::meet(args, ranks, Placement::new(ranks, args.pin.pin())?)?;
    let signals = Signals::new()?;
    let prefix = args.prefix || !args.no_prefix && meeting.world > 1;
    let mut streams = prefix.then(Streams::default);
    let started = match start(args, &meeting, ranks, streams.as_mut())? {
        Ok(started) => started,
        Err(failed) => {
            eprintln!("error: {}", failed.problem);
            if let Some(store) = &meeting.store {
                let what = format!("failed first: {}", failed.problem);
                let (node, status) = (args.node_rank, failed.status);
                nodes::give_up(store, &Failure { node, rank: None, what, status, last_operation: None });
            }
            return Ok(ExitCode::from(failed.status));
        }
    };
    let wake = Arc::new(output::event()?);
    let output = streams.map(|streams| streams.carry(Arc::clone(&wake))).transpose()?;
    let store = meeting.store.clone();
    let nodes = store.map(|store| OtherNodes::new(store, args.node_rank, args.nnodes, Arc::clone(&wake)));
    let mut watch = Watch::new(started, args.node_rank, args.grace, signals, wake, nodes.transpose()?);
    watch.until_the_end(output.as_ref());
    report(args, &meeting, &watch)
}

/// Says how it ended, and gives the status.
fn report(args: &RunArgs, meeting: &Meeting, watch: &Watch) -> Result<ExitCode> {
    let report = Report {
        world: meeting.world,
        nodes: args.nnodes,
        node: args.node_rank,
        ranks: &watch.ranks,
        failure: watch.failure.as_ref(),
        interrupt: watch.interrupt,
    };
    if let Some(text) = report.text() {
        eprintln!("{text}");
    }
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    Ok(ExitCode::from(watch.failure.as_ref().map_or(0, |failure| failure.status)))
}

/// Refuses to start ranks on several nodes that would refuse each other.
fn check_secret(new: Option<&Path>) -> Result<()> {
    let config = Config::from_env()?;
    if new.is_none() && !config.admits_other_hosts() {
        bail!(
            "ranks on several nodes must prove who they are, and {SECRET_FILE} is not set. \
             Hint: `symmem run --new-secret FILE` makes a secret; every node needs a copy of that file"
        );
    }
    Ok(())
}

/// Starts the ranks of this node; none is left if one cannot start.
fn start(
    args: &RunArgs,
    meeting: &Meeting,
    ranks: usize,
    mut streams: Option<&mut Streams>,
) -> Result<Result<Vec<Rank>, rank::CannotStart>> {
    let mut started: Vec<Rank> = Vec::with_capacity(ranks);
    for local_rank in 0..ranks {
        let rank = meeting.first + local_rank;
        let seat = Seat { rank, world: meeting.world, local_rank, local_world: ranks };
        let attempt = Rank::start(command(args, seat), &meeting.launcher, seat, streams.as_deref_mut());
        match attempt {
            Ok(Ok(rank)) => started.push(rank),
            failed => {
                started.iter_mut().for_each(Rank::kill);
                return failed.map(|failed| failed.map(|_| started));
            }
        }
    }
    Ok(Ok(started))
}

/// The program, with the variables of torchrun that the library does not know.
fn command(args: &RunArgs, seat: Seat) -> Command {
    let mut command = Command::new(&args.command[0]);
    command
        .args(&args.command[1..])
        .env("GROUP_RANK", args.node_rank.to_string())
        .env("GROUP_WORLD_SIZE", args.nnodes.to_string())
        .env("ROLE_NAME", "default")
        .env("ROLE_RANK", seat.rank.to_string())
        .env("ROLE_WORLD_SIZE", seat.world.to_string())
        .env("TORCHELASTIC_MAX_RESTARTS", "0");
    if let Some(path) = &args.new_secret {
        command.env(SECRET_FILE, path);
    }
    command
}
