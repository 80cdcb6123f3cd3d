//! The channel between honest ranks, and against everybody else.

#![allow(unsafe_code, reason = "system calls")]

use super::*;
use crate::sys::life::ProcessId;
use crate::sys::memfd::{Mapping, Segment};
use crate::sys::testing::{Folder, LONG, eventually, fd_count, finish, rerun, succeeds_alone};
use rustix::pipe::pipe;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;
use symmem_store::CancelToken;
use symmem_store::Interrupt;

const TOKEN: [u8; 16] = *b"token of the job";
const SHORT: Duration = Duration::from_millis(60);

fn bind() -> Endpoint {
    Endpoint::bind(TOKEN, None, ChannelPeers::OfThisUser).unwrap()
}

fn long() -> Wait<'static> {
    Wait::for_at_most(LONG)
}

fn short() -> Wait<'static> {
    Wait::for_at_most(SHORT)
}

/// Whether every copy of a pipe's write end is closed.
fn hung_up(read_end: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(read_end, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

fn expired<T: std::fmt::Debug>(result: Result<T, Halt>) {
    assert!(matches!(result, Err(Halt::Interrupted(Interrupt::Expired))), "{result:?}");
}

fn failure<T: std::fmt::Debug>(result: Result<T, Halt>) -> String {
    match result {
        Err(Halt::Failed(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A connection to `address` that may send anything.
fn connect(address: &str) -> OwnedFd {
    let connection = socket().unwrap();
    rustix::net::connect(&connection, &ChannelAddress::parse(address).unwrap().to_socket().unwrap()).unwrap();
    connection
}

/// Sends a packet as it is.
fn send_raw(connection: &OwnedFd, packet: &[u8], fds: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(connection, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

fn packet(header: MessageHeader, payload: &[u8]) -> Vec<u8> {
    [&header.encode(payload.len())[..], payload].concat()
}

#[test]
fn threads_talk_pairwise_in_any_order() {
    const RANKS: usize = 4;
    let endpoints: Vec<_> = (0..RANKS).map(|_| bind()).collect();
    thread::scope(|scope| {
        for rank in 0..RANKS {
            let endpoints = &endpoints;
            scope.spawn(move || {
                let peers = || (0..RANKS).filter(move |peer| *peer != rank);
                for tag in 0..20 {
                    let segment = Segment::create("x", 1).unwrap();
                    for peer in peers() {
                        let address = endpoints[peer].address();
                        let payload = [rank as u8, peer as u8, tag as u8];
                        let fds = [segment.fd(), segment.fd()];
                        endpoints[rank]
                            .send(peer, address, tag, rank as u32, &payload, &fds, &long())
                            .unwrap();
                    }
                    let order: Vec<_> =
                        if tag % 2 == 0 { peers().collect() } else { peers().rev().collect() };
                    for peer in order {
                        let message = endpoints[rank].recv(tag, peer as u32, &long()).unwrap();
                        assert_eq!(message.payload, [peer as u8, rank as u8, tag as u8]);
                        assert_eq!(message.fds.len(), 2);
                        for fd in message.fds {
                            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
                            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
                            Mapping::import(fd, 1).unwrap();
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn processes_talk() {
    const NAME: &str = "sys::channel::tests::processes_talk";
    const PEER: &str = "SYMMEM_TEST_PEER";
    if let Ok(parent) = std::env::var(PEER) {
        let endpoint = bind();
        let segment = Segment::create("child", 1).unwrap();
        let own = endpoint.address().as_bytes();
        endpoint.send(0, &parent, 1, 1, own, &[segment.fd()], &long()).unwrap();
        let reply = endpoint.recv(2, 0, &long()).unwrap();
        assert_eq!(reply.payload, b"thanks");
        // SAFETY: the page is mapped; the parent has written it before it replied.
        assert_eq!(unsafe { segment.mapping().ptr().read_volatile() }, 42);
        return;
    }
    let endpoint = bind();
    let mut command = rerun(NAME);
    command.env(PEER, endpoint.address());
    let child = thread::spawn(move || finish(command, LONG));
    let mut hello = endpoint.recv(1, 1, &long()).unwrap();
    let mapping = Mapping::import(hello.fds.remove(0), 1).unwrap();
    // SAFETY: the page is mapped and the child reads it only after our reply.
    unsafe { mapping.ptr().write_volatile(42) };
    let address = String::from_utf8(hello.payload).unwrap();
    endpoint.send(1, &address, 2, 0, b"thanks", &[], &long()).unwrap();
    let out = child.join().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn where_uids_prove_nothing_only_known_processes_are_heard_and_sent_to() {
    const NAME: &str =
        "sys::channel::tests::where_uids_prove_nothing_only_known_processes_are_heard_and_sent_to";
    const PEER: &str = "SYMMEM_TEST_UNKNOWN_PEER";
    if let Ok(parent) = std::env::var(PEER) {
        // A process of the same uid and with the token, that no hello names.
        let endpoint = bind();
        endpoint.send(0, &parent, 1, 1, endpoint.address().as_bytes(), &[], &long()).unwrap();
        expired(endpoint.recv(2, 0, &Wait::for_at_most(LONG / 4)));
        return;
    }
    let own = ChannelPeers::Known(vec![ProcessId::own()]);
    let (strict, open) = (Endpoint::bind(TOKEN, None, own).unwrap(), bind());
    // Threads of a known process talk, both ways.
    open.send(0, strict.address(), 1, 7, b"hi", &[], &long()).unwrap();
    assert_eq!(strict.recv(1, 7, &long()).unwrap().payload, b"hi");
    strict.send(0, open.address(), 1, 7, b"ho", &[], &long()).unwrap();
    assert_eq!(open.recv(1, 7, &long()).unwrap().payload, b"ho");
    // The other process is not heard by the one, and tells the other where it listens.
    for (endpoint, hears) in [(&strict, false), (&open, true)] {
        let mut command = rerun(NAME);
        command.env(PEER, endpoint.address());
        let child = thread::spawn(move || finish(command, LONG));
        let hello = endpoint.recv(1, 1, &Wait::for_at_most(if hears { LONG } else { LONG / 8 }));
        if hears {
            let address = String::from_utf8(hello.unwrap().payload).unwrap();
            let refused = failure(strict.send(1, &address, 2, 0, b"", &[], &long()));
            assert!(refused.contains("not a process that a rank's hello names"), "{refused}");
        } else {
            expired(hello);
        }
        let out = child.join().unwrap();
        assert!(out.status.success(), "{out:?}");
    }
}

#[test]
fn messages_wait_until_they_are_asked_for() {
    let (a, b) = (bind(), bind());
    for tag in [3, 1, 2] {
        for source in [7, 0] {
            let payload = [tag as u8, source as u8];
            a.send(0, b.address(), tag, source, &payload, &[], &long()).unwrap();
        }
    }
    for tag in [1, 2, 3] {
        for source in [0, 7] {
            // A message that is there is found whatever the deadline.
            let message = b.recv(tag, source, &Wait::for_at_most(Duration::ZERO)).unwrap();
            assert_eq!(message.payload, [tag as u8, source as u8]);
        }
    }
}

#[test]
fn the_largest_message_passes_and_a_larger_one_is_refused_here() {
    let a = bind();
    let (_, fd) = pipe().unwrap();
    let fds = [fd.as_fd(); MAX_FDS + 1];
    let payload = [5; MAX_PAYLOAD + 1];
    a.send(0, a.address(), 1, 0, &payload[1..], &fds[1..], &long()).unwrap();
    let message = a.recv(1, 0, &long()).unwrap();
    assert_eq!((message.payload.len(), message.fds.len()), (MAX_PAYLOAD, MAX_FDS));
    assert!(failure(a.send(0, a.address(), 1, 0, &payload, &[], &long())).contains("too many"));
    assert!(failure(a.send(0, a.address(), 1, 0, &[], &fds, &long())).contains("too many"));
}

#[test]
fn bad_messages_are_dropped_and_leak_nothing() {
    succeeds_alone("sys::channel::tests::bad_messages_are_dropped_and_leak_nothing", || {
        let (honest, target) = (bind(), bind());
        let (read_end, write_end) = pipe().unwrap();
        let fds = [write_end.as_fd(); 20];
        let baseline = fd_count();
        let good = MessageHeader { token: TOKEN, tag: 5, source: 1, fds: 2 };
        let throw = |packet: &[u8], fds: &[BorrowedFd<'_>]| send_raw(&connect(target.address()), packet, fds);
        let changed = |at: usize| {
            let mut packet = packet(good, b"payload");
            packet[at] ^= 1;
            packet
        };
        // Magic, version, token, payload length; but for the last two a header is as long as it must be.
        for at in [0, 7, 8, 16, 31, 44] {
            throw(&changed(at), &fds[..2]);
        }
        throw(b"", &[]);
        throw(b"garbage", &fds[..3]);
        throw(&packet(good, b"")[..47], &fds[..2]);
        throw(&packet(good, &[0; MAX_PAYLOAD + 1]), &fds[..2]);
        throw(&packet(good, &[0; 10 * MAX_PAYLOAD]), &fds[..2]);
        // Fewer and more fds than announced, more than allowed, more than fit.
        throw(&packet(good, b""), &fds[..1]);
        throw(&packet(good, b""), &[]);
        throw(&packet(good, b""), &fds[..3]);
        throw(&packet(MessageHeader { fds: 0, ..good }, b""), &fds[..1]);
        throw(&packet(MessageHeader { fds: MAX_FDS, ..good }, b""), &fds);
        throw(&packet(MessageHeader { fds: 20, ..good }, b""), &fds);
        // Connections that close without a word.
        drop(connect(target.address()));
        expired(target.recv(5, 1, &short()));
        assert_eq!(fd_count(), baseline);

        // A good one, its duplicate, another duplicate after it was received, and an older one.
        let send = |tag| honest.send(0, target.address(), tag, 1, &[], &fds[..2], &long()).unwrap();
        send(4);
        send(5);
        send(5);
        assert_eq!(target.recv(5, 1, &long()).unwrap().fds.len(), 2);
        send(5);
        send(3);
        expired(target.recv(4, 1, &short()));
        expired(target.recv(5, 1, &short()));
        assert_eq!(fd_count(), baseline);
        send(6);
        assert_eq!(target.recv(6, 1, &long()).unwrap().fds.len(), 2);
        // Another source has a floor of its own.
        honest.send(0, target.address(), 1, 2, &[], &[], &long()).unwrap();
        target.recv(1, 2, &long()).unwrap();

        // A second packet on one connection is one too many.
        let twice = connect(target.address());
        send_raw(&twice, &packet(MessageHeader { tag: 7, ..good }, b"first"), &fds[..2]);
        send_raw(&twice, &packet(MessageHeader { tag: 8, ..good }, b"second"), &fds[..2]);
        assert_eq!(target.recv(7, 1, &long()).unwrap().payload, b"first");
        expired(target.recv(8, 1, &short()));
        drop(twice);
        assert_eq!(fd_count(), baseline);
        drop(write_end);
        assert!(hung_up(&read_end));
    });
}

#[test]
fn what_was_never_received_goes_with_the_endpoint() {
    let (a, b) = (bind(), bind());
    let (read_end, write_end) = pipe().unwrap();
    for tag in 1..=3 {
        a.send(0, b.address(), tag, 0, &[], &[write_end.as_fd()], &long()).unwrap();
    }
    drop(write_end);
    b.recv(1, 0, &long()).unwrap();
    assert!(!hung_up(&read_end));
    a.send(0, b.address(), 4, 0, &[], &[], &long()).unwrap();
    drop(b);
    eventually("every copy is closed", || hung_up(&read_end));
}

#[test]
fn a_flood_of_fds_costs_nothing_and_delays_nobody() {
    succeeds_alone("sys::channel::tests::a_flood_of_fds_costs_nothing_and_delays_nobody", || {
        let (honest, target) = (bind(), bind());
        let (_read_end, write_end) = pipe().unwrap();
        let baseline = fd_count();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let forged =
                        packet(MessageHeader { token: [0; 16], tag: 1, source: 1, fds: MAX_FDS }, b"");
                    for _ in 0..1000 {
                        send_raw(&connect(target.address()), &forged, &[write_end.as_fd(); MAX_FDS]);
                    }
                });
            }
            for tag in 1..=50 {
                honest.send(0, target.address(), tag, 1, &[], &[write_end.as_fd()], &long()).unwrap();
                target.recv(tag, 1, &long()).unwrap();
            }
        });
        expired(target.recv(100, 1, &short()));
        assert_eq!(fd_count(), baseline);
    });
}

#[test]
fn silent_connections_are_shown_out_and_late_senders_are_heard() {
    succeeds_alone(
        "sys::channel::tests::silent_connections_are_shown_out_and_late_senders_are_heard",
        || {
            let target = bind();
            let baseline = fd_count();
            let silent: Vec<_> = (0..200).map(|_| connect(target.address())).collect();
            expired(target.recv(1, 1, &short()));
            // Their ends, and at most 64 of ours.
            assert!(fd_count() <= baseline + 200 + 64, "{}", fd_count() - baseline);
            // The youngest may still speak.
            send_raw(
                &silent[199],
                &packet(MessageHeader { token: TOKEN, tag: 1, source: 1, fds: 0 }, b"late"),
                &[],
            );
            assert_eq!(target.recv(1, 1, &long()).unwrap().payload, b"late");
            let start = Instant::now();
            eventually("all are shown out", || {
                expired(target.recv(2, 1, &short()));
                fd_count() == baseline + 200
            });
            assert!(start.elapsed() < Duration::from_secs(5));
            let shown_out = packet(MessageHeader { token: TOKEN, tag: 2, source: 1, fds: 0 }, b"");
            let error =
                rustix::net::send(&silent[0], &shown_out, rustix::net::SendFlags::NOSIGNAL).unwrap_err();
            assert_eq!(error, Errno::PIPE);
        },
    );
}

#[test]
fn another_user_is_refused_on_both_ends() {
    succeeds_alone("sys::channel::tests::another_user_is_refused_on_both_ends", || {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can be somebody else for a moment");
            return;
        }
        let endpoint = bind();
        let (read_end, write_end) = pipe().unwrap();
        // SAFETY: this process has one busy thread, and the child only makes system calls through our code.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: changes the child's user only.
            assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
            let stranger = bind();
            rustix::io::write(&write_end, stranger.address().as_bytes()).unwrap();
            let refusal = failure(stranger.send(0, endpoint.address(), 1, 1, b"hello", &[], &long()));
            assert!(refusal.contains("another user"), "{refusal}");
            send_raw(
                &connect(endpoint.address()),
                &packet(MessageHeader { token: TOKEN, tag: 1, source: 1, fds: 0 }, b""),
                &[],
            );
            rustix::io::write(&write_end, b"!").unwrap();
            thread::sleep(LONG);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut buffer = [0; 200];
        let len = rustix::io::read(&read_end, &mut buffer).unwrap();
        let stranger = std::str::from_utf8(&buffer[..len]).unwrap().trim_end_matches('!');
        assert!(failure(endpoint.send(1, stranger, 1, 0, b"hello", &[], &long())).contains("another user"));
        if !buffer[..len].ends_with(b"!") {
            rustix::io::read(&read_end, &mut buffer).unwrap();
        }
        expired(endpoint.recv(1, 1, &short()));
        // SAFETY: ends the child made above, and reaps it.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    });
}

#[test]
fn running_out_of_fds_is_an_error_that_says_so() {
    succeeds_alone("sys::channel::tests::running_out_of_fds_is_an_error_that_says_so", || {
        let (a, b) = (bind(), bind());
        let (_, write_end) = pipe().unwrap();
        let limit = |current| {
            let rlimit = rustix::process::Rlimit { current: Some(current), maximum: Some(1024) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, rlimit).unwrap();
        };
        let next_free = || std::os::fd::AsRawFd::as_raw_fd(&write_end.try_clone().unwrap()) as u64;
        for tag in 1..=2 {
            a.send(0, b.address(), tag, 1, &[], &[write_end.as_fd(); 4], &long()).unwrap();
        }
        // Room for the connection and two of the four fds.
        limit(next_free() + 3);
        let error = failure(b.recv(1, 1, &long()));
        assert!(error.contains("ulimit -n"), "{error}");
        // No room for a connection; the messages stay in the queue.
        a.send(0, b.address(), 3, 1, &[], &[write_end.as_fd(); 4], &long()).unwrap();
        limit(next_free());
        assert!(failure(b.recv(3, 1, &long())).contains("ulimit -n"));
        assert!(failure(a.send(0, b.address(), 3, 1, &[], &[], &long())).contains("ulimit -n"));
        limit(1024);
        assert_eq!(b.recv(3, 1, &long()).unwrap().fds.len(), 4);
    });
}

#[test]
fn socket_files_are_private_and_go_with_the_endpoint() {
    let folder = Folder::new();
    let (a, b) = (bind(), Endpoint::bind(TOKEN, Some(folder.path()), ChannelPeers::OfThisUser).unwrap());
    let files = || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap()).collect::<Vec<_>>();
    let mode = files()[0].metadata().unwrap().permissions().mode();
    assert_eq!((files().len(), mode & 0o777), (1, 0o600));
    assert!(b.address().starts_with(&format!("path:{}:/", ids::net_ns())));
    a.send(0, b.address(), 1, 0, b"hello", &[], &long()).unwrap();
    assert_eq!(b.recv(1, 0, &long()).unwrap().payload, b"hello");
    let address = b.address().to_owned();
    drop(b);
    assert!(files().is_empty());
    assert!(failure(a.send(0, &address, 2, 0, &[], &[], &long())).contains("SYMMEM_SOCKET_DIR"));
    let missing = Endpoint::bind(TOKEN, Some(&folder.path().join("missing")), ChannelPeers::OfThisUser)
        .unwrap_err()
        .to_string();
    assert!(missing.contains("socket folder"), "{missing}");
}

#[test]
fn an_absent_peer_is_named() {
    // Alone: another test's child process may keep a closed listener alive until it has started.
    succeeds_alone("sys::channel::tests::an_absent_peer_is_named", || {
        let a = bind();
        let gone = bind().address().to_owned();
        let error = failure(a.send(3, &gone, 1, 0, &[], &[], &long()));
        assert!(
            error.contains("rank 3") && error.contains(&gone) && error.contains("may have died"),
            "{error}"
        );
        let elsewhere = gone.replace(&ids::net_ns().to_string(), "12345");
        let error = failure(a.send(3, &elsewhere, 1, 0, &[], &[], &long()));
        assert!(error.contains("namespace 12345") && error.contains("SYMMEM_SOCKET_DIR"), "{error}");
        assert!(failure(a.send(3, "nonsense", 1, 0, &[], &[], &long())).contains("not an address"));
    });
}

#[test]
fn deadlines_and_cancellation_end_waits() {
    let endpoint = bind();
    let start = Instant::now();
    expired(endpoint.recv(1, 0, &short()));
    expired(endpoint.recv(1, 0, &Wait::for_at_most(Duration::ZERO)));
    let token = CancelToken::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(SHORT);
            token.cancel();
        });
        let result = endpoint.recv(1, 0, &long().with_cancel(&token));
        assert!(matches!(result, Err(Halt::Interrupted(Interrupt::Cancelled))), "{result:?}");
    });
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn a_full_queue_makes_senders_wait_but_not_for_ever() {
    succeeds_alone("sys::channel::tests::a_full_queue_makes_senders_wait_but_not_for_ever", || {
        let (a, target) = (bind(), bind());
        rustix::net::listen(&target.listener, 2).unwrap();
        let guests: Vec<_> = (0..3).map(|_| connect(target.address())).collect();
        expired(a.send(0, target.address(), 1, 0, &[], &[], &short()));
        thread::scope(|scope| {
            scope.spawn(|| a.send(0, target.address(), 1, 0, &[], &[], &long()).unwrap());
            thread::sleep(SHORT);
            target.recv(1, 0, &long()).unwrap();
        });
        drop(guests);
    });
}

#[test]
fn threads_share_an_endpoint() {
    const THREADS: u32 = 4;
    const TAGS: u64 = 25;
    let (a, b) = (bind(), bind());
    let start = Instant::now();
    thread::scope(|scope| {
        for source in 0..THREADS {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                for tag in 0..TAGS {
                    a.send(0, b.address(), tag, source, &[source as u8], &[], &long()).unwrap();
                    thread::sleep(Duration::from_millis(u64::from(source)));
                }
            });
            scope.spawn(move || {
                for tag in 0..TAGS {
                    assert_eq!(b.recv(tag, source, &long()).unwrap().payload, [source as u8]);
                }
            });
        }
    });
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn rings_and_broadcasts_reach_everybody() {
    for world in 1..=5 {
        let endpoints: Vec<_> = (0..world).map(|_| bind()).collect();
        let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address().to_owned()).collect();
        let barrier = Barrier::new(world);
        thread::scope(|scope| {
            for (rank, endpoint) in endpoints.iter().enumerate() {
                let (addresses, barrier) = (&addresses, &barrier);
                scope.spawn(move || {
                    let page = rustix::param::page_size();
                    for round in 0..3 {
                        // Rank r's segment has r + 1 pages: what comes back proves whose it is.
                        let own = Segment::create("ring", (rank + 1) * page).unwrap();
                        let fds =
                            endpoint.all_gather_fds(rank, addresses, 2 * round, own.fd(), &long()).unwrap();
                        assert_eq!(fds.len(), world);
                        for (source, fd) in fds.into_iter().enumerate() {
                            Mapping::import(fd, (source + 1) * page).unwrap();
                        }
                        let root = round as usize % world;
                        let fds = [own.fd(), own.fd()];
                        let given = if rank == root { &fds[..] } else { &[] };
                        let fds = endpoint
                            .broadcast_fds(rank, root, addresses, 2 * round + 1, given, &long())
                            .unwrap();
                        assert_eq!(fds.len(), 2);
                        for fd in fds {
                            Mapping::import(fd, (root + 1) * page).unwrap();
                        }
                    }
                    barrier.wait();
                });
            }
        });
    }
}
