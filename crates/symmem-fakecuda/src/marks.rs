//! What kernels do that record, or are recorded: the lane's turn goes on, and marks around a launch say when
//! it was.
//!
//! As `kernels/control.cuh`, `kernels/record.cuh` and `kernels/marks.cu` of the library have it; change all
//! of them. Kernels that record themselves are not here: what is launched does nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::state::DriverState;

/// What a launch says of itself.
#[derive(Clone, Copy)]
pub(crate) struct LaunchNote {
    /// The address of its rank's lane.
    pub(crate) lane: u64,
    /// The operation below, its signature above.
    pub(crate) signature: u64,
}

/// Words of a lane: whose turn it is, blocks that left and steps, and where records are.
const ENTRY: u64 = 0;
const STEPS: u64 = 1;
const RECORDS_AT: u64 = 3;
/// Words of a launch: where the group's failure is, input and output.
const POISON: usize = 1;
const INPUT: usize = 7;
const OUTPUT: usize = 8;
/// Records of turns; as many of steps are behind them, all of four words.
const RECORDS: u64 = 1 << 16;
const RECORD: u64 = 4;

/// Kernels that take a turn.
const TURNS: [&[u8]; 4] = [b"all_", b"pull", b"reduce_", b"barrier"];

/// The word `index` behind `address`, if it can be accessed.
fn word(state: &DriverState, address: u64, index: u64) -> Option<&AtomicU64> {
    let at = address + index * 8;
    let is_there = at.is_multiple_of(8) && state.is_accessible(at, 8);
    // SAFETY: mapped and aligned, as checked, for as long as the state is borrowed; any bits are such a
    // number.
    is_there.then(|| unsafe { &*(at as *const AtomicU64) })
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Does what the kernel `name` does of this.
pub(crate) fn run(state: &DriverState, name: &[u8], words: &[u64; 12], said: LaunchNote) {
    // A kernel of somebody else's, or a lane that is gone: nothing is done.
    let _ = step(state, name, words, said);
}

fn step(state: &DriverState, name: &[u8], words: &[u64; 12], said: LaunchNote) -> Option<()> {
    let is = |start: &[u8]| name.starts_with(start);
    let lane = |index: u64| word(state, said.lane, index);
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let next = (load(lane(ENTRY)?) >> 32) as u32;
    let steps = load(lane(STEPS)?) >> 32;
    // Word `index` of a record.
    let write = |place: u64, number: u64, index: u64, value: u64| {
        let records = load(lane(RECORDS_AT)?);
        let at = (place + number % RECORDS) * RECORD + index;
        let round = ((number / RECORDS) & 0x7fff) + 1;
        word(state, records, at)?.store(value << 16 | round, Ordering::Relaxed);
        Some(())
    };
    let begin = |place: u64, number: u64| {
        write(place, number, 0, now())?;
        write(place, number, 2, (said.signature >> 32) << 8 | said.signature & 0xff)
    };
    let is_whole = || Some(load(word(state, words[POISON], 0)?) == 0);
    let end = |place: u64, number: u64, whole: bool| write(place, number, 1, now() << 1 | u64::from(!whole));
    if TURNS.iter().any(|start| is(start)) {
        let after = if next == u32::MAX { 2 } else { next + 1 };
        lane(ENTRY)?.store(u64::from(after) << 32, Ordering::Relaxed);
    } else if is(b"mark_begin") {
        begin(0, u64::from(next))?;
    } else if is(b"mark_end") {
        let epoch = if next == 2 { u32::MAX } else { next.wrapping_sub(1) };
        end(0, u64::from(epoch), is_whole()?)?;
    } else if is(b"begin_work") {
        begin(RECORDS, steps)?;
    } else if is(b"end_work") {
        end(RECORDS, steps, true)?;
        lane(STEPS)?.fetch_add(1 << 32, Ordering::Relaxed);
    } else if is(b"open_records") {
        lane(RECORDS_AT)?.store(words[INPUT], Ordering::Relaxed);
        word(state, words[OUTPUT], 0)?.store(now(), Ordering::Relaxed);
    }
    Some(())
}
