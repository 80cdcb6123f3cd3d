//! The kernels that all systems run around their operations, with types instead of pointers to parameters.

use std::ffi::c_void;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use symmem::bf16;
use symmem::cuda::{Buffer, Device, Stream};
use symmem::cuda::{Function, Module};

use super::pattern;
use crate::bench::gpu::plan::FILL_THREADS;

/// Threads and blocks of what is not timed.
const THREADS: u32 = 512;
const BLOCKS: u32 = 132;

/// The kernels, and the memory of theirs.
pub(super) struct Kernels {
    fill: Function,
    bump: Function,
    poison: Function,
    check: Function,
    delay: Function,
    stamp: Function,
    /// The round that the next graph begins with.
    counter: Buffer<u32>,
    wrong: Buffer<u64>,
    stamps: Buffer<u64>,
}

/// The address of a parameter.
fn at<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

impl Kernels {
    /// Those of a file, tried before anything depends on them.
    pub(super) fn load(device: &Device, path: &Path, stream: &Stream) -> Result<Self> {
        let image = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let module = Module::load(device, &image)?;
        let kernels = Self {
            fill: module.function("bench_fill")?,
            bump: module.function("bench_bump")?,
            poison: module.function("bench_poison")?,
            check: module.function("bench_check")?,
            delay: module.function("bench_delay")?,
            stamp: module.function("bench_stamp")?,
            counter: Buffer::from_slice(device, &[1], stream)?,
            wrong: Buffer::from_slice(device, &[0], stream)?,
            stamps: Buffer::from_slice(device, &[0; 2], stream)?,
        };
        kernels.try_out(device, stream)?;
        Ok(kernels)
    }

    /// Gives `count` elements at `to` the values that `rank` has in the counter's round plus `node`.
    ///
    /// # Safety
    /// `to` is memory of so many elements, aligned to 16 bytes, that lives until this has run.
    pub(super) unsafe fn fill(
        &self,
        stream: &Stream,
        to: u64,
        count: u32,
        rank: u32,
        node: u32,
        blocks: u32,
    ) -> Result<()> {
        let counter = self.counter.device_ptr();
        let mut params = [at(&to), at(&count), at(&rank), at(&counter), at(&node)];
        // SAFETY: the parameters of bench_fill; the caller's promise.
        Ok(unsafe { self.fill.launch(stream, blocks, FILL_THREADS as u32, &mut params) }?)
    }

    /// Moves the counter on.
    pub(super) fn bump(&self, stream: &Stream, by: u32) -> Result<()> {
        let counter = self.counter.device_ptr();
        // SAFETY: the parameters of bench_bump; the counter lives as long as this.
        Ok(unsafe { self.bump.launch(stream, 1, 1, &mut [at(&counter), at(&by)]) }?)
    }

    /// Makes `count` elements at `to` what no operation may leave.
    ///
    /// # Safety
    /// `to` is memory of so many elements, that lives until this has run.
    pub(super) unsafe fn poison(&self, stream: &Stream, to: u64, count: u32) -> Result<()> {
        // SAFETY: the parameters of bench_poison; the caller's promise.
        Ok(unsafe { self.poison.launch(stream, BLOCKS, THREADS, &mut [at(&to), at(&count)]) }?)
    }

    /// Counts the elements at `got` that are not the sum over `ranks` ranks of element `first` and up, in the
    /// counter's round less `back`.
    ///
    /// # Safety
    /// `got` is memory of so many elements, that lives until this has run.
    pub(super) unsafe fn check(
        &self,
        stream: &Stream,
        got: u64,
        count: u32,
        first: u32,
        ranks: u32,
        back: u32,
    ) -> Result<()> {
        let (counter, wrong) = (self.counter.device_ptr(), self.wrong.device_ptr());
        let mut params = [at(&got), at(&count), at(&first), at(&ranks), at(&counter), at(&back), at(&wrong)];
        // SAFETY: the parameters of bench_check; the caller's promise.
        Ok(unsafe { self.check.launch(stream, BLOCKS, THREADS, &mut params) }?)
    }

    /// How many elements were wrong since the last call. Waits for the stream.
    pub(super) fn wrong(&self, stream: &Stream) -> Result<u64> {
        let wrong = self.wrong.read(stream)?;
        self.wrong.write(&[0], stream)?;
        Ok(wrong[0])
    }

    /// Keeps the stream busy for so many nanoseconds.
    pub(super) fn delay(&self, stream: &Stream, nanoseconds: u64) -> Result<()> {
        // SAFETY: the parameter of bench_delay, which touches no memory.
        Ok(unsafe { self.delay.launch(stream, 1, 1, &mut [at(&nanoseconds)]) }?)
    }

    /// Notes the device's time when the stream comes here; the first or the second of two.
    pub(super) fn stamp(&self, stream: &Stream, which: u64) -> Result<()> {
        let to = self.stamps.device_ptr() + which.min(1) * 8;
        // SAFETY: the parameter of bench_stamp; one of two words, which live as long as this.
        Ok(unsafe { self.stamp.launch(stream, 1, 1, &mut [at(&to)]) }?)
    }

    /// Both times. Waits for the stream.
    pub(super) fn stamps(&self, stream: &Stream) -> Result<[u64; 2]> {
        let stamps = self.stamps.read(stream)?;
        Ok([stamps[0], stamps[1]])
    }

    /// Whether they do what the host does: a check that finds nothing proves nothing else.
    fn try_out(&self, device: &Device, stream: &Stream) -> Result<()> {
        const COUNT: u32 = 4099;
        let buffer = Buffer::<bf16>::new(device, COUNT as usize)?;
        let to = buffer.device_ptr();
        // SAFETY: the buffer has so many elements; its memory is aligned to far more; it is read, after all
        // of this, below.
        unsafe {
            self.poison(stream, to, COUNT)?;
            self.fill(stream, to, COUNT, 0, 3, 2)?;
        }
        let expected = |index| bf16::from_bits(pattern::bits(pattern::eighths(index, 0, 4)));
        let mut elements = buffer.read(stream)?;
        let right = (0..).zip(&elements).all(|(index, element)| *element == expected(index));
        ensure!(right, "the bench's fill kernel does not do what it must");
        let count = |what: &str, wrong: u64| -> Result<()> {
            self.bump(stream, 20)?;
            // SAFETY: as above.
            unsafe { self.check(stream, to, COUNT, 0, 1, 17) }?;
            let found = self.wrong(stream)?;
            // The counter goes back to where it was, for the next call.
            self.bump(stream, 20u32.wrapping_neg())?;
            ensure!(
                found == wrong,
                "the bench's check kernel finds {found} errors in {what}, instead of {wrong}"
            );
            Ok(())
        };
        count("what is right", 0)?;
        elements[COUNT as usize - 1] = bf16::from_bits(0xFFFF);
        elements[7] = bf16::from_f32(-expected(7).to_f32() + 16.0);
        buffer.write(&elements, stream)?;
        count("what is wrong", 2)
    }
}
