//! A lane: the unit of order of an engine's operations, on the host's side.
//!
//! Kernels of a lane must not overlap. On one stream they do not (one that is launched early waits before it
//! touches anything); across streams an event orders each after the one before, without anybody on the host
//! waiting. Captured work is ordered the same way within its capture, by events of its own: an event that was
//! recorded in a capture means nothing outside, and the other way round. Replays of graphs are ordered by
//! whoever launches them.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::control::{ControlLayout, Launch, MAX_WORLD, SMALL_WORLD};
use super::status::{Watched, user_of};
use crate::cuda::activity::{Activity, PER_THREAD};
use crate::cuda::device::Bound;
use crate::cuda::{Device, Event, Stream, queues};
use crate::operation::Op;
use crate::{Error, Result};

/// Captures of one lane that are told apart at the same time. The oldest is forgotten beyond that.
const CAPTURES: usize = 8;

/// What is kept alive by a graph.
pub(crate) type LaunchKeep = Arc<dyn Any + Send + Sync>;

/// What a captured launch needs alive. Only asked for in a capture.
pub(crate) type Needs<'a> = &'a dyn Fn() -> Vec<LaunchKeep>;

/// Where a lane's last launch was, for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// On the same stream; others may have put work between.
    Same,
    /// On another one, or beside it, or nowhere.
    Other,
    /// In the same capture, if anywhere.
    Captured,
}

/// One lane of this rank.
#[derive(Debug)]
pub(crate) struct Lane {
    index: usize,
    /// Parameters that are the same for every launch; for groups that are small enough, and for all.
    pub(crate) small: Option<Launch<SMALL_WORLD>>,
    pub(crate) large: Launch<MAX_WORLD>,
    activity: Arc<Activity>,
    order: Mutex<LaunchOrder>,
    /// Launches so far, replays not counted.
    launches: AtomicU64,
    /// Whether the last launch has ended a kernel on a stream beside its own.
    is_apart: AtomicBool,
}

/// After what the next launch comes.
#[derive(Debug)]
struct LaunchOrder {
    /// The stream of the last uncaptured launch. Kept alive, so that no new stream has its handle.
    last: Option<Stream>,
    /// The last launch in each capture, newest first.
    captures: Vec<Captured>,
}

#[derive(Debug)]
struct Captured {
    id: u64,
    stream: usize,
    event: Event,
    /// What the graph keeps alive for this lane already, by address.
    kept: Vec<usize>,
}

impl Lane {
    pub(crate) fn new(
        layout: &ControlLayout,
        index: usize,
        rank: usize,
        control: &[u64],
        status: u64,
        mode: u32,
        activity: &Arc<Activity>,
    ) -> Self {
        let small = control.len() <= SMALL_WORLD;
        Self {
            index,
            small: small.then(|| Launch::new(layout, index, rank, control, status, mode)),
            large: Launch::new(layout, index, rank, control, status, mode),
            activity: Arc::clone(activity),
            order: Mutex::new(LaunchOrder { last: None, captures: Vec::with_capacity(CAPTURES) }),
            launches: AtomicU64::new(0),
            is_apart: AtomicBool::new(false),
        }
    }

    /// The lane of control blocks that are all reached through `address` at once.
    pub(crate) fn with_multicast(mut self, address: u64) -> Self {
        self.large.control_multicast = address;
        if let Some(small) = &mut self.small {
            small.control_multicast = address;
        }
        self
    }

    fn order(&self) -> MutexGuard<'_, LaunchOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Called within [`Lane::run`] by what launches on a stream beside that of the call: the next launch must
    /// not begin before that one's event, which kernels ahead of it in its own stream say nothing of.
    pub(crate) fn ends_apart(&self) {
        self.is_apart.store(true, Ordering::Relaxed);
    }

    /// Makes the events that captures will need.
    pub(crate) fn prepare(&self, device: &Device) -> Result<()> {
        let mut order = self.order();
        while order.captures.len() < 2 {
            // No capture has this number while it is a spare: the driver counts from 1.
            let spare =
                Captured { id: 0, stream: 0, event: Event::new(device)?, kept: Vec::with_capacity(4) };
            order.captures.push(spare);
        }
        Ok(())
    }

    /// Runs `launch`, which puts the kernel of `op` on `stream`, after the kernel before, and is told where
    /// that one is.
    #[inline]
    pub(crate) fn run(
        &self,
        stream: &Stream,
        op: Op,
        watched: &Watched,
        needs: Needs<'_>,
        launch: impl FnOnce(&Bound<'_>, Behind) -> Result<()>,
    ) -> Result<()> {
        // Once for all calls below.
        let bound = stream.device().bind()?;
        let launch = |behind| launch(&bound, behind);
        let mut order = self.order();
        match stream.capture_id_in(&bound)? {
            None => self.run_now(&mut order, (stream, &bound), watched, launch)?,
            Some(id) => order.run_captured(id, stream, needs, launch)?,
        }
        let launches = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        watched.launched(self.index, op, launches);
        Ok(())
    }

    #[inline]
    fn run_now(
        &self,
        order: &mut LaunchOrder,
        (stream, bound): (&Stream, &Bound<'_>),
        watched: &Watched,
        launch: impl FnOnce(Behind) -> Result<()>,
    ) -> Result<()> {
        let handle = stream.raw() as usize;
        let event = self.activity.lane(self.index);
        let is_same = order.last.as_ref().is_some_and(|last| last.is(stream));
        if !is_same || handle == PER_THREAD {
            check_owner(watched, handle)?;
            // Peers may wait for this launch already.
            queues::admit(stream).inspect_err(|error| watched.give_up(error))?;
            // Recorded right after that kernel, so later work of its stream is not waited for.
            if order.last.is_some() {
                stream.wait(event)?;
            }
        }
        // Written under the same lock.
        let was_apart = self.is_apart.load(Ordering::Relaxed);
        if was_apart {
            self.is_apart.store(false, Ordering::Relaxed);
        }
        let launched = launch(match is_same && handle != PER_THREAD && !was_apart {
            true => Behind::Same,
            false => Behind::Other,
        });
        if !is_same {
            order.last = Some(stream.clone());
            watched.streams[self.index].store(handle, Ordering::Relaxed);
        }
        // What failed may have given the stream a part of its work.
        launched.and(event.record_in(bound, stream))
    }
}

impl LaunchOrder {
    fn run_captured(
        &mut self,
        id: u64,
        stream: &Stream,
        needs: Needs<'_>,
        launch: impl FnOnce(Behind) -> Result<()>,
    ) -> Result<()> {
        let handle = stream.raw() as usize;
        self.enter(id, handle, stream.device())?;
        let captured = &mut self.captures[0];
        for what in needs() {
            let address = Arc::as_ptr(&what).cast::<()>() as usize;
            if !captured.kept.contains(&address) {
                stream.keep_in_capture(what)?;
                captured.kept.push(address);
            }
        }
        if captured.stream != handle {
            stream.wait(&captured.event)?;
            captured.stream = handle;
        }
        launch(Behind::Captured)?;
        captured.event.record(stream)
    }

    /// Finds or makes the place of capture `id`, and puts it first.
    fn enter(&mut self, id: u64, stream: usize, device: &Device) -> Result<()> {
        let known = self.captures.iter().position(|captured| captured.id == id);
        let spare = || self.captures.iter().position(|captured| captured.id == 0);
        let at = match known.or_else(spare) {
            Some(at) => at,
            None if self.captures.len() < CAPTURES => {
                self.captures.push(Captured { id: 0, stream, event: Event::new(device)?, kept: Vec::new() });
                self.captures.len() - 1
            }
            None => self.captures.len() - 1,
        };
        let captured = &mut self.captures[at];
        if captured.id != id {
            (captured.id, captured.stream) = (id, stream);
            captured.kept.clear();
        }
        self.captures[..=at].rotate_right(1);
        Ok(())
    }
}

/// An error if another rank of this process uses the stream: its kernel and this one would wait for each
/// other, one behind the other.
fn check_owner(watched: &Watched, stream: usize) -> Result<()> {
    if !watched.shares_device || stream == PER_THREAD {
        return Ok(());
    }
    match user_of(watched, stream) {
        None => Ok(()),
        Some(rank) => Err(Error::invalid(
            "stream",
            format!(
                "rank {rank} of this process uses it on the same device. Hint: each rank needs a stream of its own"
            ),
        )),
    }
}
