//! What has been launched on a device and may not be done: memory waits for it before it goes.
//!
//! Engines and communicators note their work in an [`Activity`]; [`all_idle`] asks those of a whole device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::capture::Relaxed;
use super::{Device, Event, Stream, queues};
use crate::Result;

/// The handle of the per-thread default stream: one number for many streams.
pub(crate) const PER_THREAD: usize = 2;

/// What an engine's work has come to: shared with whoever must know when it is done.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The last uncaptured launch of each lane.
    lanes: Vec<Event>,
    /// The last copy on each stream. The streams are kept, so that no new one has the handle of one that is
    /// waited for.
    copies: Mutex<Vec<(Stream, Event)>>,
}

/// Of every engine that lives, by the number of its device.
static ACTIVITIES: Mutex<Vec<(usize, Weak<Activity>)>> = Mutex::new(Vec::new());

/// Whether every engine's work on the device with this number is done: for memory that any of them may have
/// been given.
pub(crate) fn all_idle(device: usize) -> bool {
    let all = ACTIVITIES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let here = all.iter().filter(|(of, _)| *of == device);
    here.filter_map(|(_, activity)| activity.upgrade()).all(|activity| activity.is_idle())
}

/// Replays of graphs, by the number of the device, where somebody must know of them.
static REPLAYS: Mutex<Vec<(usize, Arc<Activity>)>> = Mutex::new(Vec::new());

/// Notes that `stream` was given a graph, where ranks of this process share a device; that of a capture runs
/// when its graph does.
pub(super) fn replayed(stream: &Stream) -> Result<()> {
    if !queues::is_shared() || stream.capture_id()?.is_some() {
        return Ok(());
    }
    let device = stream.device().ordinal();
    let mut replays = REPLAYS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = replays.iter().find(|(of, _)| *of == device).map(|(_, activity)| Arc::clone(activity));
    let activity = match known {
        Some(activity) => activity,
        None => {
            let activity = Activity::new(stream.device(), 0)?;
            replays.push((device, Arc::clone(&activity)));
            activity
        }
    };
    drop(replays);
    activity.copied(stream)
}

impl Activity {
    pub(crate) fn new(device: &Device, lanes: usize) -> Result<Arc<Self>> {
        let lanes = (0..lanes).map(|_| Event::new(device)).collect::<Result<_>>()?;
        let activity = Arc::new(Self { lanes, copies: Mutex::default() });
        let mut all = ACTIVITIES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, activity)| activity.strong_count() > 0);
        all.push((device.ordinal(), Arc::downgrade(&activity)));
        Ok(activity)
    }

    /// Whether everything that was launched is done. Of a lost context nothing runs any more.
    pub(crate) fn is_idle(&self) -> bool {
        // Any thread may ask, also while another one captures: its graph must not break, nor this be refused.
        let _relaxed = Relaxed::enter();
        let done = |event: &Event| event.query().unwrap_or(true);
        self.lanes.iter().all(done) && self.copies().iter().all(|(_, event)| done(event))
    }

    /// The last uncaptured launch of a lane.
    #[inline]
    pub(crate) fn lane(&self, index: usize) -> &Event {
        &self.lanes[index]
    }

    fn copies(&self) -> MutexGuard<'_, Vec<(Stream, Event)>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `stream` was given a copy. An event that has happened is free for another stream.
    pub(crate) fn copied(&self, stream: &Stream) -> Result<()> {
        let _relaxed = Relaxed::enter();
        let mut copies = self.copies();
        let known = copies.iter().position(|(of, _)| of.is(stream) && stream.raw() as usize != PER_THREAD);
        let at = known.or_else(|| copies.iter().position(|(_, event)| event.query().unwrap_or(false)));
        let at = match at {
            Some(at) => at,
            None => {
                copies.push((stream.clone(), Event::new(stream.device())?));
                copies.len() - 1
            }
        };
        copies[at].0 = stream.clone();
        copies[at].1.record(stream)
    }
}
