//! A peer behind a small C library with one fixed set of functions, loaded at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bytemuck::{Pod, Zeroable};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use symmem::{DType, Error};

use crate::bench::collective::{Accuracy, Case, Collective, Contender, ROOT};

type Plain = unsafe extern "C" fn() -> c_int;
type InPlace = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Rooted = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int) -> c_int;
type OutOfPlace = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int) -> c_int;
type Gather = unsafe extern "C" fn(*const u64, *mut u64, usize) -> c_int;

/// The functions of a peer whose library is loaded and started.
pub(super) struct Shim {
    rank: usize,
    ranks: usize,
    version: String,
    supports: unsafe extern "C" fn(c_int, c_int) -> c_int,
    barrier: Plain,
    all_reduce: InPlace,
    all_gather: OutOfPlace,
    reduce_scatter: OutOfPlace,
    broadcast: Rooted,
    all_to_all: OutOfPlace,
    gather_samples: Gather,
    /// Absent where a library has no messages between two ranks.
    ping_pong: Option<Plain>,
    finalize: unsafe extern "C" fn(),
    /// Never unloaded: its threads and exit handlers may outlive everything here.
    _library: ManuallyDrop<Library>,
}

impl Shim {
    /// Collective. Loads `library` and joins the other ranks.
    pub(super) fn load(library: &Path) -> Result<Self> {
        // A path without a slash would be searched for elsewhere. Its symbols are everybody's: MPI's own
        // plugins need them.
        let path = std::path::absolute(library)?;
        // SAFETY: the manifest names libraries made for this; their initialisers do what any program's do.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        let library =
            ManuallyDrop::new(library.with_context(|| format!("{} cannot be loaded", path.display()))?);
        // SAFETY: these functions have these types in every such library.
        unsafe {
            let init: Plain = find(&library, c"peer_init")?;
            let (rank, ranks): (Plain, Plain) =
                (find(&library, c"peer_rank")?, find(&library, c"peer_size")?);
            let version: unsafe extern "C" fn() -> *const c_char = find(&library, c"peer_version")?;
            let code = init();
            ensure!(code == 0, "peer_init returned {code}");
            let version = CStr::from_ptr(version()).to_string_lossy().into_owned();
            Ok(Self {
                rank: usize::try_from(rank()).context("peer_rank")?,
                ranks: usize::try_from(ranks()).context("peer_size")?,
                version,
                supports: find(&library, c"peer_supports")?,
                barrier: find(&library, c"peer_barrier")?,
                all_reduce: find(&library, c"peer_all_reduce")?,
                all_gather: find(&library, c"peer_all_gather")?,
                reduce_scatter: find(&library, c"peer_reduce_scatter")?,
                broadcast: find(&library, c"peer_broadcast")?,
                all_to_all: find(&library, c"peer_all_to_all")?,
                gather_samples: find(&library, c"peer_gather_samples")?,
                ping_pong: find(&library, c"peer_ping_pong").ok(),
                finalize: find(&library, c"peer_finalize")?,
                _library: library,
            })
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn version(&self) -> String {
        self.version.clone()
    }

    /// Whether the peer has this collective for this type.
    pub(super) fn supports(&self, case: &Case) -> bool {
        if case.op == Collective::Signal {
            return self.ping_pong.is_some();
        }
        let (Some(op), Some(dtype)) = (op_number(case.op), dtype_number(case.dtype)) else {
            return false;
        };
        // SAFETY: takes any numbers.
        unsafe { (self.supports)(op, dtype) == 1 }
    }

    /// Collective. Says good-bye to the other ranks.
    pub(super) fn finalize(self) {
        // SAFETY: nothing of the peer is used afterwards.
        unsafe { (self.finalize)() }
    }
}

/// The function `name` of `library`.
///
/// # Safety
/// The function is of type `F`.
unsafe fn find<F: Copy>(library: &Library, name: &CStr) -> Result<F> {
    // SAFETY: as the caller promises.
    let function = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    Ok(*function.with_context(|| format!("the library has no {}", name.to_string_lossy()))?)
}

/// The number of a collective in the libraries' interface.
pub(super) const fn op_number(op: Collective) -> Option<c_int> {
    match op {
        Collective::AllReduce => Some(0),
        Collective::AllGather => Some(1),
        Collective::ReduceScatter => Some(2),
        Collective::Broadcast => Some(3),
        Collective::AllToAll => Some(4),
        _ => None,
    }
}

/// The number of a type in the libraries' interface.
pub(super) const fn dtype_number(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::F32 => Some(0),
        DType::BF16 => Some(1),
        _ => None,
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Memory that starts on a page, as symmetric memory does.
struct Buffer {
    pages: Vec<Page>,
    bytes: usize,
}

impl Buffer {
    fn new(bytes: usize) -> Self {
        Self { pages: vec![Page::zeroed(); bytes.div_ceil(size_of::<Page>())], bytes }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[..self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.bytes]
    }
}

/// A collective of a peer, with its buffers.
pub(super) struct ShimCase<'a> {
    shim: &'a Shim,
    case: Case,
    input: Buffer,
    output: Buffer,
    dtype: c_int,
}

impl<'a> ShimCase<'a> {
    /// `case`, which the peer supports.
    pub(super) fn new(shim: &'a Shim, case: &Case) -> Self {
        let bytes = |elements: usize| elements * case.dtype.size();
        Self {
            shim,
            case: *case,
            input: Buffer::new(bytes(case.input(shim.ranks))),
            output: Buffer::new(bytes(case.output(shim.ranks))),
            dtype: dtype_number(case.dtype).unwrap_or_default(),
        }
    }
}

impl Contender for ShimCase<'_> {
    fn rank(&self) -> usize {
        self.shim.rank
    }

    fn ranks(&self) -> usize {
        self.shim.ranks
    }

    fn input(&mut self, fill: &dyn Fn(&mut [u8])) -> symmem::Result<()> {
        fill(self.input.bytes_mut());
        Ok(())
    }

    fn barrier(&mut self) -> symmem::Result<()> {
        // SAFETY: takes nothing.
        done("peer_barrier", unsafe { (self.shim.barrier)() })
    }

    fn operate(&mut self) -> symmem::Result<()> {
        let (shim, dtype) = (self.shim, self.dtype);
        let (input, output) = (self.input.bytes_mut().as_mut_ptr(), self.output.bytes_mut().as_mut_ptr());
        let (input, output) = (input.cast::<c_void>(), output.cast::<c_void>());
        let (len, part) = (self.case.len(), self.case.len() / shim.ranks);
        // SAFETY: both buffers are as long as the collective needs them, see `Case`, and this rank's alone.
        unsafe {
            match self.case.op {
                Collective::AllReduce => done("peer_all_reduce", (shim.all_reduce)(input, len, dtype)),
                Collective::AllGather => {
                    done("peer_all_gather", (shim.all_gather)(input, output, part, dtype))
                }
                Collective::ReduceScatter => {
                    done("peer_reduce_scatter", (shim.reduce_scatter)(input, output, part, dtype))
                }
                Collective::Broadcast => {
                    done("peer_broadcast", (shim.broadcast)(input, len, dtype, ROOT as c_int))
                }
                Collective::AllToAll => {
                    done("peer_all_to_all", (shim.all_to_all)(input, output, part, dtype))
                }
                Collective::Signal => shim.ping_pong.map_or(Ok(()), |call| done("peer_ping_pong", call())),
                _ => done("a collective that peers lack", -1),
            }
        }
    }

    fn output(&mut self, judge: &dyn Fn(&[u8]) -> bool) -> symmem::Result<bool> {
        let in_place = self.output.bytes == 0;
        Ok(judge(if in_place { self.input.bytes() } else { self.output.bytes() }))
    }

    fn gather(&mut self, words: &[u64]) -> symmem::Result<Vec<u64>> {
        let mut all = vec![0; words.len() * self.shim.ranks];
        // SAFETY: `all` has room for the words of every rank.
        let code = unsafe { (self.shim.gather_samples)(words.as_ptr(), all.as_mut_ptr(), words.len()) };
        done("peer_gather_samples", code).map(|()| all)
    }

    fn accuracy(&self) -> Accuracy {
        Accuracy::Close
    }
}

#[inline]
fn done(call: &'static str, code: c_int) -> symmem::Result<()> {
    if code == 0 { Ok(()) } else { Err(failed(call, code)) }
}

#[cold]
fn failed(call: &'static str, code: c_int) -> Error {
    Error::Sys { call, source: std::io::Error::other(format!("it returned {code}")), hint: "" }
}
