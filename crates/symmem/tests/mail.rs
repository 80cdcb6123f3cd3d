//! Mail between ranks: order, tags, sizes, batches in any order, several threads, and what happens when
//! things go wrong.

mod common;

use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use common::{AT_ONCE, Launch, PATIENCE, Random, assert_error, is_rank_of, report, serve};
use symmem::{CancelToken, Cause, Delivery, Error, Group, Mailbox, ProcessSpawner, Result};

const SHORT: Duration = Duration::from_millis(60);
/// More than a ring holds, and odd.
const LARGE: usize = (3 << 20) + 13;

/// A message that is easy to check.
fn message(seed: usize, len: usize) -> Vec<u8> {
    // Repeated after a prime, so that it is in step with no slot.
    let stretch: Vec<u8> = (0..len.min(65_521)).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect();
    let mut bytes = stretch.repeat(len.div_ceil(stretch.len().max(1)));
    bytes.truncate(len);
    bytes
}

fn receive(mail: &Mailbox, from: usize, tag: u64, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0xee; len];
    let delivery = mail.receive(from, tag, &mut out)?;
    assert_eq!(delivery, Delivery { source: from, tag, note: 0, bytes: len });
    Ok(out)
}

fn mailbox(group: &Group) -> Result<Mailbox> {
    Mailbox::new(&group.within(PATIENCE))
}

fn ping_pong(group: &Group) -> Result<()> {
    let mail = mailbox(group)?;
    let peer = 1 - group.rank();
    for (round, len) in [0, 1, 5, 4096, 32 << 10, (32 << 10) + 1, 200_001, LARGE].into_iter().enumerate() {
        let tag = round as u64;
        if group.rank() == 0 {
            mail.send(peer, tag, &message(round, len))?;
        }
        assert!(receive(&mail, peer, tag, len)? == message(round, len), "{len} bytes");
        if group.rank() == 1 {
            mail.send(peer, tag, &message(round, len))?;
        }
    }
    Ok(())
}

#[test]
fn messages_go_there_and_back() {
    // Rank 0 sends first and receives the echo; rank 1 the other way round.
    symmem::spawn(2, |group| ping_pong(&group)).unwrap();
}

#[test]
fn messages_go_there_and_back_between_processes() {
    let name = "messages_go_there_and_back_between_processes";
    ProcessSpawner::new(name, 2).run(|group| ping_pong(&group)).unwrap();
}

/// Everybody sends everybody a few messages of all sizes, and asks for all of it in an order of its own.
fn shuffled_batches(group: &Group, seed: u64) -> Result<()> {
    let mail = mailbox(group)?;
    let (rank, world) = (group.rank(), group.size());
    let mut script = Random::new(seed);
    let mut own = Random::new(seed ^ (rank as u64 + 1) << 20);
    for _ in 0..3 {
        // All ranks know the length of everything.
        let sizes = [0, 3, 1000, 40_000, 300_000, 1_500_000];
        let lens: Vec<usize> = (0..world * world * 3).map(|_| sizes[script.below(sizes.len())]).collect();
        let len = |from: usize, to: usize, tag: usize| lens[(from * world + to) * 3 + tag];
        let mut orders: Vec<(bool, usize, usize)> = (0..world)
            .flat_map(|peer| (0..3).flat_map(move |tag| [(true, peer, tag), (false, peer, tag)]))
            .collect();
        own.shuffle(&mut orders);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for (is_send, peer, tag) in orders {
            if is_send {
                let bytes = message(rank * 16 + peer * 4 + tag, len(rank, peer, tag));
                sent.push(mail.send_start(peer, tag as u64, bytes)?);
            } else {
                let pending = mail.receive_start(peer, tag as u64, vec![0; len(peer, rank, tag)])?;
                received.push((peer, tag, pending));
            }
        }
        if own.below(2) == 0 {
            sent.drain(..).try_for_each(|sent| sent.wait().map(drop))?;
        }
        own.shuffle(&mut received);
        for (peer, tag, pending) in received {
            let (delivery, bytes) = pending.wait()?;
            assert_eq!(delivery, Delivery { source: peer, tag: tag as u64, note: 0, bytes: bytes.len() });
            assert!(bytes == message(peer * 16 + rank * 4 + tag, len(peer, rank, tag)), "{peer} {tag}");
        }
        sent.into_iter().try_for_each(|sent| sent.wait().map(drop))?;
    }
    Ok(())
}

#[test]
fn batches_in_any_order_come_through() {
    for world in 1..=4 {
        symmem::spawn(world, |group| shuffled_batches(&group, world as u64)).unwrap();
    }
}

#[test]
fn batches_in_any_order_come_through_between_processes() {
    let name = "batches_in_any_order_come_through_between_processes";
    ProcessSpawner::new(name, 3).run(|group| shuffled_batches(&group, 77)).unwrap();
}

#[test]
fn everybody_may_send_first() {
    symmem::spawn(3, |group| {
        let mail = mailbox(&group)?;
        mail.send(group.next(), 1, &message(group.rank(), LARGE))?;
        mail.send(group.prev(), 2, &message(group.rank(), LARGE))?;
        assert!(receive(&mail, group.next(), 2, LARGE)? == message(group.next(), LARGE));
        assert!(receive(&mail, group.prev(), 1, LARGE)? == message(group.prev(), LARGE));
        Ok(())
    })
    .unwrap();
}

#[test]
fn tags_are_received_in_any_order_and_equal_ones_in_theirs() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            for tag in 0..20 {
                mail.send(1, tag, &message(tag as usize, 20_000))?;
                mail.send(1, 99, &[tag as u8])?;
            }
            return group.barrier();
        }
        for tag in (0..20).rev() {
            assert!(receive(&mail, 0, tag, 20_000)? == message(tag as usize, 20_000));
        }
        for step in 0..20 {
            assert_eq!(receive(&mail, 0, 99, 1)?, [step]);
        }
        group.barrier()
    })
    .unwrap();
}

#[test]
fn anybodys_message_is_taken() {
    symmem::spawn(4, |group| {
        let mail = mailbox(&group)?;
        if group.rank() > 0 {
            mail.send(0, 5, &message(group.rank(), 100_000))?;
            return group.barrier();
        }
        let mut sources = Vec::new();
        for _ in 0..3 {
            let mut out = vec![0; 100_000];
            let source = mail.receive(None, 5, &mut out)?.source;
            assert!(out == message(source, 100_000));
            sources.push(source);
        }
        sources.sort_unstable();
        assert_eq!(sources, [1, 2, 3]);
        group.barrier()
    })
    .unwrap();
}

#[test]
fn messages_of_unknown_length_and_any_tag_come_with_what_they_are() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        let lens = [0, 1, 5, 4096, 200_001, LARGE];
        if group.rank() == 0 {
            for (tag, len) in lens.into_iter().enumerate() {
                mail.noted(tag as u64 + 100).send(1, tag as u64, &message(tag, len))?;
            }
            return group.barrier();
        }
        assert_eq!(mail.probe(None, 4)?.bytes, lens[4]);
        for (tag, len) in lens.into_iter().enumerate() {
            let is = Delivery { source: 0, tag: tag as u64, note: tag as u64 + 100, bytes: len };
            // In the order they were sent, and as often as one looks.
            assert_eq!((mail.probe(0, None)?, mail.try_probe(None, None)?), (is, Some(is)));
            let (delivery, bytes) = mail.receive_vec(None, None)?;
            assert!(delivery == is && bytes == message(tag, len), "{delivery:?}");
        }
        assert_eq!(mail.try_probe(None, None)?, None);
        group.barrier()
    })
    .unwrap();
}

#[test]
fn a_rank_probes_what_it_wrote_to_itself() {
    symmem::spawn(1, |group| {
        let mail = mailbox(&group)?;
        mail.send(0, 9, b"me")?;
        assert_eq!(mail.probe(0, None)?.bytes, 2);
        assert_eq!(mail.receive_vec(None, 9)?.1, b"me");
        assert_error!(mail.within(SHORT).probe(0, 9), Error::Timeout { .. });
        assert_error!(mail.within(SHORT).receive_vec(0, 9), Error::Timeout { .. });
        assert_error!(mail.try_probe(1, 9), Error::RankOutOfRange { op: "probe", .. });
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_probe_ends_when_who_is_probed_has_left_or_may_still_find_what_it_sent() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            return mail.send(1, 1, b"last");
        }
        let start = Instant::now();
        assert_error!(mail.probe(0, 2), Error::PeerLeft { rank: 0, .. });
        assert_error!(mail.try_probe(None, 2), Error::PeerLeft { rank: 0, .. });
        assert!(start.elapsed() < AT_ONCE);
        assert_eq!(mail.probe(0, 1)?.bytes, 4);
        assert_eq!(mail.receive_vec(0, 1)?.1, b"last");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_rank_writes_to_itself() {
    symmem::spawn(1, |group| {
        let mail = mailbox(&group)?;
        mail.send(0, 1, b"one")?;
        let later = mail.receive_start(0, 2, vec![0; 3])?;
        mail.send(0, 2, b"two")?;
        assert_eq!(later.wait()?, (Delivery { source: 0, tag: 2, note: 0, bytes: 3 }, b"two".to_vec()));
        assert_eq!(receive(&mail, 0, 1, 3)?, b"one");
        mail.send(0, 3, b"")?;
        assert_error!(mail.receive(0, 3, &mut [0]), Error::MessageSize { bytes: 0, room: 1, tag: 3, .. });
        assert_error!(mail.send(1, 3, b""), Error::RankOutOfRange { .. });
        assert_error!(mail.receive(1, 3, &mut []), Error::RankOutOfRange { .. });
        Ok(())
    })
    .unwrap();
}

#[test]
fn sizes_that_differ_are_the_receivers_error_and_consume_the_message() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        for (sent, room) in [(10, 9), (10, 11), (0, 1), (1, 0), (LARGE, LARGE - 1), (5, LARGE)] {
            // With the receive first, and with the message first.
            for early in [true, false] {
                group.barrier()?;
                if group.rank() == 0 {
                    let bytes = message(1, sent);
                    let pending = mail.send_start(1, 4, bytes)?;
                    mail.send_start(1, 4, vec![42])?.wait()?;
                    pending.wait()?;
                    continue;
                }
                if !early {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let mut out = vec![0; room];
                let wrong = mail.receive(0, 4, &mut out);
                assert_error!(wrong, Error::MessageSize { rank: 0, tag: 4, bytes, room: found, .. } if (bytes, found) == (sent, room));
                assert_eq!(receive(&mail, 0, 4, 1)?, [42]);
            }
        }
        group.barrier()
    })
    .unwrap();
}

#[test]
fn threads_of_a_rank_use_it_at_once() {
    const THREADS: u64 = 4;
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        let peer = 1 - group.rank();
        std::thread::scope(|scope| {
            for tag in 0..THREADS {
                let mail = &mail;
                scope.spawn(move || {
                    for round in 0..20 {
                        let len = 1000 * (tag as usize + 1) * (round % 5);
                        mail.send(peer, tag, &message(round, len)).unwrap();
                        assert!(receive(mail, peer, tag, len).unwrap() == message(round, len));
                    }
                });
            }
        });
        // Beside what runs on the group.
        group.barrier()
    })
    .unwrap();
}

#[test]
fn what_was_started_goes_on_while_the_rank_does_something_else() {
    symmem::spawn(2, |group| {
        let group = group.within(PATIENCE);
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            let sent = mail.send_start(1, 0, message(3, LARGE))?;
            group.barrier()?;
            assert_eq!(sent.wait()?.len(), LARGE);
        } else {
            assert!(receive(&mail, 0, 0, LARGE)? == message(3, LARGE));
            group.barrier()?;
        }
        // The other way round: a receive that was started takes it.
        if group.rank() == 0 {
            let received = mail.receive_start(1, 1, vec![0; LARGE])?;
            group.barrier()?;
            assert!(received.wait()?.1 == message(4, LARGE));
        } else {
            mail.send(0, 1, &message(4, LARGE))?;
            group.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_dropped_send_goes_on_and_its_rank_stays_for_it() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            drop(mail.send_start(1, 0, message(3, LARGE))?);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(30));
        assert!(receive(&mail, 0, 0, LARGE)? == message(3, LARGE));
        assert_error!(mail.receive(0, 0, &mut [0]), Error::PeerLeft { rank: 0, .. });
        assert_error!(mail.receive(None, 0, &mut [0]), Error::PeerLeft { rank: 0, .. });
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_receive_that_timed_out_or_was_cancelled_can_be_repeated() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        let peer = 1 - group.rank();
        let start = Instant::now();
        let timed_out = mail.within(SHORT).receive(peer, 1, &mut [0; 9]);
        assert_error!(timed_out, Error::Timeout { missing, .. } if missing == [peer]);
        let pending = mail.within(SHORT).receive_start(peer, 1, vec![0; 9])?;
        assert!(!pending.test() && !pending.wait_for(SHORT)?);
        assert_error!(pending.wait(), Error::Timeout { .. });
        let token = CancelToken::new();
        token.cancel();
        assert_error!(mail.cancelled_by(&token).receive(None, 1, &mut [0; 9]), Error::Cancelled { .. });
        assert!(start.elapsed() < 3 * SHORT + AT_ONCE);
        group.barrier()?;
        mail.send(peer, 1, &message(6, 9))?;
        assert_eq!(receive(&mail, peer, 1, 9)?, message(6, 9));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_send_that_timed_out_is_void() {
    let (full, tried) = (Barrier::new(2), Barrier::new(2));
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            // Nobody takes it up, so that a part of it is out and the rest is not.
            assert_error!(mail.within(SHORT).send(1, 1, &message(1, LARGE)), Error::Timeout { .. });
            assert_error!(mail.within(SHORT).send(1, 1, &[1]), Error::Timeout { .. });
            let token = CancelToken::new();
            token.cancel();
            assert_error!(mail.cancelled_by(&token).send(1, 1, &[1]), Error::Cancelled { .. });
            full.wait();
            tried.wait();
            mail.send(1, 1, &message(2, LARGE))?;
        } else {
            full.wait();
            // Takes up the parts that are out, and learns that they are void.
            let pending = mail.receive_start(0, 1, vec![0; LARGE])?;
            assert!(!pending.wait_for(SHORT)?);
            tried.wait();
            assert!(pending.wait()?.1 == message(2, LARGE));
        }
        group.barrier()
    })
    .unwrap();
}

#[test]
fn an_aborted_group_ends_what_waits_and_what_comes() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        if group.rank() == 0 {
            std::thread::sleep(SHORT);
            group.abort("enough");
        }
        let told = |result: Result<Delivery>| {
            assert_error!(result, Error::GroupFailed { culprit: 0, cause: Cause::Aborted, .. });
        };
        let pending = mail.receive_start(1 - group.rank(), 1, vec![0; 5]);
        match pending {
            Ok(pending) => told(pending.wait().map(|(delivery, _)| delivery)),
            Err(error) => told(Err(error)),
        }
        told(mail.receive(1 - group.rank(), 1, &mut [0; 5]));
        Ok(())
    })
    .unwrap();
}

/// Rank 1 is killed; rank 0 has a receive and a send to it pending, waits for it, and has mail with rank 2 as
/// before.
#[test]
fn a_killed_peer_fails_those_who_wait_for_it_and_nobody_else() {
    let test = "a_killed_peer_fails_those_who_wait_for_it_and_nobody_else";
    if is_rank_of(test) {
        let group = Group::from_env().unwrap();
        let mail = mailbox(&group).unwrap();
        match group.rank() {
            0 => blame(&mail),
            1 => {
                mail.send(0, 0, b"last words").unwrap();
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                    .unwrap();
            }
            _ => {
                assert_eq!(receive(&mail, 0, 7, 3).unwrap(), b"yes");
                mail.send(0, 8, b"no").unwrap();
            }
        }
        return;
    }
    let server = serve();
    let mut ended = Launch::new(test, 3, server.port()).run();
    assert!(ended.remove(2).ok && !ended.remove(1).ok);
    let said = ended.remove(0).expect();
    assert_eq!(said, ["all is well"], "{said:?}");
}

fn blame(mail: &Mailbox) {
    let pending = mail.receive_start(1, 1, vec![0; 10]).unwrap();
    let large = mail.send_start(1, 2, vec![0; LARGE]).unwrap();
    // What was sent before is there.
    assert_eq!(receive(mail, 1, 0, 10).unwrap(), b"last words");
    let start = Instant::now();
    assert_error!(mail.receive(1, 5, &mut [0; 10]), Error::PeerLost { rank: 1, .. });
    assert_error!(mail.receive(None, 5, &mut [0; 10]), Error::PeerLost { rank: 1, .. });
    // Those fail whether or not anybody waits.
    while !pending.test() || !large.test() {
        assert!(start.elapsed() < AT_ONCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_error!(pending.wait(), Error::PeerLost { rank: 1, .. });
    assert_error!(large.wait(), Error::PeerLost { rank: 1, .. });
    assert!(start.elapsed() < AT_ONCE);
    mail.send(2, 7, b"yes").unwrap();
    assert_eq!(receive(mail, 2, 8, 2).unwrap(), b"no");
    report("all is well");
}

/// A buffer with a handle of the mailbox that it is received by, and a sender that is dropped last.
struct Holder(
    [u8; 3],
    #[expect(dead_code, reason = "held")] Mailbox,
    #[expect(dead_code, reason = "held")] mpsc::Sender<()>,
);

impl AsMut<[u8]> for Holder {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[test]
fn a_buffer_may_hold_the_last_handle_of_its_mailbox() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        let (held, dropped) = mpsc::channel();
        if group.rank() == 0 {
            drop(mail.receive_start(1, 1, Holder([0; 3], mail.within(PATIENCE), held))?);
        } else {
            mail.send(0, 1, b"longer than that")?;
            drop(held);
        }
        drop(mail);
        assert_eq!(dropped.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
        group.barrier()
    })
    .unwrap();
}

#[test]
fn an_idle_mailbox_keeps_nobody_busy_and_ends_its_thread() {
    symmem::spawn(2, |group| {
        let mail = mailbox(&group)?;
        mail.receive_start(group.next(), 1, vec![0; 1])?.wait_for(SHORT)?;
        drop(mail);
        group.barrier()
    })
    .unwrap();
    let start = Instant::now();
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
        // Other tests may run, in worlds of up to four ranks: only look for ours to become fewer.
        names.filter_map(name).filter(|name| name.ends_with("mail\n")).count()
    };
    while threads() > 0 {
        assert!(start.elapsed() < PATIENCE, "a helper thread stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `work` and fails if it does not come back: whoever hangs stays behind.
fn bounded(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let _ = done.send(outcome);
    });
    match ended.recv_timeout(PATIENCE) {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => panic!("the mailbox hangs"),
    }
}

/// Bytes that panic when they are asked for the `left`th time.
struct Panicking {
    bytes: Vec<u8>,
    left: std::cell::Cell<usize>,
}

impl Panicking {
    fn new(left: usize, len: usize) -> Self {
        Self { bytes: message(3, len), left: std::cell::Cell::new(left) }
    }

    fn ask(&self) {
        let left = self.left.get();
        assert!(left > 0, "bytes that panic, on purpose");
        self.left.set(left - 1);
    }
}

impl AsRef<[u8]> for Panicking {
    fn as_ref(&self) -> &[u8] {
        self.ask();
        &self.bytes
    }
}

impl AsMut<[u8]> for Panicking {
    fn as_mut(&mut self) -> &mut [u8] {
        self.ask();
        &mut self.bytes
    }
}

#[test]
fn bytes_that_panic_harm_only_who_gave_them() {
    bounded(|| {
        for left in 0..4 {
            symmem::spawn(2, |group| {
                let mail = mailbox(&group)?.within(Duration::from_secs(5));
                let peer = 1 - group.rank();
                let caught = |work: &dyn Fn()| {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                };
                // To a rank, from a rank, and to and from itself.
                for to in [peer, group.rank()] {
                    caught(&|| {
                        drop(mail.send_start(to, 1, Panicking::new(left, LARGE)).map(|sent| sent.wait()))
                    });
                    caught(&|| {
                        let receive = mail.receive_start(to, 1, Panicking::new(left, LARGE));
                        drop(receive.map(|received| received.wait()));
                    });
                }
                // Whatever became of those, the mailbox works.
                mail.send(peer, 2, b"after")?;
                assert_eq!(receive(&mail, peer, 2, 5)?, b"after");
                mail.send_start(peer, 3, message(4, LARGE))?.wait()?;
                assert!(receive(&mail, peer, 3, LARGE)? == message(4, LARGE));
                group.barrier()
            })
            .unwrap();
        }
    });
}

/// Bytes that use the mailbox when they are asked for.
struct Busy {
    bytes: Vec<u8>,
    mail: Mailbox,
}

impl Busy {
    fn ask(&self) {
        self.mail.send(0, 9, b"from inside").unwrap();
        let mut out = [0; 11];
        self.mail.receive(0, 9, &mut out).unwrap();
    }
}

impl AsRef<[u8]> for Busy {
    fn as_ref(&self) -> &[u8] {
        self.ask();
        &self.bytes
    }
}

impl AsMut<[u8]> for Busy {
    fn as_mut(&mut self) -> &mut [u8] {
        self.ask();
        &mut self.bytes
    }
}

#[test]
fn bytes_may_use_the_mailbox_that_asks_for_them() {
    bounded(|| {
        symmem::spawn(1, |group| {
            let mail = mailbox(&group)?.within(Duration::from_secs(5));
            let busy = |len| Busy { bytes: message(5, len), mail: mail.within(Duration::from_secs(5)) };
            let received = mail.receive_start(0, 1, busy(100))?;
            let sent = mail.send_start(0, 1, busy(100))?;
            assert_eq!(sent.wait()?.bytes, message(5, 100));
            let (delivery, bytes) = received.wait()?;
            assert_eq!((delivery.bytes, bytes.bytes), (100, message(5, 100)));
            Ok(())
        })
        .unwrap();
    });
}

/// Bytes that panic when they are dropped.
struct LastWord(Vec<u8>);

impl AsRef<[u8]> for LastWord {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for LastWord {
    fn drop(&mut self) {
        // Once more would end the process.
        assert!(std::thread::panicking(), "dropped bytes panic, on purpose");
    }
}

#[test]
fn bytes_that_panic_when_they_are_dropped_do_not_stop_the_mail() {
    bounded(|| {
        symmem::spawn(2, |group| {
            let mail = mailbox(&group)?.within(Duration::from_secs(10));
            let peer = 1 - group.rank();
            // Larger than the ring: the helper drops them, or who waits for something else.
            for tag in 0..3 {
                drop(mail.send_start(peer, tag, LastWord(message(6, LARGE)))?);
            }
            let started = mail.send_start(peer, 4, message(7, LARGE))?;
            for tag in 0..3 {
                assert!(receive(&mail, peer, tag, LARGE)? == message(6, LARGE));
            }
            assert!(receive(&mail, peer, 4, LARGE)? == message(7, LARGE));
            started.wait()?;
            drop(mail.send_start(peer, 5, message(8, LARGE))?);
            // The helper of the peer is at work as ever: nobody waits there for what this rank was sent.
            let late = mail.receive_start(peer, 5, vec![0; LARGE])?;
            let end = Instant::now() + PATIENCE;
            while !late.test() {
                assert!(Instant::now() < end, "the helper is gone");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(late.wait()?.1 == message(8, LARGE));
            group.barrier()
        })
        .unwrap();
    });
}
