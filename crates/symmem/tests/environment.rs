//! Groups from the environment: what a launcher may get wrong, and what earlier attempts may leave in its
//! store.

mod common;

use std::net::TcpListener;
use std::thread;

use common::{Launch, PATIENCE, assert_error, connect, is_rank_of, patiently, report, serve, start};
use symmem::store::StoreError;
use symmem::{Error, Group, Result};

/// What a rank of these tests does: joins, meets, and says how it went.
fn join_and_report() {
    match Group::from_env().and_then(|group| group.all_gather(&group.rank())) {
        Ok(ranks) => report(format!("joined {ranks:?}")),
        Err(error) => report(format!("{error:?}")),
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A complete environment for rank 0 of 1, its own server, with some variables changed; `None` unsets one.
fn environment(changes: &[(&str, Option<&str>)]) -> Vec<(String, String)> {
    let port = free_port().to_string();
    let whole = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    let kept = whole.into_iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    let new = changes.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
    kept.chain(new).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

mod variables {
    use super::*;

    #[test]
    fn a_missing_or_garbled_one_is_named() {
        const TEST: &str = "variables::a_missing_or_garbled_one_is_named";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        let cases = [
            ("RANK", None),
            ("RANK", Some("first")),
            ("RANK", Some("-1")),
            ("RANK", Some("1")),
            ("WORLD_SIZE", None),
            ("WORLD_SIZE", Some("")),
            ("WORLD_SIZE", Some("99999999999999999999")),
            ("MASTER_ADDR", None),
            ("MASTER_PORT", None),
            ("MASTER_PORT", Some("65536")),
            ("MASTER_PORT", Some("0")),
            ("SYMMEM_TIMEOUT", Some("soon")),
            ("SYMMEM_SIGNAL_PAD_SIZE", Some("7")),
            ("SYMMEM_POPULATE", Some("perhaps")),
        ];
        for (name, value) in cases {
            let said = start(TEST, &environment(&[(name, value)])).expect();
            let expected = format!("Invalid {{ what: \"{name}\"");
            assert!(said[0].starts_with(&expected), "{name}={value:?}: {said:?}");
        }
    }

    #[test]
    fn a_world_of_none_or_too_many_is_refused() {
        const TEST: &str = "variables::a_world_of_none_or_too_many_is_refused";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        for world in ["0", "1025"] {
            let said = start(TEST, &environment(&[("WORLD_SIZE", Some(world))])).expect();
            assert!(said[0].starts_with("Invalid"), "{world}: {said:?}");
        }
    }

    #[test]
    fn the_local_rank_is_read_or_0() {
        const TEST: &str = "variables::the_local_rank_is_read_or_0";
        if is_rank_of(TEST) {
            return report(format!("{:?}", Group::local_rank_from_env().map_err(|error| error.to_string())));
        }
        let said = |value| start(TEST, &environment(&[("LOCAL_RANK", value)])).expect().remove(0);
        assert_eq!(said(None), "Ok(0)");
        assert_eq!(said(Some("3")), "Ok(3)");
        assert!(said(Some("x")).starts_with("Err(\"LOCAL_RANK"));
    }
}

mod store {
    use super::*;

    #[test]
    fn rank_0_serves_it_when_no_agent_does() {
        const TEST: &str = "store::rank_0_serves_it_when_no_agent_does";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        for rank in Launch::new(TEST, 3, free_port()).env("TORCHELASTIC_USE_AGENT_STORE", "False").run() {
            assert_eq!(rank.expect(), ["joined [0, 1, 2]"]);
        }
    }

    #[test]
    fn a_port_in_use_is_said_so() {
        const TEST: &str = "store::a_port_in_use_is_said_so";
        if is_rank_of(TEST) {
            assert_error!(Group::from_env(), Error::Store(StoreError::AddressInUse { .. }));
            return;
        }
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        start(TEST, &environment(&[("MASTER_PORT", Some(&port))])).expect();
    }

    #[test]
    fn nobody_at_the_address_is_said_so_within_the_timeout() {
        const TEST: &str = "store::nobody_at_the_address_is_said_so_within_the_timeout";
        if is_rank_of(TEST) {
            assert_error!(Group::from_env(), Error::Store(StoreError::Unreachable { .. }));
            return;
        }
        let port = free_port().to_string();
        let changes = [
            ("MASTER_PORT", Some(port.as_str())),
            ("TORCHELASTIC_USE_AGENT_STORE", Some("True")),
            ("SYMMEM_TIMEOUT", Some("0.5")),
        ];
        start(TEST, &environment(&changes)).expect();
    }

    #[test]
    fn ranks_that_never_come_are_named() {
        const TEST: &str = "store::ranks_that_never_come_are_named";
        if is_rank_of(TEST) {
            assert_error!(Group::from_env(), Error::Timeout { missing, .. } if missing == [1, 2]);
            return;
        }
        let changes = [("WORLD_SIZE", Some("3")), ("SYMMEM_TIMEOUT", Some("0.5"))];
        start(TEST, &environment(&changes)).expect();
    }
}

/// Where rank 0 serves the store.
mod binding {
    use super::*;

    /// Reserved for examples: no machine has it.
    const ELSEWHERE: &str = "192.0.2.1";

    #[test]
    fn an_address_of_another_machine_is_refused_with_the_name_of_the_setting() {
        const TEST: &str = "binding::an_address_of_another_machine_is_refused_with_the_name_of_the_setting";
        if is_rank_of(TEST) {
            let refused = |error: &StoreError| error.to_string().contains("SYMMEM_STORE_BIND");
            assert_error!(Group::from_env(), Error::Store(error @ StoreError::AddressNotHere { .. }) if refused(&error));
            return;
        }
        start(TEST, &environment(&[("MASTER_ADDR", Some(ELSEWHERE))])).expect();
    }

    #[test]
    fn the_setting_names_another_address_to_serve_at() {
        const TEST: &str = "binding::the_setting_names_another_address_to_serve_at";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        let changes = [("MASTER_ADDR", Some(ELSEWHERE)), ("SYMMEM_STORE_BIND", Some("127.0.0.1"))];
        assert_eq!(start(TEST, &environment(&changes)).expect(), ["joined [0]"]);
    }

    #[test]
    fn a_store_on_loopback_that_ranks_elsewhere_miss_names_the_setting() {
        const TEST: &str = "binding::a_store_on_loopback_that_ranks_elsewhere_miss_names_the_setting";
        if is_rank_of(TEST) {
            return report(Group::from_env().unwrap_err());
        }
        let said = |here| {
            let changes = [
                ("WORLD_SIZE", Some("2")),
                ("LOCAL_WORLD_SIZE", here),
                ("MASTER_ADDR", Some("127.0.0.1")),
                ("SYMMEM_TIMEOUT", Some("0.5")),
            ];
            start(TEST, &environment(&changes)).expect().remove(0)
        };
        for here in [None, Some("1")] {
            let text = said(here);
            assert!(text.contains("timed out") && text.contains("SYMMEM_STORE_BIND"), "{text}");
        }
        // All are here: it cannot be that.
        let text = said(Some("2"));
        assert!(text.contains("timed out") && !text.contains("SYMMEM_STORE_BIND"), "{text}");
    }
}

/// What the real keys of dead ranks do to the next ones under the very same name.
#[cfg(feature = "faults")]
mod leftovers {
    use super::*;

    /// Has `launch` fail while joining: all its keys stay.
    fn leave(launch: &Launch) {
        for rank in launch.clone().env("SYMMEM_FAIL", "map:EMFILE").env("SYMMEM_FAIL_RANK", 0).run() {
            let said = rank.expect();
            assert!(said[0].starts_with("Rank {"), "{said:?}");
        }
    }

    /// The value of `key`, once it is not `old`.
    fn changed(port: u16, key: &str, old: &[u8]) -> Vec<u8> {
        let store = connect(port);
        loop {
            let value = store.get(key, &patiently()).unwrap();
            if value != old {
                return value;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_rank_that_comes_late_is_waited_for() {
        const TEST: &str = "leftovers::a_rank_that_comes_late_is_waited_for";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        let agent = serve();
        let launch = Launch::new(TEST, 2, agent.port());
        leave(&launch);
        let hello = "symmem/test/0/world/hello/0";
        let old = connect(agent.port()).get(hello, &patiently()).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| launch.run_one(0));
            // Rank 0 is there and sees the dead rank 1's hello; give it the time to fall for it.
            changed(agent.port(), hello, &old);
            thread::sleep(std::time::Duration::from_millis(200));
            assert_eq!(launch.run_one(1).expect(), ["joined [0, 1]"]);
            assert_eq!(first.join().unwrap().expect(), ["joined [0, 1]"]);
        });
    }

    #[test]
    fn an_attempt_of_another_size_is_no_disagreement() {
        const TEST: &str = "leftovers::an_attempt_of_another_size_is_no_disagreement";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        for (before, now) in [(3, 2), (2, 3)] {
            let agent = serve();
            leave(&Launch::new(TEST, before, agent.port()));
            let joined = format!("joined {:?}", (0..now).collect::<Vec<_>>());
            for rank in Launch::new(TEST, now, agent.port()).run() {
                assert_eq!(rank.expect(), [joined.as_str()]);
            }
        }
    }

    #[test]
    fn rubbish_is_ignored() {
        const TEST: &str = "leftovers::rubbish_is_ignored";
        if is_rank_of(TEST) {
            return join_and_report();
        }
        let agent = serve();
        let store = connect(agent.port());
        for key in ["hello/0", "hello/1", "hello/2", "answer"] {
            store.set(&format!("symmem/test/0/world/{key}"), b"\xff{rubbish", &patiently()).unwrap();
        }
        for rank in Launch::new(TEST, 2, agent.port()).run() {
            assert_eq!(rank.expect(), ["joined [0, 1]"]);
        }
    }
}

/// A group that was made leaves no keys behind, so a name can be used for years.
#[test]
fn a_group_that_was_made_leaves_no_keys() -> Result<()> {
    let agent = serve();
    let port = agent.port();
    thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let context = common::context();
                let group = Group::from_store_in(&context, connect(port), rank, 2, "tidy")?;
                group.within(PATIENCE).barrier()
            })
        };
        let ranks = [rank(0), rank(1)];
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
    })?;
    let keys = connect(port).list_keys(&patiently()).unwrap();
    assert!(keys.iter().all(|key| !key.contains("tidy")), "{keys:?}");
    Ok(())
}
