//! `symmem inspect`: ranks that are stopped, dead, busy or fine, as their user sees them from another
//! terminal.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use symmem::inspect::Life;
use symmem::{Group, ProcessSpawner, ReduceOp, Result};

use crate::program::{TempFile, symmem, wait};
use crate::terminal::Terminal;

const PATIENCE: Duration = Duration::from_secs(60);
/// Set for ranks: the file whose existence ends the job.
const FLAG: &str = "SYMMEM_TEST_INSPECT_FLAG";
/// Set for ranks: the name of the group that is looked at.
const NAME: &str = "SYMMEM_TEST_INSPECT_NAME";

/// Whether the job is to end.
fn is_over() -> bool {
    std::env::var_os(FLAG).is_some_and(|flag| Path::new(&flag).exists())
}

fn sleep_until_over() {
    while !is_over() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// A job of `world` processes of the test `test`, each of which does `work` in a group whose name `look` is
/// given.
fn job<R: Send>(
    test: &str,
    world: usize,
    work: impl FnOnce(&Group) -> Result<()>,
    look: impl FnOnce(&str) -> R + Send,
) -> R {
    let spawner = ProcessSpawner::new(&format!("inspect::{test}"), world).env("SYMMEM_TIMEOUT", 120);
    if let Ok(name) = std::env::var(NAME) {
        // A rank of another test must never start ranks of this one, which would start ranks of that one.
        assert!(name.starts_with(test), "this process is a rank of {name}, not of {test}");
        let _ = spawner.run_all(|group: Group| {
            let all: Vec<usize> = (0..group.size()).collect();
            work(&group.subgroup(&all, &name)?)
        });
        unreachable!("a rank does not come back");
    }
    let flag = TempFile::new(&format!("inspect-{test}"));
    let name = format!("{test} {}", std::process::id());
    let spawner = spawner.env(FLAG, flag.arg()).env(NAME, &name);
    thread::scope(|scope| {
        // The launcher must be on the thread of the test, by whose name ranks know what to run.
        let looking = scope.spawn(|| {
            let _end = End { flag: &flag.0, name: &name };
            look(&name)
        });
        // Some tests kill ranks.
        let _ = spawner.run_all(|_: Group| Ok(()));
        looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends a job, also that of a test that failed with a rank stopped.
struct End<'a> {
    flag: &'a Path,
    name: &'a str,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        std::fs::write(self.flag, "").expect("a file for the ranks");
        let groups = symmem::inspect::groups().unwrap_or_default();
        let ranks = groups.iter().filter(|group| group.name == self.name).flat_map(|group| &group.ranks);
        for pid in ranks.filter(|rank| rank.life == Life::Stopped).filter_map(|rank| rank.pid) {
            let _ = kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::CONT);
        }
    }
}

/// The group called `name`, as JSON, if there is one.
fn seen(name: &str) -> Option<Value> {
    let outcome = symmem(&["inspect", name, "--json"], &[]);
    // There is only a complaint if there is no such group.
    let mut seen: Value = serde_json::from_str(&outcome.stdout).ok()?;
    let groups = seen["groups"].as_array_mut().expect("a list of groups");
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.pop()
}

/// The first state of the group that is as `wanted`.
fn until(name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        match seen(name) {
            Some(group) if wanted(&group) => return group,
            other => assert!(start.elapsed() < PATIENCE, "it never came: {other:#?}"),
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn explanation(group: &Value) -> &str {
    group["explanation"].as_str().expect("a sentence")
}

fn ops(group: &Value) -> u64 {
    group["ranks"]
        .as_array()
        .expect("ranks")
        .iter()
        .map(|rank| rank["counters"]["ops"].as_u64().unwrap_or(0))
        .sum()
}

fn signal(group: &Value, rank: usize, signal: Signal) -> u64 {
    let pid = group["ranks"][rank]["pid"].as_u64().expect("a process");
    kill_process(Pid::from_raw(pid as i32).expect("a process"), signal).expect("it is there");
    pid
}

/// All-reduces of 64 KB, which must come out right, until the job is over.
fn reduce_on(group: &Group) -> Result<()> {
    let mut x = group.alloc::<f32>(16 << 10)?;
    x.fill(0.0)?;
    let mut memory = x.rendezvous(group)?;
    loop {
        memory.local_mut()?.fill(1.0);
        memory.all_reduce(ReduceOp::Sum)?;
        assert_eq!(memory.local()?[7], group.size() as f32);
        if group.all_gather(&u8::from(is_over()))?.contains(&1) {
            return Ok(());
        }
    }
}

#[test]
fn a_stopped_rank_is_named_and_a_killed_one_is_dead() {
    let work = |group: &Group| {
        if let Err(error) = reduce_on(group) {
            assert!(error.to_string().contains("rank 2"), "{error}");
        }
        sleep_until_over();
        Ok(())
    };
    job("a_stopped_rank_is_named_and_a_killed_one_is_dead", 4, work, |name| {
        let group = until(name, |group| ops(group) > 100);
        let pid = signal(&group, 2, Signal::STOP);
        let group = until(name, |group| explanation(group).contains("is stopped"));
        let sentence = explanation(&group);
        // Where in the loop it was stopped is chance.
        let is_reduce =
            sentence.starts_with("ranks 0, 1, 3 have waited for rank 2 in all_reduce (64 KB, operation ");
        let is_gather = sentence.starts_with("ranks 0, 1, 3 have waited for rank 2 in all_gather (");
        assert!(is_reduce || is_gather, "{sentence}");
        let end = format!(" s; rank 2 (pid {pid}) is stopped: kill -CONT {pid} lets it go on");
        assert!(sentence.ends_with(&end), "{sentence}");
        assert_eq!(group["culprits"], serde_json::json!([2]));
        assert_eq!(group["ranks"][2]["life"], "stopped");
        assert!(group["ranks"][0]["waiting"]["since"].as_f64().expect("seconds") >= 1.0);
        assert_eq!(group["ranks"][0]["waiting"]["ranks"], serde_json::json!([2]));

        let table = symmem(&["inspect", name], &[]).ok().stdout;
        assert!(table.contains("is stopped:") && table.contains("-CONT"), "{table}");
        let row = table.lines().find(|line| line.contains("stopped, culprit")).expect("a row");
        assert!(row.contains(&pid.to_string()), "{row}");
        let long = table.lines().filter(|line| !line.starts_with(name) && line.chars().count() > 100);
        assert_eq!(long.count(), 0, "{table}");
        assert!(!table.contains('\u{1b}'), "colours are for terminals: {table}");

        // It goes on as if nothing had been.
        let before = ops(&group);
        signal(&group, 2, Signal::CONT);
        let group = until(name, |group| ops(group) > before + 100);

        signal(&group, 2, Signal::KILL);
        let group = until(name, |group| group["ranks"][2]["life"] == "dead" && !group["failure"].is_null());
        assert!(explanation(&group).starts_with(&format!("failed: rank 2 (pid {pid}) died")), "{group}");
        assert!(["all_reduce", "all_gather"].iter().any(|op| group["ranks"][2]["operation"]["name"] == *op));
        let table = symmem(&["inspect", name], &[]).ok().stdout;
        assert!(table.contains("dead, culprit"), "{table}");
    });
}

#[test]
fn a_rank_in_its_own_code_is_named_and_a_finished_job_is_gone() {
    let work = |group: &Group| {
        group.barrier()?;
        if group.rank() == 1 {
            sleep_until_over();
        }
        group.barrier()
    };
    let name = job("a_rank_in_its_own_code_is_named_and_a_finished_job_is_gone", 3, work, |name| {
        let group = until(name, |group| explanation(group).contains("in its own code"));
        let sentence = explanation(&group);
        assert!(
            sentence.starts_with("ranks 0, 2 have waited for rank 1 in barrier (operation 3) for"),
            "{sentence}"
        );
        assert!(sentence.ends_with("is sleeping in its own code, after barrier (operation 2)"), "{sentence}");

        // The same by a process and by the id.
        let pid = group["ranks"][1]["pid"].to_string();
        assert!(symmem(&["inspect", &pid], &[]).ok().stdout.contains("alive, culprit"));
        let id = group["id"].as_str().expect("an id");
        assert!(symmem(&["inspect", id], &[]).ok().stdout.contains("alive, culprit"));
        assert!(symmem(&["inspect"], &[]).ok().stdout.contains(name));

        let complaint = symmem(&["inspect", "no such job"], &[]).complaint();
        assert!(complaint.contains("\"no such job\"") && complaint.contains(name), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        name.to_owned()
    });
    let complaint = symmem(&["inspect", &name], &[]).complaint();
    assert!(complaint.contains(&name), "{complaint}");
    assert!(seen(&name).is_none());
}

#[test]
fn a_job_goes_on_while_it_is_watched() {
    job("a_job_goes_on_while_it_is_watched", 2, reduce_on, |name| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_symmem"))
            .args(["inspect", name, "--watch", "0.1", "--json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let start = Instant::now();
        let looks =
            BufReader::new(child.stdout.take().expect("piped")).lines().map_while(std::result::Result::ok);
        let looks = looks.map(|line| serde_json::from_str::<Value>(&line).expect("a look"));
        let mut counts: Vec<u64> = Vec::new();
        for look in looks {
            assert!(start.elapsed() < PATIENCE, "{counts:?}");
            assert!(look["unreadable"].is_u64() && look["other_versions"].is_u64(), "{look}");
            counts.extend(look["groups"].as_array().expect("a list of groups").first().map(ops));
            if counts.len() > 10 && counts.last() > counts.first().map(|first| first + 1000).as_ref() {
                break;
            }
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(counts.is_sorted(), "{counts:?}");
    });
}

#[test]
fn without_a_terminal_the_page_is_printed_again_and_again_until_nobody_reads_it() {
    let test = "without_a_terminal_the_page_is_printed_again_and_again_until_nobody_reads_it";
    let work = |group: &Group| {
        if group.rank() == 1 {
            sleep_until_over();
        }
        group.barrier()
    };
    job(test, 2, work, |name| {
        until(name, |group| explanation(group).contains("in its own code"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_symmem"))
            .args(["inspect", name, "--watch", "0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut pages: Vec<String> = Vec::new();
        while pages.len() < 4 {
            let line = lines.next().expect("it goes on").expect("UTF-8");
            if line.starts_with(name) {
                pages.push(String::new());
            }
            let page = pages.last_mut().expect("a page begins with the group's name");
            *page += &line;
            *page += "\n";
        }
        drop(lines);
        assert_eq!(wait(&mut child), Some(0), "it ends when its reader is gone");
        // Of the last page only the first line was read.
        for page in &pages[..3] {
            assert!(page.contains("waited for rank 1") && page.contains("alive, culprit"), "{page}");
            assert!(!page.contains('\u{1b}') && !page.contains("q ends this"), "{page:?}");
        }
        assert_ne!(pages[0], pages[2], "the times go on");
    });
}

#[test]
fn ranks_that_are_threads_are_told_apart() {
    let name = format!("threads {}", std::process::id());
    symmem::spawn(3, |group| {
        let threads = group.subgroup(&[2, 1, 0], &name)?;
        if threads.rank() == 0 {
            let seen = seen(&name).expect("this group");
            let ranks = seen["ranks"].as_array().expect("ranks");
            assert_eq!(ranks.len(), 3);
            assert!(ranks.iter().all(|rank| rank["pid"] == std::process::id()));
            assert!(ranks.iter().all(|rank| rank["life"] == "sleeping" || rank["life"] == "running"));
        }
        threads.barrier()
    })
    .expect("three ranks");
}

#[test]
fn the_live_page_shows_the_culprit_and_leaves_the_terminal_as_it_was() {
    let work = |group: &Group| {
        if group.rank() == 3 {
            sleep_until_over();
        }
        group.barrier()
    };
    job("the_live_page_shows_the_culprit_and_leaves_the_terminal_as_it_was", 4, work, |name| {
        until(name, |group| explanation(group).contains("in its own code"));
        for end in ["q", "\u{3}", "TERM"] {
            let mut terminal = Terminal::start(&["inspect", name, "--watch", "0.2"], 30, 100);
            let page = terminal.wait_for(|screen| screen.contents().contains("q ends this"));
            assert!(terminal.see(vt100::Screen::alternate_screen));
            assert!(terminal.see(vt100::Screen::hide_cursor));
            assert!(
                page.contains(name) && page.contains("alive, culprit") && page.contains("since"),
                "{page}"
            );
            let since = |page: &str| page.lines().find(|line| line.contains("waited for")).map(str::to_owned);
            // The time goes on: it is drawn again.
            let later = terminal.wait_for(|screen| since(&screen.contents()) != since(&page));
            assert_eq!(later.lines().count(), page.lines().count(), "{page}\n{later}");
            let while_on = terminal.mode().local_modes;
            assert!(
                !while_on.contains(rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO)
            );
            match end {
                "TERM" => {
                    let pid = Pid::from_child(&terminal.child);
                    kill_process(pid, Signal::TERM).expect("it runs");
                }
                key => terminal.press(key),
            }
            assert_eq!(terminal.end(), Some(if end == "TERM" { 143 } else { 0 }));
            terminal.wait_for(|screen| !screen.alternate_screen() && !screen.hide_cursor());
            let after = terminal.mode().local_modes;
            assert!(after.contains(rustix::termios::LocalModes::ICANON | rustix::termios::LocalModes::ECHO));
        }
    });
}

#[test]
fn bad_input_is_refused() {
    for wrong in ["0", "soon", "-1"] {
        let complaint = symmem(&["inspect", &format!("--watch={wrong}")], &[]).complaint();
        assert!(complaint.contains("not a number of seconds"), "{complaint}");
    }
    let help = symmem(&["inspect", "--help"], &[]).ok().stdout;
    assert!(help.contains("Examples:") && help.contains("--watch"), "{help}");
}

#[test]
fn json_has_groups_and_says_how_much_could_not_be_read_whatever_runs() {
    let text = symmem(&["inspect", "--json"], &[]).ok().stdout;
    let seen: Value = serde_json::from_str(&text).expect("JSON");
    let names: Vec<_> = seen.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["groups", "other_versions", "unreadable"]);
    assert!(seen["groups"].is_array() && seen["unreadable"].is_u64(), "{seen}");
}
