//! Multicast: sums and copies by the switch. Needs several devices that have it, one for each rank; where
//! there are none, the reason is printed, and that choosing it is an error is all that is tested.
//!
//! The switch has an order and a rounding of its own, so numbers here are such that no sum is rounded.

use symmem::cuda::{Algorithm, Buffer, Device, Engine, Form, SymmetricMemory};
use symmem::{Error, ReduceOp, Result, bf16, f16};

use crate::common::{config, same_ranks_with};
use crate::stage::{Rank, alone, device, on_threads, settings};
use crate::trial::Number;

const LENGTHS: [usize; 6] = [1, 2, 7, 1000, 4099, 1 << 20];
/// First elements of a message: aligned, and not.
const PLACES: [usize; 4] = [0, 1, 3, 8];
const MARGIN: usize = 16;

/// As many devices as can be in one multicast object, or `None` and a printed reason.
fn devices() -> Option<usize> {
    device()?;
    let count = Device::count().expect("there is a driver").min(8);
    let has = |ordinal| Device::new(ordinal).is_ok_and(|device| device.has_multicast());
    let with = (0..count).take_while(|ordinal| has(*ordinal)).count();
    if with < 2 {
        println!("skipped: multicast needs two devices that have it, and {with} of {count} can be used");
        return None;
    }
    Some(with)
}

/// Runs `test` on `world` threads, each with a device of its own; prints the reason where they have no
/// multicast after all.
fn on_devices(world: usize, test: impl Fn(&Rank) -> Result<()> + Sync) {
    let _alone = alone();
    let ran = symmem::spawn(world, |group| {
        let device = Device::new(group.rank())?;
        let group = same_ranks_with(&group, config())?;
        let engine = Engine::with(&group, &device, settings())?;
        let stream = engine.stream()?;
        let rank = Rank { group, device, engine, stream };
        match rank.engine.using(Algorithm::Multimem).plan(Form::InPlace, symmem::DType::F32, 64) {
            Err(error @ Error::NoMulticast { .. }) => {
                println!("skipped: {error}");
                Ok(())
            }
            Err(error) => Err(error),
            Ok(_) => test(&rank),
        }
    });
    ran.unwrap();
}

/// What is added here.
trait Whole: Number {
    fn of(number: f32) -> Self;
}

impl Whole for bf16 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
}

impl Whole for f16 {
    fn of(number: f32) -> Self {
        Self::from_f32(number)
    }
}

impl Whole for f32 {
    fn of(number: f32) -> Self {
        number
    }
}

/// A whole number: sums over 8 ranks are exact in every type.
fn number(seed: usize, rank: usize, index: usize) -> f32 {
    ((seed + rank * 3 + index * 7) % 13) as f32
}

fn numbers<T: Whole>(seed: usize, rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|index| T::of(number(seed, rank, index))).collect()
}

fn bytes<T: Whole>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// What everybody's numbers come to; averages are exact where the number of ranks is a power of two.
fn result<T: Whole>(op: ReduceOp, seed: usize, world: usize, len: usize) -> Vec<T> {
    let divisor = if op == ReduceOp::Avg { world as f32 } else { 1.0 };
    let sum = |index| (0..world).map(|rank| number(seed, rank, index)).sum::<f32>();
    (0..len).map(|index| T::of(sum(index) / divisor)).collect()
}

/// One rank's memory: symmetric, and its own.
struct Memory<T: Whole> {
    allocation: symmem::cuda::Allocation<T>,
    whole: SymmetricMemory<T>,
    input: Buffer<T>,
    output: Buffer<T>,
}

impl<T: Whole> Memory<T> {
    fn new(rank: &Rank) -> Result<Self> {
        let room = LENGTHS[LENGTHS.len() - 1] + 2 * MARGIN;
        let allocation = rank.engine.alloc::<T>(room)?;
        let whole = allocation.rendezvous(&rank.engine)?;
        let [input, output] = [Buffer::new(&rank.device, room)?, Buffer::new(&rank.device, room)?];
        Ok(Self { allocation, whole, input, output })
    }

    /// One all-reduce, and what is beside its result.
    fn reduce(
        &mut self,
        rank: &Rank,
        form: Form,
        (place, len): (usize, usize),
        algorithm: Algorithm,
        seed: usize,
    ) -> Result<()> {
        let (world, stream) = (rank.group.size(), &rank.stream);
        let op =
            if seed.is_multiple_of(2) && world.is_power_of_two() { ReduceOp::Avg } else { ReduceOp::Sum };
        let (start, end) = (MARGIN + place, MARGIN + place + len);
        let mine = numbers::<T>(seed, rank.rank(), end + MARGIN);
        self.allocation.write(&pad(&mine, self.whole.len()), stream)?;
        self.input.write(&pad(&mine, self.whole.len()), stream)?;
        let handle = self.whole.slice(start..end)?.using(algorithm);
        rank.ready()?;
        let input = self.input.as_slice().slice(start..end)?;
        let mut output = self.output.as_slice_mut();
        match form {
            Form::InPlace => handle.all_reduce(op, stream)?,
            Form::Out => handle.all_reduce_out(op, output.slice_mut(3..3 + len)?, stream)?,
            Form::Private => handle.all_reduce_from(op, input, output.slice_mut(3..3 + len)?, stream)?,
        }
        rank.sync()?;
        let symmetric = self.allocation.read(stream)?;
        let found = match form {
            Form::InPlace => symmetric[start..end].to_vec(),
            _ => self.output.read(stream)?[3..3 + len].to_vec(),
        };
        let wanted = &result::<T>(op, seed, world, end)[start..];
        let what = format!("{form} {algorithm} {op} of {len} {} at {place} of {world}", T::DTYPE);
        assert!(bytes(&found) == bytes(wanted), "{what}");
        assert!(bytes(&symmetric[..start]) == bytes(&mine[..start]), "{what}: before");
        assert!(bytes(&symmetric[end..end + MARGIN]) == bytes(&mine[end..]), "{what}: behind");
        Ok(())
    }
}

/// `elements`, and zeros up to `len`.
fn pad<T: Whole>(elements: &[T], len: usize) -> Vec<T> {
    let mut padded = elements.to_vec();
    padded.resize(len, T::of(0.0));
    padded
}

fn all_of<T: Whole>(rank: &Rank) -> Result<()> {
    let mut memory = Memory::<T>::new(rank)?;
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        for place in PLACES {
            for form in Form::ALL {
                memory.reduce(rank, form, (place, len), Algorithm::Multimem, seed)?;
            }
            // The same bytes through other addresses, right before and after.
            memory.reduce(rank, Form::InPlace, (place, len), Algorithm::TwoShot, seed + 1)?;
        }
    }
    rank.end()
}

#[test]
fn sums_by_the_switch_are_right() {
    let Some(count) = devices() else { return };
    for world in (2..=count).filter(|world| [2, 3, 4, 8].contains(world)) {
        on_devices(world, |rank| {
            all_of::<bf16>(rank)?;
            all_of::<f16>(rank)?;
            all_of::<f32>(rank)
        });
    }
}

#[test]
fn barriers_gathers_and_replays_by_multicast_are_right() {
    let Some(count) = devices() else { return };
    on_devices(count, |rank| {
        let (world, stream, me) = (rank.group.size(), &rank.stream, rank.rank());
        let engine = rank.engine.using(Algorithm::Multimem);
        for part in [1, 5, 1000, 4099] {
            let memory = engine.alloc::<f32>(part * world)?.rendezvous(&engine)?;
            let own = Buffer::<f32>::new(&rank.device, part)?;
            own.write(&numbers(0, me, part), stream)?;
            rank.ready()?;
            memory.all_gather_from(&own, stream)?;
            engine.barrier(stream)?;
            rank.sync()?;
            let wanted: Vec<f32> = (0..world).flat_map(|rank| numbers(0, rank, part)).collect();
            assert_eq!(memory.read(stream)?, wanted, "gather of {part}");
        }
        // Ones stay ones on average, however often.
        let memory = engine.alloc::<f32>(5000)?.rendezvous(&engine)?;
        memory.write(&[1.0; 5000], stream)?;
        engine.prepare()?;
        rank.ready()?;
        stream.begin_capture()?;
        memory.all_reduce(ReduceOp::Avg, stream)?;
        memory.barrier(0, stream)?;
        rank.engine.barrier(stream)?;
        let graph = stream.end_capture()?;
        rank.ready()?;
        for _ in 0..100 {
            graph.launch(stream)?;
        }
        rank.sync()?;
        assert_eq!(memory.read(stream)?, [1.0; 5000]);
        rank.end()
    });
}

#[test]
fn ranks_on_one_device_are_told_that_they_have_no_multicast() {
    if device().is_none() {
        return;
    }
    on_threads(2, &settings(), |rank| {
        let memory = rank.engine.alloc::<f32>(64)?.rendezvous(&rank.engine)?.using(Algorithm::Multimem);
        for result in [
            memory.all_reduce(ReduceOp::Sum, &rank.stream),
            memory.barrier(0, &rank.stream),
            memory.engine().barrier(&rank.stream),
        ] {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::NoMulticast { .. }), "{error}");
            println!("{error}");
        }
        // The group is whole.
        rank.ready()?;
        rank.engine.barrier(&rank.stream)?;
        rank.end()
    });
}
