//! What has been launched on a device and may not be done: memory waits for it before it goes.
//!
//! Engines and communicators note their work in an [`Activity`]; [`all_idle`] asks those of a whole device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::capture::Relaxed;
use super::{Device, Event, Stream, queues};
use crate::Result;

/// The handle of the per-thread default stream: one number for many streams.
pub(crate) const PER_THREAD: usize = 2;

/// Events that an activity has from the start, for copies: as many as a rank can have streams where it shares
/// its device with another one of its process, unless the environment asks for more queues.
const SPARE: usize = 6;

/// What an engine's work has come to: shared with whoever must know when it is done.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The last uncaptured launch of each lane.
    lanes: Vec<Event>,
    /// The last copy on each stream. The streams are kept, so that no new one has the handle of one that is
    /// waited for.
    copies: Mutex<Vec<(Option<Stream>, Event)>>,
}

/// Of every engine that lives, by the number of its device.
static ACTIVITIES: Mutex<Vec<(usize, Weak<Activity>)>> = Mutex::new(Vec::new());

/// Whether every engine's work on the device with this number is done: for memory that any of them may have
/// been given.
pub(crate) fn all_idle(device: usize) -> bool {
    let all = ACTIVITIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let here = all.iter().filter(|(of, _)| *of == device);
    // Any thread may ask, also while another one captures: its graph must not break, nor this be refused.
    let _relaxed = Relaxed::enter();
    here.filter_map(|(_, activity)| activity.upgrade()).all(|activity| activity.is_idle())
        && replays().iter().all(|(of, end)| *of != device || is_done(end))
}

/// The ends of replays of graphs, by the number of the device, where somebody must know of them.
static REPLAYS: Mutex<Vec<(usize, Event)>> = Mutex::new(Vec::new());

fn replays() -> MutexGuard<'static, Vec<(usize, Event)>> {
    REPLAYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that `stream` was given a graph whose event is `end`, where ranks of this process share a device;
/// that of a capture runs when its graph does. The caller has the turn.
///
/// Makes no event and ends none: the driver lets nobody make one while a thread is in `cuGraphLaunch`, where
/// it may wait for its graph's last launch, and so for a peer that this thread is.
pub(super) fn replayed(stream: &Stream, end: &Event) -> Result<()> {
    if !queues::is_shared() || stream.capture_id()?.is_some() {
        return Ok(());
    }
    end.record_now(&stream.device().bind()?, stream)?;
    let mut replays = replays();
    if !replays.iter().any(|(_, known)| known.is(end)) {
        replays.push((stream.device().ordinal(), end.share()));
    }
    Ok(())
}

/// Lets go of the events of graphs that are gone and done. Where graphs are made and not where they are
/// launched: to end an event may take as long there as to make one.
pub(super) fn forget_replays() {
    let _relaxed = Relaxed::enter();
    let is_over = |(_, end): &mut (usize, Event)| end.is_last() && is_done(end);
    let over: Vec<_> = replays().extract_if(.., is_over).collect();
    // With the lock given back.
    drop(over);
}

/// Of a lost context nothing runs any more.
fn is_done(event: &Event) -> bool {
    event.query().unwrap_or(true)
}

impl Activity {
    pub(crate) fn new(device: &Device, lanes: usize) -> Result<Arc<Self>> {
        let lanes = (0..lanes).map(|_| Event::new(device)).collect::<Result<_>>()?;
        let spare = (0..SPARE).map(|_| Ok((None, Event::new(device)?))).collect::<Result<_>>()?;
        let activity = Arc::new(Self { lanes, copies: Mutex::new(spare) });
        let mut all = ACTIVITIES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, activity)| activity.strong_count() > 0);
        all.push((device.ordinal(), Arc::downgrade(&activity)));
        Ok(activity)
    }

    /// Whether everything that was launched is done.
    pub(crate) fn is_idle(&self) -> bool {
        let _relaxed = Relaxed::enter();
        self.lanes.iter().all(is_done) && self.copies().iter().all(|(_, event)| is_done(event))
    }

    /// The last uncaptured launch of a lane.
    #[inline]
    pub(crate) fn lane(&self, index: usize) -> &Event {
        &self.lanes[index]
    }

    fn copies(&self) -> MutexGuard<'_, Vec<(Option<Stream>, Event)>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `stream` was given a copy. Once an event has happened it is free for another stream, before
    /// one is made: first those of streams that nobody else has any more.
    pub(crate) fn copied(&self, stream: &Stream) -> Result<()> {
        let _relaxed = Relaxed::enter();
        let mut copies = self.copies();
        let is_its = |of: &Option<Stream>| of.as_ref().is_some_and(|of| of.is(stream));
        let known = copies.iter().position(|(of, _)| is_its(of) && !is_per_thread(stream));
        let is_free = |of: &Option<Stream>| of.as_ref().is_none_or(|of| of.is_last() || is_per_thread(of));
        let done = |event: &Event| event.query().unwrap_or(false);
        let free = || copies.iter().position(|(of, event)| is_free(of) && done(event));
        let at = match known.or_else(free).or_else(|| copies.iter().position(|(_, event)| done(event))) {
            Some(at) => at,
            None => {
                copies.push((None, Event::new(stream.device())?));
                copies.len() - 1
            }
        };
        copies[at].0 = Some(stream.clone());
        copies[at].1.record(stream)
    }
}

/// Whether it stands for another stream in every thread.
fn is_per_thread(stream: &Stream) -> bool {
    stream.raw() as usize == PER_THREAD
}
