//! What ranks must agree on about one launch: folded into the signature that their blocks compare, and in
//! words for the error when they do not.

use std::fmt;

use super::plan::Algorithm;
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;

/// One launch, as all ranks must make it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchTerms {
    pub(crate) op: Op,
    /// What is reduced and how, for operations that reduce.
    pub(crate) reduction: Option<(ReduceOp, DType)>,
    /// By what, where there is a choice.
    pub(crate) algorithm: Option<Algorithm>,
    /// Bytes of the message.
    pub(crate) bytes: u64,
    /// Which memory: the number of its rendezvous, and where in it; (0, 0) for none.
    pub(crate) memory: (u64, u64),
    /// The channel, for operations that have one.
    pub(crate) channel: Option<usize>,
    /// The rank that gives or takes, for operations that have one.
    pub(crate) root: Option<usize>,
    /// Rows of a matrix, for operations on one; else 0.
    pub(crate) rows: usize,
    pub(crate) grid: u32,
    pub(crate) threads: u32,
}

impl LaunchTerms {
    /// A launch of one block of `threads` that reduces nothing.
    #[inline]
    pub(crate) fn plain(op: Op, channel: Option<usize>, memory: (u64, u64), threads: u32) -> Self {
        Self {
            op,
            reduction: None,
            algorithm: None,
            bytes: 0,
            memory,
            channel,
            root: None,
            rows: 0,
            grid: 1,
            threads,
        }
    }

    /// The operation in the low byte, so that it can be named, and a hash of everything: the signatures of
    /// two launches differ in many bits, as the flags of packets need it.
    #[inline]
    pub(crate) fn signature(&self) -> u32 {
        let reduction = self.reduction.map_or(0, |(op, dtype)| 1 + (op as u64) + ((dtype as u64) << 8));
        let algorithm = self.algorithm.map_or(0, |algorithm| 1 + algorithm as u64);
        let reduction = reduction | algorithm << 16;
        let root = self.root.map_or(0, |root| root as u64 + 1);
        let shape = u64::from(self.grid) << 32 | u64::from(self.threads);
        let channel = self.channel.map_or(0, |channel| channel as u64 + 1);
        let (number, place) = self.memory;
        let hash = mixed(&[
            self.op as u64,
            reduction,
            self.bytes,
            number,
            place,
            channel << 32 | root,
            self.rows as u64,
            shape,
        ]);
        (self.op as u32 & 0xff) | (hash as u32) << 8
    }
}

/// A hash of `words`. By words and not by bytes: it is on the way of every launch.
#[inline]
fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Products move bits up only.
        mixed ^ mixed >> 32
    })
}

impl fmt::Display for LaunchTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op.name())?;
        let mut terms: Vec<String> = Vec::new();
        if let Some((op, dtype)) = self.reduction {
            terms.extend([op.to_string(), dtype.to_string()]);
        }
        if self.bytes > 0 {
            terms.push(format!("{} bytes", self.bytes));
        }
        terms.extend((self.rows > 0).then(|| format!("{} rows", self.rows)));
        terms.extend(self.root.map(|root| format!("root {root}")));
        terms.extend(self.algorithm.map(|algorithm| algorithm.to_string()));
        if !terms.is_empty() {
            write!(f, "({}, {}x{})", terms.join(", "), self.grid, self.threads)?;
        }
        if let Some(channel) = self.channel {
            write!(f, "(channel {channel})")?;
        }
        match self.memory {
            (0, 0) => Ok(()),
            (number, _) => write!(f, " on memory {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::control::op_of;

    fn statement() -> LaunchTerms {
        LaunchTerms {
            op: Op::AllReduce,
            reduction: Some((ReduceOp::Sum, DType::BF16)),
            algorithm: Some(Algorithm::TwoShot),
            bytes: 4096,
            memory: (3, 0),
            channel: None,
            root: None,
            rows: 0,
            grid: 8,
            threads: 512,
        }
    }

    #[test]
    fn signatures_differ_where_the_launches_differ() {
        let same = statement().signature();
        assert_eq!(same, statement().signature());
        assert_eq!(op_of(same), "all_reduce");
        let average = Some((ReduceOp::Avg, DType::BF16));
        let others = [
            LaunchTerms { op: Op::AllReduceOut, ..statement() },
            LaunchTerms { reduction: average, ..statement() },
            LaunchTerms { reduction: None, ..statement() },
            LaunchTerms { bytes: 4098, ..statement() },
            LaunchTerms { memory: (4, 0), ..statement() },
            LaunchTerms { memory: (3, 64), ..statement() },
            LaunchTerms { channel: Some(0), ..statement() },
            LaunchTerms { root: Some(0), ..statement() },
            LaunchTerms { rows: 2, ..statement() },
            LaunchTerms { algorithm: Some(Algorithm::OneShot), ..statement() },
            LaunchTerms { grid: 7, ..statement() },
            LaunchTerms { threads: 256, ..statement() },
        ];
        for other in others {
            assert_ne!(other.signature(), same, "{other}");
        }
        assert_ne!(mixed(&[1, 2]), mixed(&[2, 1]));
    }

    /// 24 bits of a hash: two launches agree by accident once in 2^24, whatever they differ in.
    #[test]
    fn numbers_and_bytes_collide_no_more_often_than_chance() {
        let families: [fn(u64) -> LaunchTerms; 4] = [
            |at| LaunchTerms { memory: (at, 0), ..statement() },
            |at| LaunchTerms { memory: (at << 20, 0), ..statement() },
            |at| LaunchTerms { memory: (3, at * 4096), ..statement() },
            |at| LaunchTerms { bytes: at * 16, ..statement() },
        ];
        for make in families {
            let mut all: Vec<u32> = (0..50_000).map(|at| make(at).signature()).collect();
            all.sort_unstable();
            let twins = all.windows(2).filter(|pair| pair[0] == pair[1]).count();
            // About 75 are expected of 50000 random ones.
            assert!(twins < 300, "{twins}");
        }
    }

    #[test]
    fn people_can_read_it() {
        assert_eq!(statement().to_string(), "all_reduce(sum, bf16, 4096 bytes, two_shot, 8x512) on memory 3");
        let barrier = LaunchTerms::plain(Op::MemoryBarrier, Some(2), (1, 0), 32);
        assert_eq!(barrier.to_string(), "barrier(channel 2) on memory 1");
        assert_eq!(op_of(0xff), "an unknown operation");
    }
}
