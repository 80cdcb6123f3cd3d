//! Traces: what is recorded of a job, and that those who are not recorded know nothing of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use symmem::inspect::GroupState;
use symmem::trace::{Operation, Trace, Tracer, Track};
use symmem::{DType, Error, Group, Mailbox, ProcessSpawner, ReduceOp, Result};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber, span};

/// How late ranks and messages are; much more than a rank has to wait for a processor on a machine with other
/// work.
const LATE: Duration = Duration::from_millis(200);

/// How long something may take that happens soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// The trace of `work` on `ranks` processes, and how they ended. A rank does not come back.
fn trace_all(name: &str, ranks: usize, work: fn(Group) -> Result<()>) -> (Trace, Vec<Result<()>>) {
    let tracer = Tracer::listen().unwrap();
    let (variable, value) = tracer.environment();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The ranks are started by the test's own thread, whose name says which test they are of.
        let reading = scope.spawn(|| {
            let mut tracer = tracer;
            while !done.load(Ordering::Acquire) {
                tracer.poll().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            tracer.finish().unwrap()
        });
        let outcomes = ProcessSpawner::new(name, ranks).env(variable, value).run_all(work);
        done.store(true, Ordering::Release);
        (reading.join().unwrap(), outcomes.unwrap())
    })
}

/// The trace of ranks all of which end as they should.
fn trace(name: &str, ranks: usize, work: fn(Group) -> Result<()>) -> Trace {
    let (trace, outcomes) = trace_all(name, ranks, work);
    outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    trace
}

fn named<'a>(trace: &'a Trace, rank: usize, name: &str) -> Vec<&'a Operation> {
    let is_it = |track: &&Track| track.rank == rank && track.group == "world" && track.mailbox.is_none();
    let track = trace.tracks.iter().find(is_it);
    let track = track.unwrap_or_else(|| panic!("no track of rank {rank}: {trace:?}"));
    track.operations.iter().filter(|operation| operation.name == name).collect()
}

#[test]
fn every_rank_has_a_track_with_all_it_did() {
    let name = "every_rank_has_a_track_with_all_it_did";
    let trace = trace(name, 3, |group| {
        let mut x = group.alloc::<f32>(1000)?;
        x.fill(1.0)?;
        let mut mem = x.rendezvous(&group)?;
        for _ in 0..50 {
            mem.all_reduce(ReduceOp::Max)?;
        }
        mem.put_signal(group.next(), 3)?;
        mem.wait_signal(group.prev(), 3)?;
        let mut y = [group.rank() as u64];
        group.all_reduce(ReduceOp::Sum, &mut y)?;
        mem.close()
    });
    assert_eq!(trace.lost, 0);
    assert_eq!(trace.tracks.len(), 3, "{trace:?}");
    for rank in 0..3 {
        let all = named(&trace, rank, "all_reduce");
        assert_eq!(all.len(), 51);
        let (symmetric, private) = (all[7], all[50]);
        assert_eq!((symmetric.bytes, symmetric.dtype), (Some(4000), Some(DType::F32)));
        assert_eq!((symmetric.reduce, private.reduce), (Some(ReduceOp::Max), Some(ReduceOp::Sum)));
        assert!(symmetric.algorithm.is_some() && !symmetric.failed);
        assert_eq!((private.bytes, private.dtype), (Some(8), Some(DType::U64)));
        assert!(all.windows(2).all(|pair| pair[0].end_ns <= Some(pair[1].begin_ns)));
        assert!(all.iter().all(|one| one.end_ns >= Some(one.begin_ns)));
        let signal = named(&trace, rank, "wait_signal");
        assert_eq!((signal.len(), signal[0].channel, signal[0].meeting), (1, Some(3), None));
        assert_eq!(named(&trace, rank, "close").len(), 1);
    }
    let of_all = trace.meetings().into_iter().filter(|meeting| meeting.arrivals.len() == 3);
    assert!(of_all.count() >= 53, "all ranks meet in every collective");
}

#[test]
fn the_rank_that_the_others_waited_for_came_last() {
    let name = "the_rank_that_the_others_waited_for_came_last";
    let trace = trace(name, 3, |group| {
        for round in 0..3 {
            if group.rank() == round {
                thread::sleep(LATE);
            }
            group.barrier()?;
        }
        Ok(())
    });
    let barriers: Vec<_> = trace
        .meetings()
        .into_iter()
        .filter(|meeting| {
            trace.operation(meeting.arrivals[0]).name == "barrier" && meeting.arrivals.len() == 3
        })
        .collect();
    assert_eq!(barriers.len(), 3, "{trace:?}");
    for (round, meeting) in barriers.iter().enumerate() {
        let last = meeting.arrivals.last().unwrap();
        assert_eq!(trace.tracks[last.track].rank, round);
        let waiters = trace.waiters(meeting);
        assert_eq!(waiters.len(), 2);
        let longest = waiters.iter().map(|(_, ns)| Duration::from_nanos(*ns)).max().unwrap();
        assert!(longest > LATE / 10, "{longest:?}");
    }
}

#[test]
fn groups_have_tracks_of_their_own() {
    let name = "groups_have_tracks_of_their_own";
    let trace = trace(name, 2, |group| {
        let twin = group.subgroup(&[1, 0], "twin")?;
        twin.barrier()?;
        group.barrier()
    });
    let twins: Vec<_> = trace.tracks.iter().filter(|track| track.group.contains("twin")).collect();
    assert_eq!(twins.len(), 2, "{trace:?}");
    assert!(twins.iter().all(|track| track.operations.iter().any(|one| one.name == "barrier")));
}

#[test]
fn what_a_dead_rank_did_is_not_lost() {
    let (trace, outcomes) = trace_all("what_a_dead_rank_did_is_not_lost", 2, die_in_a_barrier);
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(named(&trace, 1, "barrier").len(), 5, "{trace:?}");
    let last = *named(&trace, 0, "barrier").last().unwrap();
    assert!(last.failed, "rank 0 saw the end of the group: {last:?}");
}

fn die_in_a_barrier(group: Group) -> Result<()> {
    for _ in 0..5 {
        group.barrier()?;
    }
    if group.rank() == 1 {
        std::process::abort();
    }
    group.barrier()
}

/// The file `name` of the job whose files begin with what is in the environment.
fn file_of_job(name: &str) -> Option<PathBuf> {
    Some(PathBuf::from(format!("{}.{name}", std::env::var(FILES).ok()?)))
}

/// Says which group it is, and meets until there is a file, which rank 0 alone looks for.
fn meet_until_told(group: Group) -> Result<u64> {
    let stop = file_of_job("stop").filter(|_| group.rank() == 0);
    if stop.is_some() {
        let (unready, ready) = (file_of_job("part").unwrap(), file_of_job("id").unwrap());
        std::fs::write(&unready, group.id()).unwrap();
        std::fs::rename(unready, ready).unwrap();
    }
    let mut x = [0.0_f64; 100];
    for round in 1.. {
        let told = stop.as_ref().is_some_and(|file| file.exists());
        x[0] = f64::from(u8::from(told));
        group.all_reduce(ReduceOp::Max, &mut x)?;
        if x[0] > 0.0 {
            return Ok(round);
        }
    }
    Ok(0)
}

/// How the names of the job's files begin.
const FILES: &str = "SYMMEM_TEST_TRACE_FILES";

#[test]
fn a_job_that_runs_already_can_be_traced_and_goes_on_after_it() {
    let name = "a_job_that_runs_already_can_be_traced_and_goes_on_after_it";
    if std::env::var_os("SYMMEM_SPAWN_NAME").is_some() {
        // A rank, which does not come back and traces nobody.
        ProcessSpawner::new(name, 3).run(meet_until_told).unwrap();
    }
    let files = std::env::temp_dir().join(format!("symmem-test-trace-{}", std::process::id()));
    let file = |name: &str| files.with_extension(name);
    let (id, stop) = (file("id"), file("stop"));
    let rounds = thread::scope(|scope| {
        let (id, stop) = (&id, &stop);
        let looking = scope.spawn(move || {
            let end = std::time::Instant::now() + Duration::from_secs(60);
            let groups = loop {
                // Other tests have jobs of their own: only the id says which one this is.
                let id = std::fs::read_to_string(id).unwrap_or_default();
                let mut found = symmem::inspect::groups().unwrap();
                found.retain(|group| group.id == id && group.ranks.iter().all(|rank| rank.last.len() > 5));
                if !found.is_empty() || std::time::Instant::now() > end {
                    break found;
                }
                thread::sleep(Duration::from_millis(5));
            };
            let mut tracer = Tracer::attach(&groups).unwrap();
            while tracer.progress().0 < 1000 && std::time::Instant::now() < end {
                tracer.poll().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            assert!(tracer.is_alive());
            let trace = tracer.finish().unwrap();
            std::fs::write(stop, "enough").unwrap();
            trace
        });
        let rounds = ProcessSpawner::new(name, 3).env(FILES, files.display()).run(meet_until_told);
        // Whatever became of the ranks: whoever looks for them ends.
        let trace = looking.join().unwrap();
        assert!(
            trace.tracks.len() == 3 && trace.tracks.iter().all(|track| track.operations.len() > 100),
            "{trace:?}"
        );
        assert!(trace.meetings().iter().any(|meeting| meeting.arrivals.len() == 3));
        rounds
    });
    [&id, &stop].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let rounds = rounds.unwrap();
    assert!(rounds.iter().all(|one| *one == rounds[0]));
}

/// The messages of a rank.
fn mail(trace: &Trace, rank: usize) -> &Track {
    let mut found = trace.tracks.iter().filter(|track| track.rank == rank && track.mailbox.is_some());
    let track = found.next().unwrap_or_else(|| panic!("no messages of rank {rank}: {trace:?}"));
    assert!(found.next().is_none(), "one mailbox, one track");
    track
}

const ROUNDS: u64 = 20;

/// Messages in all ways: two threads of rank 0 to those of rank 1, from anybody, started, to itself, and one
/// that never comes.
fn exchange(group: Group) -> Result<()> {
    let mailbox = Mailbox::new(&group)?;
    if group.rank() == 0 {
        thread::sleep(LATE);
    }
    thread::scope(|scope| {
        let threads = [1, 2].map(|tag| {
            let (mailbox, rank) = (&mailbox, group.rank());
            scope.spawn(move || -> Result<()> {
                for round in 1..=ROUNDS {
                    let bytes = vec![tag as u8; (10 * round + tag) as usize];
                    match rank {
                        0 => mailbox.send(1, tag, &bytes)?,
                        _ => drop(mailbox.receive(None, tag, &mut vec![0; bytes.len()])?),
                    }
                }
                Ok(())
            })
        });
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    let peer = 1 - group.rank();
    // As much as no ring holds.
    let sent = mailbox.send_start(peer, 3, vec![7; 2 << 20])?;
    let received = mailbox.receive_start(peer, None, vec![0; 2 << 20])?;
    assert_eq!(received.wait()?.0.tag, 3);
    sent.wait()?;
    mailbox.send(group.rank(), 4, b"me")?;
    assert_eq!(mailbox.probe(None, None)?.bytes, 2);
    assert_eq!(mailbox.receive_vec(None, 4)?.1, b"me");
    let never = mailbox.within(Duration::from_millis(10)).receive(peer, 5, &mut [0; 9]);
    assert!(matches!(never, Err(Error::Timeout { .. })), "{never:?}");
    group.barrier()
}

#[test]
fn messages_are_recorded_with_their_peers_and_matched() {
    let trace = trace("messages_are_recorded_with_their_peers_and_matched", 2, exchange);
    assert_eq!(trace.lost, 0);
    assert_eq!((named(&trace, 0, "barrier").len(), named(&trace, 0, "send").len()), (1, 0));
    let (zero, one) = (mail(&trace, 0), mail(&trace, 1));
    assert_eq!((zero.mailbox, &zero.id), (one.mailbox, &one.id), "the same mailbox on both ranks");
    let calls = |track: &Track, name: &str| -> Vec<Operation> {
        track.operations.iter().filter(|one| one.name == name).cloned().collect()
    };
    let rounds = ROUNDS as usize;
    assert_eq!((calls(zero, "send").len(), calls(one, "send").len()), (2 * rounds + 2, 2));
    assert_eq!((calls(zero, "receive").len(), calls(one, "receive").len()), (3, 2 * rounds + 3));
    let first = &calls(one, "receive")[0];
    let waited = Duration::from_nanos(first.end_ns.unwrap() - first.begin_ns);
    assert!(waited > LATE / 10, "the time that it waited, {waited:?}");
    for track in [zero, one] {
        let probes = calls(track, "probe");
        assert_eq!(probes.len(), 1);
        assert_eq!((probes[0].peer, probes[0].tag, probes[0].bytes), (Some(track.rank), Some(4), Some(2)));
        let failed: Vec<_> = track.operations.iter().filter(|one| one.failed).collect();
        assert_eq!(failed.len(), 1);
        let never = (failed[0].peer, failed[0].tag, failed[0].bytes, failed[0].message);
        assert_eq!(never, (Some(1 - track.rank), Some(5), Some(9), None));
        assert!(track.operations.iter().all(|one| one.end_ns >= Some(one.begin_ns) && one.meeting.is_none()));
        assert!(track.operations.windows(2).all(|pair| pair[0].end_ns <= pair[1].end_ns));
    }
    let messages = trace.messages();
    assert_eq!(messages.len(), 2 * rounds + 2 + 2, "all of them");
    for message in messages {
        let (sent, received) = (trace.operation(message.sent), trace.operation(message.received));
        // No two messages with the same tag have the same length.
        assert_eq!((sent.tag, sent.bytes), (received.tag, received.bytes));
        let is_started = sent.tag == Some(3);
        assert!(is_started || Some(sent.begin_ns) <= received.end_ns, "{sent:?} {received:?}");
        assert_eq!(sent.peer, Some(trace.tracks[message.received.track].rank));
        assert_eq!(received.peer, Some(trace.tracks[message.sent.track].rank));
    }
}

#[test]
fn a_message_that_never_came_is_in_the_trace() {
    let (trace, outcomes) = trace_all("a_message_that_never_came_is_in_the_trace", 2, die_in_a_receive);
    assert!(outcomes[0].is_err());
    let open = mail(&trace, 0).operations.last().unwrap();
    assert_eq!((open.name, open.end_ns, open.peer, open.tag), ("receive", None, Some(1), Some(6)));
}

/// Rank 0 dies while one of its threads waits for a message.
fn die_in_a_receive(group: Group) -> Result<()> {
    let mailbox = Mailbox::new(&group)?;
    if group.rank() == 0 {
        thread::scope(|scope| {
            scope.spawn(|| mailbox.receive(1, 6, &mut [0]));
            let waits = |group: &GroupState| {
                group.ranks[0].waiting.as_ref().is_some_and(|wait| wait.operation == "receive")
            };
            let start = Instant::now();
            while !symmem::inspect::groups_of(&[std::process::id()]).unwrap().iter().any(waits) {
                assert!(start.elapsed() < PATIENCE, "it never waited");
                thread::sleep(Duration::from_millis(5));
            }
            std::process::abort();
        });
    }
    group.barrier().or(Ok(()))
}

/// Sends a message to its own rank when it is told that something is not recorded as it should be.
struct MailingSubscriber(Mailbox);

impl Subscriber for MailingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().contains("recording")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.send(self.0.group().rank(), 8, b"told").unwrap();
    }
}

#[test]
fn a_subscriber_may_use_the_mailbox_that_it_is_told_of() {
    let name = "a_subscriber_may_use_the_mailbox_that_it_is_told_of";
    let (variable, _) = Tracer::listen().unwrap().environment();
    // Where no tracer listens: a warning.
    let outcomes = ProcessSpawner::new(name, 1).env(variable, "nobody").run_all(mail_when_told).unwrap();
    outcomes.into_iter().for_each(|outcome| outcome.unwrap());
}

fn mail_when_told(group: Group) -> Result<()> {
    let mailbox = Mailbox::new(&group)?.within(PATIENCE);
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let told = MailingSubscriber(mailbox.within(PATIENCE));
        let mut sent = with_default(told, || mailbox.send(0, 9, b"first"));
        for (tag, bytes) in [(8, b"told".as_slice()), (9, b"first")] {
            let received = mailbox.receive_vec(None, tag).map(|(_, received)| assert_eq!(received, bytes));
            sent = sent.and(received);
        }
        done.send(sent).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("it waits for itself")
}
