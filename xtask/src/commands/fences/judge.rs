//! Compares the files with the lists of exceptions, which only shrink.

use super::list::{Excepted, Lists};
use super::{calls, routes, unsafe_code, waits};
use crate::source::{File, Sources};

const SHRINK: &str = "run `cargo xtask fences --write`";

/// Everything that is wrong, a sentence each.
pub(super) fn judge(sources: &Sources, lists: &Lists) -> Vec<String> {
    let files = &sources.files;
    let mut wrong = opt_ins(files, lists);
    wrong.extend(excepted(files, &lists.calls, calls::find, "makes system calls; move them into sys/"));
    wrong.extend(excepted(
        files,
        &lists.waits,
        waits::find,
        "waits by itself; use the ladder or `Wait::until`",
    ));
    wrong.extend(excepted(
        files,
        &lists.routes,
        routes::find,
        "asks who carries an operation; that is the route's question",
    ));
    wrong
}

fn opt_ins(files: &[File], lists: &Lists) -> Vec<String> {
    let mut wrong = Vec::new();
    if !files.iter().any(|file| file.path == "lib.rs" && unsafe_code::is_fenced(file)) {
        wrong.push("lib.rs has no `#![deny(unsafe_code)]`".to_owned());
    }
    for file in files {
        let (path, reason) = (&file.path, unsafe_code::reason(file));
        let is_listed = lists.unsafe_code.contains(path);
        match (unsafe_code::needs(file), reason) {
            (true, None) => wrong.push(format!(
                "{path} has `unsafe` code and no line `#![allow(unsafe_code, reason = \"..\")]` at its head"
            )),
            (false, Some(_)) => wrong.push(format!("{path} needs no `unsafe_code` any more; {SHRINK}")),
            (true, Some(_)) if !is_listed => {
                wrong.push(format!("{path} is new among the files with `unsafe` code; they only get fewer"));
            }
            _ => {}
        }
        if let Some(line) = unsafe_code::other_opt_in(file) {
            wrong.push(format!(
                "{path}:{line} allows `unsafe_code`; only the head of a file may, with a reason"
            ));
        }
    }
    let is_gone = |path: &&String| !files.iter().any(|file| file.path == **path && unsafe_code::needs(file));
    wrong.extend(lists.unsafe_code.iter().filter(is_gone).map(|path| gone("unsafe", path)));
    wrong
}

fn excepted(files: &[File], list: &Excepted, find: fn(&File) -> Option<usize>, what: &str) -> Vec<String> {
    let found = files.iter().filter(|file| !list.contains_key(&file.path));
    let new = found.filter_map(|file| Some(format!("{}:{} {what}", file.path, find(file)?)));
    let is_gone = |path: &&String| !files.iter().any(|file| file.path == **path && find(file).is_some());
    new.chain(list.keys().filter(is_gone).map(|path| gone("exceptions", path))).collect()
}

fn gone(list: &str, path: &str) -> String {
    format!("{path} is still in the list ({list}) and has no reason to be there; {SHRINK}")
}

/// The lists without what is gone. A file that was moved keeps its reason if only one file of its name is
/// gone and new; `with_new` also lists new files with `unsafe` code.
pub(super) fn shrunk(sources: &Sources, lists: &Lists, with_new: bool) -> Lists {
    let files = &sources.files;
    let mut new = lists.clone();
    new.calls = kept(files, &lists.calls, calls::find);
    new.waits = kept(files, &lists.waits, waits::find);
    new.routes = kept(files, &lists.routes, routes::find);
    let opted_in = files.iter().filter(|file| unsafe_code::needs(file)).map(|file| &file.path);
    new.unsafe_code = opted_in.filter(|path| with_new || lists.unsafe_code.contains(path)).cloned().collect();
    new
}

fn kept(files: &[File], list: &Excepted, find: fn(&File) -> Option<usize>) -> Excepted {
    let found: Vec<&String> =
        files.iter().filter(|file| find(file).is_some()).map(|file| &file.path).collect();
    let moved = |old: &String| {
        let name = |path: &String| path.rsplit('/').next().map(str::to_owned);
        let mut new = found.iter().filter(|path| !list.contains_key(**path) && name(path) == name(old));
        new.next().filter(|_| new.next().is_none()).map(|path| (*path).clone())
    };
    let place = |path: &String| if found.contains(&path) { Some(path.clone()) } else { moved(path) };
    list.iter().filter_map(|(path, reason)| Some((place(path)?, reason.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "[reasons]\nsys | calls\n[calls]\nsync/ladder.rs | yields\n[waits]\nsync/ladder.rs | is it\n[routes]\n[unsafe]\nsys/futex.rs\n";
    const FUTEX: &str = "#![allow(unsafe_code, reason = \"calls\")]\nfn f() { unsafe { libc::syscall() } }";
    const LADDER: &str = "fn f() { rustix::thread::sched_yield() }";

    fn sources(files: &[(&str, &str)]) -> Sources {
        let mut all =
            vec![("lib.rs", "#![deny(unsafe_code)]"), ("sys/futex.rs", FUTEX), ("sync/ladder.rs", LADDER)];
        all.retain(|(path, _)| !files.iter().any(|(other, _)| other == path));
        all.extend(files.iter().filter(|(_, text)| !text.is_empty()));
        Sources::of(
            all.into_iter().map(|(path, text)| File::new(path, text.to_owned()).expect("Rust")).collect(),
        )
    }

    fn wrong(path: &str, text: &str) -> String {
        let wrong = judge(&sources(&[(path, text)]), &Lists::parse(LISTS).expect("lists"));
        wrong.join("\n")
    }

    #[test]
    fn what_is_listed_is_fine() {
        assert_eq!(wrong("group/mod.rs", "fn f() {}"), "");
    }

    #[test]
    fn what_is_not_listed_is_found() {
        assert!(wrong("lib.rs", "mod sys;").contains("no `#![deny(unsafe_code)]`"));
        assert!(wrong("group/mod.rs", "fn f() { unsafe { g() } }").contains("no line `#![allow(unsafe_code"));
        assert!(wrong("group/mod.rs", FUTEX).contains("is new among the files with `unsafe` code"));
        assert!(
            wrong("group/mod.rs", "#[allow(unsafe_code)] mod a {}").contains("mod.rs:1 allows `unsafe_code`")
        );
        assert!(wrong("group/mod.rs", "use rustix::fs;\n").contains("group/mod.rs:1 makes system calls"));
        assert!(
            wrong("group/mod.rs", "fn f() { thread::sleep(NAP) }").contains("group/mod.rs:1 waits by itself")
        );
        assert!(
            wrong("memory/mod.rs", "fn f() { e.is_direct() }").contains("memory/mod.rs:1 asks who carries")
        );
    }

    #[test]
    fn the_lists_only_shrink() {
        let gone = wrong("sync/ladder.rs", "fn f() {}");
        assert_eq!(gone.matches("sync/ladder.rs is still in the list (exceptions)").count(), 2, "{gone}");
        let needless = wrong("sys/futex.rs", "#![allow(unsafe_code, reason = \"calls\")]\nfn f() {}");
        assert!(needless.contains("sys/futex.rs needs no `unsafe_code` any more"), "{needless}");
        assert!(needless.contains("sys/futex.rs is still in the list (unsafe)"), "{needless}");
    }

    #[test]
    fn writing_takes_out_what_is_gone_and_follows_moves() {
        let lists = Lists::parse(LISTS).expect("lists");
        let moved = sources(&[("sync/ladder.rs", ""), ("group/ladder.rs", LADDER), ("group/mod.rs", FUTEX)]);
        let text = LISTS.replace("sync/ladder.rs", "group/ladder.rs");
        assert_eq!(shrunk(&moved, &lists, false), Lists::parse(&text).expect("lists"));
        assert_eq!(shrunk(&moved, &lists, true).unsafe_code, ["group/mod.rs", "sys/futex.rs"]);
        assert!(shrunk(&sources(&[("sync/ladder.rs", "")]), &lists, false).waits.is_empty());
    }
}
