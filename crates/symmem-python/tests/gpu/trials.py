"""What ranks try on a GPU with torch. All ranks run all trials in the same order, in the same processes.

Values are small integers, so that every sum and average is exact in every type, in any order it is made.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

import symmem
from symmem import _symmem

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PATIENCE_MS = 20_000
DTYPES = torch.bfloat16, torch.float16, torch.float32
Trial = Callable[["Stage"], "str | None"]


class Stage:
    """A rank's group and device, and what trials do with them."""

    def __init__(self, group: symmem.Group) -> None:
        self.group = group
        self.device = torch.device("cuda", RANK % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        self.handle: Any = None
        x = self.empty(64, torch.float32)
        self.handle = self.fast(symmem.rendezvous(x, group))

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        name = str(dtype).removeprefix("torch.")
        return from_dlpack(symmem.empty(count, dtype=name, device=str(self.device)))

    def fast(self, mem: symmem.SymmetricMemory) -> Any:
        return _symmem._device_memory(mem)

    def values(self, rank: int, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        """What rank `rank` has, as every rank can work it out."""
        index = torch.arange(count, device=self.device)
        return ((index * 7 + rank * 3 + seed) % 8).to(dtype)

    def total(self, count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
        return torch.stack([self.values(rank, count, torch.float32, seed) for rank in range(WORLD)]).sum(0).to(dtype)

    def sync(self, stream: Any = None) -> None:
        """Waits for this rank's work, with an end."""
        self.handle.sync(PATIENCE_MS, stream=stream)

    def settle(self) -> None:
        """Everybody is done: memory may go."""
        self.sync()
        self.group.barrier()
        gc.collect()


def expect(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.equal(got, wanted):
        wrong = (got != wanted).nonzero()
        first = tuple(wrong[0].tolist())
        raise AssertionError(f"{what}: {wrong.shape[0]} wrong, at {first}: {got[first]} for {wanted[first]}")


def all_trials() -> Iterator[tuple[str, Trial]]:
    for name, value in list(globals().items()):
        if name.startswith("try_"):
            yield name.removeprefix("try_"), value


def try_creation(stage: Stage) -> None:
    """Arrays with something in them, made on the device."""
    device = str(stage.device)
    given = torch.arange(4.0, device=device)
    wanted = [
        (symmem.zeros(4, device=device), torch.zeros(4)),
        (symmem.ones(4, dtype="bfloat16", device=device), torch.ones(4, dtype=torch.bfloat16)),
        (symmem.full(4, 7, device=device), torch.full((4,), 7)),
        (symmem.array([1.5, 2.5], device=device), torch.tensor([1.5, 2.5], dtype=torch.float64)),
        (symmem.array(given, device=device), torch.arange(4.0)),
        (symmem.ones_like(given), torch.ones(4)),
    ]
    for x, values in wanted:
        assert x.device == device and repr(x).startswith(f"symmem.Array(shape={x.shape}")
        expect(x.torch().cpu(), values, repr(x))


def try_sharing(stage: Stage) -> None:
    """Tensors are zero-copy both ways, and peers' memory is theirs."""
    x = symmem.empty(3, 5, dtype="bfloat16", device=str(stage.device))
    tensor = from_dlpack(x)
    assert tensor.data_ptr() == x.data_ptr() and tensor.shape == (3, 5) and tensor.dtype == torch.bfloat16
    assert symmem.is_symm_mem_tensor(tensor) and symmem.is_symm_mem_tensor(tensor[1:, 2:])
    assert not symmem.is_symm_mem_tensor(torch.zeros(4, device=stage.device))
    assert torch.equal(tensor, torch.zeros_like(tensor))
    tensor.fill_(RANK + 1)
    mem = symmem.rendezvous(tensor, stage.group)
    mem.barrier()
    for rank in range(WORLD):
        theirs = from_dlpack(mem.get_buffer(rank, (3, 5), "bfloat16"))
        assert theirs.data_ptr() == mem.buffer_ptrs[rank]
        expect(theirs, torch.full_like(tensor, rank + 1), f"the buffer of rank {rank}")
    pad = from_dlpack(mem.get_signal_pad(RANK))
    assert pad.data_ptr() == mem.signal_pad_ptrs[RANK] and pad.nbytes == mem.signal_pad_size
    mem.barrier()
    stage.settle()


def try_all_reduce(stage: Stage) -> None:
    """Every form, type and algorithm, at sizes around what the kernels cut by."""
    for dtype in DTYPES:
        for count in (1, 2, 7, 2048, 4098, 100_003, 1 << 20):
            reduce_all_forms(stage, count, dtype)
            stage.settle()


def reduce_all_forms(stage: Stage, count: int, dtype: torch.dtype) -> None:
    x, out = stage.empty(count, dtype), torch.empty(count, dtype=dtype, device=stage.device)
    mem = symmem.rendezvous(x, stage.group)
    fast, total = stage.fast(mem), stage.total(count, dtype)
    for what in ("in place", "out", "from", "avg", "low_latency", "one_shot", "two_shot", "one_trip"):
        x.copy_(stage.values(RANK, count, dtype))
        if what == "in place":
            mem.all_reduce("sum")
            expect(x, total, f"{what} {count} {dtype}")
        elif what == "out":
            assert mem.all_reduce("sum", out=out) is not None
            expect(out, total, f"{what} {count} {dtype}")
            expect(x, stage.values(RANK, count, dtype), f"{what} leaves {count} {dtype}")
        elif what == "from":
            private = stage.values(RANK, count, dtype)
            fast.all_reduce_from(private, "sum", out)
            expect(out, total, f"{what} {count} {dtype}")
        elif what == "avg":
            mem.all_reduce("avg", out=out)
            expect(out, (total.float() / WORLD).to(dtype), f"{what} {count} {dtype}")
        else:
            forced(fast, what, count * dtype.itemsize, out)
            expect(out, total, f"{what} {count} {dtype}")
        out.fill_(-1)


def forced(fast: Any, algorithm: str, nbytes: int, out: torch.Tensor) -> None:
    try:
        fast.all_reduce_using(algorithm, "sum", out)
    except symmem.Invalid as refused:
        # What one rank refuses all refuse; the result is made some other way.
        assert "bytes" in str(refused) and nbytes > 1 << 18, refused
        fast.all_reduce_using("auto", "sum", out)


def try_views(stage: Stage) -> None:
    """A view is reduced where it lies, and nothing around it is touched."""
    for dtype in DTYPES:
        whole = stage.empty(16384, dtype)
        for start, count in ((4, 2048), (8, 2050), (16, 1), (1000, 4097)):
            whole.fill_(9)
            view = whole[start : start + count]
            view.copy_(stage.values(RANK, count, dtype))
            mem = symmem.rendezvous(view, stage.group)
            assert mem.offset == start * dtype.itemsize and mem.buffer_ptrs[RANK] == whole.data_ptr()
            mem.all_reduce()
            wanted = torch.full_like(whole, 9)
            wanted[start : start + count] = stage.total(count, dtype)
            expect(whole, wanted, f"a view at {start} of {count} {dtype}")
            stage.settle()


def try_addresses(stage: Stage) -> None:
    """The way of `symmem.torch`: numbers only, on any part of an allocation."""
    count, dtype = 5000, torch.bfloat16
    x, out = stage.empty(2 * count, dtype), torch.empty(count, dtype=dtype, device=stage.device)
    fast = stage.fast(symmem.rendezvous(x, stage.group))
    codes = fast.DTYPES.index("bfloat16"), fast.OPS.index("sum")
    raw = torch.cuda.current_stream().cuda_stream
    for half in (x[:count], x[count:]):
        half.copy_(stage.values(RANK, count, dtype))
        for name in ("auto", "one_trip", "one_shot", "two_shot"):
            out.fill_(-1)
            fast.all_reduce_ptr(half.data_ptr(), 0, out.data_ptr(), count, *codes, fast.ALGORITHMS.index(name), raw)
            expect(out, stage.total(count, dtype), name)
        private = stage.values(RANK, count, dtype, seed=5)
        fast.all_reduce_ptr(half.data_ptr(), private.data_ptr(), private.data_ptr(), count, *codes, 0, raw)
        expect(private, stage.total(count, dtype, seed=5), "private, in place")
    stage.settle()


def try_signals(stage: Stage) -> None:
    """Data that was put before a signal is there after it, round and round."""
    group, count = stage.group, 1 << 16
    box, mine = stage.empty(count, torch.float32), torch.empty(count, device=stage.device)
    mem = symmem.rendezvous(box, group)
    for turn in range(20):
        mine.fill_(100 * RANK + turn)
        mem.put(group.next, mine)
        mem.put_signal(group.next, 2)
        mem.wait_signal(group.prev, 2)
        expect(box, torch.full_like(box, 100 * group.prev + turn), f"turn {turn}")
        # The box may be written again once everybody has looked.
        mem.barrier(1)
    mem.get(group.next, 10, mine[:1000])
    mem.barrier()
    expect(mine[:1000], torch.full_like(mine[:1000], 100 * RANK + 19), "got")
    stage.settle()


def try_streams(stage: Stage) -> None:
    """Operations follow the stream they are given, however it is named; across streams they do not overlap."""
    count, dtype = 4096, torch.float32
    x, out = stage.empty(count, dtype), torch.empty(count, dtype=dtype, device=stage.device)
    mem = symmem.rendezvous(x, stage.group)
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for turn in range(50):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.copy_(stage.values(RANK, count, dtype, turn))
            mem.all_reduce("sum", out=out)
            copied = out.clone()
        torch.cuda.current_stream().wait_stream(side)
        expect(copied, stage.total(count, dtype, turn), f"turn {turn}")
        mem.barrier(stream=None if turn % 2 else side)
        torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    for stream in (side, side.cuda_stream, 0, None):
        x.copy_(stage.values(RANK, count, dtype))
        torch.cuda.synchronize()
        mem.all_reduce("sum", out=out, stream=stream)
        stage.sync(stream)
        expect(out, stage.total(count, dtype), f"stream {stream}")
        stage.settle()


def try_other_collectives(stage: Stage) -> None:
    """What moves elements, for any type; what reduces a part, for those that are reduced."""
    for dtype in (*DTYPES, torch.int64, torch.uint8):
        for chunk in (1, 1000, 33_331):
            move_and_reduce(stage, chunk, dtype)
            stage.settle()


def move_and_reduce(stage: Stage, chunk: int, dtype: torch.dtype) -> None:
    count, root = chunk * WORLD, WORLD - 1
    x = stage.empty(count, dtype)
    mem = symmem.rendezvous(x, stage.group)
    everybody = [stage.values(rank, count, dtype) for rank in range(WORLD)]
    x.copy_(everybody[RANK])
    mine = slice(RANK * chunk, (RANK + 1) * chunk)
    expect(mem.all_gather(), torch.cat(everybody), "all_gather")
    expect(mem.all_to_all(), torch.cat([theirs[mine] for theirs in everybody]), "all_to_all")
    expect(mem.scatter(root), everybody[root][mine], "scatter")
    gathered = mem.gather(root)
    if RANK == root:
        expect(gathered, torch.cat(everybody), "gather")
    if dtype in DTYPES:
        total = stage.total(count, dtype)
        expect(mem.reduce_scatter("sum"), total[mine], "reduce_scatter")
        reduced = mem.reduce("sum", root)
        if RANK == root:
            expect(reduced, total, "reduce")
    mem.broadcast(root)
    expect(x, everybody[root], "broadcast")


def try_private(stage: Stage) -> None:
    """Collectives of a group on tensors that are not symmetric, also strided ones, on several streams, and in graphs."""
    group, root = stage.group, WORLD - 1
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for turn, chunk in enumerate((1, 1000, 33_331, 200_000)):
        for dtype in (*DTYPES, torch.int64, torch.uint8):
            count = chunk * WORLD
            everybody = [stage.values(rank, count, dtype, turn) for rank in range(WORLD)]
            mine, part = everybody[RANK].clone(), slice(RANK * chunk, (RANK + 1) * chunk)
            expect(group.all_gather(mine), torch.cat(everybody), "all_gather")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                strided = torch.stack([mine, mine], 1)[:, 0]
                expect(group.all_to_all(strided), torch.cat([each[part] for each in everybody]), "all_to_all")
            torch.cuda.current_stream().wait_stream(side)
            whole = mine if RANK == root else None
            out = torch.empty(chunk, dtype=dtype, device=stage.device)
            expect(group.scatter(whole, root, out), everybody[root][part], "scatter")
            gathered = group.gather(mine, root)
            if RANK == root:
                expect(gathered, torch.cat(everybody), "gather")
            if dtype in DTYPES:
                total = stage.total(count, dtype, turn)
                expect(group.all_reduce(mine, "sum", torch.empty_like(mine)), total, "all_reduce")
                expect(group.all_reduce(mine.clone()), total, "all_reduce in place")
                expect(group.reduce_scatter(mine), total[part], "reduce_scatter")
                reduced = group.reduce(mine, "sum", root)
                if RANK == root:
                    expect(reduced, total, "reduce")
            expect(group.broadcast(mine, root), everybody[root], "broadcast")
        stage.settle()
    x, out = torch.zeros(1000, device=stage.device), torch.zeros(1000 * WORLD, device=stage.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        group.all_gather(x, out)
        group.all_reduce(x)
    for turn in range(5):
        x.copy_(stage.values(RANK, 1000, torch.float32, turn))
        graph.replay()
        expect(out, torch.cat([stage.values(rank, 1000, torch.float32, turn) for rank in range(WORLD)]), f"replay {turn}")
        expect(x, stage.total(1000, torch.float32, turn), f"replay {turn}, reduced")
    stage.settle()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            group.all_gather(torch.zeros(1 << 24, device=stage.device))
        raise AssertionError("a room grew during a capture")
    except symmem.Invalid as error:
        assert "before the capture" in str(error), error
    stage.settle()


def try_graphs(stage: Stage) -> None:
    """torch captures and replays our operations between its own."""
    count, dtype = 20_000, torch.bfloat16
    x, out = stage.empty(count, dtype), torch.empty(count, dtype=dtype, device=stage.device)
    source = torch.zeros(count, dtype=dtype, device=stage.device)
    mem = symmem.rendezvous(x, stage.group)
    fast = stage.fast(mem)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source)
        mem.all_reduce("sum", out=out)
        mem.barrier()
        out.mul_(2)
        x.copy_(out)
        fast.all_reduce_using("two_shot")
    for turn in range(10):
        source.copy_(stage.values(RANK, count, dtype, turn) % 2)
        graph.replay()
        torch.cuda.synchronize()
        total = torch.stack([stage.values(rank, count, torch.float32, turn) % 2 for rank in range(WORLD)]).sum(0)
        expect(out, (total * 2).to(dtype), f"replay {turn}")
        expect(x, (total * 2 * WORLD).to(dtype), f"replay {turn}, in place")
    # Eager work and replays take turns; a graph keeps what it works on.
    address = x.data_ptr()
    del mem, fast, x
    gc.collect()
    stage.settle()
    source.copy_(stage.values(RANK, count, dtype))
    graph.replay()
    torch.cuda.synchronize()
    expect(out, (stage.total(count, torch.float32) * 2).to(dtype), "a graph outlives the handle")
    assert address != 0
    stage.settle()
    del graph
    stage.settle()


#: How far a rounded number is from the number, at most: by its size.
ROUNDING = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float32: 2**-24}
EPSILON = 1e-5


def try_norm(stage: Stage) -> None:
    """all_reduce, residual and norm: of sums and averages, of symmetric and private memory, written as it is and as fp8, fused or not."""
    for dtype in DTYPES:
        for rows, columns in ((1, 64), (7, 4096), (300, 1032)):
            norm_all_ways(stage, rows, columns, dtype)
            stage.settle()
    norm_of_less(stage)
    norm_refused(stage)


def norm_all_ways(stage: Stage, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Against float64, and with the same bits on every rank and by every way."""
    count, shape = rows * columns, (rows, columns)
    x, own = stage.empty(count, dtype).view(shape), stage.values(RANK, count, dtype).view(shape)
    mem = symmem.rendezvous(x, stage.group)
    weight, before = stage.values(0, columns, dtype, 3) - 4, stage.values(0, count, dtype, 5).view(shape)
    scale, scales = torch.full((1,), 0.0125, device=stage.device), torch.empty(rows, device=stage.device)
    for op in ("sum", "avg"):
        total = stage.total(count, torch.float32).view(shape) / (1 if op == "sum" else WORLD)
        sums = (total + before.float()).to(dtype)
        wide = sums.double()
        right = wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt() * weight.double()
        for written in ("plain", "tensor", "row"):
            bits: set[bytes] = set()
            out = torch.empty(shape, dtype=dtype if written == "plain" else torch.float8_e4m3fn, device=stage.device)
            how: dict[str, Any] = {"tensor": {"scale": scale}, "row": {"scales": scales}}.get(written, {})
            for way in ("memory", "private", "group"):
                for fused in (True, False):
                    x.copy_(own if way == "memory" else torch.full_like(own, 99))
                    residual, given = before.clone(), own.clone()
                    if way == "memory":
                        mem.all_reduce_rms_norm(residual, weight, EPSILON, out, op=op, fused=fused, **how)
                    elif way == "private":
                        mem.all_reduce_rms_norm(residual, weight, EPSILON, out, op=op, x=given, fused=fused, **how)
                    else:
                        stage.group.all_reduce_rms_norm(given, residual, weight, EPSILON, out, op=op, fused=fused, **how)
                    what = f"{shape} {dtype} {op} {written} {way} {fused}"
                    expect(residual, sums, what)
                    if way == "memory" and fused:
                        expect(x, own, f"{what} leaves the memory")
                    normed(out, right, {"tensor": scale.double(), "row": scales.double().view(-1, 1)}.get(written), dtype, what)
                    bits.add(out.view(torch.uint8).cpu().numpy().tobytes())
            assert len({digest for theirs in stage.group.all_gather_object({hash_of(one) for one in bits}) for digest in theirs}) == 1


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def normed(out: torch.Tensor, right: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype, what: str) -> None:
    """`out` is the norm `right`, but for two roundings of `dtype`, sums in float32, and one of fp8 with this scale."""
    found, slack = out.double(), right.abs() * (2 * ROUNDING[dtype] + 1e-5) + 1e-7
    if scale is not None:
        found, right = found * scale, right.clamp(-448 * scale, 448 * scale)
        slack = slack + right.abs() / 16 + scale / 1024
    wrong = (found - right).abs() > slack
    assert not wrong.any(), f"{what}: {int(wrong.sum())} wrong, as {found[wrong][0]} for {right[wrong][0]}"


def norm_of_less(stage: Stage) -> None:
    """Without residual and weight, into a new tensor, and of no rows."""
    x = stage.empty(2 * 256, torch.float32).view(2, 256)
    x.copy_(stage.values(RANK, 512, torch.float32).view(2, 256))
    mem = symmem.rendezvous(x, stage.group)
    out = mem.all_reduce_rms_norm(None, None, EPSILON)
    total = stage.total(512, torch.float32).view(2, 256).double()
    normed(out, total / (total.square().mean(-1, keepdim=True) + EPSILON).sqrt(), None, torch.float32, "a new tensor")
    scales = torch.empty(2, device=stage.device)
    rows = mem.all_reduce_rms_norm(None, None, EPSILON, scales=scales)
    assert rows.dtype == torch.float8_e4m3fn and rows.shape == (2, 256) and bool((rows.float().abs().amax(-1) == 448).all())
    nothing = torch.empty(0, 256, device=stage.device)
    assert stage.group.all_reduce_rms_norm(nothing, nothing.clone(), x[0].clone()).shape == (0, 256)
    stage.settle()


def norm_refused(stage: Stage) -> None:
    """Where all ranks are wrong the group goes on. What one rank alone does wrong the others hear of, and the group has failed."""
    x = stage.empty(2 * 64, torch.float32).view(2, 64)
    x.fill_(1)
    mem = symmem.rendezvous(x, stage.group)
    ones = torch.ones(2, 64, device=stage.device)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("weight of shape", lambda: mem.all_reduce_rms_norm(ones.clone(), ones[0, :60])),
        ("are needed", lambda: mem.all_reduce_rms_norm(ones[:1].clone(), ones[0])),
        ("float16", lambda: mem.all_reduce_rms_norm(ones.clone(), ones[0].half())),
        ("is on cpu", lambda: mem.all_reduce_rms_norm(ones.cpu(), ones[0])),
        ("overlaps", lambda: mem.all_reduce_rms_norm(ones.clone(), ones[0], 1e-5, x)),
        ("is on cpu", lambda: stage.group.all_reduce_rms_norm(ones, ones.clone(), ones[0].cpu())),
    ]
    for words, call in calls:
        refused(call, words)
        out = mem.all_reduce_rms_norm(None, None, 0.0)
        stage.sync()
        expect(out, torch.ones_like(out), f"after {words}")
    for number, is_private in enumerate((False, True)):
        group: Any = stage.group.subgroup(range(WORLD), f"norm refused {number}")
        mine = symmem.rendezvous(stage.empty(2 * 64, torch.float32).view(2, 64), group)
        fast = stage.fast(mine)
        # Makes the workspace, so that all ranks are at a launch when one is wrong.
        group.all_reduce_rms_norm(ones, None, ones[0])
        fast.sync(PATIENCE_MS)
        weight = ones[0, :60] if RANK == WORLD - 1 else ones[0]

        def call() -> Any:
            return group.all_reduce_rms_norm(ones, None, weight) if is_private else mine.all_reduce_rms_norm(None, weight)

        if RANK == WORLD - 1:
            refused(call, "weight of shape")
        else:
            try:
                call()
                fast.sync(PATIENCE_MS)
            except symmem.Error:
                pass
            else:
                raise AssertionError("nobody told this rank")
        stage.settle()


def refused(call: Callable[[], Any], words: str) -> None:
    try:
        call()
    except symmem.Invalid as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(f"not refused: {words}")


def try_norm_in_graphs(stage: Stage) -> None:
    """torch captures norms of symmetric and of private memory between its own operations."""
    rows, columns, dtype = 9, 512, torch.bfloat16
    count, shape = rows * columns, (rows, columns)
    x, source = stage.empty(count, dtype).view(shape), torch.zeros(shape, dtype=dtype, device=stage.device)
    mem = symmem.rendezvous(x, stage.group)
    weight, zeros = torch.ones(columns, dtype=dtype, device=stage.device), torch.zeros_like(source)
    residuals, outs = [torch.zeros_like(source) for _ in range(3)], [torch.empty_like(source) for _ in range(3)]
    # Makes the group's workspace, which cannot grow in a capture.
    stage.group.all_reduce_rms_norm(source, zeros.clone(), weight, EPSILON, outs[0])
    stage.sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for residual in residuals:
            residual.copy_(zeros)
        x.copy_(source)
        mem.all_reduce_rms_norm(residuals[0], weight, EPSILON, outs[0])
        stage.group.all_reduce_rms_norm(source, residuals[1], weight, EPSILON, outs[1])
        mem.all_reduce_rms_norm(residuals[2], weight, EPSILON, outs[2], fused=False)
    for turn in range(10):
        source.copy_(stage.values(RANK, count, dtype, turn).view(shape))
        graph.replay()
        torch.cuda.synchronize()
        total = stage.total(count, torch.float32, turn).view(shape).to(dtype)
        wide = total.double()
        right = wide / (wide.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        for residual, out in zip(residuals, outs, strict=True):
            expect(residual, total, f"replay {turn}")
            normed(out, right, None, dtype, f"replay {turn}")
    stage.settle()
    del graph
    stage.settle()


def try_lifetimes(stage: Stage) -> None:
    """Arrays, handles and their views go in any order, with work under way."""
    count = 1 << 18
    x = stage.empty(count, torch.float32)
    mem = symmem.rendezvous(x, stage.group)
    peer = from_dlpack(mem.get_buffer(stage.group.next, (count,), "float32"))
    x.fill_(RANK)
    mem.barrier()
    out = torch.empty(count, device=stage.device)
    for _ in range(20):
        mem.all_reduce("sum", out=out)
    # The array goes while its memory is read; the handle keeps it.
    del x
    gc.collect()
    expect(out, torch.full_like(out, sum(range(WORLD))), "after the array")
    mem.barrier()
    stage.settle()
    mem.close()
    try:
        mem.barrier()
        raise AssertionError("a closed handle works")
    except symmem.Closed:
        pass
    expect(peer, torch.full_like(peer, stage.group.next), "after close")
    del mem
    gc.collect()
    expect(peer, torch.full_like(peer, stage.group.next), "after the handle")
    stage.settle()
    # Many come and go: what is freed must really be free.
    before = torch.cuda.mem_get_info()[0]
    for _ in range(10):
        big = stage.empty(1 << 26, torch.float32)
        symmem.rendezvous(big, stage.group).barrier()
        stage.settle()
        del big
        gc.collect()
    stage.settle()
    lost = before - torch.cuda.mem_get_info()[0]
    assert lost < WORLD * 3 * (1 << 28), f"{lost >> 20} MiB are gone"


def try_other_libraries(stage: Stage) -> str | None:
    """cupy and jax see the same memory."""
    x = symmem.empty(1000, dtype="float32", device=str(stage.device))
    mem = symmem.rendezvous(x, stage.group)
    from_dlpack(x).fill_(RANK + 1)
    seen = []
    if importlib.util.find_spec("cupy") is not None:
        import cupy

        array = cupy.from_dlpack(x)
        assert array.data.ptr == x.data_ptr() and cupy.asarray(x).data.ptr == x.data_ptr()
        mem.all_reduce(stream=cupy.cuda.get_current_stream())
        assert float(array.sum()) == 1000 * WORLD * (WORLD + 1) / 2
        assert symmem.is_symm_mem_tensor(array[10:])
        seen.append("cupy")
    stage.settle()
    return f"ok: {' '.join(seen)}" if seen else "skipped: neither is installed"


def try_torch_module(stage: Stage) -> str | None:
    """`symmem.torch`: the names of torch's own operations."""
    try:
        import symmem.torch as symm
    except ImportError as error:
        return f"skipped: {error}"
    names = "empty", "one_shot_all_reduce", "one_shot_all_reduce_out", "two_shot_all_reduce_"
    missing = [name for name in names if not hasattr(symm, name)]
    if missing:
        return f"skipped: symmem.torch has no {', '.join(missing)}"
    group = stage.group
    for dtype in DTYPES:
        for start, count in ((0, 2), (0, 4096), (16, 4098), (64, 300_000)):
            whole = symm.empty(start + count, dtype=dtype, device=stage.device)
            symm.rendezvous(whole, group)
            x = whole[start:]
            torch_forms(stage, symm, x, count, dtype)
            stage.settle()
    return None


def try_pools(stage: Stage) -> str | None:
    """What torch makes in a pool is symmetric: made, computed, freed and made again, small and large."""
    import symmem.torch as symm

    group, device = stage.group, stage.device
    pool = symm.get_mem_pool(device)
    total = WORLD * (WORLD + 1) // 2

    def made(count: int) -> torch.Tensor:
        with torch.cuda.use_mem_pool(pool):
            return torch.full((count,), float(RANK + 1), device=device)

    def round_trip(x: torch.Tensor) -> None:
        """A put to the next rank, seen by it after a signal."""
        handle: Any = symm.rendezvous(x, group)
        handle.barrier()
        theirs = handle.get_remote_tensor(group.next, x.shape, x.dtype)
        theirs.copy_(torch.full_like(x, 100.0 + RANK))
        if WORLD > 1:
            handle.put_signal(group.next, 0)
            handle.wait_signal(group.prev, 0)
        expect(x, torch.full_like(x, 100.0 + group.prev), "what the rank before put")
        stage.settle()

    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(1024, device=device, dtype=torch.float32)
        a, b = torch.full((64, 32), float(RANK + 1), device=device), torch.ones(32, 48, device=device)
        product = a @ b
    assert symm.is_symm_mem_tensor(x) and symm.is_symm_mem_tensor(product)
    symm.rendezvous(x, group)
    expect(symm.one_shot_all_reduce(x, "sum", group), torch.arange(1024.0, device=device) * WORLD, "arange")
    expect(symm.one_shot_all_reduce(product, "sum", group), torch.full_like(product, 32.0 * total), "a product")
    expect(symm.one_shot_all_reduce(x[512:], "sum", group), torch.arange(512.0, 1024.0, device=device) * WORLD, "a part")
    stage.settle()
    # A place that is used again needs no meeting of its own, and its signal pad works.
    first = made(2048)
    address = first.data_ptr()
    round_trip(first)
    del first
    again = made(2048)
    assert again.data_ptr() == address, "torch uses the place again"
    round_trip(again)
    round_trip(made(4 << 20))
    # In a graph, what was made outside of it.
    graph: Any = torch.cuda.CUDAGraph()
    y, out = made(4096), torch.empty(4096, device=device)
    symm.rendezvous(y, group)
    stage.settle()
    with torch.cuda.graph(graph):
        symm.one_shot_all_reduce_out(y, "sum", group, out)
    for _ in range(3):
        graph.replay()
    expect(out, torch.full_like(out, float(total)), "a replay")
    stage.settle()
    return None


def torch_forms(stage: Stage, symm: Any, x: torch.Tensor, count: int, dtype: torch.dtype) -> None:
    group, total = stage.group, stage.total(count, dtype)
    mine = stage.values(RANK, count, dtype)
    x.copy_(mine)
    expect(symm.one_shot_all_reduce(x, "sum", group), total, f"one_shot {count} {dtype}")
    out = torch.empty_like(x)
    assert symm.one_shot_all_reduce_out(x, "sum", group, out) is out
    expect(out, total, f"one_shot_out {count} {dtype}")
    if hasattr(symm, "one_shot_all_reduce_copy"):
        expect(symm.one_shot_all_reduce_copy(x, mine, "sum", group), total, f"one_shot_copy {count} {dtype}")
        x.copy_(mine)
    assert symm.two_shot_all_reduce_(x, "sum", group) is x
    expect(x, total, f"two_shot_ {count} {dtype}")
