//! What several test programs need.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use symmem_store::{ServerLimits, TcpStoreServer, Wait};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A wait that only ends early if something is broken.
pub(crate) fn patient() -> Wait<'static> {
    Wait::for_at_most(PATIENCE)
}

/// A server for this machine only.
pub(crate) fn server(limits: ServerLimits) -> TcpStoreServer {
    TcpStoreServer::bind("127.0.0.1", 0, limits).unwrap()
}

/// A socket to `server`, with bounded reads and writes.
pub(crate) fn raw(server: &TcpStoreServer) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// VALIDATE with the magic, as chapter 9.3 of the reference writes it.
pub(crate) const VALIDATE: &[u8] = b"\x00\xCE\xF7\x85\x3C";

/// A socket that has said VALIDATE.
pub(crate) fn validated(server: &TcpStoreServer) -> TcpStream {
    let mut stream = raw(server);
    stream.write_all(VALIDATE).unwrap();
    stream
}

/// Reads exactly as many bytes as `expected` has, and compares.
pub(crate) fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap_or_else(|error| panic!("{error} before {expected:?}"));
    assert_eq!(got, expected);
}

/// The server closes the connection without a further byte.
pub(crate) fn expect_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) => {}
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        other => panic!("the connection is not closed: {other:?} {byte:?}"),
    }
}

/// Calls `condition` until it holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port nobody has, below those the system hands out by itself, so that no other test gets it meanwhile.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let port = 10_000 + (std::process::id() * 31 + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return port as u16;
        }
    }
}

/// Open descriptors of this process.
pub(crate) fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Lets this process open as many files as the system allows.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Bytes of a hex string; blanks only please the eye, and `..` fills a u64 up with zero bytes.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        let (digits, fill) =
            word.strip_suffix("..").map_or((word, 0), |digits| (digits, 8 - digits.len() / 2));
        let pairs = digits.as_bytes().chunks(2);
        bytes.extend(pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()));
        bytes.extend(std::iter::repeat_n(0, fill));
    }
    bytes
}
