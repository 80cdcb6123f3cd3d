//! What an engine's products need besides their matrices: cuBLASLt, a workspace, a stream beside the
//! caller's, and a room for what peers have.
//!
//! Called by `ops/products.rs`. Each lane has its own, made when its first product comes; that cannot be in a
//! capture, which gets an error that says so. What it guarantees: nothing here is shared by operations that
//! are not ordered, since a lane is an order; and what a graph was captured with stays as long as the graph,
//! also when the room has grown since.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Engine;
use crate::cublas::{Multiplier, Product, WORKSPACE};
use crate::cuda::device::Bound;
use crate::cuda::owner::OwnedAddress;
use crate::cuda::stream::is_capturing_here;
use crate::cuda::{Buffer, Device, Event, Stream};
use crate::operation::Op;
use crate::{Error, Result};

/// What the products of an engine have, by lane.
#[derive(Debug)]
pub(super) struct EngineProducts {
    multiplier: Mutex<Option<Arc<Multiplier>>>,
    lanes: Vec<Mutex<Option<Arc<LaneProducts>>>>,
}

/// What the products of a lane have.
#[derive(Debug)]
pub(crate) struct LaneProducts {
    multiplier: Arc<Multiplier>,
    workspace: Buffer<u8>,
    /// Where work goes on beside products.
    sides: Mutex<Option<Arc<Sides>>>,
    /// For what all ranks have; it grows.
    room: Mutex<Option<Arc<Buffer<u8>>>>,
}

/// What work beside products needs.
#[derive(Debug)]
pub(super) struct Sides {
    /// Goes before others, since peers wait for what is on it. A capture has one of its own: until it ends,
    /// all work on its streams is part of it.
    streams: [Stream; 2],
    /// Where the work begins and ends.
    pub(super) ends: [Event; 2],
    /// When what each peer has is here.
    pub(super) arrived: Vec<Event>,
}

impl Sides {
    fn new(device: &Device, world: usize) -> Result<Self> {
        let (_, most_urgent) = device.stream_priorities()?;
        let stream = || Stream::with_priority(device, most_urgent);
        Ok(Self {
            streams: [stream()?, stream()?],
            ends: [Event::new(device)?, Event::new(device)?],
            arrived: (0..world).map(|_| Event::new(device)).collect::<Result<_>>()?,
        })
    }

    /// The stream beside `stream`.
    pub(super) fn beside(&self, (stream, bound): (&Stream, &Bound<'_>)) -> Result<&Stream> {
        Ok(&self.streams[usize::from(stream.capture_id_in(bound)?.is_some())])
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EngineProducts {
    pub(super) fn new(lanes: usize) -> Self {
        Self { multiplier: Mutex::default(), lanes: (0..lanes).map(|_| Mutex::default()).collect() }
    }
}

impl Engine {
    /// What this handle's lane has for products on `stream`.
    pub(super) fn products(&self, op: Op, stream: &Stream) -> Result<Arc<LaneProducts>> {
        let products = &self.inner.body.products;
        let mut lane = locked(&products.lanes[self.lane]);
        if let Some(known) = &*lane {
            return Ok(Arc::clone(known));
        }
        check_can_be_made(op, stream)?;
        let mut multiplier = locked(&products.multiplier);
        let multiplier = match &*multiplier {
            Some(known) => Arc::clone(known),
            None => Arc::clone(multiplier.insert(Arc::new(Multiplier::new(self.device())?))),
        };
        let workspace = Buffer::new(self.device(), WORKSPACE)?;
        let (sides, room) = (Mutex::default(), Mutex::default());
        Ok(Arc::clone(lane.insert(Arc::new(LaneProducts { multiplier, workspace, sides, room }))))
    }
}

impl LaneProducts {
    /// What work beside products of `world` ranks needs.
    pub(super) fn sides(&self, op: Op, world: usize, stream: &Stream) -> Result<Arc<Sides>> {
        let mut sides = locked(&self.sides);
        if let Some(known) = &*sides {
            return Ok(Arc::clone(known));
        }
        check_can_be_made(op, stream)?;
        Ok(Arc::clone(sides.insert(Arc::new(Sides::new(self.workspace.device(), world)?))))
    }

    /// Room for `bytes` bytes, which operations of this lane on any stream share.
    pub(super) fn room(&self, op: Op, bytes: usize, stream: &Stream) -> Result<Arc<Buffer<u8>>> {
        let mut room = locked(&self.room);
        if let Some(known) = room.as_ref().filter(|known| known.len() >= bytes) {
            return Ok(Arc::clone(known));
        }
        check_can_be_made(op, stream)?;
        // What there was is kept until the work that uses it is done.
        Ok(Arc::clone(room.insert(Arc::new(Buffer::new(self.workspace.device(), bytes)?))))
    }

    /// Chooses how these products are made, where that is not known yet. Those that are made for the first
    /// time.
    pub(super) fn plan(&self, op: Op, products: &[Product], stream: &Stream) -> Result<Vec<Product>> {
        let mut new = Vec::new();
        for product in products.iter().filter(|product| !product.shape.is_empty()) {
            if self.multiplier.known(product).is_none() {
                check_can_be_made(op, stream)?;
                self.multiplier.plan(product)?;
                new.push(*product);
            }
        }
        Ok(new)
    }

    /// What multiplies, and the workspace it is given, for who holds the order of the lane.
    pub(super) fn multiplier(&self) -> (&Multiplier, u64) {
        (&self.multiplier, self.workspace.device_ptr())
    }
}

/// Where a buffer is, and whose.
pub(super) fn place_of(room: &Buffer<u8>) -> OwnedAddress<'_> {
    room.as_slice().place()
}

/// An error in a capture, which nothing can be made in.
fn check_can_be_made(op: Op, stream: &Stream) -> Result<()> {
    if !is_capturing_here() && stream.capture_id()?.is_none() {
        return Ok(());
    }
    let problem = "it needs a workspace, or an algorithm for such a product, which cannot be made in a capture. Hint: do it once before, or prepare it (prepare_all_gather_matmul, prepare_matmul_reduce_scatter)";
    Err(Error::invalid(op.name(), problem))
}
