//! Kernels of the tests' own: one that holds a stream up, one that compares memory, one that kills the
//! context.
//!
//! Made before any kernel waits for a peer, and kept until all is done: to load and to unload a module waits
//! for the device.

use std::ffi::c_void;
use std::time::Duration;

use symmem::Result;
use symmem::cuda::{Buffer, Device, Function, Module, Stream};

const SOURCE: &str = r#"
extern "C" __global__ void hold_up(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

extern "C" __global__ void differing(const unsigned* at, unsigned count, unsigned value, unsigned* found) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        if (at[i] != value) atomicAdd(found, 1);
    }
}

extern "C" __global__ void store(unsigned* at) { *at = 1; }
"#;

/// An address that is nobody's.
const NOWHERE: u64 = 16;

pub(crate) struct Tools {
    hold_up: Function,
    differing: Function,
    store: Function,
    found: Buffer<u32>,
}

fn at<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

impl Tools {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let module = Module::compile(device, "tools.cu", SOURCE)?;
        Ok(Self {
            hold_up: module.function("hold_up")?,
            differing: module.function("differing")?,
            store: module.function("store")?,
            found: Buffer::new(device, 1)?,
        })
    }

    /// Lets everything that is given to `stream` from here on wait for `time`. The host does not wait.
    pub(crate) fn hold_up(&self, stream: &Stream, time: Duration) -> Result<()> {
        let nanoseconds = time.as_nanos() as u64;
        // SAFETY: the parameter of the kernel, which touches no memory.
        unsafe { self.hold_up.launch(stream, 1, 1, &mut [at(&nanoseconds)]) }
    }

    /// How many of the `count` numbers at `address` are not `value`, bit by bit.
    ///
    /// # Safety
    /// They are mapped on this device.
    pub(crate) unsafe fn differing(
        &self,
        address: u64,
        count: usize,
        value: f32,
        stream: &Stream,
    ) -> Result<u32> {
        self.found.fill_bytes(0, stream)?;
        let (count, value, found) = (count as u32, value.to_bits(), self.found.device_ptr());
        // SAFETY: the parameters of the kernel; the memory is mapped, and waited for below.
        unsafe {
            self.differing.launch(stream, 1, 256, &mut [at(&address), at(&count), at(&value), at(&found)])
        }?;
        Ok(self.found.read(stream)?[0])
    }

    /// Stores where no memory is: all that is done in the context from then on fails.
    pub(crate) fn lose_context(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the parameter of the kernel. The driver takes the context for it, and touches nobody's
        // memory.
        unsafe { self.store.launch(stream, 1, 1, &mut [at(&NOWHERE)]) }
    }
}
