//! What an op's signature says: packed for the slot, unpacked for the error message.
//!
//! Called by anything that meets. Nothing is cut off: calls that differ in anything have different
//! signatures. What would not fit is refused before it comes here: a collective on more than [`MAX_BYTES`],
//! and a memory's number beyond [`MAX_NUMBER`]. Shapes have a word of their own, see [`Shape`].

use std::fmt::Display;

use super::{Algorithm, Op, OpKind, SHAPED, Shape, Signature};
use crate::numeric::{DType, ReduceOp};

/// The first bits of the fields of a collective's word, and its end: operation (and whether there is a
/// shape), root, element type, reduce operation, algorithm, and the low bits of the memory's number.
const FIRST: [u32; 7] = [0, 8, 24, 32, 40, 44, 64];
/// Bits of a collective's bytes; the high bits of the memory's number are above them.
const BYTES: u32 = 48;

/// Most bytes of each rank in a collective.
pub(crate) const MAX_BYTES: u64 = (1 << BYTES) - 1;
/// The highest number of a memory.
pub(crate) const MAX_NUMBER: u64 = (1 << (bits(5) + 64 - BYTES)) - 1;

/// How many ranks can be a root.
pub(crate) const MAX_ROOTS: usize = 1 << bits(1);

/// What the ranks of a collective on memory say alike, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AgreedCall {
    pub(crate) root: u64,
    pub(crate) dtype: u64,
    /// 0 for none.
    pub(crate) reduce: u64,
    pub(crate) algorithm: u64,
    /// 0 for private memory.
    pub(crate) memory: u64,
    /// Of each rank.
    pub(crate) bytes: u64,
    pub(crate) shape: Shape,
}

/// How many bits field `index` has.
const fn bits(index: usize) -> u32 {
    FIRST[index + 1] - FIRST[index]
}

impl AgreedCall {
    /// The signature of `op`.
    #[inline]
    pub(crate) fn signature(&self, op: Op) -> Signature {
        let low = (1 << bits(5)) - 1;
        let fields = [self.root, self.dtype, self.reduce, self.algorithm, self.memory & low];
        debug_assert!((1..).zip(fields).all(|(index, field)| field >> bits(index) == 0));
        debug_assert!(self.bytes <= MAX_BYTES && self.memory <= MAX_NUMBER);
        let shaped = if self.shape == Shape::ANY { 0 } else { SHAPED };
        let packed = (1..).zip(fields).map(|(index, field): (usize, u64)| field << FIRST[index]);
        let word = packed.fold(op as u64 | shaped, |word, field| word | field);
        let size = self.bytes | (self.memory >> bits(5)) << BYTES;
        Signature { word, size }
    }
}

/// The numbers of [`AgreedCall`] in the order that it has them.
fn unpacked(signature: Signature) -> [u64; 6] {
    let field = |index: usize| signature.word >> FIRST[index] & ((1 << bits(index)) - 1);
    let memory = field(5) | (signature.size >> BYTES) << bits(5);
    [field(1), field(2), field(3), field(4), memory, signature.size & MAX_BYTES]
}

/// The signature of `op` on channel or with root `number`, over `size` bytes or on the memory of that number.
#[inline]
pub(crate) fn signature(op: Op, number: usize, size: u64) -> Signature {
    Signature { word: op as u64 | (number as u64) << 8, size }
}

/// What ranks that disagree said, as people read it, in rank order, and what it is that they disagree on.
/// What a rank's caller knows of comes first: how many elements, of which type. What only this library knows
/// (algorithm, memory) is shown where nothing else differs.
pub(crate) fn describe(said: &[Option<(Signature, u64)>]) -> (&'static str, Vec<String>) {
    let told: Vec<Option<Announced>> = said.iter().map(|said| said.and_then(announced)).collect();
    let op = |rank: usize| told[rank].map(|told| told.op);
    let one = op(0).filter(|first| (0..told.len()).all(|rank| op(rank) == Some(*first)));
    let texts: Vec<[String; 6]> = told.iter().map(|told| told.map(texts).unwrap_or_default()).collect();
    let differs = |at: usize| texts.iter().any(|theirs| theirs[at] != texts[0][at]);
    let known = (0..KNOWN).any(differs);
    let shows = |at: &usize| match one {
        Some(op) => {
            *at == ELEMENTS && (op.row().is_some() || op.kind() == OpKind::Fused)
                || differs(*at) && (*at < KNOWN || !known)
        }
        None => *at < KNOWN,
    };
    let shown = |rank: usize| {
        let texts = (0..texts[rank].len()).filter(shows).map(|at| texts[rank][at].as_str());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let whole = |rank: usize| match (op(rank), shown(rank)) {
        (None, _) => "something unknown".to_owned(),
        (Some(op), shown) if shown.is_empty() => op.label().to_owned(),
        (Some(_), shown) if one.is_some() => shown,
        (Some(op), shown) => format!("{}({shown})", op.label()),
    };
    let values = (0..said.len()).map(|rank| format!("rank {rank}: {}", whole(rank))).collect();
    (if one.is_some() { "the arguments" } else { "the operation" }, values)
}

/// What an announcement says: for errors, and for who looks on from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) op: Op,
    pub(crate) bytes: Option<u64>,
    pub(crate) channel: Option<usize>,
    pub(crate) root: Option<usize>,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) algorithm: Option<Algorithm>,
    memory: Option<u64>,
    shape: Shape,
}

/// What a signature says, with the word of a shape if it has one; none if no rank says so.
pub(crate) fn announced((signature, shape): (Signature, u64)) -> Option<Announced> {
    let op = Op::from_u8((signature.word & !SHAPED) as u8)?;
    let (number, size) = (Some(signature.word >> 8), Some(signature.size));
    let agrees = op.row().is_some() || op.kind() == OpKind::Fused;
    let agreed = if agrees { unpacked(signature).map(Some) } else { [None; 6] };
    let [root, dtype, reduce, algorithm, memory, bytes] = agreed;
    let (channel, root, bytes, memory) = match op {
        Op::MemoryBarrier => (number, None, None, size),
        Op::Close => (None, None, None, size),
        // The number of cells in the place of bytes, and of their type in that of the memory.
        Op::Atomics => (None, None, size, number),
        Op::Broadcast => (None, number, size, None),
        Op::AllGather => (None, None, size.filter(|bytes| *bytes > 0), None),
        _ => (None, root.filter(|_| op.row().is_some_and(|row| row.root)), bytes, memory),
    };
    Some(Announced {
        op,
        bytes,
        channel: channel.map(|channel| channel as usize),
        root: root.map(|root| root as usize),
        dtype: dtype.and_then(|at| DType::ALL.get(at as usize).copied()),
        reduce: reduce.and_then(|at| ReduceOp::ALL.get((at as usize).checked_sub(1)?).copied()),
        algorithm: algorithm.and_then(|at| Algorithm::ALL.get(at as usize).copied()),
        memory,
        shape: if signature.word & SHAPED == 0 { Shape::ANY } else { Shape { word: shape } },
    })
}

/// How many of a rank's texts are what its caller chose: the first ones.
const KNOWN: usize = 4;
/// The text that is worth showing of a collective even where it does not differ.
const ELEMENTS: usize = 1;

/// What one rank says, thing by thing; what it does not say is empty.
fn texts(said: Announced) -> [String; 6] {
    let counts = said.op.row().is_some_and(|row| row.counts);
    let number = said.memory.unwrap_or_default();
    let describe = if counts { Shape::describe_counts } else { Shape::describe };
    let elements = |bytes: u64| match said.dtype {
        Some(dtype) if counts || dtype != DType::U8 || said.shape != Shape::ANY => {
            format!("{} x {dtype}", describe(said.shape, bytes / dtype.size() as u64))
        }
        None if said.op == Op::Atomics => format!("{bytes} cells of type {number}"),
        // Of whatever it is.
        _ => format!("{bytes} bytes"),
    };
    [
        text("", said.reduce),
        text("", said.bytes.map(elements)),
        text("root ", said.root),
        text("channel ", said.channel),
        text("algorithm ", said.algorithm),
        text("memory ", said.memory.filter(|_| said.op != Op::Atomics)),
    ]
}

/// A value after its name.
fn text(name: &str, value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| format!("{name}{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_differ_where_the_calls_differ() {
        assert_ne!(signature(Op::MemoryBarrier, 0, 0), signature(Op::MemoryBarrier, 1, 0));
        assert_ne!(signature(Op::AllGather, 0, 4), signature(Op::AllGather, 0, 8));
    }

    fn with_shape(agreed: AgreedCall, op: Op) -> (Signature, u64) {
        (agreed.signature(op), agreed.shape.word)
    }

    fn said(signatures: [(Signature, u64); 2]) -> String {
        let (what, values) = describe(&signatures.map(Some));
        format!("{what}: {}", values.join("; "))
    }

    #[test]
    fn what_differs_is_told_in_the_words_of_the_caller() {
        let (f64, sum, max) = (DType::F64 as u64, ReduceOp::Sum as u64 + 1, ReduceOp::Max as u64 + 1);
        let (push, pipelined) = (Algorithm::Push as u64, Algorithm::Pipelined as u64);
        let four = AgreedCall {
            root: 0,
            dtype: f64,
            reduce: sum,
            algorithm: push,
            memory: 0,
            bytes: 32,
            shape: Shape::ANY,
        };
        let reduced = |one: AgreedCall, other: AgreedCall| {
            said([with_shape(one, Op::PrivateAllReduce), with_shape(other, Op::PrivateAllReduce)])
        };
        let five = AgreedCall { bytes: 40, algorithm: pipelined, ..four };
        assert_eq!(reduced(four, five), "the arguments: rank 0: 4 x f64; rank 1: 5 x f64");
        let other = AgreedCall { reduce: max, ..four };
        assert_eq!(reduced(four, other), "the arguments: rank 0: sum, 4 x f64; rank 1: max, 4 x f64");
        let square = |shape: &[usize]| AgreedCall { shape: Shape::of(shape), ..four };
        assert_eq!(
            reduced(square(&[2, 2]), square(&[4])),
            "the arguments: rank 0: (2, 2) x f64; rank 1: 4 x f64"
        );
        let forced = AgreedCall { algorithm: pipelined, ..four };
        assert_eq!(
            reduced(four, forced),
            "the arguments: rank 0: 4 x f64, algorithm push; rank 1: 4 x f64, algorithm pipelined"
        );
        let rooted = |root: u64| with_shape(AgreedCall { root, ..four }, Op::PrivateReduce);
        assert_eq!(
            said([rooted(0), rooted(1)]),
            "the arguments: rank 0: 4 x f64, root 0; rank 1: 4 x f64, root 1"
        );
        let memory = with_shape(four, Op::AllReduce);
        assert_eq!(
            said([with_shape(four, Op::PrivateAllReduce), memory]),
            "the operation: rank 0: all_reduce of private memory(sum, 4 x f64); rank 1: all_reduce(sum, 4 x f64)"
        );
        assert_eq!(
            said([(signature(Op::Barrier, 0, 0), 0), memory]),
            "the operation: rank 0: group barrier; rank 1: all_reduce(sum, 4 x f64)"
        );
        assert_eq!(
            said([(signature(Op::MemoryBarrier, 3, 1), 0), (signature(Op::MemoryBarrier, 3, 2), 0)]),
            "the arguments: rank 0: memory 1; rank 1: memory 2"
        );
        assert_eq!(
            said([(signature(Op::Broadcast, 1, 8), 0), (signature(Op::Broadcast, 1, 4), 0)]),
            "the arguments: rank 0: 8 bytes; rank 1: 4 bytes"
        );
    }

    #[test]
    fn no_field_of_a_collective_is_cut_off_or_reaches_into_another() {
        assert_eq!((0..6).map(bits).sum::<u32>(), 64);
        assert_eq!((MAX_BYTES, MAX_NUMBER), ((1 << 48) - 1, (1 << 36) - 1));
        let zero =
            AgreedCall { root: 0, dtype: 0, reduce: 0, algorithm: 0, memory: 0, bytes: 0, shape: Shape::ANY };
        let ends = [
            AgreedCall { root: MAX_ROOTS as u64 - 1, ..zero },
            AgreedCall { dtype: 255, ..zero },
            AgreedCall { reduce: 255, ..zero },
            AgreedCall { algorithm: 15, ..zero },
            AgreedCall { memory: MAX_NUMBER, ..zero },
            AgreedCall { memory: 1 << 20, ..zero },
            AgreedCall { memory: 1 << 35, ..zero },
            AgreedCall { bytes: MAX_BYTES, ..zero },
            AgreedCall { shape: Shape::of(&[3, 4]), ..zero },
        ];
        for (index, agreed) in ends.iter().enumerate() {
            let AgreedCall { root, dtype, reduce, algorithm, memory, bytes, shape } = *agreed;
            let signature = agreed.signature(Op::AllReduce);
            assert_eq!(unpacked(signature), [root, dtype, reduce, algorithm, memory, bytes]);
            assert_eq!(announced((signature, shape.word)).map(|said| said.shape), Some(shape));
            assert_eq!(announced((signature, 0)).map(|said| said.op), Some(Op::AllReduce));
            let same =
                |other: &AgreedCall| with_shape(*other, Op::AllReduce) == with_shape(*agreed, Op::AllReduce);
            assert_eq!(ends.iter().filter(|other| same(other)).count(), 1, "{index}");
        }
    }
}
