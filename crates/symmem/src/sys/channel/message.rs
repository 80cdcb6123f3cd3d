//! One message: its bytes, its fds, and the checks before either is believed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most bytes that a message carries beside its fds.
pub(crate) const MAX_PAYLOAD: usize = 1024;
/// Most fds that a message carries.
pub(crate) const MAX_FDS: usize = 8;

const MAGIC: [u8; 8] = *b"symmemfd";
const VERSION: u32 = 1;
const HEADER: usize = 48;

/// What arrived.
#[derive(Debug)]
pub(crate) struct ChannelMessage {
    /// The sender's bytes.
    pub(crate) payload: Vec<u8>,
    /// The sender's fds, close-on-exec.
    pub(crate) fds: Vec<OwnedFd>,
}

/// What a message says about itself: 48 bytes, numbers little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    pub(super) token: [u8; 16],
    pub(super) tag: u64,
    pub(super) source: u32,
    pub(super) fds: usize,
}

impl MessageHeader {
    pub(super) fn encode(&self, payload: usize) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.fds as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.token);
        bytes[32..40].copy_from_slice(&self.tag.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.source.to_le_bytes());
        bytes[44..].copy_from_slice(&(payload as u32).to_le_bytes());
        bytes
    }

    /// Splits a packet into header and payload; `None` unless every field is as it must be.
    pub(super) fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = packet.split_first_chunk::<HEADER>()?;
        let (magic, rest) = header.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (fds, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<16>()?;
        let (tag, rest) = rest.split_first_chunk::<8>()?;
        let (source, rest) = rest.split_first_chunk::<4>()?;
        let length: &[u8; 4] = rest.try_into().ok()?;
        let fds = u32::from_le_bytes(*fds) as usize;
        let length = u32::from_le_bytes(*length) as usize;
        let good = *magic == MAGIC
            && u32::from_le_bytes(*version) == VERSION
            && fds <= MAX_FDS
            && length <= MAX_PAYLOAD
            && length == payload.len();
        let header =
            Self { token: *token, tag: u64::from_le_bytes(*tag), source: u32::from_le_bytes(*source), fds };
        good.then_some((header, payload))
    }
}

/// Sends a message over a connected socket, all or nothing.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    header: &MessageHeader,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let header = header.encode(payload.len());
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    sendmsg(socket, &[IoSlice::new(&header), IoSlice::new(payload)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What a connection had for us.
#[derive(Debug)]
pub(super) enum ReceivedMessage {
    /// Nothing yet.
    Nothing,
    /// Nothing we want: it closed, failed, or sent something that is not a message of this job.
    Refused,
    /// A message; `None` if this process was out of fds to receive it whole.
    Message { tag: u64, source: u32, message: Option<ChannelMessage> },
}

/// Receives a message of the job `token`, without blocking. Fds of refused messages are closed.
pub(super) fn receive(socket: BorrowedFd<'_>, token: &[u8; 16]) -> ReceivedMessage {
    // The kernel looks into the queue first and at the connection second: a packet that is sent, and its
    // socket closed, in between reads as the end. Nothing comes after the end, so a second look finds
    // whatever there is.
    if let Some(received) = look(socket, token) {
        return received;
    }
    match look(socket, token) {
        // Not the end, then, but an empty packet, which is none of ours.
        Some(ReceivedMessage::Nothing) | None => ReceivedMessage::Refused,
        Some(received) => received,
    }
}

/// One look; `None` for the end of the connection, or an empty packet.
fn look(socket: BorrowedFd<'_>, token: &[u8; 16]) -> Option<ReceivedMessage> {
    let mut packet = [0; HEADER + MAX_PAYLOAD];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let result = recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, flags);
    let received = match result {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Some(ReceivedMessage::Nothing),
        Err(_) => return Some(ReceivedMessage::Refused),
    };
    // Take the fds out first: from here on, every way out closes those we do not keep.
    let fds: Vec<OwnedFd> = control.drain().flat_map(rights).collect();
    if received.bytes == 0 {
        return None;
    }
    let packet = packet.get(..received.bytes).unwrap_or(&packet);
    Some(match MessageHeader::parse(packet) {
        Some((header, payload)) if header.token == *token && !received.flags.contains(ReturnFlags::TRUNC) => {
            sort_out(&header, payload, fds, received.flags.contains(ReturnFlags::CTRUNC))
        }
        _ => ReceivedMessage::Refused,
    })
}

/// Compares the fds that came with those announced. `cut` says that the kernel left some out: because we had
/// no room in our fd table if they are fewer than announced, else because the sender sent more.
fn sort_out(header: &MessageHeader, payload: &[u8], fds: Vec<OwnedFd>, cut: bool) -> ReceivedMessage {
    let message = match fds.len() {
        count if count == header.fds && !cut => Some(ChannelMessage { payload: payload.to_vec(), fds }),
        count if count < header.fds && cut => None,
        _ => return ReceivedMessage::Refused,
    };
    ReceivedMessage::Message { tag: header.tag, source: header.source, message }
}

fn rights(message: RecvAncillaryMessage<'_>) -> Vec<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ids;
    use crate::sys::testing::eventually;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    const TOKEN: [u8; 16] = [7; 16];

    fn header() -> impl Strategy<Value = MessageHeader> {
        (any::<u64>(), any::<u32>(), 0..=MAX_FDS).prop_map(|(tag, source, fds)| MessageHeader {
            token: TOKEN,
            tag,
            source,
            fds,
        })
    }

    fn payload() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD)
    }

    /// Sends raw bytes and `fds` fds through a socket and says what comes out.
    fn through_a_socket(packet: &[u8], fds: usize) -> ReceivedMessage {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let fds = vec![a.as_fd(); fds];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&a, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).unwrap();
        let received = receive(b.as_fd(), &TOKEN);
        drop(a);
        // Had any copy of `a` that was sent to us survived a refusal, `b` would still be connected. (Another
        // test's child process may hold one until it has started.)
        if matches!(received, ReceivedMessage::Refused) {
            eventually("no fd leaks", || matches!(receive(b.as_fd(), &TOKEN), ReceivedMessage::Refused));
        }
        received
    }

    #[test]
    fn the_kept_corpus() {
        for line in include_str!("corpus.txt").lines().filter(|line| !line.starts_with('#')) {
            let (verdict, digits) = line.split_once(' ').unwrap_or((line, ""));
            let packet = ids::unhex(&digits.replace(' ', "")).unwrap();
            assert_eq!(MessageHeader::parse(&packet).is_some(), verdict == "ok", "{line}");
        }
    }

    proptest! {
        #[test]
        fn raw_bytes_never_harm_the_parser(packet in prop::collection::vec(any::<u8>(), 0..2000)) {
            // Sixteen random bytes hit magic, version and length about never.
            prop_assert!(MessageHeader::parse(&packet).is_none());
        }

        #[test]
        fn what_parses_is_what_was_meant(header in header(), payload in payload()) {
            let packet = [&header.encode(payload.len())[..], &payload].concat();
            prop_assert_eq!(MessageHeader::parse(&packet), Some((header, &payload[..])));
        }

        #[test]
        fn a_changed_packet_is_refused_or_says_what_it_says(
            header in header(), payload in payload(), at in 0usize..HEADER, bit in 0u8..8, cut in 0usize..80,
        ) {
            let mut packet = [&header.encode(payload.len())[..], &payload].concat();
            packet[at] ^= 1 << bit;
            packet.truncate(packet.len() - cut.min(packet.len()));
            if let Some((parsed, rest)) = MessageHeader::parse(&packet) {
                prop_assert_eq!(&parsed.encode(rest.len())[..], &packet[..HEADER]);
                prop_assert!(parsed.fds <= MAX_FDS && rest.len() <= MAX_PAYLOAD);
            }
        }

        #[test]
        fn a_socket_gives_only_whole_messages_of_the_job(
            header in header(), payload in payload(), flip in any::<bool>(), at in 0usize..HEADER, fds in 0usize..20,
        ) {
            let mut packet = [&header.encode(payload.len())[..], &payload].concat();
            packet[at] ^= u8::from(flip);
            let whole = MessageHeader::parse(&packet).is_some_and(|(h, _)| h.token == TOKEN && h.fds == fds);
            match through_a_socket(&packet, fds) {
                ReceivedMessage::Message { message: Some(message), .. } => {
                    prop_assert!(whole);
                    prop_assert_eq!((message.payload, message.fds.len()), (payload, fds));
                }
                ReceivedMessage::Refused => prop_assert!(!whole),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn an_empty_packet_is_refused(fds in 0usize..20) {
            prop_assert!(matches!(through_a_socket(&[], fds), ReceivedMessage::Refused));
        }

        #[test]
        fn raw_bytes_through_a_socket_are_refused(
            packet in prop::collection::vec(any::<u8>(), 0..3000), fds in 0usize..20,
        ) {
            prop_assert!(matches!(through_a_socket(&packet, fds), ReceivedMessage::Refused));
        }
    }
}
