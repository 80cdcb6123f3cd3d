//! All-reduce, in its three forms.

use crate::cuda::Stream;
use crate::cuda::owner::OwnedAddress;
use crate::device::control::AVERAGE;
use crate::engine::cuda::Region;
use crate::engine::cuda::launch::LaunchArguments;
use crate::engine::cuda::launch_terms::LaunchTerms;
use crate::engine::cuda::plan::{Form, dtype_index_of};
use crate::numeric::{DType, ReduceOp};
use crate::operation::Op;
use crate::{Error, Result};

impl Form {
    pub(crate) fn op(self) -> Op {
        match self {
            Self::InPlace => Op::AllReduce,
            Self::Out => Op::AllReduceOut,
            Self::Private => Op::PrivateAllReduce,
        }
    }
}

/// What is reduced, how, and where to.
#[derive(Clone, Copy)]
pub(crate) struct AllReduce<'a> {
    pub(crate) form: Form,
    pub(crate) reduce: ReduceOp,
    pub(crate) dtype: DType,
    /// Elements of each rank.
    pub(crate) count: usize,
    pub(crate) input: OwnedAddress<'a>,
    pub(crate) output: OwnedAddress<'a>,
}

impl Region {
    pub(super) fn all_reduce_by_kernel(&self, work: &AllReduce<'_>, stream: &Stream) -> Result<()> {
        let AllReduce { form, reduce, dtype, count, input, output } = *work;
        let engine = &self.engine;
        let multicast = self.multicast_if_chosen()?;
        let dtype_index = dtype_index_of(dtype)?;
        let mode = mode_of(reduce, dtype)?;
        let bytes = self.bytes;
        if bytes == 0 {
            return self.meet_for_nothing(form.op(), stream);
        }
        let agreed = &engine.inner.agreed;
        let (algorithm, kernel) = agreed.choose(form, bytes, engine.forced, &engine.tune)?;
        let (grid, threads) = agreed.shape(kernel, dtype_index, bytes, &engine.tune);
        let kernel = agreed.kernel_for(kernel, bytes, (grid, threads), [input.address, output.address]);
        let function = engine.routine(kernel, dtype_index)?;
        tracing::trace!(op = form.op().name(), %algorithm, bytes, grid, threads, "all_reduce on the device");
        let statement = LaunchTerms {
            op: form.op(),
            reduction: Some((reduce, dtype)),
            algorithm: Some(algorithm),
            bytes: bytes as u64,
            memory: self.statement(),
            channel: None,
            root: None,
            rows: 0,
            grid,
            threads,
        };
        let call = LaunchArguments {
            count: count as u64,
            input,
            output,
            mode,
            data: &self.data,
            multicast,
            memory: self.owner(),
            is_small: agreed.is_small(kernel, dtype_index, (grid, threads)),
            ..LaunchArguments::plain(statement)
        };
        engine.launch(stream, function, &call)
    }
}

pub(super) fn mode_of(op: ReduceOp, dtype: DType) -> Result<u32> {
    match op {
        ReduceOp::Sum => Ok(0),
        ReduceOp::Avg => Ok(AVERAGE),
        _ => {
            let problem = format!(
                "{op} of {dtype} is not done on devices. Hint: sum and avg are; reduce in host memory for the others"
            );
            Err(Error::invalid("reduce operation", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_averages_are_done() {
        assert_eq!(mode_of(ReduceOp::Sum, DType::F32).unwrap(), 0);
        assert_eq!(mode_of(ReduceOp::Avg, DType::F32).unwrap(), AVERAGE);
        assert!(mode_of(ReduceOp::Max, DType::F32).unwrap_err().to_string().contains("Hint"));
    }
}
