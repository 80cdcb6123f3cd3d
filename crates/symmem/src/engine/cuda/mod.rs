//! The engine of CUDA devices: one kernel per operation, in the order of the caller's stream.
//!
//! An [`Engine`] belongs to one rank of a group and to its device. Making one is collective and does
//! everything that can fail or take long: compile and load kernels, share the control blocks, agree on what
//! the dispatcher needs. Operations (`ops`, on the addresses of a table) only launch: no host
//! synchronisation, no allocation, no communication. It knows no handles: those are memory's, and their
//! methods (`collective/device`) come here with what they cover, a [`Region`].
//!
//! | file | what it is |
//! |---|---|
//! | `kernels.rs` | compile, load and find kernels; `embedded.rs` for machines without a compiler |
//! | `agree.rs` | what ranks agree on when the engine is made |
//! | `plan.rs` | which kernel, in which shape |
//! | `launch_terms.rs` | what ranks must agree on per launch |
//! | `launch.rs` | the hot path |
//! | `region.rs` | what operations work on |
//! | `carrier.rs` | what carries operations: the contract |
//! | `route.rs` | which carrier: kernels, or NCCL |
//! | `carried.rs` | operations that NCCL carries, where a rank is out of reach |
//! | `multimem.rs` | what multicast needs besides the user's memory |
//! | `ops/` | the operations by kernels |
//! | `products.rs` | what products of matrices need: cuBLASLt, a workspace, a stream beside the caller's |
//! | `recorder.rs` | an engine for tests, which only records |
//! | `bench_support.rs` | for the program `symmem` only |

#![allow(unsafe_code, reason = "kernel launches on device memory")]

mod agree;
mod archive;
#[cfg(feature = "bench-support")]
pub mod bench_support;
mod carried;
mod carrier;
mod embedded;
pub(crate) mod kernels;
mod launch;
mod launch_terms;
mod multimem;
pub(crate) mod ops;
pub(crate) mod plan;
mod products;
mod recorded;
#[cfg(feature = "faults")]
pub(crate) mod recorder;
mod region;
mod route;
pub(crate) mod sources;
mod sync;

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::carrier::Carrier;
use self::kernels::Kernels;
use self::multimem::Multimem;
use self::plan::{AgreedEngine, Tune, dtype_index_of};
pub use self::plan::{Algorithm, Form, Plan};
use self::products::EngineProducts;
use self::recorded::LaneRings;
pub(crate) use self::region::Region;
use crate::config::{Config, Provider};
use crate::cuda::activity::Activity;
use crate::cuda::capture::check_no_capture;
use crate::cuda::queues::Sharing;
use crate::cuda::{Device, Stream, deferred};
use crate::device::control::{
    self, ControlHeader, ControlLayout, FIRST_EPOCH, LaneHead, MAX_WORLD, ONE_DEVICE,
};
use crate::device::lane::Lane;
use crate::device::status::{HostStatusWords, Status, StatusBlock, Watched};
use crate::device::{DEVICE_PREFIX, Fate, MAX_LANES, nanoseconds};
use crate::error::Context;
use crate::group::watch::WatchGuard;
use crate::group::{Group, Running};
use crate::nccl::Communicator;
use crate::numeric::DType;
use crate::operation::Op;
use crate::provider::nccl;
use crate::provider::share::{Bring, share, share_multicast};
use crate::provider::{Joined, LocalMemory, registry, write_on};
use crate::sys::fork;
use crate::table::Column;
use crate::{Error, Result};

/// Lanes of all ranks on a device, at most, for two kernels of each to be there: a device holds 128 at once.
const MOST_OVERLAPPING: usize = 32;

/// What a kernel does when its group fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It ends, and the status says why. The context stays usable.
    #[default]
    Report,
    /// It also traps, which takes the context with it: for those who want the next call to fail, whatever it
    /// is.
    Trap,
}

/// How an engine is made. All ranks must agree on lanes, provider, algorithm and first epoch; the smallest
/// number of blocks counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Blocks of a kernel that waits for peers, at most.
    pub max_blocks: u32,
    /// Independent orders of operations, each with memory of its own in the control block.
    pub lanes: u32,
    /// How long a kernel may wait for peers; `None`: as long as the group's blocking calls.
    pub deadline: Option<Duration>,
    /// What a kernel does when its group fails.
    pub on_error: OnError,
    /// The priority of [`Engine::stream`].
    pub priority: i32,
    /// Where memory comes from; `None`: the rank's choice
    /// ([`RankContext::device_provider`](crate::RankContext::device_provider)). With [`Provider::Nccl`] the
    /// engine has a communicator, and works also where ranks are out of each other's reach: then NCCL carries
    /// its operations.
    pub provider: Option<Provider>,
    /// The algorithm of all-reduces by its name, wherever it can carry them; empty: by size.
    /// [`Engine::using`] comes before it.
    pub algorithm: String,
    /// Ranks that count as out of reach, for tests. Without a communicator nobody carries what they take part
    /// in.
    #[doc(hidden)]
    pub unreachable: Vec<usize>,
    /// Whether ranks of one device work as those of several do, for tests.
    #[doc(hidden)]
    pub apart: bool,
    /// Where epochs begin, for tests of their wrap; 0: where they should.
    #[doc(hidden)]
    pub first_epoch: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_blocks: plan::DEFAULT_BLOCKS,
            lanes: 1,
            deadline: None,
            on_error: OnError::Report,
            priority: 0,
            provider: None,
            algorithm: String::new(),
            unreachable: Vec::new(),
            apart: false,
            first_epoch: 0,
        }
    }
}

impl Settings {
    /// What the configuration says, the rest as by default.
    pub fn from_config(config: &Config) -> Self {
        Self {
            max_blocks: *config.max_blocks,
            lanes: *config.lanes,
            algorithm: config.device_algorithm.as_deref().unwrap_or_default().to_owned(),
            unreachable: config.unreachable.to_vec(),
            ..Self::default()
        }
    }

    /// Where memory comes from, once the engine is being made.
    fn chosen_provider(&self) -> Provider {
        self.provider.unwrap_or_default()
    }

    /// The epoch of the first launch. 0 and 1 are never used.
    fn first_epoch(&self) -> u32 {
        (self.first_epoch as u32).max(FIRST_EPOCH)
    }

    fn check(&self) -> Result<()> {
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(Error::invalid("lanes", format!("{} must be from 1 to {MAX_LANES}", self.lanes)));
        }
        if self.algorithm.is_empty() || !self.algorithm.parse::<Algorithm>()?.needs_multicast() {
            return Ok(());
        }
        let problem = format!("{} gives other bits. Hint: ask for it where they may differ", self.algorithm);
        Err(Error::invalid("algorithm", problem))
    }
}

/// A rank's part in what the devices of a group do together. Cheap to clone.
///
/// Operations go in the order of the stream that they are given, and in the order of the engine's *lane*:
/// across streams, each waits for the one before on the same lane, on the device. [`Engine::lane`] gives
/// independent orders. All ranks must launch the same operations on a lane in the same order; where they do
/// not, all get the same error.
///
/// Captured operations can be replayed, as often as one likes, on any stream. Replays that share a lane, with
/// each other or with other operations, must be ordered by the caller, as with NCCL.
///
/// ```no_run
/// use symmem::ReduceOp;
/// use symmem::cuda::{Device, Engine, Stream};
/// # fn main() -> symmem::Result<()> {
/// let group = symmem::Group::from_env()?;
/// let device = Device::new(group.rank())?;
/// let engine = Engine::new(&group, &device)?; // collective, once
/// let stream = Stream::new(&device)?;
/// let x = device.alloc::<f32>(1 << 20)?.rendezvous(&engine)?; // collective, once
/// x.all_reduce(ReduceOp::Sum, &stream)?; // returns at once
/// engine.sync(&stream, std::time::Duration::from_secs(10))
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
    lane: usize,
    forced: Option<Algorithm>,
    tune: Tune,
}

/// What all handles of an engine share.
struct EngineInner {
    /// First: nobody looks at an engine that is being dropped.
    _watch_guard: WatchGuard,
    /// Where another rank of this process is on the device.
    _sharing: Option<Sharing>,
    watched: Arc<Watched>,
    fate: Fate,
    agreed: AgreedEngine,
    settings: Settings,
    device: Device,
    /// Kept until the device is idle, instead of dropped.
    body: ManuallyDrop<Body>,
    group: Group,
    carrier: &'static dyn Carrier,
    /// How many engines the group had before this one.
    number: usize,
    /// Whether small kernels may start before the one ahead of them in their stream has ended.
    overlaps: bool,
    /// Where this rank's control block has room that nobody looks at.
    scratch: usize,
}

/// What kernels use, which stays until they are done.
struct Body {
    lanes: Vec<Lane>,
    kernels: Kernels,
    /// Or why there is none.
    multimem: Result<Multimem, String>,
    /// Everybody's control block. Before this rank's: drivers want its multicast gone first.
    _peers: Column,
    control: Arc<dyn LocalMemory>,
    activity: Arc<Activity>,
    status: StatusBlock,
    rings: LaneRings,
    products: EngineProducts,
    /// Where symmetric memory comes from. Last: what it made goes before it.
    joined: Arc<dyn Joined>,
}

/// What a rank makes by itself.
struct EngineParts {
    kernels: Kernels,
    words: Arc<HostStatusWords>,
    status: StatusBlock,
    activity: Arc<Activity>,
}

impl EngineParts {
    fn make(group: &Group, device: &Device, settings: &Settings, layout: &ControlLayout) -> Result<Self> {
        settings.check()?;
        check_no_capture("engine")?;
        let cache = group.context().config().cache_dir.as_deref();
        let kernels = Kernels::load(device, layout.world, cache, group.inner.is_recorded())?;
        let (rank, ordinal) = (group.rank(), device.ordinal());
        let words = HostStatusWords::new(&format!("{DEVICE_PREFIX}{}:{rank}:{ordinal}", group.name()))?;
        words.board().open(group.id(), rank, ordinal, layout.lanes);
        let words = Arc::new(words);
        let status = StatusBlock::new(device, &words)?;
        let activity = Activity::new(device, layout.lanes)?;
        Ok(Self { kernels, words, status, activity })
    }
}

/// This rank's control block, as kernels want to find it.
fn control_block(
    group: &Group,
    (device, provider): (&Device, &dyn crate::provider::MemoryProvider),
    settings: &Settings,
    layout: &ControlLayout,
) -> Result<Arc<dyn LocalMemory>> {
    let control = provider.alloc(layout.bytes())?;
    let deadline = nanoseconds(settings.deadline.or(group.terms.timeout));
    let header = ControlHeader::new(layout, deadline, settings.on_error == OnError::Trap);
    write_on(device, &*control, 0, bytemuck::bytes_of(&header))?;
    let head = LaneHead::starting_at(settings.first_epoch());
    for lane in 0..layout.lanes {
        write_on(device, &*control, layout.lane(lane), bytemuck::bytes_of(&head))?;
    }
    Ok(control)
}

impl Engine {
    /// Collective. An engine as the group's configuration says.
    pub fn new(group: &Group, device: &Device) -> Result<Self> {
        Self::with(group, device, Settings::from_config(group.context().config()))
    }

    /// Collective. An engine with these settings. Either all ranks get one or all get the same error.
    pub fn with(group: &Group, device: &Device, settings: Settings) -> Result<Self> {
        Self::make(group, device, settings, None)
    }

    /// Collective. [`Engine::with`] on a communicator that is there already, whose ranks are those of the
    /// group in their order, on the same devices.
    pub fn with_communicator(group: &Group, settings: Settings, communicator: &Communicator) -> Result<Self> {
        Self::make(group, communicator.device(), settings, Some(communicator))
    }

    fn make(
        group: &Group,
        device: &Device,
        mut settings: Settings,
        adopted: Option<&Communicator>,
    ) -> Result<Self> {
        if adopted.is_some() {
            settings.provider = Some(Provider::Nccl);
        }
        if settings.provider.is_none() {
            return group.context().with_device_provider(|provider| {
                let settings = Settings { provider: Some(provider), ..settings };
                Self::make(group, device, settings, None)
            });
        }
        let world = group.size();
        if world > MAX_WORLD {
            let problem =
                format!("a group of devices has at most {MAX_WORLD} ranks, not {world}. Hint: use subgroups");
            return Err(Error::invalid("engine", problem));
        }
        let span = tracing::debug_span!("symmem.engine", group = group.name(), device = device.ordinal());
        let _entered = span.enter();
        group.operate(Op::CudaEngine, None, |running| Self::make_in(running, device, settings, adopted))
    }

    fn make_in(
        running: &Running<'_>,
        device: &Device,
        settings: Settings,
        adopted: Option<&Communicator>,
    ) -> Result<Self> {
        let group = running.group();
        let world = group.size();
        let layout = ControlLayout::new(world, settings.lanes.clamp(1, MAX_LANES) as usize);
        let sound = adopted.map_or(Ok(()), |adopted| nccl::check_same(adopted, group));
        let parts = sound.and_then(|()| EngineParts::make(group, device, &settings, &layout));
        let occupancies = parts.as_ref().map_err(|error| error.to_string());
        let occupancies =
            occupancies.and_then(|parts| parts.kernels.occupancies().map_err(|error| error.to_string()));
        let (mut agreed, shares_device) =
            agree::agree(running, device, &settings, adopted.is_some(), occupancies)?;
        // After it either all ranks are here or none is.
        let number = group.inner.engines.fetch_add(1, Ordering::Relaxed) as usize;
        // Fails on every rank above if it failed on one.
        let parts = parts?;
        let sharing = shares_device.then(Sharing::new);
        let joined = match adopted {
            Some(adopted) => registry::on_communicator(adopted).join(running)?,
            None => registry::on_device(settings.chosen_provider(), device)
                .and_then(|provider| provider.join(running))?,
        };
        let base = joined.pads().unwrap_or(&joined);
        let far = &settings.unreachable;
        let made = |_: &[Column]| {
            let (ordinal, lanes) = (device.ordinal(), layout.lanes);
            let mut watched = Watched::new(&group.inner, &parts.words, ordinal, shares_device, lanes);
            if let Some(communicator) = nccl::communicator_of(&*joined) {
                let ending = route::ending(communicator, (&**base, far), &parts.activity);
                watched = watched.with_communicator(ending, settings.deadline.or(group.terms.timeout));
            }
            let watched = Arc::new(watched);
            Ok((WatchGuard::new(Arc::clone(&watched) as _)?, watched))
        };
        let control = control_block(group, (device, base.provider()), &settings, &layout);
        let bring = |local| Bring { joined: Arc::clone(base), local: Some(local) };
        let brought = control.as_ref().map(|control| vec![bring(Arc::clone(control))]);
        let brought = brought.map_err(|error| Error::invalid("control block", error.to_string()));
        let mut shared = share(running, far, brought, made)?;
        let (mut peers, control) = (shared.columns.swap_remove(0), control?);
        let (guard, watched) = shared.finished;
        share_multicast(running, &bring(Arc::clone(&control)), &mut peers)?;
        let scratch = layout.lane(0) + layout.scratch();
        let recorded = parts.kernels.record_themselves;
        let limits = &mut agreed.limits;
        let multimem = multimem::set_up(running, device, &peers, settings.lanes, limits, recorded)?;
        let carrier = route::of_column(&peers);
        let mode = if agreed.one_device { ONE_DEVICE } else { 0 };
        // Between devices nobody has looked whether it is worth it.
        let overlaps = agreed.one_device
            && parts.kernels.wait_for_kernel_before
            && world * layout.lanes <= MOST_OVERLAPPING;
        let body = Body::new(parts, &layout, (group.rank(), mode), (control, peers), joined, multimem);
        let inner = EngineInner {
            _watch_guard: guard,
            _sharing: sharing,
            fate: Fate::new(&body.activity, &watched),
            watched,
            agreed,
            settings,
            device: device.clone(),
            body: ManuallyDrop::new(body),
            group: group.share(),
            carrier,
            number,
            overlaps,
            scratch,
        };
        Ok(Self { inner: Arc::new(inner), lane: 0, forced: None, tune: Tune::default() })
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// A new stream of the device, with the priority of the settings.
    pub fn stream(&self) -> Result<Stream> {
        Stream::with_priority(self.device(), self.inner.settings.priority)
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.inner.body.lanes.len()
    }

    /// The same engine, whose operations go in the order of lane `lane`.
    pub fn lane(&self, lane: usize) -> Result<Self> {
        if lane >= self.lanes() {
            let problem = format!(
                "{lane} must be in [0, {}). Hint: Settings::lanes or SYMMEM_LANES gives more",
                self.lanes()
            );
            return Err(Error::invalid("lane", problem));
        }
        Ok(Self { lane, ..self.clone() })
    }

    /// The same engine, whose all-reduces use `algorithm`; with [`Algorithm::Multimem`] its barriers,
    /// `reduce` and `all_gather_from` too. All ranks must choose alike.
    pub fn using(&self, algorithm: Algorithm) -> Self {
        Self { forced: Some(algorithm), ..self.clone() }
    }

    /// The same engine with other values than the dispatcher's table, for sweeps.
    #[doc(hidden)]
    #[cfg(feature = "bench-support")]
    pub fn tuned(&self, tune: Tune) -> Self {
        Self { tune, ..self.clone() }
    }

    /// How an all-reduce of `bytes` bytes of `dtype` at aligned addresses runs. The same on every rank.
    pub fn plan(&self, form: Form, dtype: DType, bytes: usize) -> Result<Plan> {
        let dtype_index = dtype_index_of(dtype)?;
        let agreed = &self.inner.agreed;
        let (algorithm, kernel) = agreed.choose(form, bytes, self.forced, &self.tune)?;
        let (grid, threads) = agreed.shape(kernel, dtype_index, bytes, &self.tune);
        let kernel = agreed.kernel_for(kernel, bytes, (grid, threads), [0, 0]);
        let registers = self.routine(kernel, dtype_index)?.function.registers;
        Ok(Plan { algorithm, grid, threads, registers })
    }

    /// Makes what captures will need. Kernels are loaded when the engine is made; this spares the first
    /// capture on this lane a few calls that some drivers do not like within one.
    pub fn prepare(&self) -> Result<()> {
        self.inner.body.lanes[self.lane].prepare(self.device())
    }

    /// Sets how long kernels of this rank may wait for peers from now on, those of graphs included; `None`:
    /// for ever.
    pub fn set_deadline(&self, deadline: Option<Duration>) -> Result<()> {
        check_no_capture("deadline")?;
        self.inner.watched.set_deadline(deadline);
        let control = &*self.inner.body.control;
        write_on(self.device(), control, ControlHeader::DEADLINE, &nanoseconds(deadline).to_le_bytes())
    }

    /// Whether the group can still be used. Cheap, and never blocks: for people who replay graphs.
    pub fn status(&self) -> Status {
        self.look_at_nccl();
        self.inner.watched.status()
    }

    /// Where its memory comes from.
    pub(crate) fn provider(&self) -> Provider {
        self.inner.settings.chosen_provider()
    }

    /// The ranks that count as out of reach.
    pub(crate) fn far(&self) -> &[usize] {
        &self.inner.settings.unreachable
    }

    /// What the ranks joined for memory of `provider`.
    pub(crate) fn joined(&self, provider: Provider) -> Result<&Arc<dyn Joined>> {
        let joined = &self.inner.body.joined;
        let is_it = |joined: &&Arc<dyn Joined>| joined.provider().name() == provider.name();
        [Some(joined), joined.pads()].into_iter().flatten().find(is_it).ok_or_else(|| {
            let problem = format!(
                "this engine has not joined it. Hint: set SYMMEM_PROVIDER={provider}, Config::provider or Settings::provider"
            );
            Error::invalid(format!("memory of {provider}"), problem)
        })
    }

    /// Tells the engines of a group apart: each has its own work on the memory it is given.
    pub(crate) fn key(&self) -> usize {
        self.inner.number
    }

    /// What memory must know of this engine; holds neither it nor its group.
    pub(crate) fn fate(&self) -> &Fate {
        &self.inner.fate
    }

    /// Where an operation failed, the sequence being that of the lane.
    fn context(&self, op: Op, channel: Option<usize>) -> Box<Context> {
        let mut context = self.inner.watched.context(op, channel);
        context.sequence = self.inner.body.lanes[self.lane].launches();
        context
    }
}

impl Body {
    fn new(
        parts: EngineParts,
        layout: &ControlLayout,
        (rank, mode): (usize, u32),
        (control, peers): (Arc<dyn LocalMemory>, Column),
        joined: Arc<dyn Joined>,
        multimem: Result<Multimem, String>,
    ) -> Self {
        let EngineParts { kernels, status, activity, .. } = parts;
        let addresses: Vec<u64> = peers.addresses().collect();
        let multicast = multimem.as_ref().map_or(0, |multimem| multimem.control);
        let lane = |index| {
            Lane::new(layout, index, rank, &addresses, status.address(), mode, &activity)
                .with_multicast(multicast)
        };
        let lanes = (0..layout.lanes).map(lane).collect();
        let rings = LaneRings::new(layout.lanes);
        let products = EngineProducts::new(layout.lanes);
        Self { lanes, kernels, multimem, _peers: peers, control, activity, status, rings, products, joined }
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing uses it afterwards.
        let body = unsafe { ManuallyDrop::take(&mut self.body) };
        if fork::is_child() {
            // It belongs to the rank.
            std::mem::forget(body);
            return;
        }
        self.fate.end(&self.watched);
        // Kernels may still be at work on it. Peers that are at work on this rank's control block have
        // mappings of their own, so what they hold stays with them, poisoned or not.
        let activity = Arc::clone(&body.activity);
        deferred::drop_when(Box::new(move || activity.is_idle()), Box::new(body));
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("group", &self.group().name())
            .field("rank", &self.group().rank())
            .field("device", self.device())
            .field("lane", &self.lane)
            .field("forced", &self.forced)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_bounds() {
        assert!(Settings::default().check().is_ok());
        assert!(Settings { lanes: 0, ..Settings::default() }.check().is_err());
        assert!(Settings { lanes: 17, ..Settings::default() }.check().is_err());
        let by =
            |algorithm: &str| Settings { algorithm: algorithm.to_owned(), ..Settings::default() }.check();
        for algorithm in Algorithm::EVERY {
            assert_eq!(by(algorithm.name()).is_ok(), !algorithm.needs_multicast(), "{algorithm}");
        }
        assert!(by("ring").unwrap_err().to_string().contains("none of low_latency"));
        assert_eq!(Settings::default().first_epoch(), FIRST_EPOCH);
        assert_eq!(Settings { first_epoch: 0xffff_fff0, ..Settings::default() }.first_epoch(), 0xffff_fff0);
    }
}
