//! `symmem inspect`: who waits for whom in the groups that run on this machine.
//!
//! What there is to see comes from [`symmem::inspect`], which disturbs nobody; here it is chosen, drawn and
//! watched.

mod live;
mod page;
mod select;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use symmem::inspect::{self, GroupState, Snapshot};

pub(crate) use self::select::{not_found, of_job};
use crate::args::InspectArgs;
use crate::screen;

/// Shows the groups that were asked for, once or again and again.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode> {
    let job = args.job.as_deref();
    match args.watch {
        Some(interval) if std::io::stdout().is_terminal() && !args.json => live::watch(job, interval),
        Some(interval) => loop {
            let snapshot = inspect::snapshot()?;
            let chosen = of_job(&snapshot.groups, job);
            match args.json {
                true => screen::print(serde_json::to_string(&Seen::new(&snapshot, &chosen))?)?,
                false => screen::print(page::text(&snapshot, &chosen, job))?,
            }
            std::thread::sleep(interval);
        },
        None => once(&inspect::snapshot()?, job, args.json).map(|()| ExitCode::SUCCESS),
    }
}

fn once(snapshot: &Snapshot, job: Option<&str>, as_list: bool) -> Result<()> {
    let chosen = of_job(&snapshot.groups, job);
    if let Some(job) = job.filter(|_| chosen.is_empty()) {
        return Err(not_found(&snapshot.groups, job));
    }
    match as_list {
        true => screen::print_json(&Seen::new(snapshot, &chosen)),
        false => screen::print(page::text(snapshot, &chosen, job)),
    }
}

/// A [`Snapshot`] with the groups that were asked for, as JSON has it: without the counts, an empty list
/// could also mean that nothing may be looked at.
#[derive(Serialize)]
struct Seen<'a> {
    groups: &'a [&'a GroupState],
    unreadable: usize,
    other_versions: usize,
}

impl<'a> Seen<'a> {
    fn new(snapshot: &Snapshot, groups: &'a [&'a GroupState]) -> Self {
        Self { groups, unreadable: snapshot.unreadable, other_versions: snapshot.other_versions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_what_could_not_be_read() {
        let mut snapshot = inspect::snapshot().expect("a look at /proc");
        (snapshot.unreadable, snapshot.other_versions) = (3, 2);
        let json = serde_json::to_string(&Seen::new(&snapshot, &[])).expect("JSON");
        assert_eq!(json, r#"{"groups":[],"unreadable":3,"other_versions":2}"#);
        // Its fields are those of the library.
        snapshot.groups.clear();
        assert_eq!(serde_json::to_string(&snapshot).expect("JSON"), json);
    }
}
