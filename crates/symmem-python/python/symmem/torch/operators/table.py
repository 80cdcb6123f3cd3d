"""Every operator of namespace `symmem`, in one table.

The names, and the order of arguments, are those of torch's namespace `symm_mem`, in every version up to the newest; what torch does not have
comes last. What differs:

- Operators that write return nothing. Torch's return what they wrote, which torch.compile and opcheck refuse of operators outside of aten.
- A schema says what is written here. Torch's says that a put writes the memory it reads, and that `one_shot_all_reduce_copy` does not write
  its buffer.
- Handles are numbers (`SymInt`, so that compiled programs can pass them on): torch's are objects of a class that only it can make.

`function` does the work; where the operator returns a new tensor, and is not `in_python`, the function gets that as one more argument.
`fast` names the arguments of a reduction, for the kernel that calls the handle's method without Python: the symmetric input, the operation, the
group; the output, which is `+` where it is what is returned; the source, if elements from elsewhere are reduced; whether multicast is wanted;
and what says that parts are of columns, which is not done there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from symmem.torch import _ops as ops
from symmem.torch.operators import collectives, exchange, fused, norm, onesided, shapes

CPU = ("CPU",)
BOTH = ("CPU", "CUDA")


@dataclass(frozen=True)
class Operator:
    """A row."""

    name: str
    schema: str
    function: Callable[..., Any]
    shape: Callable[..., Any]
    devices: tuple[str, ...] = BOTH
    fast: str = ""
    #: Registered by `torch.library` whatever torch can do: it makes tensors itself.
    in_python: bool = False
    #: It writes nothing that its schema could name, and yet does something, or reads what peers write: compilers must not leave it out, merge
    #: it with another one, or move it past one of its kind.
    acts: bool = False

    @property
    def signature(self) -> str:
        """As torch defines operators."""
        return self.name + self.schema


_REDUCE = "(Tensor input, str reduce_op, str group_name) -> Tensor"
_REDUCE_ = "(Tensor(a!) input, str reduce_op, str group_name) -> ()"
_REDUCE_OUT = "(Tensor input, str reduce_op, str group_name, Tensor(a!) out) -> ()"
_COPY = "(Tensor(a!) symm_buffer, Tensor local_input, str reduce_op, str group_name"
_PUT = "(Tensor tensor, int peer) -> ()"
_GET = "(Tensor(a!) tensor, int peer) -> ()"
_GET_OUT = "(Tensor(a!) dst, SymInt handle, int offset, int size, int peer) -> ()"
_V = "(Tensor input, Tensor(a!) out, Tensor {}, Tensor(b!) out_splits_offsets, str group_name{}) -> ()"

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "multimem_all_reduce_", _REDUCE_, collectives.multimem_all_reduce_, shapes.nothing, fast="input=0 op=1 group=2 multicast"
    ),
    Operator(
        "multimem_one_shot_all_reduce",
        _REDUCE,
        collectives.multimem_one_shot_all_reduce_out,
        shapes.like_first,
        fast="input=0 op=1 group=2 out=+ multicast",
        acts=True,
    ),
    Operator(
        "multimem_one_shot_all_reduce_out",
        _REDUCE_OUT,
        collectives.multimem_one_shot_all_reduce_out,
        shapes.nothing,
        fast="input=0 op=1 group=2 out=3 multicast",
    ),
    Operator(
        "multimem_one_shot_reduce_out",
        "(Tensor input, str reduce_op, int root, str group_name, Tensor(a!) out) -> ()",
        collectives.multimem_one_shot_reduce_out,
        shapes.nothing,
    ),
    Operator(
        "multimem_all_gather_out",
        "(Tensor input, str group_name, Tensor(a!) out) -> ()",
        collectives.multimem_all_gather_out,
        shapes.nothing,
    ),
    Operator(
        "one_shot_all_reduce",
        _REDUCE,
        collectives.one_shot_all_reduce_out,
        shapes.like_first,
        fast="input=0 op=1 group=2 out=+",
        acts=True,
    ),
    Operator(
        "one_shot_all_reduce_out",
        _REDUCE_OUT,
        collectives.one_shot_all_reduce_out,
        shapes.nothing,
        fast="input=0 op=1 group=2 out=3",
    ),
    Operator(
        "one_shot_all_reduce_copy",
        _COPY + ") -> Tensor",
        collectives.one_shot_all_reduce_copy_out,
        shapes.like_second,
        fast="input=0 source=1 op=2 group=3 out=+",
    ),
    Operator(
        "one_shot_all_reduce_copy_out",
        _COPY + ", Tensor(b!) out) -> ()",
        collectives.one_shot_all_reduce_copy_out,
        shapes.nothing,
        fast="input=0 source=1 op=2 group=3 out=4",
    ),
    Operator("two_shot_all_reduce_", _REDUCE_, collectives.two_shot_all_reduce_, shapes.nothing, fast="input=0 op=1 group=2"),
    Operator(
        "two_shot_all_reduce_out",
        "(Tensor input, str reduce_op, str group_name, Tensor(a!) output) -> ()",
        collectives.two_shot_all_reduce_out,
        shapes.nothing,
        fast="input=0 op=1 group=2 out=3",
    ),
    Operator(
        "reduce_scatter_out",
        "(Tensor input, str group_name, bool split_last_dim, Tensor(a!) output) -> ()",
        collectives.reduce_scatter_out,
        shapes.nothing,
        fast="input=0 group=1 columns=2 out=3",
    ),
    Operator(
        "_async_input_mm",
        "(Tensor a, Tensor b, Tensor a_chunk_signals, int a_chunk_pivot) -> Tensor",
        fused._async_input_mm,
        shapes.product,
        CPU,
        in_python=True,
    ),
    Operator(
        "stream_write_value32_",
        "(Tensor(a!) input, int offset, int val) -> ()",
        ops.stream_write_value32_,
        shapes.nothing,
    ),
    Operator(
        "memset32_", "(Tensor(a!) input, int offset, int val, int count=1) -> ()", ops.memset32_, shapes.nothing
    ),
    Operator(
        "memcpy_to_multicast_",
        "(Tensor(a!) symm_mem_out, Tensor src, int byte_offset, str group_name) -> ()",
        ops.memcpy_to_multicast_,
        shapes.nothing,
    ),
    Operator("nvshmem_put", _PUT, onesided.put, shapes.nothing, acts=True),
    Operator("nvshmem_get", _GET, onesided.get, shapes.nothing),
    Operator("nvshmem_get_out", _GET_OUT, onesided.get_out, shapes.nothing),
    Operator(
        "nvshmem_broadcast",
        "(Tensor(a!) input, int root, str group_name) -> ()",
        collectives.nvshmem_broadcast,
        shapes.nothing,
    ),
    Operator(
        "nvshmem_wait_for_signal",
        "(Tensor sigpad, int signal, int peer) -> ()",
        onesided.nvshmem_wait_for_signal,
        shapes.nothing,
        acts=True,
    ),
    Operator(
        "nvshmem_put_with_signal",
        "(Tensor tensor, Tensor sigpad, int signal, int peer) -> ()",
        onesided.nvshmem_put_with_signal,
        shapes.nothing,
        acts=True,
    ),
    Operator(
        "nvshmem_all_to_all",
        "(Tensor input, Tensor(a!) out, str group_name) -> ()",
        collectives.nvshmem_all_to_all,
        shapes.nothing,
    ),
    Operator("nccl_put", _PUT, onesided.put, shapes.nothing, acts=True),
    Operator("nccl_get", _GET, onesided.get, shapes.nothing),
    Operator("nccl_get_out", _GET_OUT, onesided.get_out, shapes.nothing),
    Operator(
        "nccl_wait_for_signal",
        "(Tensor sigpad, int signal) -> ()",
        onesided.nccl_wait_for_signal,
        shapes.nothing,
        acts=True,
    ),
    Operator(
        "nccl_put_with_signal",
        "(Tensor tensor, int signal, int peer) -> ()",
        onesided.nccl_put_with_signal,
        shapes.nothing,
        acts=True,
    ),
    Operator(
        "nccl_put_signal",
        "(Tensor src, SymInt handle, int peer) -> ()",
        onesided.nccl_put_signal,
        shapes.nothing,
        acts=True,
    ),
    # Without a tensor among its arguments it is of no device.
    Operator(
        "nccl_wait_signal",
        "(SymInt handle, int peer) -> ()",
        onesided.nccl_wait_signal,
        shapes.nothing,
        ("CompositeExplicitAutograd",),
        acts=True,
    ),
    Operator(
        "nccl_reduce_scatter_offset",
        "(Tensor input, Tensor(a!)[] out, str group_name, int dim, int[]? offsets=None, int[]? dst_ranks=None, "
        'str red_op="sum") -> ()',
        exchange.nccl_reduce_scatter_offset,
        shapes.nothing,
    ),
    Operator(
        "nccl_all_to_all_nd",
        "(Tensor input, Tensor(a!) out, int scatter_dim, int gather_dim, str group_name) -> ()",
        exchange.nccl_all_to_all_nd,
        shapes.nothing,
    ),
    Operator("all_to_all_vdev", _V.format("in_splits", ""), exchange.all_to_all_vdev, shapes.nothing),
    Operator(
        "all_to_all_vdev_2d",
        _V.format("in_splits", ", int? major_align=None"),
        exchange.all_to_all_vdev_2d,
        shapes.nothing,
    ),
    Operator(
        "all_to_all_vdev_2d_offset",
        _V.format("in_splits_offsets", ""),
        exchange.all_to_all_vdev_2d_offset,
        shapes.nothing,
    ),
    Operator(
        "tile_reduce",
        '(Tensor in_tile, Tensor(a!) out_tile, int root, str group_name, str reduce_op="sum") -> ()',
        collectives.tile_reduce,
        shapes.nothing,
    ),
    Operator(
        "multi_root_tile_reduce",
        '(Tensor[] in_tiles, Tensor(a!) out_tile, int[] roots, str group_name, str reduce_op="sum") -> ()',
        collectives.multi_root_tile_reduce,
        shapes.nothing,
    ),
    Operator("_rendezvous", "(Tensor tensor, str? group_name=None) -> SymInt", onesided._rendezvous, shapes.handle, acts=True),
    Operator(
        "_barrier",
        "(SymInt handle) -> ()",
        onesided._barrier,
        shapes.nothing,
        ("CompositeExplicitAutograd",),
        acts=True,
    ),
    Operator(
        "get_remote_tensors",
        "(Tensor x, str group_name) -> Tensor[]",
        onesided.get_remote_tensors,
        shapes.remote,
        in_python=True,
        acts=True,
    ),
    Operator(
        "_low_contention_all_gather",
        "(Tensor tensor, str group_name) -> Tensor",
        fused._low_contention_all_gather,
        shapes.gathered,
        in_python=True,
    ),
    Operator(
        "_low_contention_reduce_scatter",
        "(Tensor tensor, str reduce_op, str group_name) -> Tensor",
        fused._low_contention_reduce_scatter,
        shapes.scattered,
        in_python=True,
    ),
    Operator(
        "_low_contention_all_gather_ce_multicast",
        "(Tensor tensor, str group_name) -> Tensor",
        fused._low_contention_all_gather_ce_multicast,
        shapes.gathered,
        in_python=True,
    ),
    Operator(
        "_low_contention_all_gather_ce_multicast_out",
        "(Tensor tensor, str group_name, Tensor(a!) out) -> ()",
        fused._low_contention_all_gather_ce_multicast_out,
        shapes.nothing,
    ),
    Operator(
        "fused_all_gather_matmul",
        "(Tensor A, Tensor[] Bs, int gather_dim, str group_name, *, bool return_A=True) -> (Tensor?, Tensor[])",
        fused.fused_all_gather_matmul,
        shapes.gathered_products,
        in_python=True,
    ),
    Operator(
        "fused_all_gather_scaled_matmul",
        "(Tensor A, Tensor[] Bs, Tensor A_scale, Tensor[] B_scales, int gather_dim, str group_name, Tensor?[] biases, "
        "Tensor?[] result_scales, ScalarType?[] out_dtypes, bool[] use_fast_accum) -> (Tensor, Tensor[])",
        fused.fused_all_gather_scaled_matmul,
        shapes.gathered_scaled_products,
        in_python=True,
    ),
    Operator(
        "fused_matmul_reduce_scatter",
        "(Tensor A, Tensor B, str reduce_op, int scatter_dim, str group_name) -> Tensor",
        fused.fused_matmul_reduce_scatter,
        shapes.scattered_product,
        in_python=True,
    ),
    Operator(
        "fused_scaled_matmul_reduce_scatter",
        "(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, str reduce_op, int orig_scatter_dim, "
        "int scatter_dim_after_maybe_reshape, str group_name, SymInt[]? output_shape, Tensor? bias=None, "
        "Tensor? result_scale=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        fused.fused_scaled_matmul_reduce_scatter,
        shapes.scattered_scaled_product,
        in_python=True,
    ),
    Operator(
        "all_reduce_rms_norm_out",
        "(Tensor input, Tensor(a!)? residual, Tensor? weight, float epsilon, str reduce_op, str group_name, Tensor(b!) out, "
        "Tensor? scale=None, Tensor(c!)? scales=None) -> ()",
        norm.all_reduce_rms_norm_out,
        shapes.nothing,
    ),
)

BY_NAME: dict[str, Operator] = {operator.name: operator for operator in OPERATORS}

#: Names of torch's that are in no namespace here, and why.
LEFT_OUT: dict[str, str] = {
    "fused_all_gather_block_scaled_matmul": "its scales are in a layout that each GPU has its own of, and no CPU has any",
}
