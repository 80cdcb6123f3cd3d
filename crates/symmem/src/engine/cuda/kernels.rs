//! The kernels of an engine: compiled for its device, loaded, and found by what they do.
//!
//! Made when an engine is. What it guarantees: everything that an operation can launch is on the device
//! before the first one (a kernel that were loaded later would wait behind one that spins for it, for ever),
//! and engines of one process on one device share what is loaded, if their groups are as large. Of the
//! kernels that sum, an engine has those for its number of ranks only: a quarter of the code to compile and
//! to load.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::embedded;
use super::plan::{Limits, REDUCED_DTYPES, Routine};
use super::sources::{ENGINE, HEADERS, KernelSource, MULTIMEM};
use crate::cuda::Device;
use crate::cuda::module::{Function, Module, cached_in};
use crate::cuda::nvrtc;
use crate::device::control::SMALL_WORLD;
use crate::{Error, Result};

/// The oldest devices that have multimem instructions, by compute capability.
const MULTIMEM_CAPABILITY: (u32, u32) = (9, 0);

/// The oldest devices whose kernels can wait for those before them: `wait_for_kernel_before` of
/// primitives.cuh. What is built in is for older ones.
const WAITING_CAPABILITY: (u32, u32) = (9, 0);

/// Options of the compiler beside the architecture. The arithmetic is that of docs/numerics.md: subnormals
/// stay, divisions are exact, nothing is fused.
const OPTIONS: [&str; 4] = ["--std=c++17", "--ftz=false", "--prec-div=true", "--fmad=false"];

/// The option for kernels that can be recorded: see `kernels/record.cuh`.
const RECORDED: &str = "--define-macro=SYMMEM_RECORDED";

/// Tells sources apart: ranks that run different kernels must not meet.
pub(crate) fn source_hash() -> u64 {
    let texts = ENGINE.iter().chain(MULTIMEM).chain(&HEADERS).map(|(_, text)| text.as_bytes());
    let options = OPTIONS.iter().map(|option| option.as_bytes());
    texts.chain(options).fold(FNV_BASIS, fnv)
}

const FNV_BASIS: u64 = 14_695_981_039_346_656_037;

/// FNV-1a of `bytes`, going on from `hash`.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211))
}

/// A kernel, and whether its parameters have room for the largest group.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) function: Function,
    pub(crate) is_large: bool,
}

/// The kernels for groups of one size.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// By [`Routine`], then by [`REDUCED_DTYPES`]; one that knows no element types is there for each of them.
    routines: Vec<Kernel>,
    pub(crate) barrier: Kernel,
    /// For ranks that are all on one device.
    pub(crate) barrier_together: Kernel,
    pub(crate) put_signal: Kernel,
    pub(crate) wait_signal: Kernel,
    pub(crate) copy: Kernel,
    /// Before and after a step that is recorded: work of another library, or a kernel that cannot record
    /// itself.
    pub(crate) begin_work: Kernel,
    pub(crate) end_work: Kernel,
    /// The same of a kernel that takes a turn.
    pub(crate) mark_begin: Kernel,
    pub(crate) mark_end: Kernel,
    /// Tells a lane where it records, and the host what the device's clock shows.
    pub(crate) open_records: Kernel,
    /// Whether those that take a turn wait for the kernel before, however early they are launched.
    pub(crate) wait_for_kernel_before: bool,
    /// Whether they record themselves; else marks around them do.
    pub(crate) record_themselves: bool,
    /// For the engines that come after this one.
    _modules: Arc<Modules>,
}

impl Kernels {
    /// Loads what a group of `world` ranks needs, to be `recorded` or not. `cache` is where compiled code is
    /// kept.
    pub(crate) fn load(device: &Device, world: usize, cache: Option<&Path>, recorded: bool) -> Result<Self> {
        let class = class_of(world);
        let modules = Modules::of(device, ENGINE, class, cache, recorded)?;
        let is_large = world > SMALL_WORLD;
        let mut routines = Vec::with_capacity(Routine::ALL.len() * REDUCED_DTYPES.len());
        for routine in Routine::ALL {
            let module = modules.of_source(routine.name())?;
            for dtype in REDUCED_DTYPES {
                routines.push(match routine.traits().bytes {
                    true => untyped(module, routine.name(), is_large)?,
                    false => find(module, &format!("{}_{dtype}", routine.name()), class)?,
                });
            }
        }
        let signals = modules.of_source("signals")?;
        let named = |name: &str, is_large: bool| untyped(signals, name, is_large);
        let mark = |name: &str| untyped(modules.of_source("marks")?, name, is_large);
        Ok(Self {
            routines,
            barrier: named("barrier", is_large)?,
            barrier_together: named("barrier_together", is_large)?,
            put_signal: named("put_signal", is_large)?,
            wait_signal: named("wait_signal", is_large)?,
            copy: named("copy", false)?,
            begin_work: named("begin_work", is_large)?,
            end_work: named("end_work", is_large)?,
            mark_begin: mark("mark_begin")?,
            mark_end: mark("mark_end")?,
            open_records: named("open_records", is_large)?,
            wait_for_kernel_before: modules.are_compiled && device.compute_capability() >= WAITING_CAPABILITY,
            record_themselves: recorded && modules.are_compiled,
            _modules: modules,
        })
    }

    /// The kernel for elements of the type at `dtype_index`.
    #[inline]
    pub(crate) fn routine(&self, routine: Routine, dtype_index: usize) -> &Kernel {
        &self.routines[routine as usize * REDUCED_DTYPES.len() + dtype_index]
    }

    /// How many of the largest blocks of each kernel a multiprocessor holds.
    pub(crate) fn occupancies(&self) -> Result<Limits> {
        let mut all = Limits::default();
        for routine in Routine::ALL {
            for (dtype_index, occupancy) in all[*routine as usize].iter_mut().enumerate() {
                *occupancy =
                    self.routine(*routine, dtype_index).function.occupancy(routine.most_threads(), 0)?;
            }
        }
        Ok(all)
    }
}

/// The kernels that need multicast, for groups of one size.
#[derive(Debug)]
pub(crate) struct MultimemKernels {
    /// By [`Routine::MULTIMEM`], then by [`REDUCED_DTYPES`].
    routines: Vec<Kernel>,
    pub(crate) barrier: Kernel,
    _modules: Arc<Modules>,
}

impl MultimemKernels {
    /// Loads what a group of `world` ranks needs. There is no PTX of it that was built in: it needs the
    /// compiler, or its cache.
    pub(crate) fn load(device: &Device, world: usize, cache: Option<&Path>, recorded: bool) -> Result<Self> {
        let (major, minor) = device.compute_capability();
        if (major, minor) < MULTIMEM_CAPABILITY {
            let problem = format!("{device} has compute capability {major}.{minor}, they need 9.0");
            return Err(Error::invalid("multimem instructions", problem));
        }
        let modules = Modules::of(device, MULTIMEM, class_of(world), cache, recorded)?;
        let is_large = world > SMALL_WORLD;
        let mut routines = Vec::with_capacity(Routine::MULTIMEM.len() * REDUCED_DTYPES.len());
        for routine in Routine::MULTIMEM {
            let module = modules.of_source(routine.name())?;
            for dtype in REDUCED_DTYPES {
                let name = match routine.traits().bytes {
                    true => routine.name().to_owned(),
                    false => format!("{}_{dtype}", routine.name()),
                };
                routines.push(untyped(module, &name, is_large)?);
            }
        }
        let barrier = untyped(modules.of_source("barrier_multimem")?, "barrier_multimem", is_large)?;
        Ok(Self { routines, barrier, _modules: modules })
    }

    /// The kernel for elements of the type at `dtype_index`; `None` for a routine that needs no multicast.
    pub(crate) fn routine(&self, routine: Routine, dtype_index: usize) -> Option<&Kernel> {
        let at = Routine::MULTIMEM.iter().position(|known| *known == routine)?;
        self.routines.get(at * REDUCED_DTYPES.len() + dtype_index)
    }
}

/// The classes of kernels by the number of ranks that they sum over, as `entries.cuh` has them: how the names
/// end, and the number.
const CLASSES: [(&str, usize); 4] = [("w2", 2), ("w4", 4), ("w8", 8), (ANY, 0)];
/// The class of kernels for groups of any size.
const ANY: &str = "any";

/// How the names of the kernels end that sum over `world` ranks.
fn class_of(world: usize) -> &'static str {
    CLASSES.into_iter().find(|(_, ranks)| *ranks == world).map_or(ANY, |(class, _)| class)
}

/// The options for `source`: of what sums, only the kernels of `class` are made.
fn options_for(source: &KernelSource, class: &str, options: &[String]) -> Vec<String> {
    let of_class = CLASSES.into_iter().find(|(name, _)| *name == class);
    let is_one = of_class.filter(|_| source.1.contains("#include \"entries.cuh\""));
    let option = is_one.map(|(_, ranks)| format!("--define-macro=SYMMEM_WORLD={ranks}"));
    options.iter().cloned().chain(option).collect()
}

/// The kernel `stem` for groups of `class`, or for any: what is built in has only those.
fn find(module: &Module, stem: &str, class: &str) -> Result<Kernel> {
    let named = |class: &str| {
        let function = module.function(&format!("{stem}_{class}"))?;
        Ok(Kernel { function, is_large: class == ANY })
    };
    named(class).or_else(|error| if class == ANY { Err(error) } else { named(ANY) })
}

/// The kernel `name`, which knows no element types; what is built in may have only the one for large groups.
fn untyped(module: &Module, name: &str, is_large: bool) -> Result<Kernel> {
    let any =
        || module.function(&format!("{name}_{ANY}")).map(|function| Kernel { function, is_large: true });
    if is_large {
        return any();
    }
    module.function(name).map(|function| Kernel { function, is_large }).or_else(|_| any())
}

/// Everything of some sources that is loaded on one device.
#[derive(Debug)]
struct Modules {
    /// By the name of its source.
    modules: Vec<(&'static str, Module)>,
    /// For this device, all of them; else some are what was built in.
    are_compiled: bool,
}

/// What is loaded: on which device, of which sources, for which class, and whether it can be recorded.
type LoadedModules = ((usize, &'static [KernelSource], &'static str, bool), Weak<Modules>);

/// Held while something is compiled: ranks that are threads wait for the first of them.
static LOADED: Mutex<Vec<LoadedModules>> = Mutex::new(Vec::new());

impl Modules {
    fn of(
        device: &Device,
        sources: &'static [KernelSource],
        class: &'static str,
        cache: Option<&Path>,
        recorded: bool,
    ) -> Result<Arc<Self>> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(_, modules)| modules.strong_count() > 0);
        let wanted = (device.ordinal(), sources, class, recorded);
        let here = loaded.iter().find(|(known, _)| *known == wanted);
        if let Some(modules) = here.and_then(|(_, modules)| modules.upgrade()) {
            return Ok(modules);
        }
        let modules = Arc::new(Self::load(device, sources, class, cache, recorded)?);
        loaded.push((wanted, Arc::downgrade(&modules)));
        Ok(modules)
    }

    fn load(
        device: &Device,
        sources: &'static [KernelSource],
        class: &str,
        cache: Option<&Path>,
        recorded: bool,
    ) -> Result<Self> {
        let mut options = options(device.compute_capability());
        options.extend(recorded.then(|| RECORDED.to_owned()));
        let image =
            |source: &'static KernelSource| image_of(source, &options_for(source, class, &options), cache);
        let images: Vec<Result<(Vec<u8>, bool)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = sources.iter().map(|source| scope.spawn(|| image(source))).collect();
            let lost = |_| Err(Error::invalid("kernels", "the thread that compiled them panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
        });
        let images = images.into_iter().collect::<Result<Vec<_>>>()?;
        let load = |((name, _), (image, _)): (&KernelSource, &(Vec<u8>, bool))| {
            Ok((*name, Module::load(device, image)?))
        };
        let modules = sources.iter().zip(&images).map(load);
        Ok(Self {
            modules: modules.collect::<Result<_>>()?,
            are_compiled: images.iter().all(|(_, is_compiled)| *is_compiled),
        })
    }

    /// What the source `{stem}.cu` was compiled to.
    fn of_source(&self, stem: &str) -> Result<&Module> {
        let is_it = |name: &str| name.strip_suffix(".cu") == Some(stem);
        let found = self.modules.iter().find(|(name, _)| is_it(name));
        found
            .map(|(_, module)| module)
            .ok_or_else(|| Error::invalid("kernels", format!("there is no {stem}.cu")))
    }
}

/// Compiles everything for devices of compute capability `capability`, into the cache `folder`. Needs NVRTC,
/// and no device.
#[cfg(feature = "bench-support")]
pub(crate) fn compile_into(folder: &Path, capability: (u32, u32)) -> Result<()> {
    let options = options(capability);
    let multimem = if capability >= MULTIMEM_CAPABILITY { MULTIMEM } else { &[] };
    for source in ENGINE.iter().chain(multimem) {
        for (class, _) in CLASSES {
            compiled(source, &options_for(source, class, &options), Some(folder))?;
        }
    }
    Ok(())
}

fn options((major, minor): (u32, u32)) -> Vec<String> {
    let architecture = format!("--gpu-architecture=sm_{major}{minor}");
    [architecture].into_iter().chain(OPTIONS.map(str::to_owned)).collect()
}

/// The code of one source: from the cache or the compiler, or (false) as it was built in.
fn image_of(source: &KernelSource, options: &[String], cache: Option<&Path>) -> Result<(Vec<u8>, bool)> {
    // No compiler, or one that is older than the device.
    let error = match compiled(source, options, cache) {
        Ok(image) => return Ok((image, true)),
        Err(error) => error,
    };
    let name = source.0;
    match embedded::ptx(name) {
        Ok(Some(ptx)) => {
            tracing::debug!(name, %error, "taking the PTX that was built in");
            Ok((ptx, false))
        }
        Ok(None) => Err(error),
        Err(problem) => Err(damaged(&error, &problem)),
    }
}

/// The error of who can neither compile a kernel nor use the one that was built in.
fn damaged(error: &Error, problem: &str) -> Error {
    let problem = format!(
        "{error}; and the PTX that was built in is damaged: {problem}. Hint: build or install symmem again, or install NVRTC"
    );
    Error::invalid("kernels", problem)
}

/// The code of one source from the cache, or from the compiler.
fn compiled(source: &KernelSource, options: &[String], cache: Option<&Path>) -> Result<Vec<u8>> {
    let (name, text) = *source;
    let texts = HEADERS.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]);
    let key: Vec<&[u8]> = [name.as_bytes(), text.as_bytes()]
        .into_iter()
        .chain(texts)
        .chain(options.iter().map(|option| option.as_bytes()))
        .collect();
    cached_in(cache, &key, || {
        let compiled = nvrtc::compile(name, text, &HEADERS, options)?;
        if !compiled.log.is_empty() {
            tracing::debug!(name, log = compiled.log, "the compiler has something to say");
        }
        Ok(compiled.image)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_is_embedded() {
        for (name, text) in ENGINE.iter().chain(MULTIMEM).chain(&HEADERS) {
            for line in text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")) {
                let included = line.trim_end_matches('"');
                assert!(HEADERS.iter().any(|(known, _)| *known == included), "{name} includes {included}");
            }
        }
    }

    #[test]
    fn every_kernel_has_its_source() {
        let has = |sources: &[KernelSource], stem: &str| {
            sources.iter().any(|(name, _)| *name == format!("{stem}.cu"))
        };
        assert!(Routine::ALL.iter().all(|routine| has(ENGINE, routine.name())));
        assert!(Routine::MULTIMEM.iter().all(|routine| has(MULTIMEM, routine.name())));
        assert!(has(ENGINE, "signals") && has(ENGINE, "marks") && has(MULTIMEM, "barrier_multimem"));
        for (at, routine) in Routine::ALL.iter().chain(Routine::MULTIMEM).enumerate() {
            assert_eq!(*routine as usize, at, "what is agreed on is in this order");
        }
    }

    #[test]
    fn what_cannot_be_compiled_is_taken_as_it_was_built_in() {
        // No compiler knows it, where there is one.
        let options = ["--gpu-architecture=sm_1".to_owned()];
        for source in ENGINE {
            let (image, is_compiled) = image_of(source, &options, None).unwrap();
            assert!(image.starts_with(b".version") && !is_compiled, "{}", source.0);
        }
        for source in MULTIMEM {
            assert!(image_of(source, &options, None).is_err(), "{}", source.0);
        }
    }

    #[test]
    fn damaged_kernels_are_said_beside_the_first_cause() {
        let missing = Error::NoLibrary { library: "NVRTC", problem: "it is not there".into() };
        let error = damaged(&missing, "pull.cu cannot be unpacked");
        let text = error.to_string();
        for part in ["it is not there", "is damaged: pull.cu cannot be unpacked", "Hint: "] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn kernels_that_are_recorded_compile_to_other_code() {
        if let Err(error) = nvrtc::version() {
            return eprintln!("skipped: {error}");
        }
        let plain = options((9, 0));
        let recorded = [&plain[..], &[RECORDED.to_owned()]].concat();
        let signals = ENGINE.iter().find(|(name, _)| *name == "signals.cu").unwrap();
        let code = |options: &[String]| compiled(signals, options, None).unwrap();
        assert_ne!(code(&plain), code(&recorded));
    }

    #[test]
    fn worlds_have_their_classes_and_devices_their_options() {
        assert_eq!(
            [1, 2, 3, 4, 7, 8, 9, 72].map(class_of),
            ["any", "w2", "any", "w4", "any", "w8", "any", "any"]
        );
        for (class, ranks) in CLASSES {
            assert_eq!(class_of(ranks), class);
        }
        let option_of = |name: &str| {
            let source = ENGINE.iter().find(|(known, _)| *known == name).unwrap();
            options_for(source, class_of(4), &[])
        };
        assert_eq!(option_of("all_reduce_one_shot.cu"), ["--define-macro=SYMMEM_WORLD=4"]);
        assert!(option_of("signals.cu").is_empty(), "what sums nothing is the same for all");
        assert_eq!(options((9, 0))[0], "--gpu-architecture=sm_90");
        assert_eq!(options((10, 3))[0], "--gpu-architecture=sm_103");
        assert_eq!(source_hash(), source_hash());
    }
}
