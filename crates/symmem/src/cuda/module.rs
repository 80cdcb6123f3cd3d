//! Modules: kernels on a device, the engine's and the user's own.
//!
//! What it guarantees: a [`Function`] is on the device when it is returned (a kernel that were loaded at its
//! first launch would wait behind a kernel that spins, for ever), and launching one allocates nothing and
//! changes no context that is right already.

#![allow(unsafe_code, reason = "calls of the CUDA driver")]

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUjit_option, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUresult,
};

pub(crate) use super::cache::{cached, cached_in};
use super::device::Bound;
use super::driver::{check, error, has};
use super::{Device, Stream, nvrtc, queues};
use crate::{Error, Result};

/// Bytes for the words of the just-in-time compiler.
const LOG: usize = 16 << 10;

/// What kernels of one's own may include, by name: `symmem.cuh` (peers' pointers, signals, a barrier,
/// packets) and what it needs.
const DEVICE_HEADERS: [(&str, &str); 2] = [
    ("symmem.cuh", include_str!("../../kernels/symmem.cuh")),
    ("primitives.cuh", include_str!("../../kernels/primitives.cuh")),
];

/// Names and texts of the headers that come with this crate for kernels of one's own, for those who compile
/// them elsewhere.
pub fn device_headers() -> &'static [(&'static str, &'static str)] {
    &DEVICE_HEADERS
}

/// Code on a device. Cheap to clone; unloaded when the last clone and the last function are gone.
///
/// ```no_run
/// # fn main() -> symmem::Result<()> {
/// use symmem::cuda::{Device, Module, Stream};
/// let device = Device::new(0)?;
/// let source = r#"extern "C" __global__ void nothing() {}"#;
/// let nothing = Module::compile(&device, "nothing.cu", source)?.function("nothing")?;
/// // SAFETY: it takes no parameters and touches nothing.
/// unsafe { nothing.launch(&Stream::new(&device)?, 1, 32, &mut []) }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Module(Arc<SharedModule>);

#[derive(Debug)]
struct SharedModule {
    device: Device,
    raw: CUmodule,
}

// SAFETY: the driver takes modules from every thread; the handle is only a number here.
unsafe impl Send for SharedModule {}
// SAFETY: as above.
unsafe impl Sync for SharedModule {}

impl Module {
    /// Compiles `source`, called `name` in messages, for `device` by NVRTC, and loads it. It may include
    /// [`device_headers`].
    pub fn compile(device: &Device, name: &str, source: &str) -> Result<Self> {
        Self::load(device, &Self::image(device, name, source)?)
    }

    /// What [`Module::compile`] loads; kept in the cache of compiled kernels.
    pub fn image(device: &Device, name: &str, source: &str) -> Result<Vec<u8>> {
        let (major, minor) = device.compute_capability();
        let options = [format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".to_owned()];
        let (nvrtc_major, nvrtc_minor) = nvrtc::version()?;
        let version = format!("{nvrtc_major}.{nvrtc_minor}");
        let headers = DEVICE_HEADERS.map(|(_, text)| text.as_bytes());
        let key = [source.as_bytes(), options[0].as_bytes(), version.as_bytes(), headers[0], headers[1]];
        cached(&key, || Ok(nvrtc::compile(name, source, &DEVICE_HEADERS, &options)?.image))
    }

    /// Loads `image`: a cubin, a fat binary, or PTX.
    pub fn load(device: &Device, image: &[u8]) -> Result<Self> {
        let terminated;
        let image = match is_text(image) && image.last() != Some(&0) {
            true => {
                terminated = [image, &[0]].concat();
                &terminated[..]
            }
            false => image,
        };
        let _bound = device.bind()?;
        let mut log = vec![0u8; LOG];
        let mut options =
            [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The second value is a number in place of a pointer.
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG)];
        let mut raw = ptr::null_mut();
        // SAFETY: an image that ends by itself or in a zero; as many options as values; writes one handle and
        // the log.
        let code = unsafe {
            sys::cuModuleLoadDataEx(
                &mut raw,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if code != CUresult::CUDA_SUCCESS {
            return Err(with_log(error("cuModuleLoadData", code), &log));
        }
        Ok(Self(Arc::new(SharedModule { device: device.clone(), raw })))
    }

    /// The kernel called `name`, on the device and ready.
    pub fn function(&self, name: &str) -> Result<Function> {
        let c_name =
            CString::new(name).map_err(|_| Error::invalid("kernel", format!("{name:?} has a zero")))?;
        let _bound = self.0.device.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a live module and a terminated string; writes one handle.
        let code = unsafe { sys::cuModuleGetFunction(&mut raw, self.0.raw, c_name.as_ptr()) };
        if code == CUresult::CUDA_ERROR_NOT_FOUND {
            return Err(Error::invalid("kernel", format!("the module has no {name}")));
        }
        check("cuModuleGetFunction", code)?;
        // With lazy loading the handle alone loads nothing. Older drivers, without this call, load for the
        // attributes.
        if has("cuFuncLoad") {
            // SAFETY: a live function.
            check("cuFuncLoad", unsafe { sys::cuFuncLoad(raw) })?;
        }
        let attribute = |which| attribute_of(raw, which);
        let spilled = attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?;
        if spilled > 0 {
            // The driver may have to make room for that at a first launch, and waits for the device to do so.
            tracing::warn!(name, bytes = spilled, "the kernel spills registers");
        }
        Ok(Function {
            raw,
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            max_threads: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            module: self.clone(),
        })
    }
}

impl Drop for SharedModule {
    fn drop(&mut self) {
        // SAFETY: made here, and all functions of it are gone.
        self.device.release("cuModuleUnload", || unsafe { sys::cuModuleUnload(self.raw) });
    }
}

/// A kernel that is on its device.
#[derive(Clone, Debug)]
pub struct Function {
    pub(crate) raw: CUfunction,
    /// Registers per thread.
    pub(crate) registers: u32,
    /// Most threads in a block.
    pub(crate) max_threads: u32,
    /// Keeps the code on the device.
    module: Module,
}

// SAFETY: the driver takes functions from every thread; the handle is only a number here.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Its device.
    pub(crate) fn device(&self) -> &Device {
        &self.module.0.device
    }

    /// Registers of each thread.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// How many blocks of this shape a multiprocessor holds at once.
    pub fn occupancy(&self, threads: u32, shared: usize) -> Result<u32> {
        let _bound = self.device().bind()?;
        let mut blocks = 0;
        // SAFETY: a live function; writes one number.
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, self.raw, threads as i32, shared)
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Launches `grid` blocks of `threads` threads on `stream`. In a capture the graph keeps the module, and
    /// nothing else.
    ///
    /// # Safety
    /// `params` are as many as the kernel has, each pointing to a value of its type; what the kernel does
    /// with them is right, and the memory it works on stays mapped until it is done: in a capture, until no
    /// graph is left that was made of it.
    #[inline]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: u32,
        threads: u32,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        let bound = self.device().bind()?;
        stream.keep_if_captured(&[Some(&self.module.0)])?;
        // SAFETY: as the caller promises.
        unsafe { self.launch_in(&bound, stream, (grid, threads), false, params) }
    }

    /// The same where the context is bound already. `is_early`: it may start before the kernel ahead of it in
    /// the stream has ended.
    ///
    /// # Safety
    /// As for [`Function::launch`]; and an early kernel touches no memory before it has waited
    /// (`griddepcontrol.wait`).
    #[inline]
    pub(crate) unsafe fn launch_in(
        &self,
        _bound: &Bound<'_>,
        stream: &Stream,
        (grid, threads): (u32, u32),
        is_early: bool,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        debug_assert!(self.device() == stream.device() && threads <= self.max_threads);
        let _turn = queues::turn();
        if !is_early {
            let (stream, params) = (stream.raw(), params.as_mut_ptr());
            // SAFETY: live function and stream of one context; the parameters as promised by the caller,
            // copied in the call.
            let code = unsafe {
                sys::cuLaunchKernel(self.raw, grid, 1, 1, threads, 1, 1, 0, stream, params, ptr::null_mut())
            };
            return check("cuLaunchKernel", code);
        }
        let mut early = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.raw(),
            attrs: &raw mut early,
            numAttrs: 1,
        };
        // SAFETY: as above; one attribute, which is copied in the call.
        let code = unsafe { sys::cuLaunchKernelEx(&config, self.raw, params.as_mut_ptr(), ptr::null_mut()) };
        check("cuLaunchKernelEx", code)
    }
}

fn attribute_of(function: CUfunction, attribute: CUfunction_attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: a live function; writes one number.
    check("cuFuncGetAttribute", unsafe { sys::cuFuncGetAttribute(&mut value, attribute, function) })?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Whether `image` is PTX: neither ELF nor a fat binary.
fn is_text(image: &[u8]) -> bool {
    !image.starts_with(b"\x7fELF") && !image.starts_with(&0xBA55_ED50u32.to_le_bytes())
}

/// Adds what the just-in-time compiler said.
fn with_log(error: Error, log: &[u8]) -> Error {
    let words = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let words = String::from_utf8_lossy(words).trim().to_owned();
    match error {
        Error::Cuda { call, code, name, hint } if !words.is_empty() => {
            Error::Cuda { call, code, name: format!("{name}: {words}"), hint }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_told_from_binaries() {
        assert!(is_text(b".version 8.0"));
        assert!(!is_text(b"\x7fELF\x02"));
        assert!(!is_text(&[0x50, 0xED, 0x55, 0xBA, 1]));
    }

    #[test]
    fn the_compilers_words_are_in_the_error() {
        let error = || Error::Cuda {
            call: "cuModuleLoadData",
            code: 218,
            name: "CUDA_ERROR_INVALID_PTX".into(),
            hint: "",
        };
        let text = with_log(error(), b"ptxas fatal: line 3\n\0\0").to_string();
        assert!(text.contains("INVALID_PTX: ptxas fatal: line 3"), "{text}");
        assert_eq!(with_log(error(), &[0; 8]).to_string(), error().to_string());
    }

    #[test]
    fn kernels_load_launch_and_name_what_is_missing() {
        let Ok(device) = Device::new(0) else {
            println!("skipped: no CUDA device");
            return;
        };
        let ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
        let module = Module::load(&device, ptx.as_bytes()).unwrap();
        let nothing = module.function("nothing").unwrap();
        assert!(nothing.occupancy(128, 0).unwrap() > 0 && nothing.max_threads >= 128);
        let stream = Stream::new(&device).unwrap();
        // SAFETY: the kernel has no parameters and touches nothing.
        unsafe { nothing.launch(&stream, 2, 128, &mut []) }.unwrap();
        stream.synchronize().unwrap();
        assert!(module.function("something").unwrap_err().to_string().contains("something"));
        let error = Module::load(&device, b".version 8.0\n.target sm_80\nrubbish").unwrap_err();
        assert!(error.to_string().contains("ptxas"), "{error}");
    }
}
