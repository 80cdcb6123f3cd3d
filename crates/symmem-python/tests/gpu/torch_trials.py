"""A trial of every operator of `torch.ops.symmem`: arguments on this rank, and what must have happened after the call.

`TRIALS[name](rank, ranks)` gives a `Trial`. All ranks make the same trials in the same order. Arguments are made again each time, so a trial can
run eagerly, compiled, and under torch's checks. `check` gets what the operator returned; the arguments it sees are those of the trial.

Tensors are on torch's default device: the CPU, or a GPU where `torch.set_default_device` said so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import symmem.torch as symm_mem


@dataclass
class Trial:
    """One call."""

    args: tuple[Any, ...]
    check: Callable[[Any], None]
    #: What must live as long as the trial.
    keep: Any = None
    #: What must go on beside it on this rank: called again and again while the trial runs.
    beside: Callable[[], Any] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ranks begin together, and what runs beside the call ends with it."""
        meet()
        stop = threading.Event()

        def loop() -> None:
            # Not behind the call on a GPU.
            stream = torch.cuda.Stream() if torch.cuda.is_initialized() else None
            with torch.cuda.stream(stream):
                while not stop.is_set():
                    assert self.beside is not None
                    self.beside()
                    stop.wait(0.001)

        thread = threading.Thread(target=loop, daemon=True)
        if self.beside is not None:
            thread.start()
        try:
            yield
            # A rank that is done goes on with what others need of it.
            meet()
        finally:
            stop.set()
            if self.beside is not None:
                thread.join(10)


TRIALS: dict[str, Callable[[int, int], Trial]] = {}


def trial(function: Callable[[int, int], Trial]) -> Callable[[int, int], Trial]:
    TRIALS[function.__name__] = function
    return function


def meet() -> None:
    """Every rank is here, and what it gave a GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    dist.barrier()


def group() -> str:
    return str(dist.group.WORLD.group_name)


def filled(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = symm_mem.empty(*shape, dtype=dtype, device=torch.get_default_device())
    x.fill_(value)
    return x


def same(tensor: Tensor, value: float) -> None:
    assert torch.equal(tensor, torch.full_like(tensor, value)), (tensor, value)


def total(ranks: int) -> int:
    return ranks * (ranks + 1) // 2


def _in_place(rank: int, ranks: int) -> Trial:
    x = filled(rank + 1, 4, 8)
    return Trial((x, "sum", group()), lambda _: same(x, total(ranks)))


def nothing(result: Any) -> None:
    assert result is None


def _functional(rank: int, ranks: int) -> Trial:
    x = filled(rank + 1, 4, 8)

    def check(result: Tensor) -> None:
        same(result, total(ranks))
        same(x, rank + 1)

    return Trial((x, "sum", group()), check)


def _out(rank: int, ranks: int) -> Trial:
    x, out = filled(rank + 1, 4, 8), torch.zeros(4, 8)

    def check(result: None) -> None:
        same(out, total(ranks))
        same(x, rank + 1)

    return Trial((x, "sum", group(), out), check)


for _name in ("multimem_all_reduce_", "two_shot_all_reduce_"):
    TRIALS[_name] = _in_place
for _name in ("multimem_one_shot_all_reduce", "one_shot_all_reduce"):
    TRIALS[_name] = _functional
for _name in ("multimem_one_shot_all_reduce_out", "one_shot_all_reduce_out", "two_shot_all_reduce_out"):
    TRIALS[_name] = _out


@trial
def multimem_one_shot_reduce_out(rank: int, ranks: int) -> Trial:
    x, out, root = filled(rank + 1, 8), torch.zeros(8), ranks - 1
    return Trial((x, "sum", root, group(), out), lambda _: same(out, total(ranks) if rank == root else 0))


@trial
def multimem_all_gather_out(rank: int, ranks: int) -> Trial:
    x, out = torch.full((2, 3), float(rank)), filled(-1, 2 * ranks, 3)

    def check(_: None) -> None:
        assert out[:, 0].tolist() == [each // 2 for each in range(2 * ranks)]

    return Trial((x, group(), out), check)


@trial
def one_shot_all_reduce_copy(rank: int, ranks: int) -> Trial:
    buffer, x = filled(0, 8), torch.full((8,), rank + 1.0)
    return Trial((buffer, x, "sum", group()), lambda result: same(result, total(ranks)))


@trial
def one_shot_all_reduce_copy_out(rank: int, ranks: int) -> Trial:
    buffer, x, out = filled(0, 8), torch.full((8,), rank + 1.0), torch.zeros(8)
    return Trial((buffer, x, "sum", group(), out), lambda _: same(out, total(ranks)))


@trial
def reduce_scatter_out(rank: int, ranks: int) -> Trial:
    x, out = filled(0, 3, 4 * ranks), torch.zeros(3, 4)
    x.copy_(torch.arange(12.0 * ranks).view(3, -1))

    def check(_: None) -> None:
        whole = torch.arange(12.0 * ranks).view(3, -1) * ranks
        assert torch.equal(out, whole[:, 4 * rank : 4 * rank + 4])

    return Trial((x, group(), True, out), check)


@trial
def _async_input_mm(rank: int, ranks: int) -> Trial:
    a, b = torch.arange(32.0).view(8, 4), torch.ones(4, 5)
    signals = torch.ones(4, dtype=torch.int32).view(torch.uint32)
    return Trial((a, b, signals, 2), lambda result: torch.testing.assert_close(result, a @ b))


@trial
def stream_write_value32_(rank: int, ranks: int) -> Trial:
    words = torch.zeros(4, dtype=torch.int32).view(torch.uint32)

    def check(_: None) -> None:
        assert words.tolist() == [0, 0, 4294967295, 0]

    return Trial((words, 2, 4294967295), check)


@trial
def memset32_(rank: int, ranks: int) -> Trial:
    words = torch.zeros(5, dtype=torch.int32).view(torch.uint32)

    def check(_: None) -> None:
        assert words.tolist() == [0, 7, 7, 7, 0]

    return Trial((words, 1, 7, 3), check)


@trial
def memcpy_to_multicast_(rank: int, ranks: int) -> Trial:
    x = filled(-1, ranks)

    def check(_: None) -> None:
        meet()
        assert x.tolist() == list(range(ranks))

    return Trial((x, torch.tensor([float(rank)]), 4 * rank, group()), check)


def _put(rank: int, ranks: int) -> Trial:
    # Rank 1 writes over rank 0; the others over themselves.
    x = filled(rank + 1, 6)

    def check(_: None) -> None:
        meet()
        same(x, 2 if rank == 0 else rank + 1)

    return Trial((x, 0 if rank == 1 else rank), check)


def _get(rank: int, ranks: int) -> Trial:
    # Rank 0 reads rank 1; the others themselves.
    x = filled(rank + 1, 6)
    return Trial((x, 1 if rank == 0 else rank), lambda _: same(x, 2 if rank == 0 else rank + 1))


def _get_out(rank: int, ranks: int) -> Trial:
    x = filled(0, 6)
    x.copy_(torch.arange(6.0) + 10 * rank)
    handle, dst, peer = torch.ops.symmem._rendezvous(x, group()), torch.zeros(4), (rank + 1) % ranks

    def check(_: None) -> None:
        assert dst.tolist() == [10.0 * peer + 2, 10.0 * peer + 3, 10.0 * peer + 4, 0.0]

    return Trial((dst, handle, 2, 3, peer), check, keep=x)


for _name in ("nvshmem_put", "nccl_put"):
    TRIALS[_name] = _put
for _name in ("nvshmem_get", "nccl_get"):
    TRIALS[_name] = _get
for _name in ("nvshmem_get_out", "nccl_get_out"):
    TRIALS[_name] = _get_out


@trial
def nvshmem_broadcast(rank: int, ranks: int) -> Trial:
    x = filled(rank, 6)
    return Trial((x, ranks - 1, group()), lambda _: same(x, ranks - 1))


@trial
def nvshmem_wait_for_signal(rank: int, ranks: int) -> Trial:
    return Trial((filled(9, 1, dtype=torch.int64), 9, 0), nothing)


@trial
def nccl_wait_for_signal(rank: int, ranks: int) -> Trial:
    return Trial((filled(9, 1, dtype=torch.int64), 8), nothing)


@trial
def nvshmem_put_with_signal(rank: int, ranks: int) -> Trial:
    x, word = filled(4, 6), filled(0, 1, dtype=torch.int64)

    def check(_: None) -> None:
        torch.ops.symmem.nvshmem_wait_for_signal(word, 77, 0)
        same(x, 4)

    return Trial((x, word, 77, (rank + 1) % ranks), check)


@trial
def nccl_put_with_signal(rank: int, ranks: int) -> Trial:
    x = filled(4, 6)
    pad = symm_mem.rendezvous(x).get_signal_pad(rank, (1,), torch.int64)

    def check(_: None) -> None:
        torch.ops.symmem.nccl_wait_for_signal(pad, 5)
        pad.zero_()

    return Trial((x, 5, (rank + 1) % ranks), check)


@trial
def nccl_put_signal(rank: int, ranks: int) -> Trial:
    x, before = filled(0, 6), (rank - 1) % ranks
    pad = symm_mem.rendezvous(x, group()).get_signal_pad(rank, dtype=torch.int32)
    src = torch.full((3,), 1.0 + rank)

    def check(_: None) -> None:
        meet()
        assert x.tolist() == [1.0 + before] * 3 + [0.0] * 3

    number = torch.ops.symmem._rendezvous(x, group())
    # Consumes what comes: a second signal waits until the first is gone, and torch's checks call more than once.
    return Trial((src, number, (rank + 1) % ranks), check, x, lambda: pad[before].zero_())


@trial
def nccl_wait_signal(rank: int, ranks: int) -> Trial:
    x, before = filled(0, 6), (rank - 1) % ranks
    pad = symm_mem.rendezvous(x, group()).get_signal_pad(rank, dtype=torch.int32)
    number = torch.ops.symmem._rendezvous(x, group())
    return Trial((number, before), nothing, x, lambda: pad[before].fill_(1))


@trial
def nvshmem_all_to_all(rank: int, ranks: int) -> Trial:
    x, out = filled(0, ranks * 2), torch.zeros(ranks * 2)
    x.copy_(torch.arange(ranks * 2.0) + 100 * rank)

    def check(_: None) -> None:
        assert out.tolist() == [100.0 * each + 2 * rank + at for each in range(ranks) for at in range(2)]

    return Trial((x, out, group()), check)


@trial
def nccl_reduce_scatter_offset(rank: int, ranks: int) -> Trial:
    x = torch.arange(3.0 * ranks * 2).view(3, -1)
    out = [torch.zeros(3, 1), torch.zeros(3, 1)]
    offsets = list(range(1, 2 * ranks + 1))

    def check(_: None) -> None:
        assert torch.equal(out[0], x[:, rank : rank + 1] * ranks)
        assert torch.equal(out[1], x[:, ranks + rank : ranks + rank + 1] * ranks)

    return Trial((x, out, group(), 1, offsets, None, "sum"), check)


@trial
def nccl_all_to_all_nd(rank: int, ranks: int) -> Trial:
    x, out = torch.arange(6.0 * ranks).view(3, -1) + 100 * rank, torch.zeros(3 * ranks, 2)

    def check(_: None) -> None:
        parts = [torch.arange(6.0 * ranks).view(3, -1)[:, 2 * rank : 2 * rank + 2] + 100 * each for each in range(ranks)]
        assert torch.equal(out, torch.cat(parts))

    return Trial((x, out, 1, 0, group()), check)


@trial
def all_to_all_vdev(rank: int, ranks: int) -> Trial:
    # Rank r gets r + 1 rows of everybody.
    splits = torch.arange(1, ranks + 1)
    x = torch.full((int(splits.sum()), 2), float(rank))
    out, told = torch.full((ranks * ranks, 2), -1.0), torch.zeros(2, ranks, dtype=torch.int64)

    def check(_: None) -> None:
        rows = rank + 1
        assert out[: rows * ranks, 0].tolist() == [float(each // rows) for each in range(rows * ranks)]
        assert told.tolist() == [[rows] * ranks, [rows * each for each in range(ranks)]]
        same(out[rows * ranks :], -1)

    return Trial((x, out, splits, told, group()), check)


@trial
def all_to_all_vdev_2d(rank: int, ranks: int) -> Trial:
    # Two experts a rank; one row for the first, two for the second; experts start at multiples of 4.
    splits = torch.tensor([1, 2] * ranks)
    x = torch.tensor([[100.0 * rank + at] for at in range(3 * ranks)])
    first = -(-ranks // 4) * 4
    out, told = torch.full((first + 2 * ranks + 4, 1), -1.0), torch.zeros(2, 2 * ranks, dtype=torch.int64)

    def check(_: None) -> None:
        assert told[0].tolist() == [1] * ranks + [2] * ranks
        assert told[1].tolist() == [*range(ranks), *(first + 2 * each for each in range(ranks))]
        assert out[:ranks, 0].tolist() == [100.0 * each + 3 * rank for each in range(ranks)]
        rows = [100.0 * each + 3 * rank + 1 + at for each in range(ranks) for at in range(2)]
        assert out[first : first + 2 * ranks, 0].tolist() == rows

    return Trial((x, out, splits, told, group(), 4), check)


@trial
def all_to_all_vdev_2d_offset(rank: int, ranks: int) -> Trial:
    # What the trial above has received goes back.
    first = -(-ranks // 4) * 4
    starts = [*range(ranks), *(first + 2 * each for each in range(ranks))]
    where = torch.tensor([[1] * ranks + [2] * ranks, starts])
    x = torch.full((first + 2 * ranks, 1), -5.0)
    for each in range(ranks):
        x[each] = 100.0 * each + 3 * rank
        x[first + 2 * each] = 100.0 * each + 3 * rank + 1
        x[first + 2 * each + 1] = 100.0 * each + 3 * rank + 2
    out, told = torch.full((3 * ranks, 1), -1.0), torch.zeros(2, 2 * ranks, dtype=torch.int64)

    def check(_: None) -> None:
        assert out[:, 0].tolist() == [100.0 * rank + at for at in range(3 * ranks)]
        assert told[0].tolist() == [1, 2] * ranks
        assert told[1].tolist() == [at for each in range(ranks) for at in (3 * each, 3 * each + 1)]

    return Trial((x, out, where, told, group()), check)


@trial
def tile_reduce(rank: int, ranks: int) -> Trial:
    whole, out = torch.full((6, 6), rank + 1.0), torch.zeros(6, 6)

    def check(_: None) -> None:
        same(out[1:3, 2:5], total(ranks) if rank == 0 else 0)
        assert out.count_nonzero() == (6 if rank == 0 else 0)

    return Trial((whole[1:3, 2:5], out[1:3, 2:5], 0, group()), check)


@trial
def multi_root_tile_reduce(rank: int, ranks: int) -> Trial:
    tiles, out = [torch.full((2, 2), 10.0 * each + rank + 1) for each in range(ranks)], torch.zeros(2, 2)
    return Trial(
        (tiles, out, list(range(ranks)), group(), "sum"), lambda _: same(out, 10 * rank * ranks + total(ranks))
    )


@trial
def _rendezvous(rank: int, ranks: int) -> Trial:
    x = filled(rank, 4)

    def check(result: int) -> None:
        assert isinstance(result, int) and result > 0
        torch.ops.symmem._barrier(result)

    return Trial((x, group()), check)


@trial
def _barrier(rank: int, ranks: int) -> Trial:
    x = filled(rank, 4)
    return Trial((torch.ops.symmem._rendezvous(x, group()),), nothing, x)


@trial
def get_remote_tensors(rank: int, ranks: int) -> Trial:
    x = filled(rank, 4)

    def check(result: list[Tensor]) -> None:
        assert [each.tolist() for each in result] == [[float(each)] * 4 for each in range(ranks)]

    return Trial((x, group()), check)


def _gathered(rank: int, ranks: int) -> Trial:
    def check(result: Tensor) -> None:
        assert result[:, 0].tolist() == [each // 2 for each in range(2 * ranks)]

    return Trial((torch.full((2, 3), float(rank)), group()), check)


TRIALS["_low_contention_all_gather"] = _gathered
TRIALS["_low_contention_all_gather_ce_multicast"] = _gathered


@trial
def _low_contention_all_gather_ce_multicast_out(rank: int, ranks: int) -> Trial:
    out = filled(-1, ranks)

    def check(_: None) -> None:
        assert out.tolist() == list(range(ranks))

    return Trial((torch.tensor(float(rank)), group(), out), check)


@trial
def _low_contention_reduce_scatter(rank: int, ranks: int) -> Trial:
    return Trial((torch.full((2 * ranks, 3), rank + 1.0), "avg", group()), lambda result: same(result, (ranks + 1) / 2))


@trial
def fused_all_gather_matmul(rank: int, ranks: int) -> Trial:
    a, bs = torch.full((2, 3, 4), rank + 1.0), [torch.ones(4, 5), torch.full((4, 2), 2.0)]

    def check(result: tuple[Tensor, list[Tensor]]) -> None:
        whole, products = result
        expected = torch.cat([torch.full((2, 3, 4), each + 1.0) for each in range(ranks)], 1)
        assert torch.equal(whole, expected)
        assert all(torch.equal(product, expected @ b) for product, b in zip(products, bs, strict=True))

    return Trial((a, bs, 1, group()), check)


@trial
def fused_matmul_reduce_scatter(rank: int, ranks: int) -> Trial:
    a, b = torch.full((2 * ranks, 4), rank + 1.0), torch.ones(4, 5)
    return Trial((a, b, "sum", 0, group()), lambda result: same(result, 4 * total(ranks)))


@trial
def fused_all_gather_scaled_matmul(rank: int, ranks: int) -> Trial:
    # One row of each rank, which has a scale of its own.
    a, b = torch.full((1, 4), rank + 1.0), torch.ones(4, 5)
    scale, scales = torch.full((1, 1), rank + 1.0), [torch.tensor(3.0)]

    def check(result: tuple[Tensor, list[Tensor]]) -> None:
        assert result[0][:, 0].tolist() == [each + 1 for each in range(ranks)]
        assert result[1][0].dtype == torch.bfloat16
        assert result[1][0][:, 0].tolist() == [12 * (each + 1) ** 2 for each in range(ranks)]

    args = (a, [b], scale, scales, 0, group(), [None], [None], [torch.bfloat16], [False])
    return Trial(args, check)


@trial
def fused_scaled_matmul_reduce_scatter(rank: int, ranks: int) -> Trial:
    a, b = torch.full((2 * ranks, 4), rank + 1.0), torch.ones(4, 5)
    two = torch.tensor(2.0)
    args = (a, b, two, two, "sum", 1, 0, group(), [1, 2 * ranks, 5])
    return Trial(args, lambda result: same(result, 16 * total(ranks)))


def _eighths(value: float, *shape: int) -> Tensor:
    """8-bit numbers; torch's own shape function takes no others, and sides that are multiples of 16."""
    return torch.full(shape, value).to(torch.float8_e4m3fn)


def _gathered_eighths(rank: int, ranks: int) -> Trial:
    a, b = _eighths(rank + 1, 16, 16), _eighths(1, 16, 16).t()

    def check(result: tuple[Tensor, list[Tensor]]) -> None:
        assert result[0].float()[:, 0].tolist() == [each // 16 + 1 for each in range(16 * ranks)]
        assert result[1][0].dtype == torch.bfloat16
        assert result[1][0][:, 0].tolist() == [96 * (each // 16 + 1) for each in range(16 * ranks)]

    args = (a, [b], torch.tensor(2.0), [torch.tensor(3.0)], 0, group(), [None], [None], [torch.bfloat16], [False])
    return Trial(args, check)


def _scattered_eighths(rank: int, ranks: int) -> Trial:
    a, b = _eighths(rank + 1, 16 * ranks, 16), _eighths(1, 16, 16).t()
    two = torch.tensor(2.0)
    args = (a, b, two, two, "sum", 0, 0, group(), [16 * ranks, 16], None, None, torch.bfloat16)

    def check(result: Tensor) -> None:
        assert result.dtype == torch.bfloat16
        same(result, 64 * total(ranks))

    return Trial(args, check)


def _norm(rank: int, ranks: int, more: tuple[Any, ...] = (), is_private: bool = False) -> Trial:
    values = torch.arange(24.0).view(3, 8)
    x = torch.empty(3, 8) if is_private else filled(0, 3, 8)
    x.copy_(values % 5 + rank)
    weight, out = torch.arange(8.0) - 3, torch.zeros(3, 8, dtype=torch.float8_e4m3fn if more else torch.float32)
    sums = (sum(values % 5 + each for each in range(ranks)) + values).double()
    right = sums / (sums.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    residual = values.clone()

    def check(result: Any) -> None:
        assert result is None
        assert torch.equal(residual.double(), sums), (residual, sums)
        if not more:
            torch.testing.assert_close(out.double(), right, rtol=1e-6, atol=1e-6)
            return
        scale = next(each for each in more if each is not None).double().view(-1, 1)
        torch.testing.assert_close(out.double() * scale, right, rtol=1 / 15, atol=float(scale.max()) / 512)

    return Trial((x, residual, weight, 1e-5, "sum", group(), out, *more), check)


@trial
def all_reduce_rms_norm_out(rank: int, ranks: int) -> Trial:
    return _norm(rank, ranks)


def _captured_norm(rank: int, ranks: int) -> Trial:
    """Once as it is, and then replayed from a graph."""
    tried = _norm(rank, ranks)
    residual, before = tried.args[1], tried.args[1].clone()

    def check(result: Any) -> None:
        tried.check(result)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            residual.copy_(before)
            torch.ops.symmem.all_reduce_rms_norm_out(*tried.args)
        for _ in range(3):
            tried.args[6].zero_()
            graph.replay()
            tried.check(None)
        meet()

    return Trial(tried.args, check)


#: More trials of operators, by their names and something behind: what the CPU does not have.
ON_GPUS: dict[str, Callable[[int, int], Trial]] = {
    "all_reduce_rms_norm_out of fp8": lambda rank, ranks: _norm(rank, ranks, (torch.full((1,), 0.025), None)),
    "all_reduce_rms_norm_out of fp8 by row": lambda rank, ranks: _norm(rank, ranks, (None, torch.zeros(3))),
    "all_reduce_rms_norm_out of private tensors": lambda rank, ranks: _norm(rank, ranks, is_private=True),
    "all_reduce_rms_norm_out in a graph": _captured_norm,
}

#: In place of the above for torch's own names.
EIGHTHS = {
    "fused_all_gather_scaled_matmul": _gathered_eighths,
    "fused_scaled_matmul_reduce_scatter": _scattered_eighths,
}
