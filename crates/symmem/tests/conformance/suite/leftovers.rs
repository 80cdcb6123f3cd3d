//! A store that still holds the keys of earlier attempts: of the one before, and of a killed one with our own
//! name.

use symmem::Group;
use symmem::store::Store;

use crate::common::{Launch, connect, patiently, report};

/// Set for ranks that only leave keys behind.
const LEAVE: &str = "SYMMEM_TEST_LEAVE";

/// In a rank: joins and runs `f`, unless it was started to fail at joining.
pub(crate) fn end_early_or(f: impl FnOnce(Group)) {
    let joined = Group::from_env();
    match std::env::var_os(LEAVE) {
        None => f(joined.unwrap()),
        Some(_) => report(joined.unwrap_err()),
    }
}

/// Has an attempt 0 of one rank more, and an attempt 1 of as many, fail and die: their hellos, answers,
/// addresses and votes stay in the store. Then copies what attempt 1 lacks from attempt 0, so that also the
/// name of a rank beyond the end is taken.
pub(crate) fn leave(launch: &Launch) {
    let failing = launch.clone().env(LEAVE, 1).env("SYMMEM_FAIL", "map:EMFILE").env("SYMMEM_FAIL_RANK", 0);
    fail(&failing.clone().world(launch.ranks() + 1));
    // A rank alone maps nobody, so there is nothing to fail.
    if launch.ranks() > 1 {
        fail(&failing.attempt(1));
    }
    let store = connect(launch.port());
    let left = keys(&*store, "symmem/test/0/");
    assert!(left.len() > launch.ranks(), "attempt 0 left nothing behind");
    for key in left {
        let ours = key.replacen("test/0/", "test/1/", 1);
        if !store.check(&[&ours], &patiently()).unwrap() {
            let value = store.get(&key, &patiently()).unwrap();
            store.set(&ours, &value, &patiently()).unwrap();
        }
    }
}

fn fail(launch: &Launch) {
    for rank in launch.run() {
        let said = rank.expect();
        assert!(said.iter().any(|line| line.contains("rank 0 failed")), "{said:?}");
    }
}

fn keys(store: &dyn Store, prefix: &str) -> Vec<String> {
    let keys = store.list_keys(&patiently()).unwrap();
    // A server may keep a prefix of its own before ours.
    keys.iter().filter_map(|key| key.find(prefix).map(|at| key[at..].to_owned())).collect()
}
