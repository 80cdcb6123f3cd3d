//! A collective to measure: which one, on what, how much of it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use symmem::collectives::{CollectiveRow, Output, ROWS};
use symmem::erased::Call;
use symmem::{DType, ReduceOp};

pub(in crate::bench) use crate::args::Collective;
use crate::args::{Memory, Op};

/// The rank that collectives with a root have as theirs.
pub(in crate::bench) const ROOT: usize = 0;

impl Collective {
    /// The collective that `op` is, if it is one.
    pub(in crate::bench) fn of(op: Op) -> Option<Self> {
        Self::named(&op.to_string())
    }

    /// The collective called `name`.
    pub(in crate::bench) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.name() == name)
    }

    /// What the library says of it; `None` for what is no collective.
    pub(in crate::bench) fn row(self) -> Option<&'static CollectiveRow> {
        ROWS.iter().copied().find(|row| row.name == self.name())
    }

    /// Bus bandwidth over algorithm bandwidth, as nccl-tests count: what goes over the busiest link.
    pub(in crate::bench) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self.row() {
            None => 0.0,
            Some(row) if row.root => 1.0,
            Some(row) if row.parts => others,
            Some(_) => 2.0 * others,
        }
    }

    /// Whether the memory is one part per rank.
    fn has_parts(self) -> bool {
        self.row().is_some_and(|row| row.parts)
    }

    /// What a rank gets; in place where that is no question.
    fn gives(self) -> Output {
        self.row().map_or(Output::InPlace, |row| row.output)
    }
}

/// A collective on so many bytes of a type.
///
/// The bytes are those of the whole memory: what all ranks together contribute to an all_gather, what one
/// rank puts into any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::bench) struct Case {
    pub(in crate::bench) op: Collective,
    #[serde(serialize_with = "write_dtype", deserialize_with = "read_dtype")]
    pub(in crate::bench) dtype: DType,
    pub(in crate::bench) bytes: usize,
}

impl Case {
    /// About `bytes` bytes: whole elements, and as many for every rank where the memory has parts.
    pub(in crate::bench) fn new(op: Collective, dtype: DType, bytes: usize, ranks: usize) -> Self {
        let unit = if op.has_parts() { ranks * dtype.size() } else { dtype.size() };
        Self { op, dtype, bytes: (bytes / unit).max(1) * unit }
    }

    /// A signal there and back.
    pub(in crate::bench) const SIGNAL: Self = Self { op: Collective::Signal, dtype: DType::U64, bytes: 0 };

    /// Those of `memories` that it can have its elements in: where it has none there is nothing to choose.
    pub(in crate::bench) fn memories(&self, memories: &[Memory]) -> Vec<Memory> {
        if self.op == Collective::Signal { vec![Memory::Symmetric] } else { memories.to_vec() }
    }

    /// Elements of the whole memory.
    pub(in crate::bench) fn len(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// Elements that one rank puts in.
    pub(in crate::bench) fn input(&self, ranks: usize) -> usize {
        if self.op.gives() == Output::Whole { self.len() / ranks } else { self.len() }
    }

    /// Elements that one rank gets out: none where it works in place.
    pub(in crate::bench) fn output(&self, ranks: usize) -> usize {
        match self.op.gives() {
            Output::InPlace => 0,
            Output::Share => self.len() / ranks,
            _ => self.len(),
        }
    }

    /// What the library is asked for in a group of so many ranks; `None` for what is no collective.
    pub(in crate::bench) fn call(&self, ranks: usize) -> Option<Call<'static>> {
        // A few words for each case, for as long as the program runs: the loop that is measured makes none.
        let counts = vec![self.len() / ranks; ranks].leak();
        Call::of(self.op.row()?, self.reduce(), ROOT, counts)
    }

    /// How elements become one.
    fn reduce(&self) -> ReduceOp {
        if self.dtype == DType::Bool { ReduceOp::Or } else { ReduceOp::Sum }
    }

    /// Gigabytes per second of the algorithm and of the bus, at `us` microseconds an operation.
    pub(in crate::bench) fn bandwidth(&self, ranks: usize, us: f64) -> (f64, f64) {
        let algorithm = self.bytes as f64 / us.max(1e-3) / 1e3;
        (algorithm, algorithm * self.op.bus_factor(ranks))
    }
}

fn write_dtype<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(dtype.name())
}

fn read_dtype<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
    let name = String::deserialize(deserializer)?;
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
    dtype.ok_or_else(|| de::Error::custom(format!("{name:?} is not an element type")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn what_the_library_chooses_algorithms_for_is_measured() {
        let tuned = ROWS.iter().filter(|row| row.tuned.is_some()).map(|row| row.name);
        let measured: Vec<_> = Collective::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(measured, tuned.collect::<Vec<_>>());
        let asked_for = Op::value_variants().iter().filter_map(|op| Collective::of(*op));
        assert_eq!(asked_for.collect::<Vec<_>>(), Collective::ALL);
    }

    #[test]
    fn busses_carry_what_nccl_tests_count() {
        let factor = |op: Collective| op.bus_factor(4);
        assert_eq!([Collective::AllReduce, Collective::AllReduceOut].map(factor), [1.5; 2]);
        let parts = [Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll];
        assert_eq!(parts.map(factor), [0.75; 3]);
        assert_eq!([Collective::Reduce, Collective::Broadcast].map(factor), [1.0; 2]);
        assert_eq!(factor(Collective::Signal), 0.0);
    }

    #[test]
    fn bytes_are_whole_elements_for_every_rank() {
        let bytes = |op, dtype, bytes, ranks| Case::new(op, dtype, bytes, ranks).bytes;
        assert_eq!(bytes(Collective::AllReduce, DType::F32, 8, 3), 8);
        assert_eq!(bytes(Collective::AllReduce, DType::F64, 3, 3), 8);
        assert_eq!(bytes(Collective::AllToAll, DType::F32, 8, 3), 12);
        assert_eq!(bytes(Collective::AllGather, DType::F32, 1024, 3), 1020);
    }

    #[test]
    fn a_case_travels_as_json() {
        let case = Case::new(Collective::AllToAll, DType::BF16, 64, 2);
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(text, r#"{"op":"all_to_all","dtype":"bf16","bytes":64}"#);
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
        assert!(serde_json::from_str::<Case>(&text.replace("bf16", "f7")).is_err());
    }
}
