//! What an op's signature says: packed for the slot, unpacked for the error message.

use crate::collective::{self, WRONG};
use crate::op::Op;
use crate::sync::protocol::Signature;

/// The signature of `op` on channel or with root `number`, over `size` bytes or on the memory of that number.
#[inline]
pub(crate) fn signature(op: Op, number: usize, size: u64) -> Signature {
    Signature { word: op as u64 | (number as u64) << 8, size }
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
        _ if op.is_private() && signature.size == WRONG => format!("{} with wrong arguments", op.name()),
        _ if op.is_collective() => {
            format!("{}({}, {} bytes)", op.name(), collective::describe(number), signature.size)
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
}
