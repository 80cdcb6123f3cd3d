//! What every store must do, run over each of them.

mod common;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{patient, server};
use symmem_store::{
    CancelToken, FileStore, HashStore, PrefixStore, ServerLimits, Store, StoreError, TcpStore,
    TcpStoreServer, Wait, Watch,
};

/// A store, and what serves it; the store goes first.
struct Fixture {
    store: Arc<dyn Store>,
    /// Keys the store has before anybody sets one.
    internal_keys: i64,
    _server: Option<TcpStoreServer>,
}

impl Fixture {
    fn new(store: impl Store + 'static) -> Self {
        Self { store: Arc::new(store), internal_keys: 0, _server: None }
    }
}

fn hash() -> Fixture {
    Fixture::new(HashStore::new())
}

fn prefix() -> Fixture {
    Fixture::new(PrefixStore::new("outer", Arc::new(PrefixStore::new("inner", Arc::new(HashStore::new())))))
}

fn file() -> Fixture {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("symmem-api-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let store = FileStore::new(std::env::temp_dir().join(name), Some(1)).unwrap();
    Fixture { internal_keys: 1, ..Fixture::new(store) }
}

fn tcp() -> Fixture {
    let server = server(ServerLimits::default());
    let store = TcpStore::connect("127.0.0.1", server.port(), &patient()).unwrap();
    Fixture { _server: Some(server), ..Fixture::new(store) }
}

fn soon() -> Wait<'static> {
    Wait::for_at_most(Duration::from_millis(50))
}

fn a_value_set_is_the_value_got(Fixture { store, .. }: Fixture) {
    store.set("k", b"v\0\xff", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"v\0\xff");
    store.set("k", b"", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"");
    store.set("", b"the empty key", &patient()).unwrap();
    assert_eq!(store.get("", &patient()).unwrap(), b"the empty key");
}

fn a_megabyte_survives(Fixture { store, .. }: Fixture) {
    let value: Vec<u8> = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    store.set("k", &value, &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), value);
}

fn get_waits_until_somebody_sets(Fixture { store, .. }: Fixture) {
    let other = Arc::clone(&store);
    let getter = thread::spawn(move || other.get("late", &patient()).unwrap());
    thread::sleep(Duration::from_millis(30));
    store.set("late", b"v", &patient()).unwrap();
    assert_eq!(getter.join().unwrap(), b"v");
}

fn several_keys_at_once_keep_their_order(Fixture { store, .. }: Fixture) {
    store.multi_set(&[("a", b"1"), ("b", b""), ("c", b"333")], &patient()).unwrap();
    let got = store.multi_get(&["c", "a", "b"], &patient()).unwrap();
    assert_eq!(got, [&b"333"[..], b"1", b""]);
    assert_eq!(store.multi_get(&[], &patient()).unwrap(), Vec::<Vec<u8>>::new());
    store.multi_set(&[], &patient()).unwrap();
}

fn counters_are_decimal_text(Fixture { store, .. }: Fixture) {
    assert_eq!(store.add("n", 5, &patient()).unwrap(), 5);
    assert_eq!(store.add("n", -7, &patient()).unwrap(), -2);
    assert_eq!(store.get("n", &patient()).unwrap(), b"-2");
    store.set("n", b"40", &patient()).unwrap();
    assert_eq!(store.add("n", 2, &patient()).unwrap(), 42);
}

fn adding_to_text_is_an_error_and_changes_nothing(Fixture { store, .. }: Fixture) {
    store.set("n", b"seven", &patient()).unwrap();
    let error = store.add("n", 1, &patient()).unwrap_err();
    let typed = matches!(error, StoreError::NotNumeric { .. } | StoreError::Protocol { .. });
    assert!(typed && error.to_string().contains("decimal number"), "{error}");
    assert_eq!(store.get("n", &patient()).unwrap(), b"seven");
}

fn additions_of_many_threads_are_all_counted(Fixture { store, .. }: Fixture) {
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let store = store.try_clone().unwrap();
            thread::spawn(move || {
                for _ in 0..25 {
                    store.add("n", 1, &patient()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(store.add("n", 0, &patient()).unwrap(), 200);
}

fn compare_set_stores_only_over_what_was_expected(Fixture { store, .. }: Fixture) {
    let set =
        |expected: &[u8], desired: &[u8]| store.compare_set("k", expected, desired, &patient()).unwrap();
    assert_eq!(set(b"something", b"x"), b"something");
    assert!(!store.check(&["k"], &patient()).unwrap());
    assert_eq!(set(b"", b"one"), b"one");
    assert_eq!(set(b"zero", b"two"), b"one");
    assert_eq!(set(b"one", b"two"), b"two");
    assert_eq!(store.get("k", &patient()).unwrap(), b"two");
}

fn append_grows_a_value(Fixture { store, .. }: Fixture) {
    store.append("k", b"ab", &patient()).unwrap();
    store.append("k", b"", &patient()).unwrap();
    store.append("k", b"cd", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"abcd");
}

fn delete_says_whether_there_was_something(Fixture { store, .. }: Fixture) {
    assert!(!store.delete("k", &patient()).unwrap());
    store.set("k", b"v", &patient()).unwrap();
    assert!(store.delete("k", &patient()).unwrap());
    assert!(!store.check(&["k"], &patient()).unwrap());
    assert!(!store.delete("k", &patient()).unwrap());
}

fn check_wants_all_keys(Fixture { store, .. }: Fixture) {
    store.set("a", b"", &patient()).unwrap();
    assert!(store.check(&[], &patient()).unwrap());
    assert!(store.check(&["a"], &patient()).unwrap());
    assert!(!store.check(&["a", "b"], &patient()).unwrap());
}

fn wait_returns_once_all_keys_exist(Fixture { store, .. }: Fixture) {
    store.set("a", b"", &patient()).unwrap();
    store.wait(&["a"], &patient()).unwrap();
    store.wait(&[], &patient()).unwrap();
    let other = store.try_clone().unwrap();
    let waiter = thread::spawn(move || other.wait(&["a", "b", "c"], &patient()).unwrap());
    store.add("b", 1, &patient()).unwrap();
    thread::sleep(Duration::from_millis(30));
    assert!(!waiter.is_finished());
    store.append("c", b"x", &patient()).unwrap();
    waiter.join().unwrap();
}

fn keys_are_counted_and_listed(Fixture { store, internal_keys, .. }: Fixture) {
    assert_eq!(store.num_keys(&patient()).unwrap(), internal_keys);
    store.set("a", b"", &patient()).unwrap();
    store.add("b", 1, &patient()).unwrap();
    store.queue_push("q", b"", &patient()).unwrap();
    assert_eq!(store.num_keys(&patient()).unwrap(), internal_keys + 2);
    let keys = store.list_keys(&patient()).unwrap();
    assert_eq!(keys.len() as i64, internal_keys + 2);
    assert!(
        keys.iter().any(|key| key.ends_with('a')) && keys.iter().any(|key| key.ends_with('b')),
        "{keys:?}"
    );
}

fn queues_are_first_in_first_out(Fixture { store, .. }: Fixture) {
    assert_eq!(store.queue_len("q", &patient()).unwrap(), 0);
    let empty = store.queue_pop("q", false, &patient()).unwrap_err();
    assert!(matches!(empty, StoreError::QueueEmpty { .. }), "{empty}");
    store.queue_push("q", b"one", &patient()).unwrap();
    store.queue_push("q", b"", &patient()).unwrap();
    assert_eq!(store.queue_len("q", &patient()).unwrap(), 2);
    assert!(store.check(&["q"], &patient()).unwrap());
    assert_eq!(store.queue_pop("q", true, &patient()).unwrap(), b"one");
    assert_eq!(store.queue_pop("q", false, &patient()).unwrap(), b"");
    assert!(!store.check(&["q"], &patient()).unwrap());
}

fn every_pop_gets_a_value_of_its_own(Fixture { store, .. }: Fixture) {
    let poppers: Vec<_> = (0..4)
        .map(|_| {
            let store = store.try_clone().unwrap();
            thread::spawn(move || store.queue_pop("q", true, &patient()).unwrap())
        })
        .collect();
    for i in 0..4u8 {
        store.queue_push("q", &[i], &patient()).unwrap();
    }
    let mut got: Vec<_> = poppers.into_iter().map(|popper| popper.join().unwrap()).collect();
    got.sort();
    assert_eq!(got, [[0], [1], [2], [3]]);
}

fn a_barrier_opens_with_its_last_arrival(Fixture { store, .. }: Fixture) {
    let ranks: Vec<_> = (0..2)
        .map(|_| {
            let store = store.try_clone().unwrap();
            thread::spawn(move || store.barrier("b", 3, &patient()).unwrap())
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    assert!(ranks.iter().all(|rank| !rank.is_finished()));
    store.barrier("b", 3, &patient()).unwrap();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

fn an_expired_deadline_is_a_timeout_that_names_the_call(Fixture { store, .. }: Fixture) {
    let timeouts = [
        store.get("gone", &soon()).unwrap_err(),
        store.multi_get(&["gone"], &soon()).unwrap_err(),
        store.wait(&["gone"], &soon()).unwrap_err(),
        store.queue_pop("gone", true, &soon()).unwrap_err(),
        store.barrier("gone-barrier", 2, &soon()).unwrap_err(),
    ];
    for (error, name) in timeouts.iter().zip(["get", "multi_get", "wait", "queue_pop", "barrier"]) {
        let StoreError::Timeout { op, keys, elapsed } = error else { panic!("{error}") };
        assert_eq!(*op, name);
        assert!(keys[0].contains("gone") && *elapsed >= Duration::from_millis(50), "{error}");
    }
    // And the store is as good as before.
    store.set("k", b"v", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"v");
}

fn cancelling_ends_a_wait_within_200_ms(Fixture { store, .. }: Fixture) {
    let token = CancelToken::new();
    let theirs = token.clone();
    let other = Arc::clone(&store);
    let waiter = thread::spawn(move || {
        let error = other.get("gone", &patient().with_cancel(&theirs)).unwrap_err();
        (error, Instant::now())
    });
    thread::sleep(Duration::from_millis(50));
    let cancelled = Instant::now();
    token.cancel();
    let (error, returned) = waiter.join().unwrap();
    assert!(matches!(error, StoreError::Cancelled { op: "get" }), "{error}");
    assert!(returned - cancelled < Duration::from_millis(200), "{:?}", returned - cancelled);
    assert!(!store.check(&["gone"], &patient()).unwrap());
}

fn a_watch_ends_a_wait(Fixture { store, .. }: Fixture) {
    struct Dead(Instant);
    impl Watch for Dead {
        fn look(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
            if self.0.elapsed() > Duration::from_millis(40) { Err("rank 3 died".into()) } else { Ok(()) }
        }
    }
    let error = store.barrier("b", 2, &patient().with_watch(&Dead(Instant::now()))).unwrap_err();
    assert!(matches!(error, StoreError::Interrupted { op: "barrier", .. }), "{error}");
    assert!(error.to_string().contains("rank 3 died"), "{error}");
}

fn threads_that_wait_do_not_hinder_the_one_that_sets(Fixture { store, .. }: Fixture) {
    let waiters: Vec<_> = (0..16)
        .map(|i| {
            let store = Arc::clone(&store);
            thread::spawn(move || store.get(&format!("k{i}"), &patient()).unwrap())
        })
        .collect();
    thread::sleep(Duration::from_millis(30));
    for i in 0..16 {
        store.set(&format!("k{i}"), b"v", &patient()).unwrap();
    }
    waiters.into_iter().for_each(|waiter| assert_eq!(waiter.join().unwrap(), b"v"));
}

fn a_clone_sees_the_same_store(Fixture { store, .. }: Fixture) {
    let clone = store.try_clone().unwrap();
    clone.set("k", b"v", &patient()).unwrap();
    assert_eq!(store.get("k", &patient()).unwrap(), b"v");
}

macro_rules! suite {
    ($($make:ident)*; $tests:tt) => { $(suite!(@ $make $tests);)* };
    (@ $make:ident { $($test:ident)* }) => {
        mod $make {
            $(#[test]
            fn $test() {
                super::$test(super::$make());
            })*
        }
    };
}

suite!(hash prefix file tcp; {
    a_value_set_is_the_value_got
    a_megabyte_survives
    get_waits_until_somebody_sets
    several_keys_at_once_keep_their_order
    counters_are_decimal_text
    adding_to_text_is_an_error_and_changes_nothing
    additions_of_many_threads_are_all_counted
    compare_set_stores_only_over_what_was_expected
    append_grows_a_value
    delete_says_whether_there_was_something
    check_wants_all_keys
    wait_returns_once_all_keys_exist
    keys_are_counted_and_listed
    queues_are_first_in_first_out
    every_pop_gets_a_value_of_its_own
    a_barrier_opens_with_its_last_arrival
    an_expired_deadline_is_a_timeout_that_names_the_call
    cancelling_ends_a_wait_within_200_ms
    a_watch_ends_a_wait
    threads_that_wait_do_not_hinder_the_one_that_sets
    a_clone_sees_the_same_store
});
