//! Several operations as one: what is called between start and end is given to the devices together.
//!
//! Public. Needed where one thread makes calls for several ranks, and where sends and receives need each
//! other. NCCL keeps the group in the thread, and so does this guard. What it guarantees: a group that was
//! started is ended, whatever happens in it; and every communicator that takes part stays this thread's until
//! then.

#![allow(unsafe_code, reason = "calls of NCCL")]

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::bindings::{Code, IN_PROGRESS, SUCCESS};
use super::error::error;
use super::library::{NcclLibrary, nccl};
use super::shared::SharedCommunicator;
use crate::cuda::{Device, Stream};
use crate::{Error, Result};

thread_local! {
    /// Groups within groups that this thread has started.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Who takes part, each with its turn taken once, and the streams that were given work.
    static PARTS: RefCell<Vec<(Arc<SharedCommunicator>, Vec<Stream>)>> = const { RefCell::new(Vec::new()) };
}

/// A group of calls, from its start to its end. Groups can be nested; the outermost one counts.
///
/// ```no_run
/// # fn exchange(communicator: &symmem::nccl::Communicator, mine: &symmem::cuda::Buffer<f32>,
/// #     theirs: &mut symmem::cuda::Buffer<f32>, stream: &symmem::cuda::Stream) -> symmem::Result<()> {
/// use symmem::nccl::GroupCall;
/// let peer = 1 - communicator.rank();
/// let group = GroupCall::start()?;
/// communicator.send(mine, peer, stream)?;
/// communicator.recv(theirs, peer, stream)?;
/// group.end()
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct GroupCall {
    ended: bool,
    /// It is the thread's.
    _thread: PhantomData<*mut ()>,
}

impl GroupCall {
    /// Starts a group of calls on this thread.
    pub fn start() -> Result<Self> {
        raw_start(nccl()?)?;
        DEPTH.set(DEPTH.get() + 1);
        Ok(Self { ended: false, _thread: PhantomData })
    }

    /// Ends it: the calls are given to the devices. An error of one of them is an error of the group.
    pub fn end(mut self) -> Result<()> {
        self.ended = true;
        end()
    }
}

impl Drop for GroupCall {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Err(error) = end() {
            tracing::warn!(%error, "a group of NCCL calls that was not ended");
        }
    }
}

fn end() -> Result<()> {
    let nccl = nccl()?;
    let depth = DEPTH.get().saturating_sub(1);
    DEPTH.set(depth);
    if depth > 0 {
        return raw_end(nccl, None).map(drop);
    }
    let parts = PARTS.take();
    let ended =
        raw_end(nccl, parts.first().map(|(part, _)| &part.device)).and_then(|code| settle(&parts, code));
    for (part, _) in &parts {
        part.leave();
    }
    ended
}

/// Waits until all that take part are done; notes their work.
fn settle(parts: &[(Arc<SharedCommunicator>, Vec<Stream>)], code: Code) -> Result<()> {
    let mut first: Result<()> = Ok(());
    for (part, streams) in parts {
        // All are waited for, whatever became of the first.
        let settled = part.settle("ncclGroupEnd", code);
        let worked = settled.and_then(|()| streams.iter().try_for_each(|stream| part.worked(stream)));
        first = first.and(worked);
    }
    first
}

/// Whether this thread has started a group of calls.
pub(crate) fn is_open() -> bool {
    DEPTH.get() > 0
}

/// Keeps `part`, whose turn the thread has taken, until the group ends; false if there is none, or it is kept
/// already.
pub(super) fn take_over(part: &Arc<SharedCommunicator>) -> bool {
    if !is_open() {
        return false;
    }
    PARTS.with_borrow_mut(|parts| {
        let known = parts.iter().any(|(known, _)| Arc::ptr_eq(known, part));
        if !known {
            parts.push((Arc::clone(part), Vec::new()));
        }
        !known
    })
}

/// Remembers that `part` will give `stream` work when the group ends; false if there is no group.
pub(super) fn remember(part: &Arc<SharedCommunicator>, stream: &Stream) -> bool {
    if !is_open() {
        return false;
    }
    PARTS.with_borrow_mut(|parts| {
        if let Some((_, streams)) = parts.iter_mut().find(|(known, _)| Arc::ptr_eq(known, part))
            && !streams.iter().any(|known| known.is(stream))
        {
            streams.push(stream.clone());
        }
    });
    true
}

/// Starts a group that only NCCL knows of.
pub(super) fn raw_start(nccl: &NcclLibrary) -> Result<()> {
    // SAFETY: takes nothing.
    match unsafe { (nccl.functions.group_start)() } {
        SUCCESS => Ok(()),
        code => Err(failed(nccl, "ncclGroupStart", code)),
    }
}

/// Ends a group: whether it is done, or under way. The context of `device` is made current, and then what was
/// before.
pub(super) fn raw_end(nccl: &NcclLibrary, device: Option<&Device>) -> Result<Code> {
    let _bound = device.map(Device::bind).transpose();
    // SAFETY: ends what this thread has started.
    match unsafe { (nccl.functions.group_end)() } {
        code @ (SUCCESS | IN_PROGRESS) => Ok(code),
        code => Err(failed(nccl, "ncclGroupEnd", code)),
    }
}

fn failed(nccl: &NcclLibrary, call: &'static str, code: Code) -> Error {
    error(nccl, call, code, ptr::null_mut())
}
