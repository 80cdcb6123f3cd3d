//! The control block of a rank on its device, and the parameters of a launch: what `kernels/control.cuh`
//! says, in Rust.
//!
//! A control block is symmetric memory of the engine's own: peers write flags and packets into it, or look
//! for packets there. It is made once per (group, device) and never given to another group.

use bytemuck::{Pod, Zeroable};

use crate::operation::Op;

/// Ranks of a group on devices, at most: what a launch has room for.
pub(crate) const MAX_WORLD: usize = 72;
/// Ranks for which the smaller parameters are used.
pub(crate) const SMALL_WORLD: usize = 8;
/// Blocks of a launch, at most.
pub(crate) const MAX_BLOCKS: usize = 128;
/// Threads of a block, at most.
pub(crate) const MAX_THREADS: u32 = 512;
/// Meetings of one operation, at most.
const PHASES: usize = 2;
/// The first word of every control block.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"symmem\x01G");
/// The epoch of the first launch. 0 and 1 are skipped when epochs wrap, so no flag is ever mistaken for fresh
/// memory.
pub(crate) const FIRST_EPOCH: u32 = 2;

/// Bytes that one source may stage in one parity, where memory allows it.
const LARGEST_SLOT: usize = 512 << 10;
/// Bytes of a lane's staging, at most: slots shrink as the group grows.
const LARGEST_STAGING: usize = 16 << 20;
/// Bytes of a lane's scratch: the slice of the largest message that is reduced into other memory by two
/// shots.
pub(crate) const SCRATCH: usize = 16 << 20;

const PAGE: usize = 4096;
const LANE_HEAD: usize = 128;
/// Where in a lane the flags are: behind what peers tell when they arrive.
const FLAGS: usize = LANE_HEAD + 8 * MAX_WORLD + 64;

/// The words at byte 0 of a control block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct ControlHeader {
    pub(crate) magic: u64,
    pub(crate) verdict: u64,
    pub(crate) poison: u64,
    /// Nanoseconds that a kernel may wait; 0: for ever.
    pub(crate) deadline: u64,
    pub(crate) trap: u64,
    lanes: u64,
    first_lane: u64,
    lane_bytes: u64,
    unused: [u64; 8],
}

impl ControlHeader {
    pub(crate) fn new(layout: &ControlLayout, deadline: u64, trap: bool) -> Self {
        Self {
            magic: MAGIC,
            deadline,
            trap: trap.into(),
            lanes: layout.lanes as u64,
            first_lane: layout.lane(0) as u64,
            lane_bytes: layout.lane_bytes as u64,
            ..Self::zeroed()
        }
    }

    /// Where [`ControlHeader::deadline`] is, for the host to change it.
    pub(crate) const DEADLINE: usize = 24;
    /// Where [`ControlHeader::poison`] is, for kernels.
    const POISON: usize = 16;
}

/// The words at the head of a lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct LaneHead {
    entry: u64,
    exited: u32,
    steps: u32,
    told: u64,
    records: u64,
    unused_too: [u64; 12],
}

impl LaneHead {
    /// A lane whose first launch has `epoch`.
    pub(crate) fn starting_at(epoch: u32) -> Self {
        Self { entry: u64::from(epoch) << 32, ..Self::zeroed() }
    }
}

/// The words in host memory that kernels write when they fail, and look at while they wait.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct StatusWords {
    /// [`Word`], or 0.
    pub(crate) verdict: u64,
    /// For a mismatch: mine << 32 | theirs.
    pub(crate) signatures: u64,
    pub(crate) my_bytes: u64,
    pub(crate) their_bytes: u64,
    /// Written by the host: a [`Word`] that waiting kernels take over.
    pub(crate) abort: u64,
    unused: [u64; 11],
}

/// Why a group failed on the device. The low byte of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DeviceCause {
    TimedOut = 1,
    Mismatch = 2,
    Aborted = 3,
    Overlap = 4,
}

impl DeviceCause {
    /// What a kernel saw.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::TimedOut => "did not show up in time",
            Self::Mismatch => "was in another operation",
            Self::Aborted => "aborted",
            Self::Overlap => "ran two operations of one lane at once",
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::TimedOut, Self::Mismatch, Self::Aborted, Self::Overlap]
            .into_iter()
            .find(|cause| *cause as u8 == byte)
    }
}

/// A verdict as kernels write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) cause: DeviceCause,
    pub(crate) culprit: u8,
    pub(crate) reporter: u8,
    /// The number of the operation.
    pub(crate) op: u8,
    pub(crate) epoch: u32,
}

impl Word {
    pub(crate) fn encode(self) -> u64 {
        let Self { cause, culprit, reporter, op, epoch } = self;
        let bytes = [cause as u8, culprit, reporter, op];
        u64::from(u32::from_le_bytes(bytes)) | u64::from(epoch) << 32
    }

    /// `None` for 0, and for what no kernel writes.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let [cause, culprit, reporter, op, ..] = word.to_le_bytes();
        Some(Self {
            cause: DeviceCause::from_byte(cause)?,
            culprit,
            reporter,
            op,
            epoch: (word >> 32) as u32,
        })
    }
}

/// The name of the operation that the signature of a launch is of.
pub(crate) fn op_of(signature: u32) -> &'static str {
    Op::from_u8(signature as u8).map_or("an unknown operation", Op::name)
}

/// Where everything is in a control block of a group of `world` ranks. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlLayout {
    pub(crate) world: usize,
    pub(crate) lanes: usize,
    /// Payload bytes that one source may stage in one parity.
    pub(crate) slot: usize,
    lane_bytes: usize,
    staging: usize,
}

impl ControlLayout {
    pub(crate) fn new(world: usize, lanes: usize) -> Self {
        // Packets take twice the bytes, in two parities, from each source.
        let slot = (LARGEST_STAGING / (4 * world)).min(LARGEST_SLOT) / PAGE * PAGE;
        let flags = 2 * PHASES * MAX_BLOCKS * world * 8;
        let terms = 2 * world * 8;
        let staging = (FLAGS + flags + terms).next_multiple_of(PAGE);
        let lane_bytes = staging + 4 * world * slot + SCRATCH;
        Self { world, lanes, slot, lane_bytes, staging }
    }

    /// Bytes of a control block.
    pub(crate) fn bytes(&self) -> usize {
        PAGE + self.lanes * self.lane_bytes
    }

    /// The first byte of a lane.
    pub(crate) fn lane(&self, lane: usize) -> usize {
        PAGE + lane * self.lane_bytes
    }

    /// From the head of a lane, as everything below.
    fn terms(&self) -> usize {
        FLAGS + 2 * PHASES * MAX_BLOCKS * self.world * 8
    }

    pub(crate) fn scratch(&self) -> usize {
        self.staging + 4 * self.world * self.slot
    }
}

/// `Mode` of `kernels/control.cuh`: the average instead of the sum.
pub(crate) const AVERAGE: u32 = 1;
/// This rank lets others read, and reads nothing itself.
pub(crate) const IDLE: u32 = 2;
/// All ranks, and their memory, are on one device.
pub(crate) const ONE_DEVICE: u32 = 4;
/// The next kernel of the stream may be launched while this one runs.
pub(crate) const NEXT_EARLY: u32 = 8;
/// What it does is recorded: see `engine/cuda/recorded.rs`.
pub(crate) const RECORDED: u32 = 16;
/// What a launch works on was made by NCCL.
pub(crate) const BY_NCCL: u32 = 32;

/// What every kernel is told, with room for `N` ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<const N: usize> {
    lane: u64,
    poison: u64,
    terms: u64,
    staging: u64,
    scratch: u64,
    parcels: u64,
    /// Elements of a collective; bytes of a copy; the index of a slot in a signal pad; the channel of a
    /// barrier.
    pub(crate) count: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// Where the device finds the host's [`StatusWords`].
    pub(crate) status: u64,
    /// The address that reaches everybody's data, and everybody's control block, at once; 0 where there is
    /// none.
    pub(crate) multicast: u64,
    pub(crate) control_multicast: u64,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) op: u32,
    pub(crate) signature: u32,
    pub(crate) peer: u32,
    /// Of [`AVERAGE`], [`IDLE`], [`ONE_DEVICE`], [`NEXT_EARLY`], [`RECORDED`] and [`BY_NCCL`].
    pub(crate) mode: u32,
    lanes: [u64; N],
    pub(crate) data: [u64; N],
}

impl<const N: usize> Launch<N> {
    /// For `rank` on `lane`, in `mode`; what differs by operation is zero. At most `N` ranks.
    pub(crate) fn new(
        layout: &ControlLayout,
        lane: usize,
        rank: usize,
        control: &[u64],
        status: u64,
        mode: u32,
    ) -> Self {
        let lane = layout.lane(lane) as u64;
        let mut lanes = [0; N];
        for (place, address) in lanes.iter_mut().zip(control) {
            *place = address + lane;
        }
        Self {
            lane,
            poison: control[rank] + ControlHeader::POISON as u64,
            terms: layout.terms() as u64,
            staging: layout.staging as u64,
            scratch: layout.scratch() as u64,
            parcels: 2 * layout.slot as u64,
            count: 0,
            input: 0,
            output: 0,
            status,
            multicast: 0,
            control_multicast: 0,
            rank: rank as u32,
            world: layout.world as u32,
            op: 0,
            signature: 0,
            peer: 0,
            mode,
            lanes,
            data: [0; N],
        }
    }

    pub(crate) fn set_data(&mut self, data: &[u64]) {
        self.data[..data.len()].copy_from_slice(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        assert_eq!(
            (size_of::<ControlHeader>(), size_of::<LaneHead>(), size_of::<StatusWords>()),
            (128, LANE_HEAD, 128)
        );
        assert_eq!(size_of::<Launch<SMALL_WORLD>>(), 12 * 8 + 6 * 4 + 2 * 8 * SMALL_WORLD);
        // `cargo xtask kernels` follows these two through the code of the kernels.
        assert_eq!(std::mem::offset_of!(Launch<SMALL_WORLD>, multicast), 80);
        assert_eq!(std::mem::offset_of!(Launch<SMALL_WORLD>, control_multicast), 88);
        assert_eq!(std::mem::offset_of!(ControlHeader, deadline), ControlHeader::DEADLINE);
        assert_eq!(std::mem::offset_of!(ControlHeader, poison), ControlHeader::POISON);
    }

    #[test]
    fn staging_is_bounded_and_nothing_overlaps() {
        for world in [1, 2, 3, 4, 7, 8, 9, 32, 72] {
            let layout = ControlLayout::new(world, 2);
            assert!(
                4 * world * layout.slot <= LARGEST_STAGING && layout.slot >= 32 << 10,
                "{world}: {layout:?}"
            );
            assert!(layout.terms() + 16 * world <= layout.staging);
            assert_eq!(layout.lane(0) + layout.scratch() + SCRATCH, layout.lane(1));
            assert_eq!(layout.lane(1) + layout.scratch() + SCRATCH, layout.bytes());
            assert!(u32::try_from(layout.lane_bytes).is_ok(), "kernels compute places in a lane in 32 bits");
        }
    }

    #[test]
    fn a_verdict_survives_its_word() {
        let word = Word { cause: DeviceCause::Mismatch, culprit: 71, reporter: 3, op: 9, epoch: 0xffff_fffe };
        assert_eq!(Word::decode(word.encode()), Some(word));
        assert_eq!(Word::decode(0), None);
    }
}
