//! What a few connections do to a server, read from a fuzzer's bytes.

use crate::fuzzing::Choices;
use crate::tcp::protocol::{MAGIC, Message, Query};
use crate::tcp::server::ServerLimits;

/// Connections of a script.
pub(crate) const CONNECTIONS: usize = 4;

/// One step of a script.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// Bytes from a connection, which is opened if it is not open.
    Send(usize, &'a [u8]),
    /// The same after a VALIDATE, so that few bytes get far.
    Greet(usize, &'a [u8]),
    /// The connection says that it will send no more.
    HalfClose(usize),
    /// The connection goes away.
    Close(usize),
}

/// The steps that `bytes` say: a byte for what and who, one for how many bytes follow, and these.
pub(crate) fn steps(bytes: &[u8]) -> Vec<Step<'_>> {
    let mut choices = Choices(bytes);
    let mut steps = Vec::new();
    while !choices.is_empty() {
        let what = choices.byte();
        let who = usize::from(what) % CONNECTIONS;
        steps.push(match what / CONNECTIONS as u8 % 8 {
            0 => Step::HalfClose(who),
            1 => Step::Close(who),
            2..5 => Step::Greet(who, length(&mut choices)),
            _ => Step::Send(who, length(&mut choices)),
        });
    }
    steps
}

fn length<'a>(choices: &mut Choices<'a>) -> &'a [u8] {
    // Mostly less than 128 bytes, sometimes much more.
    let len = match choices.byte() {
        short @ 0..128 => usize::from(short),
        long => usize::from(long - 127) * 128,
    };
    choices.bytes(len)
}

/// What a connection must say first.
pub(crate) fn greeting() -> Vec<u8> {
    Message::new(Query::Validate).u32(MAGIC).as_bytes().to_vec()
}

/// Small enough for a script to reach every limit.
pub(crate) fn tight() -> ServerLimits {
    ServerLimits {
        max_keys_per_request: 40,
        max_key_len: 60,
        max_value_len: 300,
        max_connection_bytes: 2000,
        max_total_bytes: 5000,
        max_stored_bytes: 20_000,
        ..ServerLimits::default()
    }
}

/// Requests of every kind, one after the other, in the order of their numbers.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let message = |query| Message::new(query);
    let key = |query, key: &[u8]| message(query).bytes(key);
    let all = vec![
        key(Query::Set, b"/a").bytes(b"1"),
        key(Query::CompareSet, b"/a").bytes(b"1").bytes(b"22"),
        key(Query::Get, b"/a"),
        key(Query::Add, b"/n").i64(5),
        message(Query::Check).i64(2).bytes(b"/a").bytes(b"/n"),
        message(Query::Wait).i64(2).bytes(b"/a").bytes(b"/later"),
        message(Query::NumKeys),
        key(Query::Delete, b"/a"),
        key(Query::Append, b"/later").bytes(b"now"),
        message(Query::MultiGet).i64(2).bytes(b"/n").bytes(b"/later"),
        message(Query::MultiSet).i64(2).bytes(b"/b").bytes(b"1").bytes(b"/c").bytes(b""),
        message(Query::CancelWait),
        message(Query::Ping).u32(0x1234_5678),
        key(Query::QueuePush, b"/q").bytes(b"x1"),
        key(Query::QueuePop, b"/q"),
        key(Query::QueueLen, b"/q"),
        message(Query::ListKeys),
        key(Query::Barrier, b"/g").i64(2),
    ];
    all.iter().map(|message| message.as_bytes().to_vec()).collect()
}

/// Whole streams: every request alone, all of them, and lengths at the limits.
pub(crate) fn streams() -> Vec<Vec<u8>> {
    let requests = requests();
    let lengths = [u64::MAX, 1 << 32, 8193, 61, 60];
    let announced = lengths.map(|len| [&[Query::Get as u8], &len.to_le_bytes()[..]].concat());
    let counted = lengths.map(|count| [&[Query::MultiGet as u8], &count.to_le_bytes()[..]].concat());
    let tails =
        requests.iter().cloned().chain([requests.concat(), Vec::new()]).chain(announced).chain(counted);
    tails.map(|tail| [greeting(), tail].concat()).collect()
}

/// Scripts: every stream on a connection of its own choice, two that wait for each other, and ends of all
/// kinds.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    const GREET: u8 = 2 * CONNECTIONS as u8;
    const SEND: u8 = 5 * CONNECTIONS as u8;
    const CLOSE: u8 = CONNECTIONS as u8;
    let step = |what: u8, who: u8, bytes: &[u8]| [&[what + who, bytes.len().min(127) as u8], bytes].concat();
    let requests = requests();
    let find =
        |query: Query| requests.iter().find(|request| request[0] == query as u8).cloned().unwrap_or_default();
    let alone = requests.iter().map(|request| step(GREET, 1, request));
    let everything: Vec<u8> =
        requests.iter().enumerate().flat_map(|(at, request)| step(GREET, at as u8 % 4, request)).collect();
    let waits = [
        step(GREET, 0, &find(Query::Wait)),
        step(GREET, 1, &find(Query::Barrier)),
        step(GREET, 2, &[find(Query::Append), find(Query::Set), find(Query::Barrier)].concat()),
        vec![0],
        vec![CLOSE + 1],
        step(SEND, 1, b"GET / HTTP/1.1"),
    ];
    alone.chain([everything, waits.concat()]).collect()
}
