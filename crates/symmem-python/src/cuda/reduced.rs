//! All-reduce of a handle whose element type is known only at run time.

use symmem::cuda::{Algorithm, DeviceSlice, DeviceSliceMut, Form, Stream, SymmetricMemory};
use symmem::erased::Call;
use symmem::{DType, Element, Error, ReduceOp, Result, bf16, f16};

use super::moved;
use crate::registry::Registered;

/// How an all-reduce is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Choice {
    /// As the engine's table says.
    Table,
    /// In one trip: by packets where the table says so, else one-shot.
    OneTrip,
    /// By this one.
    Forced(Algorithm),
    /// By multicast where the ranks have it, else as the engine's table says.
    TryMultimem,
}

impl Choice {
    /// Those that Python has beside the library's algorithms, with their names.
    const OWN: [(&str, Self); 3] =
        [("auto", Self::Table), ("one_trip", Self::OneTrip), ("try_multimem", Self::TryMultimem)];

    /// Every name that Python has for one, by its code: its own, then the library's.
    pub(crate) fn names() -> Vec<&'static str> {
        let algorithms = Algorithm::EVERY.iter().map(|algorithm| algorithm.name());
        Self::OWN.iter().map(|(name, _)| *name).chain(algorithms).collect()
    }

    /// From its code, the position in [`Choice::names`].
    pub(crate) fn from_code(code: u8) -> Result<Self> {
        let code = usize::from(code);
        if let Some((_, choice)) = Self::OWN.get(code) {
            return Ok(*choice);
        }
        let algorithm = Algorithm::EVERY.get(code - Self::OWN.len());
        let forced = algorithm.map(|algorithm| Self::Forced(*algorithm));
        forced.ok_or_else(|| wrong("algorithm", format!("there is no code {code}")))
    }

    /// From its name; `None` is the table's.
    pub(crate) fn parse(name: Option<&str>) -> Result<Self> {
        let Some(name) = name else { return Ok(Self::Table) };
        let names = Self::names();
        let code = names.iter().position(|known| *known == name);
        let problem = || format!("{name:?} must be one of {}", names.join(", "));
        Self::from_code(code.ok_or_else(|| wrong("algorithm", problem()))? as u8)
    }
}

fn wrong(what: &str, problem: String) -> Error {
    Error::Invalid { what: what.to_owned(), problem }
}

/// Where the elements of an all-reduce are, besides the symmetric memory: device addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReducedElements {
    /// There alone.
    InPlace,
    /// The result goes here.
    Out(u64),
    /// From the first to the second.
    Private(u64, u64),
}

impl ReducedElements {
    pub(crate) fn form(self) -> Form {
        match self {
            Self::InPlace => Form::InPlace,
            Self::Out(_) => Form::Out,
            Self::Private(..) => Form::Private,
        }
    }

    /// Whose input and output are.
    fn owners(self) -> [Registered; 2] {
        match self {
            Self::InPlace => [Registered(0); 2],
            Self::Out(out) => [Registered(0), Registered(out)],
            Self::Private(input, out) => [Registered(input), Registered(out)],
        }
    }
}

/// Symmetric memory of a type that devices reduce.
#[derive(Debug)]
pub(crate) enum Reduced {
    BF16(SymmetricMemory<bf16>),
    F16(SymmetricMemory<f16>),
    F32(SymmetricMemory<f32>),
}

impl Reduced {
    /// Whether there is memory of this type.
    pub(crate) fn is_there(dtype: DType) -> bool {
        matches!(dtype, DType::BF16 | DType::F16 | DType::F32)
    }

    /// `bytes` as elements of `dtype`, to be reduced in this form by what is chosen.
    pub(crate) fn new(bytes: &SymmetricMemory<u8>, dtype: DType, form: Form, choice: Choice) -> Result<Self> {
        let engine = bytes.engine();
        let algorithm = match choice {
            Choice::Table => None,
            Choice::Forced(algorithm) => Some(algorithm),
            Choice::OneTrip => match engine.plan(form, dtype, bytes.len())?.algorithm {
                Algorithm::LowLatency => None,
                _ => Some(Algorithm::OneShot),
            },
            // The ranks agreed on both when they met: all come to the same answer.
            Choice::TryMultimem => {
                let plan = engine.using(Algorithm::Multimem).plan(form, dtype, bytes.len());
                (plan.is_ok() && bytes.multicast_ptr().is_some()).then_some(Algorithm::Multimem)
            }
        };
        match dtype {
            DType::BF16 => cast(bytes, algorithm).map(Self::BF16),
            DType::F16 => cast(bytes, algorithm).map(Self::F16),
            DType::F32 => cast(bytes, algorithm).map(Self::F32),
            _ => Err(wrong(
                "all_reduce",
                format!(
                    "{dtype} is not reduced on devices. Hint: bf16, f16 and f32 are; convert, or reduce in host memory"
                ),
            )),
        }
    }

    /// Puts any collective on `stream`.
    ///
    /// # Safety
    /// As for [`moved::run`].
    pub(crate) unsafe fn run(
        &self,
        call: Call<'_>,
        out: Option<(u64, usize)>,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::BF16(memory) => moved::run(memory, call, out, stream),
                Self::F16(memory) => moved::run(memory, call, out, stream),
                Self::F32(memory) => moved::run(memory, call, out, stream),
            }
        }
    }

    /// Puts the operation on `stream`.
    ///
    /// # Safety
    /// As for [`DeviceSlice::from_raw`] of the addresses in `elements`, with as many elements as this has.
    pub(crate) unsafe fn all_reduce(
        &self,
        op: ReduceOp,
        elements: ReducedElements,
        stream: &Stream,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::BF16(memory) => all_reduce(memory, op, elements, stream),
                Self::F16(memory) => all_reduce(memory, op, elements, stream),
                Self::F32(memory) => all_reduce(memory, op, elements, stream),
            }
        }
    }
}

fn cast<T: Element>(bytes: &SymmetricMemory<u8>, algorithm: Option<Algorithm>) -> Result<SymmetricMemory<T>> {
    let memory = bytes.cast::<T>()?;
    Ok(match algorithm {
        Some(algorithm) => memory.using(algorithm),
        None => memory,
    })
}

/// # Safety
/// As for [`Reduced::all_reduce`].
unsafe fn all_reduce<T: Element>(
    memory: &SymmetricMemory<T>,
    op: ReduceOp,
    elements: ReducedElements,
    stream: &Stream,
) -> Result<()> {
    let (len, device) = (memory.len(), memory.device());
    let owners = elements.owners();
    // SAFETY: as the caller promises.
    unsafe {
        let output = |address| DeviceSliceMut::<T>::from_owner(address, len, device, &owners[1]);
        match elements {
            ReducedElements::InPlace => memory.all_reduce(op, stream),
            ReducedElements::Out(out) => memory.all_reduce_out(op, output(out)?, stream),
            ReducedElements::Private(input, out) => {
                let input = DeviceSlice::<T>::from_owner(input, len, device, &owners[0])?;
                memory.all_reduce_from(op, input, output(out)?, stream)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_say_the_same() {
        let names = Choice::names();
        for (code, name) in names.iter().enumerate() {
            assert_eq!(Choice::parse(Some(name)).unwrap(), Choice::from_code(code as u8).unwrap());
        }
        assert_eq!(Choice::parse(None).unwrap(), Choice::Table);
        assert!(Choice::parse(Some("ring")).unwrap_err().to_string().contains("two_shot"));
        assert!(Choice::from_code(names.len() as u8).is_err());
    }

    #[test]
    fn every_algorithm_of_the_library_can_be_chosen() {
        for algorithm in Algorithm::EVERY {
            assert_eq!(Choice::parse(Some(algorithm.name())).unwrap(), Choice::Forced(*algorithm));
        }
        assert_eq!(Choice::parse(Some("two_trip")).unwrap(), Choice::Forced(Algorithm::TwoTrip));
        assert_eq!(Choice::names().len(), Choice::OWN.len() + Algorithm::EVERY.len());
    }
}
