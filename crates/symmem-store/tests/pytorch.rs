//! Our TCP store meets PyTorch's, each as the server and as the client.
//!
//! Needs a Python with torch: the one `SYMMEM_TORCH_PYTHON` names, or else the `python3` of the search path.
//! Without one the test passes and says why.

mod common;

use std::env;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use common::free_port;
use symmem_store::{Store, StoreError, TcpStore, TcpStoreOptions, Wait};

/// Bounds every wait here; importing torch alone takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long waits that must time out wait, here and in the script.
const SHORT: Duration = Duration::from_millis(200);
/// The longest key and value the protocol allows; the key travels with one byte more.
const LONGEST_KEY: usize = 8191;
const LONGEST_VALUE: usize = 8 << 20;
const PYTHON: &str = "SYMMEM_TORCH_PYTHON";
/// What the script says before torch's version, once it can start.
const READY: &str = "ready with torch ";

/// Torch's part: with libuv it serves at the first port, without at the second, and it joins us at the third.
/// One process for all, because importing torch costs more than everything else.
const SCRIPT: &str = r#"
import sys
from datetime import timedelta
import torch, torch.distributed as dist
assert dist.is_available(), "torch was built without torch.distributed"
assert hasattr(dist.TCPStore, "clone"), "the TCPStore of this torch is too old"
print("ready with torch", torch.__version__, flush=True)

short, limit = timedelta(milliseconds=200), timedelta(seconds=30)
def open_store(port, is_master, libuv):
    return dist.TCPStore("127.0.0.1", port, 2, is_master, limit, wait_for_workers=True, use_libuv=libuv)
def eq(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"
def fails(error, call, *args):
    try:
        call(*args)
    except error:
        return True
    return False

def serve(store):
    store.set("methods", " ".join(dir(store)))
    store.set("torch", b"\x00\xff\r\n")
    eq(store.get("rust"), b"\x00\xff\r\n")
    eq(store.add("count", 0), 42)
    store.wait(["asking"], limit)
    store.set("late", "here")
    store.wait(["done"], limit)

def values(store):
    for value in [b"", b"\x00\xff\r\n", b"v" * (8 << 20)]:
        store.set("value", value)
        eq(store.get("value"), value)
    store.set("k" * 8191, "long")
    eq(store.get("k" * 8191), b"long")
    eq(store.get("rust"), b"\x00\xff\r\n")
def counters(store):
    eq([store.add("n", 40), store.add("n", -50), store.add("n", 0)], [40, -10, -10])
    eq(store.get("n"), b"-10")
    eq(store.compare_set("c", "not", "stored"), b"not")
    eq(store.compare_set("c", "", "one"), b"one")
    eq(store.compare_set("c", "other", "two"), b"one")
    eq(store.compare_set("c", "one", "two"), b"two")
def several_keys(store):
    before = store.num_keys()
    store.multi_set(["a", "b"], ["1", "2"])
    eq(store.multi_get(["b", "a"]), [b"2", b"1"])
    store.append("b", "3")
    eq(store.get("b"), b"23")
    eq([store.check(["a", "b"]), store.check(["a", "x"])], [True, False])
    eq([store.delete_key("a"), store.delete_key("a")], [True, False])
    eq(store.num_keys(), before + 1)
def waits(store):
    assert fails(dist.DistStoreError, store.wait, ["never"], short)
    store.set("after", "a timeout")
    store.wait(["after"], limit)
    store.set("asking", "")
    eq(store.get("late"), b"here")
    other = dist.PrefixStore("prefix", store.clone())
    other.set("key", "value")
    eq(store.get("prefix/key"), b"value")
def queues(store):
    store.queue_push("q", "first")
    store.queue_push("q", "second")
    eq([store.queue_len("q"), store.queue_pop("q"), store.queue_pop("q")], [2, b"first", b"second"])
    assert fails(dist.QueueEmptyError, store.queue_pop, "q", False)
    eq(store.queue_pop("late queue"), b"pushed")
def join(store):
    values(store), counters(store), several_keys(store), waits(store)
    store.set("queueing", "")
    if hasattr(store, "queue_pop"):
        queues(store)
    if hasattr(store, "list_keys"):
        assert {"late", "asking"} <= set(store.list_keys())
    if hasattr(store, "barrier"):
        assert fails(dist.DistStoreError, store.barrier, "two", 2, short)
        store.barrier("two", 2, limit)
    store.set("done", "")

ports = [int(port) for port in sys.argv[1:]]
# Both servers stay until the end: the client's last set is only complete when it is answered.
serve(first := open_store(ports[0], True, True))
serve(second := open_store(ports[1], True, False))
join(open_store(ports[2], False, True))
"#;

/// The running script; ends when dropped.
struct Script {
    child: Child,
    output: Receiver<String>,
}

impl Script {
    fn start(python: &str, ports: &[u16]) -> io::Result<Self> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).args(ports.iter().map(u16::to_string));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (sender, output) = mpsc::channel();
        forward(child.stdout.take().unwrap(), sender.clone());
        forward(child.stderr.take().unwrap(), sender);
        Ok(Self { child, output })
    }

    /// Its lines, until it says `mark` or ends; an error if neither happens.
    fn read_until(&self, mark: &str) -> Result<Vec<String>, mpsc::RecvTimeoutError> {
        let end = Instant::now() + PATIENCE;
        let mut lines: Vec<String> = Vec::new();
        while !lines.last().is_some_and(|line| line.starts_with(mark)) {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(lines)
    }

    /// It must end well.
    fn succeed(mut self) {
        // A line it never says: this returns when both its outputs are closed, so when it has ended.
        let lines = self.read_until("\0").expect("the script does not end");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", lines.join("\n"));
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{}", self.output.try_iter().collect::<Vec<_>>().join("\n"));
        }
    }
}

/// Reads in a thread of its own, so that a talkative script does not block on a full pipe.
fn forward(stream: impl Read + Send + 'static, sender: Sender<String>) {
    thread::spawn(move || {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.for_each(|line| drop(sender.send(line)));
    });
}

/// The script with torch imported; `None`, and the reason printed, if there is no torch.
fn torch(ports: &[u16]) -> Option<Script> {
    let named = env::var(PYTHON).ok();
    let python = named.as_deref().unwrap_or("python3");
    let reason = match try_torch(python, ports) {
        Ok(script) => return Some(script),
        Err(reason) => reason,
    };
    // Who names a Python wants the test to run.
    assert!(named.is_none(), "{PYTHON} is {python}: {reason}");
    println!("skipped: {python}: {reason}; {PYTHON} can name a Python with torch");
    None
}

fn try_torch(python: &str, ports: &[u16]) -> Result<Script, String> {
    let script = Script::start(python, ports).map_err(|error| error.to_string())?;
    let lines = script.read_until(READY).map_err(|_| format!("no torch within {PATIENCE:?}"))?;
    let last = lines.last().cloned().unwrap_or_default();
    if !last.starts_with(READY) {
        return Err(last);
    }
    println!("{last}");
    Ok(script)
}

fn patient() -> Wait<'static> {
    Wait::for_at_most(PATIENCE)
}

fn short() -> Wait<'static> {
    Wait::for_at_most(SHORT)
}

/// One of two clients, who count each other under `init/`.
fn open_store(port: u16, is_master: bool) -> TcpStore {
    let options = TcpStoreOptions { world_size: Some(2), is_master, ..TcpStoreOptions::default() };
    TcpStore::open("127.0.0.1", port, &options, &patient()).unwrap()
}

#[test]
fn torch_and_rust_join_each_others_stores() {
    let ports = [free_port(), free_port(), free_port()];
    let Some(script) = torch(&ports) else { return };
    torch_serves(ports[0], true);
    torch_serves(ports[1], false);
    let store = rust_serves(ports[2]);
    // Our server must outlive the script.
    script.succeed();
    assert!(store.check(&["done", "prefix/key"], &patient()).unwrap());
}

fn torch_serves(port: u16, libuv: bool) {
    let store = open_store(port, false);
    set_and_get(&store);
    count_and_compare(&store);
    several_keys(&store);
    time_out_and_go_on(&store);
    let methods = String::from_utf8(store.get("methods", &patient()).unwrap()).unwrap();
    let knows_queues = libuv && methods.contains("queue_pop");
    if known(store.queue_push("q", b"first", &patient()), knows_queues).is_some() {
        queues(&store);
    }
    newest_requests(&store, libuv, &methods);
    talk_to_torch(&store);
}

fn set_and_get(store: &TcpStore) {
    for value in [&b""[..], b"\x00\xff\r\n", &vec![b'v'; LONGEST_VALUE]] {
        store.set("value", value, &patient()).unwrap();
        assert!(store.get("value", &patient()).unwrap() == value);
    }
    let key = "k".repeat(LONGEST_KEY);
    store.set(&key, b"long", &patient()).unwrap();
    assert_eq!(store.get(&key, &patient()).unwrap(), b"long");
}

fn count_and_compare(store: &TcpStore) {
    let added = [40, -50, 0].map(|delta| store.add("n", delta, &patient()).unwrap());
    assert_eq!(added, [40, -10, -10]);
    assert_eq!(store.get("n", &patient()).unwrap(), b"-10");
    for (expected, desired, answer) in
        [("not", "stored", "not"), ("", "one", "one"), ("other", "two", "one"), ("one", "two", "two")]
    {
        let got = store.compare_set("c", expected.as_bytes(), desired.as_bytes(), &patient()).unwrap();
        assert_eq!(String::from_utf8(got).unwrap(), answer, "{expected} {desired}");
    }
}

fn several_keys(store: &TcpStore) {
    // The last key torch sets by itself: it must be there before we count.
    store.wait(&["torch"], &patient()).unwrap();
    let before = store.num_keys(&patient()).unwrap();
    store.multi_set(&[("a", b"1"), ("b", b"2")], &patient()).unwrap();
    assert_eq!(store.multi_get(&["b", "a"], &patient()).unwrap(), [b"2", b"1"]);
    store.append("b", b"3", &patient()).unwrap();
    assert_eq!(store.get("b", &patient()).unwrap(), b"23");
    assert!(store.check(&["a", "b"], &patient()).unwrap());
    assert!(!store.check(&["a", "x"], &patient()).unwrap());
    assert!(store.delete("a", &patient()).unwrap());
    assert!(!store.delete("a", &patient()).unwrap());
    assert_eq!(store.num_keys(&patient()).unwrap(), before + 1);
}

fn time_out_and_go_on(store: &TcpStore) {
    let error = store.wait(&["never"], &short()).unwrap_err();
    assert!(matches!(error, StoreError::Timeout { .. }), "{error}");
    store.set("after", b"a timeout", &patient()).unwrap();
    store.wait(&["after"], &patient()).unwrap();
}

/// One value, "first", is in the queue already.
fn queues(store: &TcpStore) {
    store.queue_push("q", b"second", &patient()).unwrap();
    assert_eq!(store.queue_len("q", &patient()).unwrap(), 2);
    assert_eq!(store.queue_pop("q", true, &patient()).unwrap(), b"first");
    assert_eq!(store.queue_pop("q", false, &patient()).unwrap(), b"second");
    let empty = store.queue_pop("q", false, &patient());
    assert!(matches!(empty, Err(StoreError::QueueEmpty { .. })), "{empty:?}");
    let late = store.queue_pop("q", true, &short());
    assert!(matches!(late, Err(StoreError::Timeout { .. })), "{late:?}");
}

/// What only the newest servers know must work with those, and cost no more than a connection with others.
fn newest_requests(store: &TcpStore, libuv: bool, methods: &str) {
    let keys = store.list_keys(&patient());
    if let Some(keys) = known(keys, libuv && methods.contains("list_keys")) {
        assert!(["init/", "/after"].iter().all(|key| keys.iter().any(|other| other == key)));
    }
    let passed = store.barrier("one", 1, &patient());
    if known(passed, libuv && methods.contains("barrier")).is_some() {
        let alone = store.barrier("two", 2, &short());
        assert!(matches!(alone, Err(StoreError::Timeout { .. })), "{alone:?}");
        // The one who left has been counted.
        store.barrier("two", 2, &patient()).unwrap();
    }
}

/// The answer; `None` if the server hung up on a request it does not know, and need not know.
fn known<T>(result: symmem_store::Result<T>, must: bool) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(StoreError::Protocol { .. }) if !must => None,
        Err(error) => panic!("{error}"),
    }
}

fn talk_to_torch(store: &TcpStore) {
    assert_eq!(store.get("torch", &patient()).unwrap(), b"\x00\xff\r\n");
    store.add("count", 42, &patient()).unwrap();
    store.set("rust", b"\x00\xff\r\n", &patient()).unwrap();
    let asking = store.try_clone().unwrap();
    let asker = thread::spawn(move || {
        thread::sleep(SHORT);
        asking.set("asking", b"", &patient()).unwrap();
    });
    assert_eq!(store.get("late", &patient()).unwrap(), b"here");
    asker.join().unwrap();
    store.set("done", b"", &patient()).unwrap();
}

/// Torch does everything; what it waits for comes late, so that it really waits.
fn rust_serves(port: u16) -> TcpStore {
    let store = open_store(port, true);
    store.set("rust", b"\x00\xff\r\n", &patient()).unwrap();
    store.wait(&["asking"], &patient()).unwrap();
    thread::sleep(SHORT);
    store.set("late", b"here", &patient()).unwrap();
    store.wait(&["queueing"], &patient()).unwrap();
    thread::sleep(SHORT);
    store.queue_push("late queue", b"pushed", &patient()).unwrap();
    store
}
