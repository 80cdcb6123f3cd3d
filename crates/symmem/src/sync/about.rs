//! What a control segment says of its group: for who looks on from outside, see [`inspect`](crate::inspect).
//!
//! Written when the group is made and when a rank leaves it, never by an operation.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::sys::clock;
use crate::sys::life::ProcessId;

/// A text of at most `N` bytes.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Text<const N: usize> {
    len: AtomicU32,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    /// Keeps as much of `text` as there is room for.
    pub(crate) fn set(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.floor_char_boundary(N)];
        for (to, from) in self.bytes.iter().zip(bytes) {
            to.store(*from, Ordering::Relaxed);
        }
        self.len.store(bytes.len() as u32, Ordering::Release);
    }

    pub(crate) fn get(&self) -> String {
        let len = (self.len.load(Ordering::Acquire) as usize).min(N);
        let bytes: Vec<u8> = self.bytes[..len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Which group a segment belongs to. All zero: not written yet.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct About {
    /// When the segment was made, on the clock of all processes.
    made_ns: AtomicU64,
    id: Text<124>,
    name: Text<252>,
}

impl About {
    pub(crate) fn set(&self, name: &str, id: &str) {
        self.made_ns.store(clock::boottime_ns(), Ordering::Relaxed);
        self.name.set(name);
        self.id.set(id);
    }

    pub(crate) fn id(&self) -> String {
        self.id.get()
    }

    pub(crate) fn name(&self) -> String {
        self.name.get()
    }

    pub(crate) fn made_ns(&self) -> u64 {
        self.made_ns.load(Ordering::Relaxed)
    }
}

/// What is known of one member, in everybody's segment. All zero: nothing yet.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct MemberRecord {
    pid: AtomicU32,
    /// One of [`MemberRecord::HERE`] and [`MemberRecord::ELSEWHERE`], once the others are written.
    place: AtomicU32,
    start_time: AtomicU64,
    pid_ns: AtomicU64,
    /// Written by that member: not 0 once it has left.
    left: AtomicU64,
}

/// A member, as a [`MemberRecord`] names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub(crate) process: ProcessId,
    /// Whether it is on the host of who wrote the seat.
    pub(crate) is_here: bool,
}

impl MemberRecord {
    const HERE: u32 = 1;
    const ELSEWHERE: u32 = 2;

    pub(crate) fn set(&self, seated: Seated) {
        self.pid.store(seated.process.pid, Ordering::Relaxed);
        self.start_time.store(seated.process.start_time, Ordering::Relaxed);
        self.pid_ns.store(seated.process.pid_ns, Ordering::Relaxed);
        self.place.store(if seated.is_here { Self::HERE } else { Self::ELSEWHERE }, Ordering::Release);
    }

    pub(crate) fn get(&self) -> Option<Seated> {
        let is_here = match self.place.load(Ordering::Acquire) {
            Self::HERE => true,
            Self::ELSEWHERE => false,
            _ => return None,
        };
        let process = ProcessId {
            pid: self.pid.load(Ordering::Relaxed),
            start_time: self.start_time.load(Ordering::Relaxed),
            pid_ns: self.pid_ns.load(Ordering::Relaxed),
        };
        Some(Seated { process, is_here })
    }

    pub(crate) fn leave(&self) {
        self.left.store(1, Ordering::Release);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }
}
