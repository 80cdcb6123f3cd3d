//! Products and collectives as one operation: what ranks have is gathered and multiplied, or a product is
//! made and scattered.
//!
//! *Unfused* is one after the other, in the order of the lane: the gather, then the product; or the product,
//! then the reduction. *Fused* is one of them in parts, on the caller's stream, and the other beside it, on
//! a stream of the lane's own:
//!
//! | | the caller's stream | the side stream |
//! |---|---|---|
//! | gather and multiply | own rows' product; that of each peer's, once they are here | a meeting, copies of the peers' rows by the copy engine, a meeting |
//! | multiply and scatter | the first half of everybody's rows; the second half, and its reduction | the reduction of the first half |
//!
//! The side stream begins behind what the caller's has, and the caller's ends behind it, so captures have
//! both, and who comes next on the lane comes behind all of it. The meetings of one operation are the lane's
//! next epochs, one after the other. Where ranks are out of reach only the unfused way is there.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use super::copy::copy_by_engine;
use super::{DeviceRead, meeting_threads};
use crate::cublas::{Product, ProductShape};
use crate::cuda::Stream;
use crate::cuda::device::Bound;
use crate::cuda::owner::{OwnedAddress, Owner};
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::products::{LaneProducts, Sides, place_of};
use crate::engine::cuda::{Engine, Region};
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

/// Rows of a rank from which on they are gathered beside products, unless somebody chooses: products of fewer
/// cost more one by one than is saved. Measured with 2 and 4 ranks that share one H200 (docs/benchmarks.md).
const GATHERED_MEANWHILE: usize = 512;
/// Parts of a product that is scattered meanwhile.
const PARTS: usize = 2;

/// How a product and its collective follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FusedWay {
    /// By shape: as was faster where it was measured.
    #[default]
    ByShape,
    /// One beside the other.
    Fused,
    /// One after the other.
    Unfused,
}

/// A matrix in device memory: where, how many columns, and elements from a row to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatrixPlace<'a> {
    pub(crate) at: OwnedAddress<'a>,
    pub(crate) columns: usize,
    pub(crate) stride: usize,
}

/// Rows that are gathered and multiplied.
#[derive(Clone, Debug)]
pub(crate) struct RowsToMultiply<'a> {
    pub(crate) way: FusedWay,
    pub(crate) dtype: DType,
    /// Of each rank.
    pub(crate) rows: usize,
    /// Columns of the rows, rows of what they are multiplied with.
    pub(crate) inner: usize,
    /// What they are multiplied with, and where the products go.
    pub(crate) weights: Vec<(MatrixPlace<'a>, OwnedAddress<'a>)>,
    /// Where the rows go as well.
    pub(crate) gathered: Option<OwnedAddress<'a>>,
}

/// A product that is reduced and scattered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductToScatter<'a> {
    pub(crate) way: FusedWay,
    pub(crate) dtype: DType,
    pub(crate) reduce: ReduceOp,
    /// Of the product: as many for each rank.
    pub(crate) rows: usize,
    pub(crate) left: MatrixPlace<'a>,
    pub(crate) right: MatrixPlace<'a>,
    pub(crate) out: OwnedAddress<'a>,
}

impl<'a> RowsToMultiply<'a> {
    /// Bytes of a rank's rows.
    fn bytes(&self) -> usize {
        self.rows * self.inner * self.dtype.size()
    }

    /// Whether the rows come beside products. The same on all ranks, whose weights may differ.
    fn is_fused(&self) -> bool {
        match self.way {
            FusedWay::ByShape => self.rows >= GATHERED_MEANWHILE,
            way => way == FusedWay::Fused,
        }
    }

    /// The products of `rows` rows at `from` that are row `first` and those behind it of all.
    fn products(&self, from: u64, rows: usize, first: usize) -> impl Iterator<Item = Product> {
        let (dtype, inner) = (self.dtype, self.inner);
        self.weights.iter().map(move |(weights, out)| {
            let columns = weights.columns;
            let strides = [inner, weights.stride];
            let shape = ProductShape { dtype, rows, inner, columns, strides, batch: 1, step: 0 };
            let skipped = (first * columns * dtype.size()) as u64;
            Product { shape, left: from, right: weights.at.address, out: out.address + skipped }
        })
    }

    fn owners(&self, more: [Option<&'a dyn Owner>; 2]) -> Vec<Option<&'a dyn Owner>> {
        let weights = self.weights.iter().flat_map(|(weights, out)| [weights.at.owner, out.owner]);
        weights.chain([self.gathered.and_then(|gathered| gathered.owner)]).chain(more).collect()
    }
}

impl<'a> ProductToScatter<'a> {
    fn size(&self) -> usize {
        self.rows * self.right.columns
    }

    /// Bytes of the product.
    pub(in crate::engine::cuda) fn bytes(&self) -> usize {
        self.size() * self.dtype.size()
    }

    /// Whether the first half is reduced beside the second. The same on all ranks. Only where it was asked
    /// for: it was slower wherever it was measured (docs/benchmarks.md).
    fn is_fused(&self) -> bool {
        self.way == FusedWay::Fused
    }

    /// All of it, at `to`.
    fn whole(&self, to: u64) -> Product {
        self.part(to, (0, self.rows), 1, 0)
    }

    /// `rows` rows from `first` on, and again so many `step` rows further, as often as `batch` says, at `to`.
    fn part(&self, to: u64, (first, rows): (usize, usize), batch: usize, step: usize) -> Product {
        let (dtype, inner, columns) = (self.dtype, self.left.columns, self.right.columns);
        let strides = [self.left.stride, self.right.stride];
        let shape = ProductShape { dtype, rows, inner, columns, strides, batch, step: step * strides[0] };
        let skipped = (first * self.left.stride * dtype.size()) as u64;
        Product { shape, left: self.left.at.address + skipped, right: self.right.at.address, out: to }
    }

    /// Its parts, each of the same rows of every rank's, at `to` one after the other: the first row of a
    /// rank, how many, where in the workspace in elements, and the product.
    fn parts(&self, to: u64, world: usize) -> Vec<ProductPart> {
        let (all, columns) = (self.rows / world, self.right.columns);
        let edge = |part: usize| all * part / PARTS;
        (0..PARTS)
            .map(|part| {
                let (first, rows) = (edge(part), edge(part + 1) - edge(part));
                let start = first * columns * world;
                let at = to + (start * self.dtype.size()) as u64;
                ProductPart { first, rows, start, product: self.part(at, (first, rows), world, all) }
            })
            .filter(|part| part.rows > 0)
            .collect()
    }

    fn owners(&self, more: Option<&'a dyn Owner>) -> [Option<&'a dyn Owner>; 4] {
        [self.left.at.owner, self.right.at.owner, self.out.owner, more]
    }

    /// The reduction of rows `first` and on of this rank, which of everybody's are together.
    fn reduction(&self, rank: usize, first: usize, rows: usize) -> DeviceRead<'a> {
        let count = rows * self.right.columns;
        let bytes = count * self.dtype.size();
        let skipped = (first * self.right.columns * self.dtype.size()) as u64;
        DeviceRead {
            op: Op::MatmulReduceScatter,
            dtype: self.dtype,
            reduction: Some(self.reduce),
            root: None,
            start: bytes * rank,
            count,
            bytes,
            rows: 1,
            matrix_rows: self.rows,
            output: OwnedAddress { address: self.out.address + skipped, ..self.out },
            reads: true,
        }
    }
}

/// A part of a product that is scattered.
#[derive(Debug)]
struct ProductPart {
    first: usize,
    rows: usize,
    start: usize,
    product: Product,
}

/// The other ranks, so that no two ranks begin with the same one.
fn others(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |step| (rank + step) % world)
}

impl Region {
    /// Gathers rows and multiplies them, fused where `may_fuse` and the way say so.
    pub(in crate::engine::cuda) fn gather_and_multiply(
        &self,
        work: &RowsToMultiply<'_>,
        may_fuse: bool,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::AllGatherMatmul;
        if work.bytes() == 0 {
            return self.meet_for_nothing(OP, stream);
        }
        let (engine, bytes, world) = (&self.engine, work.bytes(), self.data.len());
        let is_fused = may_fuse && work.is_fused();
        let ready = || {
            let lane = engine.products(OP, stream)?;
            let room = match work.gathered {
                None => Some(lane.room(OP, bytes * world, stream)?),
                Some(_) => None,
            };
            let whole = work.gathered.or_else(|| room.as_deref().map(place_of));
            let whole = whole.map_or(0, |whole| whole.address);
            let sides = if is_fused { Some(lane.sides(OP, world, stream)?) } else { None };
            let products = self.gathered_products(work, is_fused, whole);
            let new = lane.plan(OP, &products, stream)?;
            Ok((lane, sides, [products, new], (room, whole)))
        };
        let (lane, sides, [products, new], (room, whole)) = engine.ready(ready(), stream)?;
        tracing::trace!(op = OP.name(), bytes, is_fused, "product on the device");
        let room_owner = room.as_deref().and_then(|room| place_of(room).owner);
        let owners = work.owners([self.owner(), room_owner]);
        self.load(OP, &lane, &new, &owners, stream)?;
        if let Some(sides) = sides {
            return engine.in_turn(OP, stream, &owners, |bound| {
                self.multiply_meanwhile(work, &products, (&lane, &sides), whole, (stream, bound))
            });
        }
        let output = OwnedAddress { address: whole, owner: room_owner };
        let reading = DeviceRead {
            op: OP,
            dtype: work.dtype,
            reduction: None,
            root: None,
            start: 0,
            count: work.rows * work.inner,
            bytes,
            rows: 1,
            matrix_rows: work.rows,
            output: work.gathered.unwrap_or(output),
            reads: true,
        };
        self.carrier.read(self, &reading, stream)?;
        self.multiply_once(OP, &lane, &products, &owners, stream)
    }

    /// The products of everybody's rows, this rank's first; those of peers, or of all, are at `whole`.
    fn gathered_products(&self, work: &RowsToMultiply<'_>, is_fused: bool, whole: u64) -> Vec<Product> {
        let (rank, world, rows) = (self.rank(), self.data.len(), work.rows);
        if !is_fused {
            return work.products(whole, rows * world, 0).collect();
        }
        let own = work.products(self.own_address(), rows, rank * rows);
        let of_peer = |peer: usize| work.products(whole + (peer * work.bytes()) as u64, rows, peer * rows);
        own.chain(others(rank, world).flat_map(of_peer)).collect()
    }

    /// The fused way, for who holds the order of the lane.
    fn multiply_meanwhile(
        &self,
        work: &RowsToMultiply<'_>,
        products: &[Product],
        (lane, sides): (&LaneProducts, &Sides),
        whole: u64,
        (stream, bound): (&Stream, &Bound<'_>),
    ) -> Result<()> {
        let (rank, world, bytes) = (self.rank(), self.data.len(), work.bytes());
        let (own, theirs) = products.split_at(work.weights.len());
        let place = |rank: usize| whole + (rank * bytes) as u64;
        let give = |product: &Product| multiply(lane, product, (stream, bound));
        let statement = LaunchTerms {
            reduction: Some((ReduceOp::Sum, work.dtype)),
            bytes: bytes as u64,
            rows: work.rows,
            ..LaunchTerms::plain(Op::AllGatherMatmul, None, self.statement(), meeting_threads(world))
        };
        let arrived = &sides.arrived;
        // The last meeting is on the side stream.
        self.engine.ends_apart();
        beside(sides, (stream, bound), |side| {
            self.engine.meet_in_order(statement, (side, bound))?;
            own.iter().try_for_each(give)?;
            for (peer, event) in others(rank, world).zip(arrived) {
                copy_by_engine(self.data[peer], place(peer), bytes, side)?;
                event.record_in(bound, side)?;
            }
            // Everybody has read everybody's rows, which may be written again.
            self.engine.meet_in_order(statement, (side, bound))?;
            if work.gathered.is_some() {
                copy_by_engine(self.own_address(), place(rank), bytes, stream)?;
            }
            for (products, event) in theirs.chunks(work.weights.len().max(1)).zip(arrived) {
                stream.wait(event)?;
                products.iter().try_for_each(give)?;
            }
            Ok(())
        })
    }

    /// Local: makes what gathering and multiplying needs, and multiplies what is there, so that nothing is
    /// left to load.
    pub(crate) fn prepare_all_gather_matmul(&self, work: &RowsToMultiply<'_>, stream: &Stream) -> Result<()> {
        const OP: Op = Op::AllGatherMatmul;
        self.engine.check(OP, None, stream)?;
        let (lane, world) = (self.engine.products(OP, stream)?, self.data.len());
        let room = lane.room(OP, work.bytes() * world, stream)?;
        let is_fused = work.is_fused();
        if is_fused {
            lane.sides(OP, world, stream)?;
        }
        let products = self.gathered_products(work, is_fused, room.device_ptr());
        let owners = work.owners([self.owner(), place_of(&room).owner]);
        self.multiply_once(OP, &lane, &products, &owners, stream)
    }

    /// The same for multiplying and scattering.
    pub(crate) fn prepare_matmul_reduce_scatter(
        &self,
        work: &ProductToScatter<'_>,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::MatmulReduceScatter;
        self.engine.check(OP, None, stream)?;
        let (lane, world, own) = (self.engine.products(OP, stream)?, self.data.len(), self.own_address());
        let products = match work.is_fused() {
            true => {
                lane.sides(OP, world, stream)?;
                work.parts(own, world).into_iter().map(|part| part.product).collect()
            }
            false => vec![work.whole(own)],
        };
        self.multiply_once(OP, &lane, &products, &work.owners(self.owner()), stream)
    }

    /// Local: the product alone, in the place of what it is scattered to.
    #[cfg(feature = "bench-support")]
    pub(crate) fn multiply_alone(&self, work: &ProductToScatter<'_>, stream: &Stream) -> Result<()> {
        const OP: Op = Op::MatmulReduceScatter;
        self.engine.check(OP, None, stream)?;
        let lane = self.engine.products(OP, stream)?;
        let products = [work.whole(work.out.address)];
        self.multiply_once(OP, &lane, &products, &work.owners(self.owner()), stream)
    }

    /// Makes products for the first time, with what there is by now, before anything of the operation waits
    /// for a peer: to load a kernel may wait for all that runs on the device, and that for a peer whose part
    /// this thread has yet to launch.
    fn load(
        &self,
        op: Op,
        lane: &LaneProducts,
        new: &[Product],
        owners: &[Option<&dyn Owner>],
        stream: &Stream,
    ) -> Result<()> {
        if new.is_empty() { Ok(()) } else { self.multiply_once(op, lane, new, owners, stream) }
    }

    /// Makes these products in the order of the lane.
    fn multiply_once(
        &self,
        op: Op,
        lane: &LaneProducts,
        products: &[Product],
        owners: &[Option<&dyn Owner>],
        stream: &Stream,
    ) -> Result<()> {
        self.engine.in_turn(op, stream, owners, |bound| {
            products.iter().try_for_each(|product| multiply(lane, product, (stream, bound)))
        })
    }

    /// Makes a product in this memory, and reduces and scatters it, fused where `may_fuse` and the way say
    /// so.
    pub(in crate::engine::cuda) fn multiply_and_scatter(
        &self,
        work: &ProductToScatter<'_>,
        may_fuse: bool,
        stream: &Stream,
    ) -> Result<()> {
        const OP: Op = Op::MatmulReduceScatter;
        if work.bytes() == 0 {
            return self.meet_for_nothing(OP, stream);
        }
        let (engine, world, own) = (&self.engine, self.data.len(), self.own_address());
        let is_fused = may_fuse && work.is_fused();
        let parts = if is_fused { work.parts(own, world) } else { Vec::new() };
        let products = match is_fused {
            true => parts.iter().map(|part| part.product).collect(),
            false => vec![work.whole(own)],
        };
        let ready = || {
            let lane = engine.products(OP, stream)?;
            let sides = if is_fused { Some(lane.sides(OP, world, stream)?) } else { None };
            let new = lane.plan(OP, &products, stream)?;
            Ok((lane, sides, new))
        };
        let (lane, sides, new) = engine.ready(ready(), stream)?;
        tracing::trace!(op = OP.name(), bytes = work.bytes(), is_fused, "product on the device");
        let owners = work.owners(self.owner());
        self.load(OP, &lane, &new, &owners, stream)?;
        if let Some(sides) = sides {
            return engine.in_turn(OP, stream, &owners, |bound| {
                self.scatter_meanwhile(work, &parts, (&lane, &sides), (stream, bound))
            });
        }
        self.multiply_once(OP, &lane, &products, &owners, stream)?;
        let reading = work.reduction(self.rank(), 0, work.rows / world);
        let region = self.part(0, work.bytes());
        self.carrier.read(&region, &reading, stream)
    }

    /// The fused way, for who holds the order of the lane.
    fn scatter_meanwhile(
        &self,
        work: &ProductToScatter<'_>,
        parts: &[ProductPart],
        (lane, sides): (&LaneProducts, &Sides),
        (stream, bound): (&Stream, &Bound<'_>),
    ) -> Result<()> {
        let (rank, size) = (self.rank(), work.dtype.size());
        let give = |product: &Product| multiply(lane, product, (stream, bound));
        let reduce = |part: &ProductPart, stream: &Stream| {
            let bytes = part.rows * work.right.columns * self.data.len() * size;
            let region = self.part(part.start * size, bytes);
            region.read_in_order(&work.reduction(rank, part.first, part.rows), (stream, bound))
        };
        let Some((last, before)) = parts.split_last() else { return Ok(()) };
        for part in before {
            give(&part.product)?;
        }
        beside(sides, (stream, bound), |side| {
            before.iter().try_for_each(|part| reduce(part, side))?;
            give(&last.product)
        })?;
        reduce(last, stream)
    }
}

/// Gives `stream` a product, for who holds the order of the lane.
fn multiply(lane: &LaneProducts, product: &Product, stream: (&Stream, &Bound<'_>)) -> Result<()> {
    let (multiplier, workspace) = lane.multiplier();
    let plan = multiplier.plan(product)?;
    // SAFETY: matrices have room for as much, as the handle's methods have checked, and whoever gave them
    // keeps them until the work is done; symmetric memory, room and workspace are kept by table and engine. A
    // graph keeps all of these: `in_turn` was given their owners. The workspace is the lane's, whose order
    // the caller holds.
    unsafe { multiplier.give(&plan, product, workspace, stream) }
}

/// Runs `give`, which gives the side stream work, that begins behind what `stream` has got; what `stream`
/// gets later comes behind that work.
fn beside(
    sides: &Sides,
    (stream, bound): (&Stream, &Bound<'_>),
    give: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let (side, [begin, end]) = (sides.beside((stream, bound))?, &sides.ends);
    begin.record_in(bound, stream)?;
    side.wait(begin)?;
    let given = give(side);
    // Also what failed may have given the side stream a part of its work.
    let joined = end.record_in(bound, side).and_then(|()| stream.wait(end));
    given.and(joined)
}

impl Engine {
    /// What is needed before anything is launched. What fails here alone, and is not told to the others
    /// otherwise, is told to them.
    fn ready<T>(&self, ready: Result<T>, stream: &Stream) -> Result<T> {
        if let Err(Error::Cuda { .. }) = &ready {
            // Where this cannot be launched either, the deadline is left.
            let _ = self.refuse(stream);
        }
        ready
    }
}
