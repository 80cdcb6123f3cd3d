//! Any packets into the fd channel: one through a socket pair, many into an endpoint.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use symmem_store::Wait;
use symmem_store::fuzzing::Choices;

use super::address::ChannelAddress;
use super::message::{MAX_FDS, MAX_PAYLOAD, MessageHeader, ReceivedMessage, receive};
use super::{ChannelPeers, Endpoint, socket};

const TOKEN: [u8; 16] = [0; 16];
/// Most fds that a packet brings: more than a message may.
const MOST_FDS: usize = 20;

fn bind() -> crate::Result<Endpoint> {
    Endpoint::bind(TOKEN, None, ChannelPeers::OfThisUser)
}

/// One packet: parsed as it is, and received through a socket with some fds.
pub(crate) fn message(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let fds = usize::from(choices.byte()) % MOST_FDS;
    let packet = choices.0;
    let parsed = MessageHeader::parse(packet);
    if let Some((header, payload)) = parsed {
        assert!(header.fds <= MAX_FDS && payload.len() <= MAX_PAYLOAD);
        assert_eq!([&header.encode(payload.len())[..], payload].concat(), packet);
    }
    if let Ok(text) = std::str::from_utf8(packet)
        && let Some(address) = ChannelAddress::parse(text)
    {
        assert_eq!(ChannelAddress::parse(&address.to_string()), Some(address.clone()));
        let _ = address.to_socket();
    }
    let whole = parsed.is_some_and(|(header, _)| header.token == TOKEN && header.fds == fds);
    let received = through_a_socket(packet, fds);
    match received {
        ReceivedMessage::Message { message: Some(message), .. } => {
            assert!(whole);
            assert_eq!(message.fds.len(), fds);
        }
        ReceivedMessage::Refused => assert!(!whole),
        other => panic!("{other:?}"),
    }
}

/// What comes out of a socket into which a packet with fds was sent; fds of a refused one are closed.
fn through_a_socket(packet: &[u8], fds: usize) -> ReceivedMessage {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("two sockets");
    throw(&a, packet, &vec![a.as_fd(); fds]);
    let received = receive(b.as_fd(), &TOKEN);
    drop(a);
    // Had a copy of `a` survived, `b` would still be connected.
    if matches!(received, ReceivedMessage::Refused) {
        assert!(matches!(receive(b.as_fd(), &TOKEN), ReceivedMessage::Refused), "a refused fd stays open");
    }
    received
}

/// Sends a packet as it is; what the kernel refuses nobody can send.
fn throw(connection: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    let _ = sendmsg(connection, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL);
}

fn packet(tag: u64, source: u32, fds: usize, payload: &[u8]) -> Vec<u8> {
    let header = MessageHeader { token: TOKEN, tag, source, fds };
    [&header.encode(payload.len())[..], payload].concat()
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    let with = |fds: u8, packet: Vec<u8>| [&[fds], &packet[..]].concat();
    vec![
        with(0, packet(1, 2, 0, b"")),
        with(2, packet(u64::MAX, u32::MAX, 2, b"payload")),
        with(8, packet(1, 2, 8, &[7; MAX_PAYLOAD])),
        with(0, b"abstract:4026531840:0123456789abcdef0123456789abcdef".to_vec()),
        with(0, b"path:0:/run/x.sock".to_vec()),
    ]
}

/// Many packets on many connections into an endpoint, which goes on to receive what honest ranks send.
pub(crate) fn endpoint(bytes: &[u8]) {
    let (honest, target) = match (bind(), bind()) {
        (Ok(honest), Ok(target)) => (honest, target),
        (a, b) => panic!("{a:?} {b:?}"),
    };
    let wait = Wait::for_at_most(Duration::from_secs(10));
    let to = ChannelAddress::parse(target.address()).and_then(|address| address.to_socket().ok());
    let Some(to) = to else { panic!("{} is not an address", target.address()) };
    let mut choices = Choices(bytes);
    let mut open: Option<OwnedFd> = None;
    while !choices.is_empty() {
        let what = choices.byte();
        // A second packet on the same connection, or a new one.
        let connection = open.take().filter(|_| what & 1 == 0).unwrap_or_else(|| {
            let connection = socket().expect("a socket");
            // A full queue refuses; then nothing is sent.
            let _ = rustix::net::connect(&connection, &to);
            connection
        });
        let fds = vec![connection.as_fd(); usize::from(what >> 3) % MOST_FDS];
        let len = usize::from(choices.byte()) * if what & 2 == 0 { 1 } else { 8 };
        throw(&connection, choices.bytes(len), &fds);
        drop(fds);
        if what & 4 == 0 {
            open = Some(connection);
        }
        let _ = target.recv(u64::from(what), u32::from(what & 3), &Wait::for_at_most(Duration::ZERO));
    }
    // No stranger names this source: it is above what `recv` above asks for, and a fuzzer that guesses it is
    // late or first.
    let source = 0xfeed_0000;
    honest.send(0, target.address(), u64::MAX - 1, source, b"honest", &[], &wait).expect("a send");
    let received = target.recv(u64::MAX - 1, source, &wait).expect("an honest message comes through");
    assert_eq!(received.payload, b"honest");
}

pub(crate) fn endpoint_seeds() -> Vec<Vec<u8>> {
    let throw = |what: u8, packet: &[u8]| [&[what, packet.len() as u8], packet].concat();
    let messages =
        [packet(4, 1, 0, b"x"), packet(4, 1, 0, b"again"), packet(3, 1, 1, b""), packet(9, 2, 2, b"two")];
    let all: Vec<u8> =
        messages.iter().enumerate().flat_map(|(at, packet)| throw(at as u8 * 9, packet)).collect();
    let alone = messages.iter().map(|packet| throw(4, packet));
    alone.chain([all, throw(5, b""), throw(20, b"garbage")]).collect()
}
