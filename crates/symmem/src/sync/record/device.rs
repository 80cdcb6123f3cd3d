//! Records that kernels write, of operations on a device: `kernels/record.cuh` has the other half; change
//! both.
//!
//! A ring of the same size as the host's, of one lane. Operations that take a turn have their place by epoch,
//! and behind those are steps, which have no epoch. The words of a record arrive in any order, so each says
//! in its low bits of which round of the ring it is; a record is there when all of them say the same. Nobody
//! says how far the device has come: the reader looks at all places.
//!
//! Kernels know the signature of what they do, and no more, so that launches that nobody records carry no
//! more words than they need; the host says in a table what a signature stands for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{CAPACITY, Detail, RecordHead, RecordRing, RecordWord, Recorded, RecordedRank, Recorder};
use crate::Result;
use crate::operation::Op;
use crate::sys::clock::boottime_ns;
use crate::sys::memfd::{Mapping, Segment};

/// Operations that take a turn, of which a ring has room; and as many steps.
const RECORDS: usize = 1 << 16;
/// Begin, end, what, and one that is free.
type RecordSlot = [AtomicU64; 4];
const _: () = assert!(2 * RECORDS * size_of::<RecordSlot>() == CAPACITY * size_of::<super::Record>());

/// Rounds of the ring that words tell apart: from 1 on, as 0 is for none.
const ROUNDS: u16 = 1 << 15;

/// How often all places are looked at: the quickest kernels take twice as long for a round.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// Bits of a time: 39 hours of nanoseconds.
const TIME: u32 = 47;
/// How far ahead of the host the device's clock may be, after however long a job.
const AHEAD_NS: u64 = 60_000_000_000;

/// Launches of which a ring knows more than the name, and how many places a signature may have among them: a
/// full table costs a launch no more than that.
const KNOWN: usize = 1024;
const PLACES: usize = 16;

/// What the host says of launches, by signature. Filled and never emptied.
#[repr(C)]
#[derive(Debug)]
pub(super) struct KnownLaunches([KnownLaunch; KNOWN]);

/// Signature plus one (0: free), [`RecordedLaunch`] plus one (0: not there yet), and bytes.
#[repr(C)]
#[derive(Debug)]
struct KnownLaunch([AtomicU64; 3]);

impl KnownLaunches {
    /// Where `signature` is, or may be put.
    fn places(&self, signature: u32) -> impl Iterator<Item = &KnownLaunch> {
        let first = signature as usize % KNOWN;
        self.0[first..].iter().chain(&self.0[..first]).take(PLACES)
    }

    /// A launch with this signature is `launched`, of `bytes` bytes. Nothing happens if that is known, or its
    /// places are taken.
    fn add(&self, signature: u32, launched: impl FnOnce() -> (RecordedLaunch, u64)) {
        let key = u64::from(signature) + 1;
        for KnownLaunch([at, what, bytes]) in self.places(signature) {
            // Only a free place is written: the others are read by all launches.
            let taken = match at.load(Ordering::Relaxed) {
                0 => at.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed),
                known => Err(known),
            };
            match taken {
                Ok(_) => {
                    let (launched, size) = launched();
                    bytes.store(size, Ordering::Relaxed);
                    // Who sees this sees the bytes.
                    what.store(launched.encode() + 1, Ordering::Release);
                    return;
                }
                Err(found) if found == key => return,
                Err(_) => {}
            }
        }
    }

    fn find(&self, signature: u32) -> Option<(RecordedLaunch, u64)> {
        let key = u64::from(signature) + 1;
        let keys = self.places(signature).map(|entry| (entry, entry.0[0].load(Ordering::Relaxed)));
        let (KnownLaunch([_, what, bytes]), _) =
            keys.take_while(|(_, found)| *found != 0).find(|(_, found)| *found == key)?;
        let launched = RecordedLaunch::decode(what.load(Ordering::Acquire).checked_sub(1)?)?;
        Some((launched, bytes.load(Ordering::Relaxed)))
    }
}

/// What a launch is recorded as. Numbers are those of the types named, plus one; 0 where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedLaunch {
    pub(crate) op: Op,
    pub(crate) dtype: u8,
    pub(crate) reduce: u8,
    /// Of the engine that made the launch.
    pub(crate) algorithm: u8,
    pub(crate) channel: Option<usize>,
}

impl RecordedLaunch {
    /// Of a launch of which only the name is known.
    fn named(op: Op) -> Self {
        Self { op, dtype: 0, reduce: 0, algorithm: 0, channel: None }
    }

    /// In 48 bits.
    fn encode(self) -> u64 {
        let channel =
            self.channel.map_or(0, |channel| u16::try_from(channel).unwrap_or(u16::MAX).saturating_add(1));
        let [low, high] = channel.to_le_bytes();
        u64::from_le_bytes([self.op as u8, self.dtype, self.reduce, self.algorithm, low, high, 0, 0])
    }

    fn decode(word: u64) -> Option<Self> {
        let [op, dtype, reduce, algorithm, low, high, ..] = word.to_le_bytes();
        let channel = usize::from(u16::from_le_bytes([low, high])).checked_sub(1);
        Some(Self { op: Op::from_u8(op)?, dtype, reduce, algorithm, channel })
    }
}

/// The ring of a lane, as its host has it.
#[derive(Debug)]
pub(crate) struct DeviceRing(RecordRing<Segment>);

impl DeviceRing {
    /// Where kernels find the records, from the start of the file.
    pub(crate) const RECORDS: usize = size_of::<RecordHead>();
    /// Where they leave the time when they are asked for it.
    pub(crate) const CLOCK: usize = std::mem::offset_of!(RecordHead, clock);

    /// A ring of `owner`'s.
    pub(crate) fn new(owner: &RecordedRank) -> Result<Self> {
        Recorder::new(owner).map(|recorder| Self(recorder.ring))
    }

    /// The memory file.
    pub(crate) fn segment(&self) -> &Segment {
        &self.0.0
    }

    /// A launch with this signature, which is about to be made, is `launched`, and of so many bytes.
    pub(crate) fn know(&self, signature: u32, launched: impl FnOnce() -> (RecordedLaunch, u64)) {
        self.0.head().known.add(signature, launched);
    }

    /// What the device last said that its clock shows; 0 if it has not.
    pub(crate) fn clock(&self) -> u64 {
        self.0.head().clock.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_clock(&self) {
        self.0.head().clock.store(0, Ordering::Relaxed);
    }

    /// The device's clock showed `device_ns` when that of all processes showed `boot_ns`. Before this nothing
    /// is read.
    pub(crate) fn set_clock(&self, device_ns: u64, boot_ns: u64) {
        let head = self.0.head();
        head.boot_ns.store(boot_ns, Ordering::Relaxed);
        head.device_ns.store(device_ns, Ordering::Release);
    }

    /// Whether somebody reads it.
    pub(crate) fn is_read(&self) -> bool {
        self.0.is_read()
    }
}

impl AsRef<Mapping> for DeviceRing {
    fn as_ref(&self) -> &Mapping {
        self.segment().mapping()
    }
}

/// What a reader has seen of a ring.
#[derive(Debug)]
pub(super) struct SeenRing {
    /// Of every place, the round that was last taken; 0: none.
    rounds: Vec<u16>,
    pub(super) looked: Option<Instant>,
}

impl SeenRing {
    pub(super) fn nothing() -> Self {
        Self { rounds: vec![0; 2 * RECORDS], looked: None }
    }

    /// What `ring` holds is taken for seen.
    pub(super) fn skip<M: AsRef<Mapping>>(&mut self, ring: &RecordRing<M>) {
        self.rounds.iter_mut().enumerate().for_each(|(at, round)| *round = ring.words(at)[0] as u16);
    }
}

impl<M: AsRef<Mapping>> RecordRing<M> {
    fn slot(&self, at: usize) -> &RecordSlot {
        self.words_at(at)
    }

    /// Takes what is whole and new, in the order in which it began; how many were written over before that.
    pub(super) fn take_from_device(&self, seen: &mut SeenRing, records: &mut Vec<Recorded>) -> u64 {
        if seen.looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) || !self.has_clock() {
            return 0;
        }
        seen.looked = Some(Instant::now());
        let (first, now, mut lost) = (records.len(), boottime_ns(), 0);
        for at in 0..2 * RECORDS {
            let words = self.words(at);
            let round = words[0] as u16;
            let before = seen.rounds[at];
            let [_, end, what] = words.map(|word| word as u16);
            if round == 0 || round == before || end != round || what != round {
                continue;
            }
            if before != 0 {
                lost += u64::from((round.wrapping_sub(before) % ROUNDS).saturating_sub(1));
            }
            seen.rounds[at] = round;
            records.extend(self.recorded(at, words, true, now));
        }
        records[first..].sort_by_key(|record| record.begin);
        lost
    }

    /// Operations that began and have not ended: kernels that wait, or did when their device was lost.
    pub(super) fn open_on_device(&self) -> Vec<Recorded> {
        let now = boottime_ns();
        let open = |at: usize| {
            let words = self.words(at);
            let round = words[0] as u16;
            let has_begun = round != 0 && words[2] as u16 == round;
            let has_ended = words[1] as u16 == round;
            if has_begun && !has_ended { self.recorded(at, words, false, now) } else { None }
        };
        if self.has_clock() { (0..2 * RECORDS).filter_map(open).collect() } else { Vec::new() }
    }

    fn has_clock(&self) -> bool {
        self.head().device_ns.load(Ordering::Acquire) != 0
    }

    /// Begin, end and what, each with its round below.
    fn words(&self, at: usize) -> [u64; 3] {
        let slot = self.slot(at);
        std::array::from_fn(|word| slot[word].load(Ordering::Relaxed))
    }

    fn recorded(
        &self,
        at: usize,
        [begin, end, what]: [u64; 3],
        has_ended: bool,
        now: u64,
    ) -> Option<Recorded> {
        let (op, signature) = (Op::from_u8((what >> 16) as u8)?, (what >> 24) as u32);
        let known = self.head().known.find(signature).filter(|(launched, _)| launched.op == op);
        let (launched, bytes) = known.unwrap_or((RecordedLaunch::named(op), 0));
        let round = u64::from(begin as u16) - 1;
        let number = round * RECORDS as u64 + (at % RECORDS) as u64;
        let failed = has_ended && end >> 16 & 1 != 0;
        Some(Recorded {
            what: RecordWord { op: launched.op, failed, channel: launched.channel },
            begin: self.boot_ns(begin >> 16, now),
            end: has_ended.then(|| self.boot_ns(end >> 17, now)),
            epoch: if at < RECORDS { number } else { 0 },
            detail: Detail::Launched(launched, bytes),
        })
    }

    /// A time of the device, of which these are the low bits, as all processes count it: the last one before
    /// `now`, or hardly after it. So it may be as old as those bits can tell, however long ago the clocks
    /// were compared.
    fn boot_ns(&self, time: u64, now: u64) -> u64 {
        let head = self.head();
        let (device, boot) = (head.device_ns.load(Ordering::Relaxed), head.boot_ns.load(Ordering::Relaxed));
        let latest = now.saturating_add(AHEAD_NS);
        let on_device = device.wrapping_add(latest.wrapping_sub(boot));
        let age = on_device.wrapping_sub(time) & ((1 << TIME) - 1);
        latest.saturating_sub(age)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{mapped, owner};
    use super::super::{OnDevice, Reader, RecordedPart};
    use super::*;

    const DEVICE_NS: u64 = (5 << TIME) - 1000;

    fn pair() -> (DeviceRing, Reader) {
        let part = RecordedPart::Device(OnDevice { device: 3, engine: 2, lane: 1 });
        let ring = DeviceRing::new(&RecordedRank { part, ..owner() }).unwrap();
        let reader = mapped(ring.segment());
        assert_eq!(reader.owner.part, part);
        (ring, reader)
    }

    fn launched() -> RecordedLaunch {
        RecordedLaunch { op: Op::AllReduce, dtype: 3, reduce: 1, algorithm: 2, channel: None }
    }

    fn tagged(value: u64, number: usize) -> u64 {
        value << 16 | (((number / RECORDS) & 0x7fff) + 1) as u64
    }

    const SIGNATURE: u32 = 0xffff_ff10;

    /// As a kernel does it; without an end if there is none.
    fn write(ring: &DeviceRing, at: usize, number: usize, begin: u64, end: Option<u64>) {
        let slot = ring.0.slot(at);
        slot[0].store(tagged(begin, number), Ordering::Relaxed);
        let what = u64::from(SIGNATURE) << 8 | launched().op as u64;
        slot[2].store(tagged(what, number), Ordering::Relaxed);
        if let Some(end) = end {
            slot[1].store(tagged(end << 1, number), Ordering::Relaxed);
        }
    }

    fn take(reader: &mut Reader) -> (Vec<Recorded>, u64) {
        reader.hurry();
        let mut records = Vec::new();
        let lost = reader.take(&mut records);
        (records, lost)
    }

    #[test]
    fn launches_are_read_once_with_the_time_of_the_host() {
        let (ring, mut reader) = pair();
        ring.know(SIGNATURE, || (launched(), 4096));
        write(&ring, 7, 7, DEVICE_NS + 500, Some(DEVICE_NS + 900));
        assert_eq!(take(&mut reader), (vec![], 0), "there is no clock yet");
        let boot = boottime_ns();
        ring.set_clock(DEVICE_NS, boot);
        // Times wrap between this record and the one before.
        write(&ring, 8, 8, DEVICE_NS + 2000, Some(DEVICE_NS + 3000));
        write(&ring, 9, 9, DEVICE_NS + 4000, None);
        write(&ring, RECORDS, 0, DEVICE_NS - 100, Some(DEVICE_NS));
        let (records, lost) = take(&mut reader);
        let times: Vec<_> = records.iter().map(|one| (one.epoch, one.begin, one.end)).collect();
        assert_eq!(
            times,
            [
                (0, boot - 100, Some(boot)),
                (7, boot + 500, Some(boot + 900)),
                (8, boot + 2000, Some(boot + 3000))
            ]
        );
        assert_eq!((records[1].detail, lost), (Detail::Launched(launched(), 4096), 0));
        let [open] = reader.open()[..] else { panic!("one operation runs") };
        assert_eq!((open.epoch, open.begin, open.end), (9, boot + 4000, None));
        assert_eq!(take(&mut reader), (vec![], 0));
    }

    #[test]
    fn times_are_right_however_long_ago_the_clocks_were_compared() {
        let (ring, _reader) = pair();
        const HOUR: u64 = 3_600_000_000_000;
        let compared = 50 * HOUR;
        ring.set_clock(DEVICE_NS, compared);
        for hours in [0, 1, 19, 20, 38, 39, 40, 100, 10_000] {
            let now = compared + hours * HOUR;
            // Just written, written while nobody read for long, and by a clock that is a little ahead.
            for age in [0, 1, 1_000_000_000, HOUR as i64, 38 * HOUR as i64, -1_000_000_000] {
                let time = now.strict_add_signed(-age);
                let since = time as i64 - compared as i64;
                let on_device = DEVICE_NS.wrapping_add_signed(since) & ((1 << TIME) - 1);
                assert_eq!(ring.0.boot_ns(on_device, now), time, "after {hours} hours, {age} ns old");
            }
        }
    }

    #[test]
    fn what_was_there_before_is_left_out_if_asked_for() {
        let (ring, mut reader) = pair();
        ring.set_clock(DEVICE_NS, 1_000_000);
        write(&ring, 7, 7, DEVICE_NS, Some(DEVICE_NS));
        reader.skip();
        write(&ring, 8, 8, DEVICE_NS, Some(DEVICE_NS));
        write(&ring, 7, 7 + RECORDS, DEVICE_NS, Some(DEVICE_NS));
        let (records, lost) = take(&mut reader);
        assert_eq!((records.len(), lost), (2, 0));
    }

    #[test]
    fn rounds_are_counted_on_when_their_number_wraps() {
        let (ring, mut reader) = pair();
        ring.set_clock(DEVICE_NS, 1_000_000);
        let number = |round: usize| 5 + round * RECORDS;
        for round in [ROUNDS as usize - 1, ROUNDS as usize, ROUNDS as usize + 2] {
            write(&ring, 5, number(round), DEVICE_NS, Some(DEVICE_NS));
            let (records, lost) = take(&mut reader);
            assert_eq!((records.len(), lost), (1, u64::from(round > ROUNDS as usize)), "round {round}");
        }
    }

    #[test]
    fn a_table_of_launches_that_is_full_knows_their_names_only() {
        let (ring, _reader) = pair();
        (0..2 * KNOWN as u32).for_each(|signature| ring.know(signature, || (launched(), 8)));
        let known = &ring.0.head().known;
        assert!((0..KNOWN as u32).all(|signature| known.find(signature) == Some((launched(), 8))));
        assert!((KNOWN as u32..2 * KNOWN as u32).all(|signature| known.find(signature).is_none()));
        let far = RecordedLaunch { channel: Some(1 << 16), ..launched() };
        assert_eq!(RecordedLaunch::decode(far.encode()).unwrap().channel, Some(usize::from(u16::MAX) - 1));
    }

    #[test]
    fn a_round_that_nobody_saw_is_lost_and_half_a_record_is_none() {
        let (ring, mut reader) = pair();
        ring.set_clock(DEVICE_NS, 1_000_000);
        let number = |round: usize| 5 + round * RECORDS;
        write(&ring, 5, number(0), DEVICE_NS, Some(DEVICE_NS));
        assert_eq!(take(&mut reader).0.len(), 1);
        write(&ring, 5, number(2), DEVICE_NS, Some(DEVICE_NS));
        let (records, lost) = take(&mut reader);
        assert_eq!((records[0].epoch, lost), (number(2) as u64, 1));
        ring.0.slot(5)[0].store(tagged(DEVICE_NS, number(3)), Ordering::Relaxed);
        assert_eq!((take(&mut reader), reader.open()), ((vec![], 0), vec![]));
    }

    #[test]
    fn a_full_table_knows_names_only() {
        let (ring, mut reader) = pair();
        ring.set_clock(DEVICE_NS, 1_000_000);
        for signature in 0..KNOWN as u32 {
            ring.know(signature, || (RecordedLaunch { channel: Some(signature as usize), ..launched() }, 1));
            ring.know(signature, || panic!("it is known"));
        }
        ring.know(SIGNATURE, || (launched(), 4096));
        let known = &ring.0.head().known;
        let found = (0..KNOWN as u32).map(|signature| known.find(signature).unwrap().0.channel.unwrap());
        assert!(found.eq(0..KNOWN));
        write(&ring, 7, 7, DEVICE_NS, Some(DEVICE_NS));
        assert_eq!(take(&mut reader).0[0].detail, Detail::Launched(RecordedLaunch::named(Op::AllReduce), 0));
    }

    #[test]
    fn what_a_launch_is_fits_its_word() {
        for channel in [None, Some(0), Some(65_000)] {
            let launched = RecordedLaunch { channel, ..launched() };
            assert!(launched.encode() < 1 << 48);
            assert_eq!(RecordedLaunch::decode(launched.encode()), Some(launched));
        }
    }
}
