//! Presets of `symmem bench`: what to measure for a purpose. Options that are given win over them.

use clap::ValueEnum;
use symmem::DType;

use super::bench::Op;
use super::terms::Memory;

/// What a bench is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Everything, in a short run whose times are rough: the same as --quick.
    Quick,
    /// Inference of split models: all_reduce, all_gather, reduce_scatter and broadcast of 8 KB to 1
    /// MB, bf16 and f32, in symmetric and private memory. On GPUs: all_reduce, by graphs and one by one.
    Inference,
    /// Training by DDP and FSDP: all_reduce, broadcast, all_gather and reduce_scatter of 1 MB to 256 MB,
    /// f32 and bf16. On GPUs: all_reduce.
    Training,
}

impl Preset {
    /// What to measure, where the preset says it.
    pub(super) fn ops(self, is_of_gpus: bool) -> Option<&'static [Op]> {
        match (self, is_of_gpus) {
            (Self::Quick, _) => None,
            (Self::Inference, true) => Some(&[Op::Eager, Op::AllReduce]),
            (Self::Training, true) => Some(&[Op::AllReduce]),
            (Self::Inference, false) => {
                Some(&[Op::AllReduce, Op::AllGather, Op::ReduceScatter, Op::Broadcast])
            }
            (Self::Training, false) => {
                Some(&[Op::AllReduce, Op::Broadcast, Op::AllGather, Op::ReduceScatter])
            }
        }
    }

    /// Bytes of the collectives.
    pub(super) fn sizes(self) -> Option<&'static [usize]> {
        match self {
            Self::Quick => None,
            Self::Inference => Some(&[8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]),
            Self::Training => Some(&[1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]),
        }
    }

    /// Their element types.
    pub(super) fn dtypes(self) -> Option<&'static [DType]> {
        match self {
            Self::Quick => None,
            Self::Inference => Some(&[DType::BF16, DType::F32]),
            Self::Training => Some(&[DType::F32, DType::BF16]),
        }
    }

    /// Which memory holds their elements.
    pub(super) fn memories(self) -> Option<&'static [Memory]> {
        (self == Self::Inference).then_some(&[Memory::Symmetric, Memory::Private])
    }
}
