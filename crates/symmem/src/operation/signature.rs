//! What an op's signature says: packed for the slot, unpacked for the error message.
//!
//! Called by whatever meets. Nothing is cut off: calls that differ in anything have different signatures. What would not fit is
//! refused before it comes here: a collective on more than [`MAX_BYTES`], and a memory's number beyond [`MAX_NUMBER`]. Shapes have
//! a word of their own, see [`Shape`].

use super::{Algorithm, Op, SHAPED, Shape, Signature};
use crate::numeric::{DType, ReduceOp};

/// The first bits of the fields of a collective's word, and its end: operation (and whether there is a shape), root, element type, reduce
/// operation, algorithm, and the low bits of the memory's number.
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
pub(crate) struct Agreed {
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

impl Agreed {
    /// The signature of `op`.
    #[inline]
    pub(crate) fn signature(&self, op: Op) -> Signature {
        let low = (1 << bits(5)) - 1;
        debug_assert!(self.root >> bits(1) == 0 && self.dtype >> bits(2) == 0);
        debug_assert!(self.reduce >> bits(3) == 0 && self.algorithm >> bits(4) == 0);
        debug_assert!(self.bytes <= MAX_BYTES && self.memory <= MAX_NUMBER);
        let shaped = if self.shape == Shape::ANY { 0 } else { SHAPED };
        let word = op as u64
            | shaped
            | self.root << FIRST[1]
            | self.dtype << FIRST[2]
            | self.reduce << FIRST[3]
            | self.algorithm << FIRST[4]
            | (self.memory & low) << FIRST[5];
        let size = self.bytes | (self.memory >> bits(5)) << BYTES;
        Signature { word, size }
    }

    /// What a call of the collective `op` says, in words that people know.
    fn announced(&self, op: Op) -> Announced {
        Announced {
            op,
            bytes: Some(self.bytes),
            channel: None,
            root: usize::try_from(self.root).ok().filter(|_| op.has_root()),
            dtype: DType::ALL.into_iter().find(|dtype| *dtype as u64 == self.dtype),
            reduce: ReduceOp::ALL.into_iter().find(|reduce| *reduce as u64 + 1 == self.reduce),
            algorithm: Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u64 == self.algorithm),
        }
    }

    fn of(signature: Signature, shape: u64) -> Self {
        let field = |index: usize| signature.word >> FIRST[index] & ((1 << bits(index)) - 1);
        Self {
            root: field(1),
            dtype: field(2),
            reduce: field(3),
            algorithm: field(4),
            memory: field(5) | (signature.size >> BYTES) << bits(5),
            bytes: signature.size & MAX_BYTES,
            shape: if signature.word & SHAPED == 0 { Shape::ANY } else { Shape::from_word(shape) },
        }
    }
}

/// The signature of `op` on channel or with root `number`, over `size` bytes or on the memory of that number.
#[inline]
pub(crate) fn signature(op: Op, number: usize, size: u64) -> Signature {
    Signature { word: op as u64 | (number as u64) << 8, size }
}

/// Whether it is what a rank announces in place of a call that it cannot make.
pub(crate) fn is_refusal(signature: Signature) -> bool {
    signature.word as u8 == Op::Refusal as u8
}

/// What ranks that disagree said, as people read it, in rank order, and what it is that they disagree on. What a rank's caller knows of
/// comes first: how many elements, of which type. What only this library knows (algorithm, memory) is shown where nothing
/// else differs.
pub(crate) fn describe(said: &[Option<(Signature, u64)>]) -> (&'static str, Vec<String>) {
    let ops: Vec<Option<Op>> =
        said.iter().map(|said| said.and_then(|(signature, _)| op_of(signature))).collect();
    let is_one = ops.iter().all(|op| op.is_some() && *op == ops[0]);
    let fields: Vec<Vec<Field>> =
        said.iter().zip(&ops).map(|(said, op)| said.zip(*op).map(fields).unwrap_or_default()).collect();
    let differs = |at: usize| fields.iter().any(|theirs| theirs.get(at) != fields[0].get(at));
    let any_known = |at: usize| fields[0].get(at).is_some_and(|field| field.known) && differs(at);
    let known = (0..fields[0].len()).any(any_known);
    let shown = |rank: usize| {
        let shows = |(at, field): &(usize, &Field)| match is_one {
            true => field.always || differs(*at) && (field.known || !known),
            false => field.known,
        };
        let texts = fields[rank].iter().enumerate().filter(shows).map(|(_, field)| field.text.as_str());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let whole = |rank: usize| match (ops[rank], shown(rank)) {
        (None, _) => "something unknown".to_owned(),
        (Some(op), shown) if shown.is_empty() => op.label().to_owned(),
        (Some(_), shown) if is_one => shown,
        (Some(op), shown) => format!("{}({shown})", op.label()),
    };
    let values = (0..said.len()).map(|rank| format!("rank {rank}: {}", whole(rank))).collect();
    (if is_one { "the arguments" } else { "the operation" }, values)
}

/// What an announcement says, for who looks on from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) op: Op,
    pub(crate) bytes: Option<u64>,
    pub(crate) channel: Option<usize>,
    pub(crate) root: Option<usize>,
    pub(crate) dtype: Option<DType>,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) algorithm: Option<Algorithm>,
}

/// What `signature` says; none if no rank says so.
pub(crate) fn announced(signature: Signature) -> Option<Announced> {
    let op = op_of(signature)?;
    let (number, size) = (usize::try_from(signature.word >> 8).ok(), Some(signature.size));
    let bare =
        Announced { op, bytes: None, channel: None, root: None, dtype: None, reduce: None, algorithm: None };
    Some(match op {
        Op::MemoryBarrier => Announced { channel: number, ..bare },
        Op::Broadcast => Announced { root: number, bytes: size, ..bare },
        Op::AllGather => Announced { bytes: size.filter(|bytes| *bytes > 0), ..bare },
        _ if op.is_collective() => Agreed::of(signature, 0).announced(op),
        _ => bare,
    })
}

/// The operation, if there is one of that number.
fn op_of(signature: Signature) -> Option<Op> {
    Op::from_u8((signature.word & !SHAPED) as u8)
}

/// One thing that ranks must agree on.
#[derive(PartialEq, Eq)]
struct Field {
    text: String,
    /// Whether the caller chose it.
    known: bool,
    /// Whether it is worth showing where it does not differ.
    always: bool,
}

/// What the caller chose.
fn known(text: String) -> Field {
    Field { text, known: true, always: false }
}

/// What only this library knows.
fn inner(text: String) -> Field {
    Field { known: false, ..known(text) }
}

/// What a signature of `op` says.
fn fields(((signature, shape), op): ((Signature, u64), Op)) -> Vec<Field> {
    let (number, size) = (signature.word >> 8, signature.size);
    match op {
        Op::MemoryBarrier => vec![known(format!("channel {number}")), inner(format!("memory {size}"))],
        Op::Close => vec![inner(format!("memory {size}"))],
        Op::Broadcast => vec![known(format!("root {number}")), known(format!("{size} bytes"))],
        Op::AllGather if size > 0 => vec![known(format!("{size} bytes"))],
        _ if op.is_collective() => collective_fields(op, &Agreed::of(signature, shape)),
        _ => Vec::new(),
    }
}

fn collective_fields(op: Op, agreed: &Agreed) -> Vec<Field> {
    let said = agreed.announced(op);
    let elements = match said.dtype {
        // Bytes of whatever it is.
        Some(DType::U8) if agreed.shape == Shape::ANY => format!("{} bytes", agreed.bytes),
        Some(dtype) => {
            format!("{} x {dtype}", agreed.shape.describe(agreed.bytes / dtype.size() as u64))
        }
        None => format!("{} bytes of an unknown type", agreed.bytes),
    };
    let or_nothing = |text: Option<String>| text.unwrap_or_default();
    vec![
        known(or_nothing(said.reduce.map(|reduce| reduce.to_string()))),
        Field { always: true, ..known(elements) },
        known(or_nothing(said.root.map(|root| format!("root {root}")))),
        inner(or_nothing(said.algorithm.map(|algorithm| format!("algorithm {algorithm}")))),
        inner(format!("memory {}", agreed.memory)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_differ_where_the_calls_differ() {
        assert_ne!(signature(Op::MemoryBarrier, 0, 0), signature(Op::MemoryBarrier, 1, 0));
        assert_ne!(signature(Op::AllGather, 0, 4), signature(Op::AllGather, 0, 8));
    }

    fn with_shape(agreed: Agreed, op: Op) -> (Signature, u64) {
        (agreed.signature(op), agreed.shape.word())
    }

    fn said(signatures: [(Signature, u64); 2]) -> String {
        let (what, values) = describe(&signatures.map(Some));
        format!("{what}: {}", values.join("; "))
    }

    #[test]
    fn what_differs_is_told_in_the_words_of_the_caller() {
        let (f64, sum, max) = (DType::F64 as u64, ReduceOp::Sum as u64 + 1, ReduceOp::Max as u64 + 1);
        let (push, pipelined) = (Algorithm::Push as u64, Algorithm::Pipelined as u64);
        let four = Agreed {
            root: 0,
            dtype: f64,
            reduce: sum,
            algorithm: push,
            memory: 0,
            bytes: 32,
            shape: Shape::ANY,
        };
        let reduced = |one: Agreed, other: Agreed| {
            said([with_shape(one, Op::PrivateAllReduce), with_shape(other, Op::PrivateAllReduce)])
        };
        let five = Agreed { bytes: 40, algorithm: pipelined, ..four };
        assert_eq!(reduced(four, five), "the arguments: rank 0: 4 x f64; rank 1: 5 x f64");
        let other = Agreed { reduce: max, ..four };
        assert_eq!(reduced(four, other), "the arguments: rank 0: sum, 4 x f64; rank 1: max, 4 x f64");
        let square = |shape: &[usize]| Agreed { shape: Shape::of(shape), ..four };
        assert_eq!(
            reduced(square(&[2, 2]), square(&[4])),
            "the arguments: rank 0: (2, 2) x f64; rank 1: 4 x f64"
        );
        let forced = Agreed { algorithm: pipelined, ..four };
        assert_eq!(
            reduced(four, forced),
            "the arguments: rank 0: 4 x f64, algorithm push; rank 1: 4 x f64, algorithm pipelined"
        );
        let rooted = |root: u64| with_shape(Agreed { root, ..four }, Op::PrivateReduce);
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
            Agreed { root: 0, dtype: 0, reduce: 0, algorithm: 0, memory: 0, bytes: 0, shape: Shape::ANY };
        let ends = [
            Agreed { root: MAX_ROOTS as u64 - 1, ..zero },
            Agreed { dtype: 255, ..zero },
            Agreed { reduce: 255, ..zero },
            Agreed { algorithm: 15, ..zero },
            Agreed { memory: MAX_NUMBER, ..zero },
            Agreed { memory: 1 << 20, ..zero },
            Agreed { memory: 1 << 35, ..zero },
            Agreed { bytes: MAX_BYTES, ..zero },
            Agreed { shape: Shape::of(&[3, 4]), ..zero },
        ];
        for (index, agreed) in ends.iter().enumerate() {
            assert_eq!(Agreed::of(agreed.signature(Op::AllReduce), agreed.shape.word()), *agreed);
            assert_eq!(op_of(agreed.signature(Op::AllReduce)), Some(Op::AllReduce));
            let same =
                |other: &Agreed| with_shape(*other, Op::AllReduce) == with_shape(*agreed, Op::AllReduce);
            assert_eq!(ends.iter().filter(|other| same(other)).count(), 1, "{index}");
        }
    }
}
