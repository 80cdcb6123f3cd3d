//! Groups without a job secret: one host needs none, several hosts are refused.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use symmem::{Error, Group, ProcessSpawner, Result};

use super::{BOOT, join, memory, on_ranks, unproven};
use crate::common::{self, assert_error, config};
use crate::hostile::{Hostile, edit_json, group_id, say_hello_as};

#[test]
fn a_stranger_that_claims_another_host_does_not_join() {
    let store = memory();
    let joined = thread::scope(|scope| {
        scope.spawn(|| {
            say_hello_as(&*store, BOOT, 1, &[("host", Value::from("elsewhere"))]);
            let Some(id) = group_id(&*store, BOOT) else { return };
            let address = format!("{{\"Ok\":\"abstract:0:{:032x}\"}}", 7);
            store.set(&format!("{BOOT}/{id}/address/1"), address.as_bytes(), &common::patiently()).unwrap();
            let vote = br#"{"error":null,"secondary":false}"#;
            store.set(&format!("{BOOT}/{id}/vote/1"), vote, &common::patiently()).unwrap();
        });
        join(config(), &store, 0, 2)
    });
    unproven(joined, &[1]);
}

#[test]
fn an_edited_host_does_not_move_a_group_to_the_store() {
    // Rank 0 is told that rank 1 is elsewhere, and rank 1 that rank 0 is.
    let store = Hostile::changing(|key, value| {
        let elsewhere = |hello: &mut Value| hello["host"] = Value::from("elsewhere");
        match key {
            key if key.ends_with("/hello/1") => edit_json(&value, &elsewhere),
            key if key.ends_with("/answer") => {
                edit_json(&value, &|answer: &mut Value| elsewhere(&mut answer["hellos"][0]))
            }
            _ => value,
        }
    });
    for joined in on_ranks(2, |rank| join(config(), &store, rank, 2)) {
        unproven(joined, &[1]);
    }
}

#[test]
fn a_rank_notices_that_its_own_hello_was_changed_even_where_claims_are_taken() {
    let store = Hostile::editing("/hello/1", |hello| hello["host"] = Value::from("elsewhere"));
    let outcomes = on_ranks(2, |rank| join(config().allow_unauthenticated_hosts(true), &store, rank, 2));
    let [first, second] = outcomes.try_into().unwrap();
    assert_error!(first, Error::Rank { rank: 1, .. });
    assert!(unproven(second, &[1]).contains("another hello of this rank"));
}

#[test]
fn a_subgroup_has_the_hosts_that_its_parent_knows() {
    // Only the subgroup's hellos are changed.
    let store = Hostile::changing(|key, value| {
        let edit = |hello: &mut Value| hello["host"] = Value::from("elsewhere");
        if key.contains("/sub/") && key.contains("/hello/") { edit_json(&value, &edit) } else { value }
    });
    let outcomes = on_ranks(2, |rank| {
        let pair = join(config(), &store, rank, 2)?.try_clone()?;
        let memory = pair.alloc::<u32>(8)?.rendezvous(&pair)?;
        memory.barrier(0)?;
        memory.close()
    });
    for outcome in outcomes {
        outcome.unwrap();
    }
}

#[test]
fn a_subgroup_has_the_processes_that_its_parent_knows() {
    let store = Hostile::changing(|key, value| {
        let edit = |hello: &mut Value| hello["pid"] = Value::from(1);
        if key.contains("/sub/") && key.ends_with("/hello/1") { edit_json(&value, &edit) } else { value }
    });
    for outcome in on_ranks(2, |rank| join(config(), &store, rank, 2)?.try_clone()) {
        unproven(outcome, &[1]);
    }
}

#[test]
fn a_tuning_for_another_world_is_refused() {
    // Staging is laid out for the world, so such a tuning would write beyond it.
    let store = Hostile::editing("/answer", |answer| answer["tuning"]["world"] = Value::from(1));
    let outcomes = on_ranks(3, |rank| join(config().timeout(Duration::from_secs(5)), &store, rank, 3));
    for outcome in &outcomes[1..] {
        assert!(matches!(outcome, Err(Error::Invalid { .. })), "{outcome:?}");
    }
}

#[test]
fn several_hosts_are_refused_on_every_rank_with_one_sentence() {
    let store = memory();
    let joined = on_ranks(3, |rank| join(config().host_id(format!("host {}", rank / 2)), &store, rank, 3));
    for outcome in joined {
        let text = outcome.as_ref().unwrap_err().to_string();
        assert!(text.contains("SYMMEM_SECRET_FILE") && text.lines().count() == 1, "{text}");
        assert!(text.contains("SYMMEM_ALLOW_UNAUTHENTICATED_HOSTS=1"), "{text}");
        unproven(outcome, &[2]);
    }
}

#[test]
fn several_hosts_may_be_allowed_and_are_no_authenticated_group() {
    let store = memory();
    on_ranks(3, |rank| {
        let config = config().host_id(format!("host {}", rank / 2)).allow_unauthenticated_hosts(true);
        let group = join(config, &store, rank, 3).unwrap();
        assert_eq!(group.all_gather(&rank).unwrap(), [0, 1, 2]);
        assert!(!group.is_authenticated());
        assert_error!(group.check_authenticated("objects"), Error::Unproven { .. });
        // Those on one host have proven themselves to its kernel.
        let local = group.local().unwrap();
        assert!(local.is_authenticated());
        local.check_authenticated("objects").unwrap();
        group.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_does_not_take_claims_says_so_to_those_that_do() {
    let store = memory();
    let outcomes = on_ranks(2, |rank| {
        let config = config().host_id(format!("host {rank}")).allow_unauthenticated_hosts(rank == 0);
        join(config, &store, rank, 2)
    });
    let [first, second] = outcomes.try_into().unwrap();
    assert_error!(first, Error::Rank { rank: 1, message, .. } if message.contains("SYMMEM_SECRET_FILE"));
    unproven(second, &[0]);
}

/// No secret is set, and the group is whole.
fn is_whole(group: &Group) -> Result<()> {
    let rows = group.context().config().rows();
    let secrets = rows.iter().filter(|row| row.variable.starts_with("SYMMEM_SECRET_"));
    assert_eq!(secrets.map(|row| row.value.as_str()).collect::<Vec<_>>(), ["none", "none"]);
    assert!(group.is_authenticated());
    let memory = group.alloc::<u32>(8)?.rendezvous(group)?;
    memory.barrier(0)?;
    memory.close()?;
    group.try_clone()?.barrier()
}

#[test]
fn threads_of_one_host_need_no_secret() {
    symmem::spawn(2, |group| is_whole(&group)).unwrap();
}

#[test]
fn processes_of_one_host_need_no_secret() {
    // They join as torchrun's ranks do, with `Group::from_env`.
    let spawner = ProcessSpawner::new("unsealed::processes_of_one_host_need_no_secret", 3);
    spawner.env("SYMMEM_TIMEOUT", 30).run(|group| is_whole(&group)).unwrap();
}
