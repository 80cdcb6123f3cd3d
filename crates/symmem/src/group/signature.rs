//! What an op's signature says: packed for the slot, unpacked for the error message.
//!
//! Called by whatever meets. Nothing is cut off and nothing is hashed: calls that differ in anything have different signatures.
//! What would not fit is refused before it comes here: a collective on more than [`MAX_BYTES`], and a memory's number beyond
//! [`MAX_NUMBER`]. What ranks must agree on and does not fit at all (shapes, say) wants a word of its own in the announcement's
//! line, beside `word` and `size`, and is compared like them.

use crate::collective;
use crate::op::Op;
use crate::sync::control::MAX_WORLD;
use crate::sync::protocol::Signature;

/// Bits of the fields of a collective's word, from the lowest on: operation, root, element type, reduce operation, algorithm, and
/// the low bits of the memory's number.
const FIELDS: [u32; 6] = [8, 16, 8, 8, 4, 20];
/// Bits of a collective's bytes; the high bits of the memory's number are above them.
const BYTES: u32 = 48;

/// Most bytes of each rank in a collective.
pub(crate) const MAX_BYTES: u64 = (1 << BYTES) - 1;
/// The highest number of a memory.
pub(crate) const MAX_NUMBER: u64 = (1 << (FIELDS[5] + 64 - BYTES)) - 1;

const _: () = assert!(MAX_WORLD <= 1 << FIELDS[1], "every rank is a root that fits");

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
}

/// The first bit of field `index`.
const fn first_bit(index: usize) -> u32 {
    let (mut bit, mut field) = (0, 0);
    while field < index {
        bit += FIELDS[field];
        field += 1;
    }
    bit
}

impl Agreed {
    /// The signature of `op`.
    #[inline]
    pub(crate) fn signature(&self, op: Op) -> Signature {
        let low = (1 << FIELDS[5]) - 1;
        debug_assert!(self.root >> FIELDS[1] == 0 && self.dtype >> FIELDS[2] == 0);
        debug_assert!(self.reduce >> FIELDS[3] == 0 && self.algorithm >> FIELDS[4] == 0);
        debug_assert!(self.bytes <= MAX_BYTES && self.memory <= MAX_NUMBER);
        let word = op as u64
            | self.root << const { first_bit(1) }
            | self.dtype << const { first_bit(2) }
            | self.reduce << const { first_bit(3) }
            | self.algorithm << const { first_bit(4) }
            | (self.memory & low) << const { first_bit(5) };
        Signature { word, size: self.bytes | (self.memory >> FIELDS[5]) << BYTES }
    }

    fn of(signature: Signature) -> Self {
        let field = |index: usize| signature.word >> first_bit(index) & ((1 << FIELDS[index]) - 1);
        Self {
            root: field(1),
            dtype: field(2),
            reduce: field(3),
            algorithm: field(4),
            memory: field(5) | (signature.size >> BYTES) << FIELDS[5],
            bytes: signature.size & MAX_BYTES,
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

/// The signature as people read it.
pub(crate) fn describe(signature: Signature) -> String {
    let number = signature.word >> 8;
    let Some(op) = Op::from_u8(signature.word as u8) else {
        return format!("unknown operation {:#x}", signature.word);
    };
    match op {
        Op::MemoryBarrier => format!("barrier(channel {number}) on memory {}", signature.size),
        Op::Close => format!("close of memory {}", signature.size),
        Op::Broadcast => format!("broadcast(root {number}, {} bytes)", signature.size),
        Op::AllGather if signature.size > 0 => format!("all_gather({} bytes)", signature.size),
        _ if op.is_collective() => {
            format!("{}({})", op.name(), collective::describe(&Agreed::of(signature)))
        }
        _ => op.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_differ_where_the_calls_differ() {
        assert_ne!(signature(Op::MemoryBarrier, 0, 0), signature(Op::MemoryBarrier, 1, 0));
        assert_ne!(signature(Op::AllGather, 0, 4), signature(Op::AllGather, 0, 8));
        assert_eq!(describe(signature(Op::MemoryBarrier, 3, 1)), "barrier(channel 3) on memory 1");
        assert_eq!(describe(signature(Op::Broadcast, 1, 8)), "broadcast(root 1, 8 bytes)");
    }

    #[test]
    fn no_field_of_a_collective_is_cut_off_or_reaches_into_another() {
        assert_eq!(FIELDS.iter().sum::<u32>(), 64);
        assert_eq!((MAX_BYTES, MAX_NUMBER), ((1 << 48) - 1, (1 << 36) - 1));
        let zero = Agreed { root: 0, dtype: 0, reduce: 0, algorithm: 0, memory: 0, bytes: 0 };
        let ends = [
            Agreed { root: MAX_WORLD as u64 - 1, ..zero },
            Agreed { dtype: 255, ..zero },
            Agreed { reduce: 255, ..zero },
            Agreed { algorithm: 15, ..zero },
            Agreed { memory: MAX_NUMBER, ..zero },
            Agreed { memory: 1 << 20, ..zero },
            Agreed { memory: 1 << 35, ..zero },
            Agreed { bytes: MAX_BYTES, ..zero },
        ];
        for (index, agreed) in ends.iter().enumerate() {
            assert_eq!(Agreed::of(agreed.signature(Op::AllReduce)), *agreed);
            assert_eq!(agreed.signature(Op::AllReduce).word as u8, Op::AllReduce as u8);
            let same = |other: &Agreed| other.signature(Op::AllReduce) == agreed.signature(Op::AllReduce);
            assert_eq!(ends.iter().filter(|other| same(other)).count(), 1, "{index}");
        }
    }
}
