//! Ranges for profilers: Nsight and other tools that listen by NVTX show which operation of which group
//! launched a kernel.
//!
//! Called by the engine around its launches. There is no library to link: a tool names its own in
//! `NVTX_INJECTION64_PATH`, and asks it is given for the places of the functions it wants to hear of (NVTX 3,
//! `nvtxImpl.h`). Without a tool a range costs one load.

#![allow(unsafe_code, reason = "calls of NVTX")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::Library;

/// Names the tool's library.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
const CALLBACKS: u32 = 1;
const VERSION: u32 = 3;
/// The module of ranges, counted from 0.
const CORE: usize = 0;
/// Places of the core functions in their table, whose first and last are nobody's.
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
const CORE_FUNCTIONS: usize = 16;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type Initialize = unsafe extern "C" fn(unsafe extern "C" fn(u32) -> *const c_void) -> c_int;

/// Modules of functions, of which tools want all to be there; nobody here calls more than two functions of
/// the first.
const MODULES: usize = 6;

type Slots = [AtomicPtr<c_void>; CORE_FUNCTIONS];

/// Where the tool puts its functions.
static SLOTS: [Slots; MODULES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; CORE_FUNCTIONS] }; MODULES];

/// Pointers to the slots, as the tool walks them.
#[repr(transparent)]
struct SlotTable([*const AtomicPtr<c_void>; CORE_FUNCTIONS + 1]);

// SAFETY: addresses of statics; what they point at is atomic.
unsafe impl Sync for SlotTable {}

static TABLES: [SlotTable; MODULES] = {
    let mut tables = [const { SlotTable([ptr::null(); CORE_FUNCTIONS + 1]) }; MODULES];
    let mut module = 0;
    while module < MODULES {
        let mut at = 1;
        while at < CORE_FUNCTIONS {
            tables[module].0[at] = &raw const SLOTS[module][at];
            at += 1;
        }
        module += 1;
    }
    tables
};

#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *const SlotTable, *mut c_uint) -> c_int,
}

#[repr(C)]
struct NvtxVersion {
    size: usize,
    version: u32,
    reserved: u32,
    set: Option<unsafe extern "C" fn(u32)>,
}

static CALLBACK_EXPORTS: Callbacks = Callbacks { size: size_of::<Callbacks>(), table: function_table };
static VERSION_EXPORTS: NvtxVersion =
    NvtxVersion { size: size_of::<NvtxVersion>(), version: 3, reserved: 0, set: None };

unsafe extern "C" fn export(which: u32) -> *const c_void {
    match which {
        CALLBACKS => ptr::from_ref(&CALLBACK_EXPORTS).cast(),
        VERSION => ptr::from_ref(&VERSION_EXPORTS).cast(),
        _ => ptr::null(),
    }
}

unsafe extern "C" fn function_table(module: c_int, table: *mut *const SlotTable, size: *mut c_uint) -> c_int {
    // They are counted from 1.
    let Some(filled) = usize::try_from(module).ok().and_then(|module| TABLES.get(module.wrapping_sub(1)))
    else {
        return 0;
    };
    if table.is_null() {
        return 0;
    }
    // SAFETY: the tool's own variables.
    unsafe {
        table.write(filled);
        if !size.is_null() {
            size.write(CORE_FUNCTIONS as c_uint);
        }
    }
    1
}

/// What a tool that listens gave us.
#[derive(Clone, Copy)]
struct Tool {
    push: Push,
    pop: Pop,
}

/// The tool, if one is there. The library is never unloaded.
fn tool() -> Option<Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    *TOOL.get_or_init(find)
}

fn find() -> Option<Tool> {
    let path = std::env::var_os(VARIABLE)?;
    // SAFETY: the user's own tool, whose initialisers are its business.
    let library = unsafe { Library::new(&path) }
        .inspect_err(|error| tracing::debug!(%error, "the profiler's library does not load"))
        .ok()?;
    // SAFETY: the name and type that NVTX gives it.
    let initialize = *unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }.ok()?;
    std::mem::forget(library);
    // SAFETY: as NVTX calls it, once.
    if unsafe { initialize(export) } == 0 {
        return None;
    }
    let slot =
        |at: usize| Some(SLOTS[CORE][at].load(Ordering::Relaxed)).filter(|function| !function.is_null());
    let (push, pop) = (slot(RANGE_PUSH)?, slot(RANGE_POP)?);
    // SAFETY: the tool put functions of these types into these places.
    Some(unsafe {
        Tool {
            push: std::mem::transmute::<*mut c_void, Push>(push),
            pop: std::mem::transmute::<*mut c_void, Pop>(pop),
        }
    })
}

/// A range of the calling thread, which ends when this is dropped.
#[must_use]
pub(crate) struct NvtxRange(Option<Tool>);

/// Begins a range for `op` of the group called `group`.
#[inline]
pub(crate) fn range(op: &'static str, group: &str) -> NvtxRange {
    let tool = tool();
    if let Some(tool) = tool {
        begin(tool, op, group);
    }
    NvtxRange(tool)
}

#[cold]
fn begin(tool: Tool, op: &str, group: &str) {
    // A name with a zero in it is cut there.
    let text = format!("symmem.{op} {group}");
    let text = text.split('\0').next().unwrap_or_default();
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: the tool's function, with a terminated string that it copies.
    unsafe { (tool.push)(text.as_ptr()) };
}

impl Drop for NvtxRange {
    #[inline]
    fn drop(&mut self) {
        if let Some(tool) = self.0 {
            // SAFETY: the tool's function; ends what this began on this thread.
            unsafe { (tool.pop)() };
        }
    }
}
