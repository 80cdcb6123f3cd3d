//! Records of operations: a ring in shared memory, written by one rank and read by `trace`, in another
//! process.
//!
//! A rank makes its ring when it first sees that its group is recorded
//! ([`RECORDED`](super::control::RECORDED)); a ring is a memory file of its own ([`NAME`]), so a reader who
//! has mapped it keeps it beyond the rank's death. Nobody waits: a writer that is faster than the reader
//! writes over the oldest records, and the reader counts what it lost. A writer whose reader has gone stops
//! the recording of the group after a round of the ring. The records of devices are written by kernels: see
//! [`device`]; those of a mailbox by any of its threads: see [`message`].
//!
//! # Memory ordering
//! A record's stamp is its number plus one, stored with Release after the other words; before them it is
//! cleared, and a Release fence keeps them behind that. A reader loads the stamp with Acquire, the words, and
//! the stamp again behind an Acquire fence: if both are the number that it expects, the words are of that
//! record.

#![allow(unsafe_code, reason = "words in shared memory")]

pub(crate) mod device;
pub(crate) mod message;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use self::device::{KnownLaunches, RecordedLaunch, SeenRing};
use self::message::{CALLS, RecordedMessage};
use crate::Result;
use crate::operation::{Op, Signature};
use crate::sync::about::Text;
use crate::sys::clock::{Ticks, boottime_ns};
use crate::sys::memfd::{Mapping, Segment};

/// How the names of rings begin.
pub(crate) const NAME: &str = "symmem-trace:";
const MAGIC: u64 = u64::from_be_bytes(*b"symmemtr");
const VERSION: u32 = 4;
/// Records of a ring: ten milliseconds of the quickest operations, in 4 MiB.
const CAPACITY: usize = 1 << 16;
/// Words of a record: stamp, begin, end, what, epoch, and the signature's two; the last one is free. Of a
/// message: see [`message`].
const WORDS: usize = 8;
/// How long a reader may be silent before its writers stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// The fixed part of a ring.
#[repr(C, align(64))]
struct RecordHead {
    magic: AtomicU64,
    version: AtomicU32,
    /// Whether times are of the processor's counter.
    counter: AtomicU32,
    rank: AtomicU32,
    world: AtomicU32,
    pid: AtomicU32,
    /// The device whose operations these are, plus one; 0 for those of the host.
    device: AtomicU32,
    /// The lane of the device, and the engine that it is of.
    lane: AtomicU32,
    engine: AtomicU32,
    /// The mailbox whose messages these are, plus one; 0 for other operations.
    mailbox: AtomicU64,
    group: Text<252>,
    id: Text<124>,
    open: Open,
    /// Written by the reader: when it last looked, in nanoseconds since boot.
    seen_ns: AtomicU64,
    /// Written by a device: what its clock shows.
    clock: AtomicU64,
    /// What the clock of the device showed, and at the same time that of all processes.
    device_ns: AtomicU64,
    boot_ns: AtomicU64,
    /// What launches on a device are.
    known: KnownLaunches,
    /// Calls of a mailbox that run: records without an end, stamped as they began.
    calls: [Record; CALLS],
}

/// The operation that runs, and how many have ended: the writer's.
#[repr(C, align(64))]
struct Open {
    /// As in a record; 0 for none.
    what: AtomicU64,
    begin: AtomicU64,
    /// The epoch before the operation.
    epoch: AtomicU64,
    written: AtomicU64,
}

type Record = [AtomicU64; WORDS];
/// What a record holds behind its stamp.
type RecordWords = [u64; 6];

/// Writes a record. One thread at a time.
fn fill(record: &Record, stamp: u64, words: RecordWords) {
    record[0].store(0, Ordering::Relaxed);
    // A reader that sees a word of this record sees the cleared stamp of the one before.
    fence(Ordering::Release);
    for (to, from) in record[1..].iter().zip(words) {
        to.store(from, Ordering::Relaxed);
    }
    record[0].store(stamp, Ordering::Release);
}

/// The stamp of a record and what it holds, unless it was written meanwhile.
fn read(record: &Record) -> Option<(u64, RecordWords)> {
    let stamp = record[0].load(Ordering::Acquire);
    let words = std::array::from_fn(|at| record[at + 1].load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    (record[0].load(Ordering::Relaxed) == stamp).then_some((stamp, words))
}

fn bytes() -> usize {
    size_of::<RecordHead>() + CAPACITY * size_of::<Record>()
}

/// A mapped ring.
#[derive(Debug)]
struct RecordRing<M>(M);

impl<M: AsRef<Mapping>> RecordRing<M> {
    fn head(&self) -> &RecordHead {
        // SAFETY: the mapping is page-aligned and at least `bytes()` long (`Recorder::new`, `Reader::of`),
        // and lives as long as `self`; the head consists of atomics only, so any bytes and concurrent writes
        // are valid.
        unsafe { &*self.0.as_ref().ptr().cast::<RecordHead>() }
    }

    /// Whether somebody has looked for records lately.
    fn is_read(&self) -> bool {
        let silent = boottime_ns().saturating_sub(self.head().seen_ns.load(Ordering::Relaxed));
        Duration::from_nanos(silent) < PATIENCE
    }

    #[inline]
    fn record(&self, number: u64) -> &Record {
        self.words_at(number as usize % CAPACITY)
    }

    /// The `at`th place of the records, if each has `N` words.
    #[inline]
    fn words_at<const N: usize>(&self, at: usize) -> &[AtomicU64; N] {
        assert!(at < CAPACITY * WORDS / N);
        // SAFETY: as for `head`; the records follow it, and `at` is a place among them.
        unsafe { &*self.0.as_ref().ptr().add(size_of::<RecordHead>()).cast::<[AtomicU64; N]>().add(at) }
    }
}

/// Whose operations a ring has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedRank {
    pub(crate) group: String,
    pub(crate) id: String,
    pub(crate) rank: usize,
    pub(crate) world: usize,
    pub(crate) pid: u32,
    pub(crate) part: RecordedPart,
}

/// Which of a rank's operations a ring has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedPart {
    /// Those that its threads run on the group.
    Host,
    Device(OnDevice),
    /// Messages of the mailbox with this number, which is the same on all ranks.
    Mailbox(u64),
}

/// A device of a rank, and a lane of one of its engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OnDevice {
    pub(crate) device: usize,
    /// How many engines the group had before: the same on all ranks.
    pub(crate) engine: usize,
    pub(crate) lane: usize,
}

impl RecordedRank {
    /// The name of the memory file.
    fn file(&self) -> String {
        let rank = format!("{NAME}{}:{}", self.group, self.rank);
        match self.part {
            RecordedPart::Host => rank,
            RecordedPart::Device(on) => format!("{rank}:{}:{}:{}", on.device, on.engine, on.lane),
            RecordedPart::Mailbox(number) => format!("{rank}:mail:{number}"),
        }
    }
}

/// What a record says besides when: packed into its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordWord {
    pub(crate) op: Op,
    /// Whether the group had failed when it ended; of a message, whether that ended in an error.
    pub(crate) failed: bool,
    pub(crate) channel: Option<usize>,
}

impl RecordWord {
    #[inline]
    fn encode(self) -> u64 {
        let channel = self.channel.map_or(0, |channel| (channel as u64 & 0xffff_ffff) + 1);
        self.op as u64 | u64::from(self.failed) << 8 | channel << 16
    }

    fn decode(word: u64) -> Option<Self> {
        let channel = (word >> 16).checked_sub(1).map(|channel| channel as usize);
        Some(Self { op: Op::from_u8(word as u8)?, failed: word >> 8 & 1 != 0, channel })
    }
}

/// The writer's end: one per rank of a group. One thread writes at a time, the one that runs the operation. A
/// mailbox has another one, with a lock around it ([`message::MailRecorder`]).
#[derive(Debug)]
pub(crate) struct Recorder {
    ring: RecordRing<Segment>,
    ticks: Ticks,
}

impl AsRef<Mapping> for Segment {
    fn as_ref(&self) -> &Mapping {
        self.mapping()
    }
}

impl Recorder {
    /// A ring of `owner`'s.
    pub(crate) fn new(owner: &RecordedRank) -> Result<Self> {
        let ring = RecordRing(Segment::create(&owner.file(), bytes())?);
        let ticks = Ticks::quickest();
        let head = ring.head();
        head.version.store(VERSION, Ordering::Relaxed);
        head.counter.store(u32::from(ticks == Ticks::Counter), Ordering::Relaxed);
        head.rank.store(owner.rank as u32, Ordering::Relaxed);
        head.world.store(owner.world as u32, Ordering::Relaxed);
        head.pid.store(owner.pid, Ordering::Relaxed);
        match owner.part {
            RecordedPart::Host => {}
            RecordedPart::Device(on) => {
                head.device.store(on.device as u32 + 1, Ordering::Relaxed);
                head.lane.store(on.lane as u32, Ordering::Relaxed);
                head.engine.store(on.engine as u32, Ordering::Relaxed);
            }
            RecordedPart::Mailbox(number) => head.mailbox.store(number + 1, Ordering::Relaxed),
        }
        head.group.set(&owner.group);
        head.id.set(&owner.id);
        head.seen_ns.store(boottime_ns(), Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(Self { ring, ticks })
    }

    /// The memory file, for who started the job in order to trace it.
    pub(crate) fn segment(&self) -> &Segment {
        &self.ring.0
    }

    /// What the clock of the records shows.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.ticks.now()
    }

    /// Whether more is to be recorded: somebody reads it, as far as is known. Asked once in a round.
    fn goes_on(&self) -> bool {
        let written = self.ring.head().open.written.load(Ordering::Relaxed);
        written % CAPACITY as u64 != CAPACITY as u64 - 1 || self.ring.is_read()
    }

    /// `op` begins, after meeting number `epoch`. False if nobody reads any more.
    pub(crate) fn begin(&self, op: Op, channel: Option<usize>, epoch: u64) -> bool {
        if !self.goes_on() {
            return false;
        }
        let open = &self.ring.head().open;
        open.epoch.store(epoch, Ordering::Relaxed);
        open.begin.store(self.now(), Ordering::Relaxed);
        open.what.store(RecordWord { op, failed: false, channel }.encode(), Ordering::Release);
        true
    }

    /// The operation that began last ends at meeting number `epoch`. `announced` gives what this rank said
    /// there.
    pub(crate) fn end(&self, failed: bool, epoch: u64, announced: impl FnOnce() -> Option<Signature>) {
        let open = &self.ring.head().open;
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let met = epoch != word(&open.epoch);
        let signature = if met { announced() } else { None };
        let what = word(&open.what) | u64::from(failed) << 8;
        open.what.store(0, Ordering::Relaxed);
        let (word_of, size) = signature.map_or((0, 0), |signature| (signature.word, signature.size));
        let epoch = if met { epoch } else { 0 };
        self.write_whole([word(&open.begin), self.now(), what, epoch, word_of, size]);
    }

    /// Records an operation that was seen from beginning to end.
    fn write_whole(&self, words: RecordWords) {
        let written = &self.ring.head().open.written;
        let number = written.load(Ordering::Relaxed);
        fill(self.ring.record(number), number + 1, words);
        written.store(number + 1, Ordering::Release);
    }
}

/// An operation, as its rank recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) what: RecordWord,
    /// Ticks of the ring's clock; no end if it runs still.
    pub(crate) begin: u64,
    pub(crate) end: Option<u64>,
    /// The number of the meeting it ended with; 0 if it met nobody.
    pub(crate) epoch: u64,
    pub(crate) detail: Detail,
}

/// What is known of a recorded operation besides its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What its rank announced to the others.
    Announced(Signature),
    /// How it was launched on a device, and the bytes of each rank.
    Launched(RecordedLaunch, u64),
    /// Of a message.
    Message(RecordedMessage),
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: RecordRing<Box<Mapping>>,
    pub(crate) owner: RecordedRank,
    pub(crate) ticks: Ticks,
    next: u64,
    /// For records of a device.
    seen: Option<SeenRing>,
}

impl Reader {
    /// Of a memory file; `None` if that is no ring, or not yet.
    pub(crate) fn of(fd: OwnedFd) -> Option<Self> {
        let ring = RecordRing(Box::new(Mapping::import(fd, bytes()).ok()?));
        let head = ring.head();
        let number = |word: &AtomicU32| word.load(Ordering::Relaxed) as usize;
        let fits =
            head.magic.load(Ordering::Acquire) == MAGIC && head.version.load(Ordering::Relaxed) == VERSION;
        let (engine, lane) = (number(&head.engine), number(&head.lane));
        let on_device = number(&head.device).checked_sub(1).map(|device| OnDevice { device, engine, lane });
        let mailbox = head.mailbox.load(Ordering::Relaxed).checked_sub(1);
        let owner = RecordedRank {
            group: head.group.get(),
            id: head.id.get(),
            rank: number(&head.rank),
            world: number(&head.world),
            pid: head.pid.load(Ordering::Relaxed),
            part: on_device
                .map(RecordedPart::Device)
                .or(mailbox.map(RecordedPart::Mailbox))
                .unwrap_or(RecordedPart::Host),
        };
        let seen = on_device.map(|_| SeenRing::nothing());
        // Times of a device are made those of all processes when they are read.
        let ticks =
            if number(&head.counter) == 0 || on_device.is_some() { Ticks::Boot } else { Ticks::Counter };
        fits.then_some(Self { ring, owner, ticks, next: 0, seen })
    }

    /// Leaves out what has been written, by who was traced before, and lets the writer know that there is a
    /// reader again.
    pub(crate) fn skip(&mut self) {
        let head = self.ring.head();
        head.seen_ns.store(boottime_ns(), Ordering::Relaxed);
        self.next = head.open.written.load(Ordering::Acquire);
        if let Some(seen) = &mut self.seen {
            seen.skip(&self.ring);
        }
    }

    /// Takes what has been written since the last look into `records`; how many were lost because they were
    /// written over.
    pub(crate) fn take(&mut self, records: &mut Vec<Recorded>) -> u64 {
        let head = self.ring.head();
        head.seen_ns.store(boottime_ns(), Ordering::Relaxed);
        if let Some(seen) = &mut self.seen {
            return self.ring.take_from_device(seen, records);
        }
        let written = head.open.written.load(Ordering::Acquire);
        let oldest = written.saturating_sub(CAPACITY as u64);
        let mut lost = oldest.saturating_sub(self.next);
        for number in self.next.max(oldest)..written {
            match self.read(number) {
                Some(Some(record)) => records.push(record),
                // Of an operation that this version does not know.
                Some(None) => {}
                None => lost += 1,
            }
        }
        self.next = written;
        lost
    }

    /// Has the next look be one at everything, however long ago the last one was.
    pub(crate) fn hurry(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.looked = None;
        }
    }

    /// Record `number`, unless it was written over.
    fn read(&self, number: u64) -> Option<Option<Recorded>> {
        let (stamp, words) = read(self.ring.record(number))?;
        (stamp == number + 1).then(|| self.recorded(words))
    }

    /// What a record says; none of an operation that this version does not know.
    fn recorded(&self, words: RecordWords) -> Option<Recorded> {
        if let RecordedPart::Mailbox(_) = self.owner.part {
            return message::recorded(words);
        }
        let [begin, end, what, epoch, word, size] = words;
        let detail = Detail::Announced(Signature { word, size });
        Some(Recorded { what: RecordWord::decode(what)?, begin, end: Some(end), epoch, detail })
    }

    /// What runs now, or did when its rank died: on the host one operation at most, and a call of each thread
    /// that is in one.
    pub(crate) fn open(&self) -> Vec<Recorded> {
        match self.owner.part {
            RecordedPart::Host => {}
            RecordedPart::Device(_) => return self.ring.open_on_device(),
            RecordedPart::Mailbox(_) => return self.ring.open_calls(),
        }
        let open = &self.ring.head().open;
        let Some(what) = RecordWord::decode(open.what.load(Ordering::Acquire)) else { return Vec::new() };
        let begin = open.begin.load(Ordering::Relaxed);
        let detail = Detail::Announced(Signature { word: 0, size: 0 });
        vec![Recorded { what, begin, end: None, epoch: 0, detail }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn owner() -> RecordedRank {
        RecordedRank {
            group: "g".into(),
            id: "abc".into(),
            rank: 1,
            world: 2,
            pid: 77,
            part: RecordedPart::Host,
        }
    }

    /// A reader of `segment`, as another process has it.
    pub(super) fn mapped(segment: &Segment) -> Reader {
        Reader::of(segment.fd().try_clone_to_owned().unwrap()).unwrap()
    }

    fn pair() -> (Recorder, Reader) {
        let recorder = Recorder::new(&owner()).unwrap();
        let reader = mapped(recorder.segment());
        (recorder, reader)
    }

    fn signature() -> Signature {
        Signature { word: 5, size: 64 }
    }

    #[test]
    fn what_is_recorded_is_read_once_and_in_order() {
        let (recorder, mut reader) = pair();
        assert_eq!(reader.owner, owner());
        assert!(recorder.begin(Op::AllReduce, Some(3), 10));
        assert_eq!(reader.open()[0].what, RecordWord { op: Op::AllReduce, failed: false, channel: Some(3) });
        recorder.end(true, 12, || Some(signature()));
        assert!(recorder.begin(Op::PutSignal, None, 12));
        recorder.end(false, 12, || panic!("nothing was announced"));
        let mut records = Vec::new();
        assert_eq!((reader.take(&mut records), reader.open()), (0, vec![]));
        let [first, second] = records[..] else { panic!("{records:?}") };
        assert_eq!(first.what, RecordWord { op: Op::AllReduce, failed: true, channel: Some(3) });
        assert_eq!((first.epoch, first.detail), (12, Detail::Announced(signature())));
        assert_eq!((second.what.op, second.epoch), (Op::PutSignal, 0));
        assert!(first.begin <= first.end.unwrap() && first.end.unwrap() <= second.begin);
        assert_eq!(reader.take(&mut records), 0);
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn a_slow_reader_knows_how_much_it_lost() {
        let (recorder, mut reader) = pair();
        let all = CAPACITY as u64 + 1000;
        for epoch in 1..=all {
            assert!(recorder.begin(Op::Barrier, None, epoch - 1));
            recorder.end(false, epoch, || Some(signature()));
        }
        let mut records = Vec::new();
        assert_eq!(reader.take(&mut records), 1000);
        assert!(records.iter().map(|record| record.epoch).eq(1001..=all));
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_half_a_record() {
        let (recorder, mut reader) = pair();
        let count = 300_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=count {
                    let what = RecordWord { op: Op::Barrier, failed: false, channel: None };
                    recorder.write_whole([number, number, what.encode(), number, number, number]);
                }
            });
            let (mut records, mut lost) = (Vec::new(), 0);
            while (records.len() as u64) + lost < count {
                lost += reader.take(&mut records);
            }
            for record in records {
                let number = record.epoch;
                assert_eq!((record.begin, record.end), (number, Some(number)));
                let signature = Signature { word: number, size: number };
                assert_eq!(record.detail, Detail::Announced(signature));
            }
        });
    }

    #[test]
    fn a_writer_stops_when_nobody_reads() {
        let (recorder, mut reader) = pair();
        let silent = boottime_ns().saturating_sub(2 * PATIENCE.as_nanos() as u64);
        recorder.ring.head().seen_ns.store(silent, Ordering::Relaxed);
        let begun = (0..2 * CAPACITY).take_while(|_| {
            let begins = recorder.begin(Op::Barrier, None, 0);
            if begins {
                recorder.end(false, 0, || None);
            }
            begins
        });
        assert_eq!(begun.count(), CAPACITY - 1);
        reader.take(&mut Vec::new());
        assert!(recorder.begin(Op::Barrier, None, 0), "it goes on when somebody does");
    }

    #[test]
    fn a_second_reader_can_leave_out_what_the_first_one_read() {
        let (recorder, mut reader) = pair();
        let begins = || recorder.begin(Op::Barrier, None, 0);
        for _ in 0..2 * CAPACITY - 1 {
            assert!(begins());
            recorder.end(false, 0, || None);
        }
        let silent = boottime_ns().saturating_sub(2 * PATIENCE.as_nanos() as u64);
        recorder.ring.head().seen_ns.store(silent, Ordering::Relaxed);
        assert!(!begins(), "nobody has read for long");
        reader.skip();
        assert!(begins(), "there is a reader again");
        recorder.end(false, 7, || Some(signature()));
        let mut records = Vec::new();
        assert_eq!(reader.take(&mut records), 0);
        assert!(records.iter().map(|record| record.epoch).eq([7]), "{} records", records.len());
    }

    #[test]
    fn other_memory_is_no_ring() {
        let segment = Segment::create("x", bytes()).unwrap();
        assert!(Reader::of(segment.fd().try_clone_to_owned().unwrap()).is_none());
        let short = Segment::create("x", 64).unwrap();
        assert!(Reader::of(short.fd().try_clone_to_owned().unwrap()).is_none());
    }
}
