//! Modules and kernels: any image loads, any name is found, and a launch does nothing but record
//! (`marks.rs`); captured, it uses its memory.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::device::current;
use crate::marks::LaunchNote;
use crate::node::{NodeWork, give};
use crate::result::{Code, INVALID_HANDLE, INVALID_VALUE, Out, call, put, put_at};
use crate::state::DriverState;
use crate::stream::captured;

/// Loads a module.
///
/// # Safety
/// `module` can be written, or is null.
unsafe fn load(state: &mut DriverState, module: *mut u64, image: *const c_void) -> Result<(), Code> {
    current()?;
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let number = state.number();
    // SAFETY: as promised by the caller.
    unsafe { put_at(module, number) }?;
    state.modules.insert(number, Vec::new());
    Ok(())
}

pub(crate) fn name_of(state: &DriverState, function: u64) -> Result<&CString, Code> {
    let mut all = state.modules.values().flatten();
    all.find(|(number, _)| *number == function).map(|(_, name)| name).ok_or(INVALID_HANDLE)
}

fn check_function(state: &DriverState, function: u64) -> Result<(), Code> {
    name_of(state, function).map(drop)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const c_void) -> Code {
    // SAFETY: the caller's place for the result.
    call(c"cuModuleLoadData", |state| unsafe { load(state, module, image) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut u64,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's place for the result.
    call(c"cuModuleLoadDataEx", |state| unsafe { load(state, module, image) })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: u64) -> Code {
    call(c"cuModuleUnload", |state| state.modules.remove(&module).map(drop).ok_or(INVALID_HANDLE))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: Out<'_, u64>, module: u64, name: *const c_char) -> Code {
    call(c"cuModuleGetFunction", |state| {
        let number = state.number();
        let functions = state.modules.get_mut(&module).ok_or(INVALID_HANDLE)?;
        put(function, number)?;
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's string.
        functions.push((number, unsafe { CStr::from_ptr(name) }.to_owned()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(function: u64) -> Code {
    call(c"cuFuncLoad", |state| check_function(state, function))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<'_, c_int>, attribute: c_int, function: u64) -> Code {
    call(c"cuFuncGetAttribute", |state| {
        check_function(state, function)?;
        let answer = match attribute {
            // Threads per block; registers.
            0 => 1024,
            4 => 32,
            _ => 0,
        };
        put(value, answer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: u64, _attribute: c_int, _value: c_int) -> Code {
    call(c"cuFuncSetAttribute", |state| check_function(state, function))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<'_, c_int>,
    function: u64,
    _threads: c_int,
    _shared: usize,
) -> Code {
    call(c"cuOccupancyMaxActiveBlocksPerMultiprocessor", |state| {
        check_function(state, function)?;
        put(blocks, 2)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: u64,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    stream: u64,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's parameters.
    unsafe { launch(c"cuLaunchKernel", function, stream, parameters) }
}

/// `CUlaunchConfig`, as far as it is looked at.
#[repr(C)]
struct Config {
    shape: [c_uint; 7],
    stream: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: u64,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    // SAFETY: the caller's config.
    let stream = unsafe { config.as_ref() }.map_or(0, |config| config.stream);
    // SAFETY: the caller's parameters.
    unsafe { launch(c"cuLaunchKernelEx", function, stream, parameters) }
}

/// Words of the parameter of this project's kernels, as far as all of them have them: `Launch<8>`.
const WORDS: usize = 31;
/// How the names of these kernels begin.
const KNOWN: [&[u8]; 10] = [
    b"all_",
    b"pull",
    b"reduce_",
    b"barrier",
    b"put_signal",
    b"wait_signal",
    b"begin_work",
    b"end_work",
    b"mark_",
    b"open_records",
];
/// Which word has the rank, and the first of the addresses of everybody's lane.
const RANK: usize = 12;
const LANES: usize = 15;
/// Which word has operation and signature.
const SIGNATURE: usize = 13;

/// # Safety
/// Kernels with the names of this project's have its parameter.
unsafe fn launch(name: &'static CStr, function: u64, stream: u64, parameters: *mut *mut c_void) -> Code {
    call(name, |state| {
        let kernel = name_of(state, function)?.to_bytes();
        let is_known = kernel == b"copy" || KNOWN.iter().any(|start| kernel.starts_with(start));
        // SAFETY: as promised.
        let all = unsafe {
            let first = parameters.as_ref().filter(|_| is_known);
            first.map_or([0; WORDS], |first| first.cast::<[u64; WORDS]>().read_unaligned())
        };
        let mut words = [0; 12];
        words.copy_from_slice(&all[..12]);
        let lane = all.get(LANES + all[RANK] as u32 as usize).copied().unwrap_or(0);
        let said = LaunchNote { lane, signature: all[SIGNATURE] };
        let used: Vec<_> = match captured(state, stream)? {
            None => Vec::new(),
            // Whatever of it is an address is memory that the kernel uses.
            Some(_) => {
                all.iter().filter(|word| state.is_accessible(**word, 1)).map(|word| (*word, 1)).collect()
            }
        };
        give(state, stream, &used, NodeWork::Launch { function, words, said })
    })
}
