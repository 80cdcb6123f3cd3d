//! The way of an operation to its device: the checks that all share, then one launch.
//!
//! Called by `ops`. Nothing here allocates, waits or logs while all is well; the only lock is the lane's,
//! which nobody contends for unless two threads of a rank use one lane.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use std::ffi::c_void;
use std::sync::Arc;

use super::kernels::Kernel;
use super::launch_terms::LaunchTerms;
use super::ops::NormLaunch;
use super::recorded::Recording;
use super::{Engine, EngineInner};
use crate::cuda::device::Bound;
use crate::cuda::owner::{OwnedAddress, Owner};
use crate::cuda::{Device, Stream, nvtx, queues};
use crate::device::control::{Launch, NEXT_EARLY, RECORDED};
use crate::device::lane::{Behind, Lane, LaunchKeep};
use crate::operation::Op;
use crate::sys::fork;
use crate::{Error, Result};

/// What differs from launch to launch.
#[derive(Clone, Copy)]
pub(crate) struct LaunchArguments<'a> {
    pub(crate) statement: LaunchTerms,
    pub(crate) count: u64,
    /// Private memory, or what else the kernel understands by it.
    pub(crate) input: OwnedAddress<'a>,
    pub(crate) output: OwnedAddress<'a>,
    pub(crate) peer: usize,
    pub(crate) mode: u32,
    /// Everybody's memory, or pads.
    pub(crate) data: &'a [u64],
    /// The address that reaches all of `data` at once, for kernels that need it.
    pub(crate) multicast: u64,
    /// Who owns `data`.
    pub(crate) memory: Option<&'a dyn Owner>,
    /// For kernels that normalise rows.
    pub(crate) norm: Option<&'a NormLaunch<'a>>,
    /// Whether it takes so little of the device that it may be there beside another launch of its lane: of
    /// kernels that take a turn.
    pub(crate) is_small: bool,
}

/// The owners of what an operation works on, besides its engine: symmetric memory, input and output, and what
/// a norm needs.
pub(crate) type Uses<'a> = [Option<&'a dyn Owner>];

/// Whether a launch may be on the device beside others of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    No,
    /// Beside the one behind it.
    Next,
    /// Beside the one ahead of it, too.
    Yes,
}

impl Early {
    fn of(overlaps: bool, behind: Behind) -> Self {
        match behind {
            Behind::Same if overlaps => Self::Yes,
            Behind::Other if overlaps => Self::Next,
            _ => Self::No,
        }
    }
}

/// How a launch is made, besides what it is.
#[derive(Clone, Copy)]
struct Manner {
    /// Whether it may be on the device beside the launches before and after.
    early: Early,
    /// 0, or the mode of launches that record themselves.
    mode: u32,
    /// Blocks, and threads of each.
    shape: (u32, u32),
}

impl Manner {
    /// One after the other, and not recorded.
    fn plain(call: &LaunchArguments<'_>) -> Self {
        let LaunchTerms { grid, threads, .. } = call.statement;
        Self { early: Early::No, mode: 0, shape: (grid, threads) }
    }

    /// Of one thread before or after `call`.
    fn mark(call: &LaunchArguments<'_>) -> Self {
        Self { shape: (1, 1), ..Self::plain(call) }
    }
}

impl<'a> LaunchArguments<'a> {
    fn uses(&self) -> [Option<&'a dyn Owner>; 6] {
        let [a, b, c] = self.norm.map_or([None; 3], |norm| norm.owners);
        [self.memory, self.input.owner, self.output.owner, a, b, c]
    }

    /// A launch that is told nothing but what it is.
    #[inline]
    pub(crate) fn plain(statement: LaunchTerms) -> Self {
        Self {
            statement,
            count: 0,
            input: OwnedAddress::bare(0),
            output: OwnedAddress::bare(0),
            peer: 0,
            mode: 0,
            data: &[],
            multicast: 0,
            memory: None,
            norm: None,
            is_small: false,
        }
    }

    /// Puts `kernel` on `stream`, with a copy of `template` filled in, which is copied again before the call
    /// returns.
    #[inline]
    fn launch<const N: usize>(
        &self,
        template: &Launch<N>,
        kernel: &Kernel,
        (stream, bound): (&Stream, &Bound<'_>),
        manner: Manner,
    ) -> Result<()> {
        let Manner { early, mode, shape } = manner;
        let mut launch = *template;
        launch.count = self.count;
        launch.input = self.input.address;
        launch.output = self.output.address;
        launch.op = self.statement.op as u32;
        launch.signature = self.statement.signature();
        launch.peer = self.peer as u32;
        launch.mode |= self.mode | mode | if early == Early::No { 0 } else { NEXT_EARLY };
        launch.set_data(self.data);
        launch.multicast = self.multicast;
        let norm = self.norm.map_or(std::ptr::null(), |norm| &raw const norm.parameters);
        let mut parameters = [(&raw mut launch).cast::<c_void>(), norm.cast_mut().cast()];
        // SAFETY: the kernel takes one `Launch<N>`, and those that normalise a second parameter, which they
        // have (`ops/norm.rs`); the driver reads no more of the list than the kernel takes, and writes
        // nothing there. Their addresses are those of control blocks, memory that the ranks exchanged, and
        // memory of the caller, and stay mapped until the lane's event has happened (`Activity`), or the
        // graph is gone (`needs`). Kernels of which a launch may be early wait for the one before when they
        // take their turn, before anything else.
        unsafe {
            let is_early = early == Early::Yes;
            kernel.function.launch_in(bound, stream, shape, is_early, &mut parameters)
        }
    }
}

impl Engine {
    /// The checks of every operation: this process is the rank, the group is whole, the stream is the
    /// device's.
    #[inline]
    pub(crate) fn check(&self, op: Op, channel: Option<usize>, stream: &Stream) -> Result<()> {
        if fork::is_child() {
            return Err(Error::Forked { op: op.name() });
        }
        if let Some(verdict) = self.inner.watched.verdict() {
            return Err(self.inner.watched.failure(self.context(op, channel), verdict));
        }
        self.check_device(stream)
    }

    #[inline]
    fn check_device(&self, stream: &Stream) -> Result<()> {
        let device = &self.inner.device;
        if stream.device() != device {
            return Err(wrong_device(device, stream.device()));
        }
        if self.inner.watched.shares_device && stream.is_legacy() {
            return Err(Error::invalid(
                "stream",
                "the legacy default stream would make ranks of this process wait for each other. Hint: give each rank a stream of its own (Stream::new)",
            ));
        }
        Ok(())
    }

    /// Launches `kernel` on this handle's lane.
    #[inline]
    pub(crate) fn launch(&self, stream: &Stream, kernel: &Kernel, call: &LaunchArguments<'_>) -> Result<()> {
        if call.data.contains(&0) {
            return Err(self.out_of_reach(call));
        }
        let lane = self.inner.lane(self.lane);
        let recording = self.recording(&call.statement);
        let needs = || self.needs(&call.uses());
        let overlaps = call.is_small && self.inner.overlaps && recording != Recording::Around;
        let mode = if recording == Recording::Itself { RECORDED } else { 0 };
        let _range = nvtx::range(call.statement.op.name(), self.group().name());
        lane.run(stream, call.statement.op, &self.inner.watched, &needs, |bound, behind| {
            let early = Early::of(overlaps, behind);
            let manner = Manner { early, mode, ..Manner::plain(call) };
            if recording == Recording::Around {
                return self.put_marked(kernel, (stream, bound), call, manner);
            }
            put(lane, kernel, (stream, bound), call, manner)
        })
    }

    /// Gives `stream` a `kernel` that takes a turn, where the caller holds the order of this handle's lane
    /// ([`Engine::in_turn`]): for operations of several launches, also on streams beside that of the caller.
    pub(super) fn put_in_order(
        &self,
        kernel: &Kernel,
        stream: (&Stream, &Bound<'_>),
        call: &LaunchArguments<'_>,
    ) -> Result<()> {
        if call.data.contains(&0) {
            return Err(self.out_of_reach(call));
        }
        let lane = self.inner.lane(self.lane);
        match self.recording(&call.statement) {
            Recording::No => put(lane, kernel, stream, call, Manner::plain(call)),
            Recording::Itself => {
                put(lane, kernel, stream, call, Manner { mode: RECORDED, ..Manner::plain(call) })
            }
            Recording::Around => self.put_marked(kernel, stream, call, Manner::plain(call)),
        }
    }

    /// Puts `kernel` on the lane, whose turn it is, between marks that record it.
    #[cold]
    fn put_marked(
        &self,
        kernel: &Kernel,
        stream: (&Stream, &Bound<'_>),
        call: &LaunchArguments<'_>,
        manner: Manner,
    ) -> Result<()> {
        let lane = self.inner.lane(self.lane);
        let kernels = &self.inner.body.kernels;
        let [before, after] = match call.statement.op {
            // They take no turn.
            Op::PutSignal | Op::WaitSignal => [&kernels.begin_work, &kernels.end_work],
            _ => [&kernels.mark_begin, &kernels.mark_end],
        };
        // A record that is missing is no reason to leave the others waiting.
        let mark = |mark| {
            if let Err(error) = put(lane, mark, stream, call, Manner::mark(call)) {
                tracing::warn!(%error, "an operation of the device is not recorded");
            }
        };
        mark(before);
        let launched = put(lane, kernel, stream, call, manner);
        mark(after);
        launched
    }

    /// The error for a kernel that would need memory out of reach.
    #[cold]
    fn out_of_reach(&self, call: &LaunchArguments<'_>) -> Error {
        let rank = self.group().rank();
        let peer =
            call.data.iter().position(|address| *address == 0).unwrap_or((rank + 1) % self.group().size());
        let problem = format!(
            "{} needs loads and stores between them, and NCCL has no such operation",
            call.statement.op.name()
        );
        Error::NoPeerAccess { rank, peer, problem }
    }

    /// On this handle's lane, whose turn it is: records in the order of `stream` that work of another library
    /// begins or ends, by `kernel`.
    pub(super) fn note(&self, op: Op, kernel: &Kernel, stream: (&Stream, &Bound<'_>)) -> Result<()> {
        let call = LaunchArguments::plain(LaunchTerms::plain(op, None, (0, 0), 1));
        self.put_plain(kernel, stream, &call)
    }

    /// Launches `kernel`, which waits for nobody, beside the lane.
    pub(crate) fn launch_beside(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        call: &LaunchArguments<'_>,
    ) -> Result<()> {
        self.beside(stream, &call.uses(), |bound| self.put_plain(kernel, (stream, bound), call))
    }

    /// Launches `kernel`, which waits for nobody, on this handle's lane.
    pub(crate) fn launch_in_turn(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        call: &LaunchArguments<'_>,
    ) -> Result<()> {
        let uses = call.uses();
        self.in_turn(call.statement.op, stream, &uses, |bound| self.put_plain(kernel, (stream, bound), call))
    }

    /// Launches `kernel`, which waits for nobody and is waited for at once, on the device's own stream for
    /// that.
    pub(super) fn launch_at_once(
        &self,
        stream: &Stream,
        kernel: &Kernel,
        call: &LaunchArguments<'_>,
    ) -> Result<()> {
        let bound = self.inner.device.bind()?;
        self.put_plain(kernel, (stream, &bound), call)?;
        self.inner.body.activity.copied(stream)
    }

    /// Gives `stream` a `kernel` that takes no turn.
    fn put_plain(
        &self,
        kernel: &Kernel,
        stream: (&Stream, &Bound<'_>),
        call: &LaunchArguments<'_>,
    ) -> Result<()> {
        put(self.inner.lane(self.lane), kernel, stream, call, Manner::plain(call))
    }

    /// Runs `give`, which gives `stream` something that waits for nobody; remembers it as work on this
    /// engine's memory.
    pub(crate) fn beside(
        &self,
        stream: &Stream,
        uses: &Uses<'_>,
        give: impl FnOnce(&Bound<'_>) -> Result<()>,
    ) -> Result<()> {
        let bound = self.inner.device.bind()?;
        if stream.capture_id_in(&bound)?.is_none() {
            queues::admit(stream)?;
            give(&bound)?;
            return self.inner.body.activity.copied(stream);
        }
        for what in self.needs(uses) {
            stream.keep_in_capture(what)?;
        }
        give(&bound)
    }

    /// Runs `give`, which gives `stream` something that waits for nobody, on this handle's lane: after what
    /// was given to the lane before, on any stream, and before what comes.
    pub(crate) fn in_turn(
        &self,
        op: Op,
        stream: &Stream,
        uses: &Uses<'_>,
        give: impl FnOnce(&Bound<'_>) -> Result<()>,
    ) -> Result<()> {
        let needs = || self.needs(uses);
        self.inner.lane(self.lane).run(stream, op, &self.inner.watched, &needs, |bound, _| give(bound))
    }

    /// Called within [`Engine::in_turn`] by what launches on a stream beside the caller's: the lane's next
    /// launch is not early.
    pub(crate) fn ends_apart(&self) {
        self.inner.lane(self.lane).ends_apart();
    }

    /// What a captured operation needs alive: this engine, and all memory it works on.
    pub(super) fn needs(&self, uses: &Uses<'_>) -> Vec<LaunchKeep> {
        let engine: LaunchKeep = Arc::<EngineInner>::clone(&self.inner);
        [engine].into_iter().chain(uses.iter().flatten().filter_map(|owner| owner.keep())).collect()
    }
}

impl EngineInner {
    #[inline]
    fn lane(&self, index: usize) -> &Lane {
        &self.body.lanes[index]
    }
}

#[inline]
fn put(
    lane: &Lane,
    kernel: &Kernel,
    stream: (&Stream, &Bound<'_>),
    call: &LaunchArguments<'_>,
    manner: Manner,
) -> Result<()> {
    match &lane.small {
        Some(template) if !kernel.is_large => call.launch(template, kernel, stream, manner),
        // The copy has small parameters in a large group too; it looks at nothing behind what both have in
        // common.
        _ => call.launch(&lane.large, kernel, stream, manner),
    }
}

#[cold]
fn wrong_device(ours: &Device, theirs: &Device) -> Error {
    Error::invalid(
        "stream",
        format!("it is on {theirs}, the engine on {ours}. Hint: make it for the engine's device"),
    )
}
