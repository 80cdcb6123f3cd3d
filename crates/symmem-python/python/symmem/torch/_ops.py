"""The operations of torch's namespace `symm_mem`, by their names and with their order of arguments.

Every rank of `group` calls them. The symmetric argument must come from `empty`; it is rendezvoused when it
comes for the first time. The algorithm in a name is a hint: symmem chooses by size and measured tables, and
without multicast the `multimem_` names do the same as the others. With it, and on GPUs, the `multimem_`
all-reduces are done by the switch, which rounds in its own way. Reductions know every operation of symmem,
not just "sum".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

import symmem
from symmem.torch import _device as device
from symmem.torch import _overlap as overlap
from symmem.torch._groups import GroupLike, resolve
from symmem.torch._memory import SymmetricMemory, find
from symmem.typing import Op


def _refused(text: str, group: GroupLike, tensor: Tensor) -> symmem.Invalid:
    """The error to raise on this rank, whatever comes of telling it; the others, who call the operation, are told of it."""
    with suppress(Exception):
        resolve(group)._refuse(text, tensor)
    return symmem.Invalid(text)


def _check_scatter(reduce_op: str, side: int, group: GroupLike, tensor: Tensor) -> None:
    """An error unless `reduce_op` can be scattered, and a side of this length divides among the ranks, who are at tensors like this one."""
    ranks = resolve(group).size
    if reduce_op not in ("sum", "avg"):
        raise _refused(f"reduce_op must be sum or avg, not {reduce_op}", group, tensor)
    if side % ranks:
        raise _refused(f"a side of {side} must be divisible by the {ranks} ranks", group, tensor)


@contextmanager
def _telling(group: GroupLike, tensor: Tensor) -> Iterator[None]:
    """What fails here, for want of memory say, is told to the others, who call the operation on tensors like this one."""
    try:
        yield
    except Exception as error:
        _refused(str(error), group, tensor)
        raise


def _empty_like(tensor: Tensor, group: GroupLike, like: Tensor | None = None) -> Tensor:
    """A result; that there is no memory for it is told to the others, who are at `like`. Eager code on GPUs comes here: keep it short."""
    try:
        return torch.empty_like(tensor)
    except Exception as error:
        _refused(str(error), group, tensor if like is None else like)
        raise


def _check_like(name: str, out: Tensor, like: Tensor, group: GroupLike) -> None:
    if out.dtype != like.dtype or out.device != like.device:
        text = f"{name}: the output is {out.dtype} on {out.device}, the input {like.dtype} on {like.device}"
        raise _refused(text, group, like)
    if out.shape != like.shape:
        text = f"{name}: the output has sizes {list(out.shape)}, the input {list(like.shape)}"
        raise _refused(text, group, like)
    _check_contiguous(name, "output", out, group, like)


def _check_contiguous(name: str, what: str, tensor: Tensor, group: GroupLike, like: Tensor | None = None) -> None:
    if not tensor.is_contiguous():
        raise _refused(f"{name}: the {what} must be contiguous", group, tensor if like is None else like)


def _nothing(tensor: Tensor, group: GroupLike) -> None:
    """There is nothing to do. On the CPU the ranks meet all the same: one that has something hears of one that has not."""
    if tensor.is_cpu:
        resolve(group).barrier()


def _reduce_into(
    name: str, input: Tensor, op: Op, group: GroupLike, out: Tensor, how: int = device.BY_SIZE
) -> Tensor:
    """The all_reduce of a symmetric tensor into another one. Eager code on GPUs comes here: keep it short."""
    if not input.is_contiguous():
        _check_contiguous(name, "input", input, group)
    if input.numel() == 0:
        _nothing(input, group)
        return out
    if input.is_cuda:
        found = device.known(input, op, group) or device.learn(input, op, group)
        device.reduce(input, op, group, found, 0, out.data_ptr(), found.count, how)
    else:
        find(input, group).all_reduce(op, out)
    return out


def _reduce_in_place(
    name: str, input: Tensor, op: Op, group: GroupLike, how: int = device.BY_SIZE
) -> Tensor:
    found = device.known(input, op, group)
    if found is not None:
        device.reduce(input, op, group, found, 0, 0, found.count, how)
        return input
    _check_contiguous(name, "input", input, group)
    if input.numel() == 0:
        _nothing(input, group)
        return input
    if input.is_cuda:
        found = device.learn(input, op, group)
        device.reduce(input, op, group, found, 0, 0, found.count, how)
    else:
        find(input, group).all_reduce(op)
    return input


def one_shot_all_reduce(input: Tensor, reduce_op: Op, group_name: GroupLike) -> Tensor:
    """The reduction of all ranks' symmetric `input`, as a new tensor."""
    out = _empty_like(input, group_name)
    found = device.known(input, reduce_op, group_name)
    if found is not None:
        device.reduce(input, reduce_op, group_name, found, 0, out.data_ptr(), found.count)
        return out
    return _reduce_into("one_shot_all_reduce", input, reduce_op, group_name, out)


def one_shot_all_reduce_out(input: Tensor, reduce_op: Op, group_name: GroupLike, out: Tensor) -> Tensor:
    """`one_shot_all_reduce` into `out`."""
    found = device.known(input, reduce_op, group_name)
    if found is not None and out in found.outputs:
        device.reduce(input, reduce_op, group_name, found, 0, out.data_ptr(), found.count)
        return out
    _check_like("one_shot_all_reduce_out", out, input, group_name)
    if found is not None:
        found.outputs.remember(out)
    return _reduce_into("one_shot_all_reduce_out", input, reduce_op, group_name, out)


def one_shot_all_reduce_copy(
    symm_buffer: Tensor, local_input: Tensor, reduce_op: Op, group_name: GroupLike
) -> Tensor:
    """The reduction of all ranks' `local_input`, which goes through `symm_buffer`."""
    out = _empty_like(local_input, group_name, symm_buffer)
    found = device.known(symm_buffer, reduce_op, group_name)
    if found is not None and local_input in found.sources:
        source, count = local_input.data_ptr(), local_input.numel()
        device.reduce(symm_buffer, reduce_op, group_name, found, source, out.data_ptr(), count)
        return out
    return one_shot_all_reduce_copy_out(symm_buffer, local_input, reduce_op, group_name, out)


def one_shot_all_reduce_copy_out(
    symm_buffer: Tensor, local_input: Tensor, reduce_op: Op, group_name: GroupLike, out: Tensor
) -> Tensor:
    """`one_shot_all_reduce_copy` into `out`."""
    name = "one_shot_all_reduce_copy"
    _check_contiguous(name, "input", local_input, group_name, symm_buffer)
    _check_contiguous(name, "symmetric buffer", symm_buffer, group_name)
    _check_like(name, out, local_input, group_name)
    if local_input.numel() > symm_buffer.numel() or local_input.dtype != symm_buffer.dtype:
        text = (
            f"{name}: {local_input.numel()} {local_input.dtype} elements do not fit into a symmetric buffer "
            f"of {symm_buffer.numel()} {symm_buffer.dtype}"
        )
        raise _refused(text, group_name, symm_buffer)
    if local_input.numel() == 0:
        _nothing(local_input, group_name)
        return out
    if symm_buffer.is_cuda:
        found = device.known(symm_buffer, reduce_op, group_name) or device.learn(symm_buffer, reduce_op, group_name)
        found.sources.remember(local_input)
        source, count = local_input.data_ptr(), local_input.numel()
        device.reduce(symm_buffer, reduce_op, group_name, found, source, out.data_ptr(), count)
        return out
    room = symm_buffer.view(-1)[: local_input.numel()]
    handle = find(room, group_name)
    room.copy_(local_input.view(-1))
    handle.all_reduce(reduce_op, out.view(-1))
    return out


def two_shot_all_reduce_(input: Tensor, reduce_op: Op, group_name: GroupLike) -> Tensor:
    """Every rank's symmetric `input` becomes the reduction of all."""
    return _reduce_in_place("two_shot_all_reduce_", input, reduce_op, group_name)


def two_shot_all_reduce_out(input: Tensor, reduce_op: Op, group_name: GroupLike, output: Tensor) -> Tensor:
    """The reduction of all ranks' symmetric `input` into `output`.

    Torch's version overwrites the input, this does not.
    """
    _check_like("two_shot_all_reduce_out", output, input, group_name)
    return _reduce_into("two_shot_all_reduce_out", input, reduce_op, group_name, output)


def multimem_all_reduce_(input: Tensor, reduce_op: Op, group_name: GroupLike) -> Tensor:
    """`two_shot_all_reduce_`, by multicast where there is any."""
    return _reduce_in_place("multimem_all_reduce_", input, reduce_op, group_name, device.BY_MULTICAST)


def multimem_one_shot_all_reduce(input: Tensor, reduce_op: Op, group_name: GroupLike) -> Tensor:
    """`one_shot_all_reduce`, by multicast where there is any."""
    name, out = "multimem_one_shot_all_reduce", _empty_like(input, group_name)
    return _reduce_into(name, input, reduce_op, group_name, out, device.BY_MULTICAST)


def multimem_one_shot_all_reduce_out(
    input: Tensor, reduce_op: Op, group_name: GroupLike, out: Tensor
) -> Tensor:
    """`one_shot_all_reduce_out`, by multicast where there is any."""
    name = "multimem_one_shot_all_reduce_out"
    _check_like(name, out, input, group_name)
    return _reduce_into(name, input, reduce_op, group_name, out, device.BY_MULTICAST)


def multimem_one_shot_reduce_out(
    input: Tensor, reduce_op: Op, root: int, group_name: GroupLike, out: Tensor
) -> Tensor:
    """The reduction of all ranks' symmetric `input` into the root's `out`; the others' stays as it is."""
    name = "multimem_one_shot_reduce_out"
    _check_contiguous(name, "input", input, group_name)
    handle = find(input, group_name)
    if not 0 <= root < handle.world_size:
        raise _refused(f"{name}: root must be in [0, {handle.world_size}), not {root}", group_name, input)
    if handle.rank != root:
        handle.reduce(reduce_op, root)
        return out
    _check_like(name, out, input, group_name)
    handle.reduce(reduce_op, root, out)
    return out


def multimem_all_gather_out(input: Tensor, group_name: GroupLike, out: Tensor) -> Tensor:
    """Everybody's `input`, in rank order, into the symmetric `out`."""
    name = "multimem_all_gather_out"
    group = find(out, group_name).group
    expected = [input.shape[0] * group.size, *input.shape[1:]] if input.dim() else [group.size]
    if list(out.shape) != expected or out.dtype != input.dtype:
        text = f"{name}: the output is {list(out.shape)} {out.dtype}, not {expected} {input.dtype}"
        raise _refused(text, group_name, out)
    _check_contiguous(name, "output", out, group_name)
    with _telling(group_name, out):
        input = input.contiguous()
    group.all_gather(input, out)
    return out


def reduce_scatter_out(input: Tensor, group_name: GroupLike, split_last_dim: bool, output: Tensor) -> Tensor:
    """`output` becomes the sum of this rank's part of all ranks' symmetric `input`.

    Parts are slices of a one-dimensional tensor, or with `split_last_dim` of the last dimension.
    """
    name, found = "reduce_scatter_out", device.known(input, "sum", group_name)
    if found is not None and not split_last_dim and output in found.parts:
        device.scatter(input, "sum", group_name, found, output)
        return output
    _check_contiguous(name, "input", input, group_name)
    _check_contiguous(name, "output", output, group_name, input)
    if output.dtype != input.dtype:
        raise _refused(f"{name}: the output is {output.dtype}, the input {input.dtype}", group_name, input)
    if input.numel() == 0:
        _nothing(input, group_name)
        return output
    handle = find(input, group_name)
    problem = _problem_of_parts(input, handle.world_size, split_last_dim, output)
    if problem:
        raise _refused(f"{name}: {problem}", group_name, input)
    handle.reduce_scatter("sum", output, split_last_dim)
    if input.is_cuda and not split_last_dim:
        (found or device.learn(input, "sum", group_name)).parts.remember(output)
    return output


def _problem_of_parts(input: Tensor, ranks: int, split_last_dim: bool, output: Tensor) -> str:
    """What is wrong with the sizes; nothing for nothing."""
    last = input.shape[-1] if input.dim() else 1
    if last % ranks:
        return f"the last dimension, {last}, must be divisible by the {ranks} ranks"
    if not split_last_dim and input.dim() != 1:
        return f"without split_last_dim the input must be 1-D, not {input.dim()}-D"
    expected = [*input.shape[:-1], last // ranks]
    return "" if list(output.shape) == expected else f"the output has sizes {list(output.shape)}, not {expected}"


def stream_write_value32_(input: Tensor, offset: int, val: int) -> Tensor:
    """Writes one number into a flat uint32 tensor, on GPUs in the order of the current stream."""
    if input.is_cuda:
        symmem.stream_write_value32(input, offset, val)
        return input
    return _fill_words("stream_write_value32_", input, offset, val, 1)


def memset32_(input: Tensor, offset: int, val: int, count: int = 1) -> Tensor:
    """Writes a number `count` times into a flat uint32 tensor, on GPUs in the order of the current stream."""
    if input.is_cuda:
        symmem.memset32(input, offset, val, count)
        return input
    return _fill_words("memset32_", input, offset, val, count)


def _fill_words(name: str, words: Tensor, offset: int, value: int, count: int) -> Tensor:
    if words.dtype != torch.uint32 or words.dim() != 1 or not words.is_contiguous():
        raise symmem.Invalid(f"{name}: input must be a flat, contiguous uint32 tensor")
    if offset < 0:
        raise symmem.Invalid(f"{name}: offset must be greater than or equal to 0, not {offset}")
    if count <= 0:
        raise symmem.Invalid(f"{name}: count must be a positive integer, not {count}")
    if not 0 <= value < 2**32:
        raise symmem.Invalid(f"{name}: val must be in the range of [0, 4294967295], not {value}")
    if offset + count > words.numel():
        raise symmem.Invalid(
            f"{name}: offset + count ({offset + count}) exceeded the numel of the input ({words.numel()})"
        )
    # Few operations of torch know unsigned words; the bits are the same.
    words.view(torch.int32)[offset : offset + count] = value - 2**32 if value >= 2**31 else value
    return words


def memcpy_to_multicast_(
    symm_mem_out: Tensor, src: Tensor, byte_offset: int, group_name: GroupLike
) -> Tensor:
    """Copies `src` into every rank's `symm_mem_out`, from byte `byte_offset` of it on. Nobody else takes part.

    To one rank after the other: a copy by multicast was tried on no machine yet. On GPUs in the order of the current stream.
    """
    name = "memcpy_to_multicast_"
    if not src.is_contiguous() or not symm_mem_out.is_contiguous():
        raise symmem.Invalid(f"{name}: both tensors must be contiguous")
    handle = find(symm_mem_out, group_name)
    if byte_offset < 0 or handle.offset + byte_offset + src.nbytes > handle.buffer_size:
        room = handle.buffer_size - handle.offset
        raise symmem.Invalid(f"{name}: byte {byte_offset} and {src.nbytes} more exceeds the {room} that there are")
    data = src.reshape(-1).view(torch.uint8)
    for peer in range(handle.world_size):
        start = handle.offset + byte_offset
        handle.get_buffer(peer, (src.nbytes,), torch.uint8, start).torch().copy_(data)
    return symm_mem_out


def _low_contention_all_gather(tensor: Tensor, group_name: GroupLike) -> Tensor:
    """Everybody's `tensor` along the first dimension.

    On the CPU it is complete on return. On GPUs copy engines fill it beside the current stream, which waits for it in `wait_tensor`.
    """
    if tensor.is_cuda:
        return overlap.all_gather(tensor, group_name)
    group = resolve(group_name)
    with _telling(group, tensor):
        out = tensor.new_empty((tensor.shape[0] * group.size, *tensor.shape[1:]))
        tensor = tensor.contiguous()
    group.all_gather(tensor, out)
    return out


def _low_contention_reduce_scatter(tensor: Tensor, reduce_op: Op, group_name: GroupLike) -> Tensor:
    """This rank's part, along the first dimension, of the sum or average of all ranks' `tensor`; on GPUs as `_low_contention_all_gather`."""
    group = resolve(group_name)
    problem = None
    if reduce_op not in ("sum", "avg"):
        problem = f"reduce_op must be sum or avg, not {reduce_op}"
    elif not tensor.dim():
        problem = "a tensor without dimensions has no parts"
    elif tensor.shape[0] % group.size:
        problem = f"a first dimension of {tensor.shape[0]} must be divisible by the {group.size} ranks"
    if problem is not None and tensor.is_cuda:
        overlap.refuse_sharing(problem, group_name, tensor)
        raise symmem.Invalid(problem)
    if problem is not None:
        raise _refused(problem, group, tensor)
    if tensor.is_cuda:
        return overlap.reduce_scatter(tensor, reduce_op, group_name)
    with _telling(group, tensor):
        out = tensor.new_empty((tensor.shape[0] // group.size, *tensor.shape[1:]))
        tensor = tensor.contiguous()
    group.reduce_scatter(tensor, reduce_op, out)
    return out


def get(dst: Tensor, hdl: SymmetricMemory, peer: int, offset: int = 0) -> Tensor:
    """Reads as many elements as `dst` has from `peer`'s tensor, from element `offset` on.

    Nobody else takes part.
    """
    if dst.device != hdl.device:
        raise symmem.Invalid(f"get: dst is on {dst.device}, the symmetric memory on {hdl.device}")
    if not dst.is_contiguous():
        raise symmem.Invalid("get: the destination must be contiguous")
    if offset < 0:
        raise symmem.Invalid(f"get: offset must be non-negative, not {offset}")
    if not 0 <= peer < hdl.world_size:
        raise symmem.Invalid(f"get: invalid peer {peer} of {hdl.world_size}")
    if hdl.offset % dst.element_size():
        raise RuntimeError(
            f"get: the tensor starts at byte {hdl.offset}, which is not a multiple of {dst.element_size()}"
        )
    room = (hdl.buffer_size - hdl.offset) // dst.element_size()
    if offset + dst.numel() > room:
        raise symmem.Invalid(
            f"get: element {offset} and {dst.numel()} more exceeds the {room} that the peer has"
        )
    theirs = hdl.get_remote_tensor(peer, (offset + dst.numel(),), dst.dtype)
    dst.copy_(theirs[offset:].view(dst.shape))
    return dst


def put_signal(src: Tensor, hdl: SymmetricMemory, peer: int) -> None:
    """Writes `src` to the start of `peer`'s tensor, then raises this rank's signal there."""
    if not src.is_contiguous():
        raise symmem.Invalid("put_signal: the source must be contiguous")
    hdl.get_remote_tensor(peer, src.shape, src.dtype).copy_(src)
    hdl.put_signal(peer)


def wait_signal(hdl: SymmetricMemory, peer: int) -> None:
    """Waits for the signal of `peer`; what it put before is there then."""
    hdl.wait_signal(peer)


def reduce_scatter_offset(*_args: object, **_kwargs: object) -> None:
    """Not there: torch has it for NCCL only."""
    raise NotImplementedError("reduce_scatter_offset is an operation of torch's NCCL backend")


def all_to_all_nd(*_args: object, **_kwargs: object) -> None:
    """Not there: torch has it for NCCL only."""
    raise NotImplementedError("all_to_all_nd is an operation of torch's NCCL backend")
