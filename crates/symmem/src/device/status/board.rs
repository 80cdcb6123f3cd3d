//! What an engine's host says of its launches, for who looks on from outside: see
//! [`inspect`](crate::inspect).
//!
//! In the memory file of [`Words`](super::HostStatusWords), behind what kernels know of. Written by the host
//! at each launch: a few plain stores. Read by anybody who may open the file; no device is asked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::device::MAX_LANES;
use crate::operation::{Op, OpKind};
use crate::sync::about::Text;
use crate::sys::clock;

/// First word of every board: "symmemdv" in ASCII.
const MAGIC: u64 = u64::from_be_bytes(*b"symmemdv");
/// Layout version of the board, and of the words before it.
const VERSION: u32 = 1;

/// The board of one engine. All zero: nothing was said yet.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Board {
    magic: AtomicU64,
    version: AtomicU32,
    rank: AtomicU32,
    device: AtomicU32,
    lanes: AtomicU32,
    made_ns: AtomicU64,
    /// Of the group.
    id: Text<124>,
    lines: [LaneLine; MAX_LANES as usize],
}

/// What was launched on one lane.
#[repr(C, align(64))]
#[derive(Debug)]
struct LaneLine {
    launches: AtomicU64,
    /// Those that all ranks make.
    meetings: AtomicU64,
    op: AtomicU64,
    at_ns: AtomicU64,
}

/// What a board says of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneLaunch {
    pub(crate) launches: u64,
    pub(crate) meetings: u64,
    /// The last one and when it was, if there was one.
    pub(crate) last: Option<(Op, u64)>,
}

/// What a board says of its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoardEngine {
    pub(crate) id: String,
    pub(crate) rank: usize,
    pub(crate) device: usize,
    pub(crate) made_ns: u64,
    pub(crate) lanes: Vec<LaneLaunch>,
}

impl Board {
    /// Says whose board it is.
    pub(crate) fn open(&self, id: &str, rank: usize, device: usize, lanes: usize) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.rank.store(rank as u32, Ordering::Relaxed);
        self.device.store(device as u32, Ordering::Relaxed);
        self.lanes.store(lanes as u32, Ordering::Relaxed);
        self.made_ns.store(clock::boottime_ns(), Ordering::Relaxed);
        self.id.set(id);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// `op` was launched on `lane`, as number `launches`. One thread at a time.
    #[inline]
    pub(crate) fn launched(&self, lane: usize, op: Op, launches: u64) {
        let Some(line) = self.lines.get(lane) else { return };
        let meets = u64::from(op.kind() != OpKind::Other);
        line.op.store(op as u64, Ordering::Relaxed);
        line.at_ns.store(clock::boottime_ns(), Ordering::Relaxed);
        line.meetings.store(line.meetings.load(Ordering::Relaxed) + meets, Ordering::Relaxed);
        line.launches.store(launches, Ordering::Release);
    }

    /// What it says; none if it is no board of this version.
    pub(crate) fn read(&self) -> Option<BoardEngine> {
        let fits =
            self.magic.load(Ordering::Acquire) == MAGIC && self.version.load(Ordering::Relaxed) == VERSION;
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed) as usize;
        fits.then(|| BoardEngine {
            id: self.id.get(),
            rank: word(&self.rank),
            device: word(&self.device),
            made_ns: self.made_ns.load(Ordering::Relaxed),
            lanes: self.lines.iter().take(word(&self.lanes)).map(LaneLine::read).collect(),
        })
    }
}

impl LaneLine {
    fn read(&self) -> LaneLaunch {
        let launches = self.launches.load(Ordering::Acquire);
        let op = Op::from_u8(self.op.load(Ordering::Relaxed) as u8);
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        LaneLaunch {
            launches,
            meetings: self.meetings.load(Ordering::Relaxed),
            last: op.filter(|_| launches > 0).map(|op| (op, at_ns)),
        }
    }
}
