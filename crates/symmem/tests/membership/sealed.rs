//! Groups with a job secret: what is not sealed with it is not believed.

use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use symmem::store::Store;
use symmem::{Config, Error, Group, Result};

use super::{BOOT, join, memory, on_ranks, unproven};
use crate::common::{self, assert_error, config, config_with_secret};
use crate::hostile::{Hostile, SEAL, edit_json, say_hello_as};

/// Each rank on a host of its own, with the secret.
fn apart(rank: usize) -> Config {
    config_with_secret().host_id(format!("host {rank}"))
}

/// The same, where nothing good will come.
fn in_vain(rank: usize) -> Config {
    apart(rank).timeout(Duration::from_secs(2))
}

#[test]
fn ranks_of_several_hosts_join_and_exchange() {
    let store = memory();
    on_ranks(3, |rank| {
        let group = join(apart(rank), &store, rank, 3).unwrap();
        assert!(group.is_authenticated());
        for round in 0..3 {
            assert_eq!(group.all_gather(&(rank + round)).unwrap(), [round, 1 + round, 2 + round]);
        }
        let reversed = group.subgroup(&[2, 1, 0], "reversed").unwrap();
        assert_eq!(reversed.broadcast(0, &rank).unwrap(), 2);
    });
}

#[test]
fn ranks_of_one_host_use_it_too() {
    let store = memory();
    on_ranks(2, |rank| {
        let group = join(config_with_secret(), &store, rank, 2).unwrap();
        let memory = group.alloc::<u32>(8).unwrap().rendezvous(&group).unwrap();
        memory.barrier(0).unwrap();
        memory.close().unwrap();
        group.try_clone().unwrap().barrier().unwrap();
        assert!(group.survivors(symmem::Deadline::after(common::PATIENCE)).unwrap().is_authenticated());
    });
    let keys = store.list_keys(&common::patiently()).unwrap();
    assert!(!keys.iter().any(|key| key.contains("/hello/")), "{keys:?}");
}

#[test]
fn a_forged_hello_is_ignored_and_named_at_the_end() {
    for host in ["host 0", "elsewhere"] {
        let store = memory();
        let joined = thread::scope(|scope| {
            scope.spawn(|| say_hello_as(&*store, BOOT, 1, &[("host", Value::from(host))]));
            join(in_vain(0), &store, 0, 2)
        });
        assert!(unproven(joined, &[1]).contains("its proof is wrong"));
    }
}

#[test]
fn another_ranks_hello_is_no_proof() {
    let store = memory();
    let joined = thread::scope(|scope| {
        scope.spawn(|| {
            let hello = store.get(&format!("{BOOT}/hello/0"), &common::patiently()).unwrap();
            store.set(&format!("{BOOT}/hello/1"), &hello, &common::patiently()).unwrap();
        });
        join(in_vain(0), &store, 0, 2)
    });
    assert!(unproven(joined, &[1]).contains("its proof is wrong"));
}

#[test]
fn an_honest_rank_replaces_a_forged_hello() {
    let store = memory();
    let outcomes = on_ranks(2, |rank| {
        if rank == 1 {
            say_hello_as(&*store, BOOT, 1, &[]);
            thread::sleep(Duration::from_millis(300));
        }
        join(apart(rank), &store, rank, 2)?.barrier()
    });
    for outcome in outcomes {
        outcome.unwrap();
    }
}

#[test]
fn an_edited_hello_answer_address_or_vote_is_not_believed() {
    for key in ["/hello/1", "/answer", "/address/0", "/vote/0"] {
        let edit = move |name: &str, mut value: Vec<u8>| {
            if name.ends_with(key) {
                let last = value.len() - 1;
                // Blanks at the end change nothing but the seal.
                value.insert(last + 1, b' ');
            }
            value
        };
        let store = Hostile::changing(edit);
        let outcomes = on_ranks(2, |rank| join(in_vain(rank), &store, rank, 2));
        let victim = usize::from(key != "/hello/1");
        let named = 1 - victim;
        assert!(
            outcomes.iter().any(|outcome| matches!(outcome,
            Err(Error::Unproven { ranks, .. }) if *ranks == [named])),
            "{key}: {outcomes:?}"
        );
        assert!(outcomes[victim].is_err(), "{key}: {outcomes:?}");
    }
}

#[test]
fn an_edited_host_is_not_believed() {
    let store = Hostile::changing(|key, value| {
        let edit = |hello: &mut Value| hello["host"] = Value::from("elsewhere");
        if key.ends_with("/hello/1") { edit_json(&value, &edit) } else { value }
    });
    let config = || config_with_secret().timeout(Duration::from_secs(2));
    let outcomes = on_ranks(2, |rank| join(config(), &store, rank, 2));
    let [first, second] = outcomes.try_into().unwrap();
    unproven(first, &[1]);
    assert!(second.is_err());
}

#[test]
fn ranks_with_another_secret_or_none_are_told_apart() {
    let other = || config().secret(b"another secret, which is as long as it must be").unwrap();
    for (second, problem) in [(other(), "its proof is wrong"), (config(), "carries no proof")] {
        let store = memory();
        let outcomes = on_ranks(2, |rank| {
            let config = if rank == 0 { config_with_secret() } else { second.clone() };
            join(config.timeout(Duration::from_secs(2)), &store, rank, 2)
        });
        let [first, second] = outcomes.try_into().unwrap();
        assert!(unproven(first, &[1]).contains(problem));
        assert!(matches!(second, Err(Error::Unproven { .. } | Error::Timeout { .. })), "{second:?}");
    }
}

#[test]
fn a_mixed_start_under_a_fresh_name_ends_soon() {
    // A subgroup's name is fresh, so nothing there is a leftover to wait out. Rank 1's secret is lost on the
    // way.
    let store = Hostile::changing(|key, value| {
        if key.contains("/sub/") && key.ends_with("/hello/1") { value[SEAL..].to_vec() } else { value }
    });
    let start = std::time::Instant::now();
    for outcome in on_ranks(2, |rank| join(apart(rank), &store, rank, 2)?.try_clone()) {
        assert!(unproven(outcome, &[1]).contains("carries no proof"));
    }
    assert!(start.elapsed() < common::PATIENCE / 2, "{:?}", start.elapsed());
}

/// Two ranks exchange `rounds` times over `store`; rank 0's outcome.
fn exchange(store: &Arc<dyn Store>, rounds: usize) -> Result<()> {
    let outcomes = on_ranks(2, |rank| {
        let group = join(apart(rank), store, rank, 2).unwrap().within(Duration::from_secs(3));
        let rounds = (0..rounds).try_for_each(|round| group.all_gather(&(rank + round)).map(drop));
        (rounds, group)
    });
    let (outcome, group) = outcomes.into_iter().next().unwrap();
    assert_eq!(outcome.is_err(), group.failure().is_some());
    outcome
}

#[test]
fn a_forged_part_ends_the_operation_and_the_group() {
    exchange(&memory(), 3).unwrap();
    // The stranger answers for rank 1 in the second round, as a group without a secret would.
    let store =
        Hostile::changing(|key, value| if key.ends_with("/x/2/1") { value[SEAL..].to_vec() } else { value });
    assert!(unproven(exchange(&store, 3), &[1]).contains("carries no proof"));
    let store = Hostile::changing(|key, mut value| {
        if key.ends_with("/x/2/1") {
            *value.last_mut().unwrap() ^= 1;
        }
        value
    });
    assert!(unproven(exchange(&store, 3), &[1]).contains("its proof is wrong"));
}

#[test]
fn an_old_part_of_the_same_rank_is_not_believed() {
    let first = Mutex::new(Vec::new());
    let store = Hostile::changing(move |key, value| {
        let mut first = first.lock().unwrap();
        if key.ends_with("/x/1/1") {
            *first = value.clone();
        }
        if key.ends_with("/x/3/1") { first.clone() } else { value }
    });
    assert!(unproven(exchange(&store, 3), &[1]).contains("its proof is wrong"));
}

#[test]
fn another_ranks_part_is_not_believed() {
    let zeroth = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&zeroth);
    let store = Hostile::changing(move |key, value| {
        let mut zeroth = kept.lock().unwrap();
        if key.ends_with("/x/1/0") {
            *zeroth = value.clone();
        }
        // Rank 1 gives its part once rank 0 has: see below.
        if key.ends_with("/x/1/1") { zeroth.clone() } else { value }
    });
    let outcomes = on_ranks(2, |rank| {
        let group = join(apart(rank), &store, rank, 2).unwrap().within(Duration::from_secs(3));
        while rank == 1 && zeroth.lock().unwrap().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        group.all_gather(&rank)
    });
    unproven(outcomes.into_iter().next().unwrap(), &[1]);
}

#[test]
fn what_an_earlier_attempt_said_leads_nowhere() {
    let hellos = Arc::new(Mutex::new(Vec::<(String, Vec<u8>)>::new()));
    let kept = Arc::clone(&hellos);
    let store = Hostile::changing(move |key, value| {
        kept.lock().unwrap().push((key.to_owned(), value.clone()));
        value
    });
    let groups: Vec<Group> = on_ranks(2, |rank| join(apart(rank), &store, rank, 2).unwrap());
    drop(groups);
    // Everything that rank 1 said is said again; its seals are right. Rank 0 joins alone.
    let again = memory();
    for (key, value) in hellos.lock().unwrap().iter().filter(|(key, _)| key.ends_with("/1")) {
        again.set(key, value, &common::patiently()).unwrap();
    }
    assert_error!(join(in_vain(0), &again, 0, 2), Error::Timeout { missing, .. } if missing == [1]);
}
