"""Every collective against numpy: all element types, private and symmetric memory, 1 to 4 ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_array import DTYPES, EXTENDED, numpy_dtype

import symmem

OPS = ["sum", "avg", "min", "max", "prod", "and", "or", "xor"]
INTEGERS = [dtype for dtype in DTYPES if "int" in dtype]
N = 24  # divides by 1, 2, 3 and 4


def values(rank: int, dtype: str, n: int = N) -> np.ndarray[Any, Any]:
    """Small whole numbers: every type adds and multiplies them exactly."""
    return ((np.arange(n) + rank) % 3).astype("int64").astype(numpy_dtype(dtype))


def expected(op: str, dtype: str, ranks: int) -> np.ndarray[Any, Any]:
    parts = [values(rank, dtype).astype("float64" if dtype in EXTENDED else dtype) for rank in range(ranks)]
    fold = {
        "sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip
    total = parts[0]
    for part in parts[1:]:
        total = fold(total, part).astype(total.dtype)
    return total / ranks if op == "avg" else total


def nothing(op: str, dtype: str) -> np.ndarray[Any, Any]:
    """What "or" or "max" gives of no ranks."""
    lowest: Any = 0
    if op == "max" and dtype in INTEGERS:
        lowest = np.iinfo(dtype).min
    elif op == "max":
        lowest = -448.0 if "e4m3" in dtype else -np.inf
    return np.full(N, lowest, dtype="float64" if dtype in EXTENDED else dtype)


def possible(op: str, dtype: str) -> bool:
    if op == "avg":
        return dtype not in INTEGERS and dtype != "bool"
    if op in ("and", "or", "xor"):
        return dtype in INTEGERS or dtype == "bool"
    return dtype != "bool"


def close(found: Any, wanted: np.ndarray[Any, Any], dtype: str) -> bool:
    precise = 1e-6 if dtype not in EXTENDED + ["float16"] else 0.13
    return bool(np.allclose(np.asarray(found).astype("float64"), wanted.astype("float64"), rtol=precise))


def symmetric(group: symmem.Group, x: np.ndarray[Any, Any]) -> tuple[symmem.Array, symmem.SymmetricMemory]:
    memory = symmem.empty(x.shape, dtype=x.dtype)
    memory[:] = x
    return memory, symmem.rendezvous(memory, group)


def all_reductions(group: symmem.Group) -> None:
    for dtype in DTYPES:
        for op in (op for op in OPS if possible(op, dtype)):
            wanted = expected(op, dtype, group.size)
            mine = values(group.rank, dtype)
            out = np.zeros_like(mine)
            assert group.all_reduce(mine, op, out) is out
            assert close(out, wanted, dtype), (dtype, op, out, wanted)
            memory, mem = symmetric(group, mine)
            mem.all_reduce(op)
            assert close(memory, wanted, dtype), (dtype, op, "symmetric")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_reduce_of_every_type(ranks: int, threads: Any) -> None:
    threads(all_reductions, ranks)


def test_all_reduce_of_every_type_between_processes(processes: Any) -> None:
    processes(all_reductions, 2)


def moves(group: symmem.Group, dtype: str) -> None:
    rank, size = group.rank, group.size
    part = N // size
    everybody = np.concatenate([values(r, dtype) for r in range(size)])
    mine = values(rank, dtype)
    op = "or" if dtype == "bool" else "max"
    reduced = expected(op, dtype, size)

    def same(found: Any, wanted: Any) -> None:
        assert close(found, np.asarray(wanted), dtype), (dtype, found, wanted)

    same(group.all_gather(mine).reshape(-1), everybody)
    same(group.all_to_all(mine), np.concatenate([values(r, dtype)[rank * part :][:part] for r in range(size)]))
    same(group.reduce_scatter(mine, op), reduced[rank * part :][:part])
    same(group.scan(mine, op), expected(op, dtype, rank + 1))
    counts = [(3 * r) % (N + 1) for r in range(size)]
    packed = np.concatenate([values(r, dtype)[: counts[r]] for r in range(size)])
    same(group.all_gather_v(mine[: counts[rank]], counts), packed)
    found = group.exclusive_scan(mine, op)
    same(found, expected(op, dtype, rank) if rank else nothing(op, dtype))
    for root in {0, size - 1}:
        parts = [r % 2 for r in range(size)]
        start, part_out = sum(parts[:rank]), np.zeros(parts[rank], mine.dtype)
        given = mine[: sum(parts)] if rank == root else None
        same(group.scatter_v(given, parts, root, part_out), values(root, dtype)[start:][: parts[rank]])
        found = group.gather_v(mine[: counts[rank]], counts, root)
        assert (found is None) == (rank != root)
        if rank == root:
            same(found, packed)
        found = group.gather(mine, root)
        assert (found is None) == (rank != root)
        if rank == root:
            same(found.reshape(-1), everybody)
        out = np.zeros(part, mine.dtype)
        same(group.scatter(mine if rank == root else None, root, out), values(root, dtype)[rank * part :][:part])
        found = group.reduce(mine, op, root)
        assert (found is None) == (rank != root)
        if rank == root:
            same(found, reduced)
        sent = mine.copy()
        assert group.broadcast(sent, root) is sent
        same(sent, values(root, dtype))


def moves_of_all_types(group: symmem.Group) -> None:
    for dtype in DTYPES:
        moves(group, dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_moves_of_every_type(ranks: int, threads: Any) -> None:
    threads(moves_of_all_types, ranks)


def test_moves_between_processes(processes: Any) -> None:
    processes(moves_of_all_types, 3)


def symmetric_moves(group: symmem.Group) -> None:
    rank, size, part = group.rank, group.size, N // group.size
    parts = [np.arange(N, dtype="float32") + 100 * r for r in range(size)]
    memory, mem = symmetric(group, parts[rank])
    total = sum(parts)

    def same(found: Any, wanted: Any) -> None:
        np.testing.assert_allclose(np.asarray(found).reshape(-1), np.asarray(wanted).reshape(-1))

    same(mem.all_gather(), np.concatenate(parts))
    same(mem.all_to_all(), np.concatenate([p[rank * part :][:part] for p in parts]))
    same(mem.reduce_scatter("sum"), total[rank * part :][:part])
    counts = [r % (N + 1) for r in range(size)]
    same(mem.all_gather_v(counts), np.concatenate([p[:c] for p, c in zip(parts, counts, strict=True)]))
    found = mem.gather_v(counts, size - 1)
    if rank == size - 1:
        same(found, np.concatenate([p[:c] for p, c in zip(parts, counts, strict=True)]))
    same(mem.scatter_v(counts, 0), parts[0][sum(counts[:rank]) :][: counts[rank]])
    same(mem.scan("sum"), sum(parts[: rank + 1]))
    same(mem.exclusive_scan("sum"), sum(parts[:rank]) if rank else np.zeros(N))
    out = np.empty(N, dtype="float32")
    same(mem.all_reduce("avg", out), total / size)
    found = mem.reduce("sum", 0)
    if rank == 0:
        same(found, total)
    found = mem.gather(size - 1)
    if rank == size - 1:
        same(found, np.concatenate(parts))
    same(mem.scatter(0), parts[0][rank * part :][:part])
    same(memory, parts[rank])
    mem.broadcast(size - 1)
    same(memory, parts[-1])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_collectives_of_a_handle(ranks: int, threads: Any) -> None:
    threads(symmetric_moves, ranks)


def test_collectives_of_a_handle_between_processes(processes: Any) -> None:
    processes(symmetric_moves, 2)


def columns(group: symmem.Group) -> None:
    x = np.arange(24, dtype="float32").reshape(4, 6) + group.rank
    _, mem = symmetric(group, x)
    total = sum(np.arange(24, dtype="float32").reshape(4, 6) + r for r in range(group.size))
    width = 6 // group.size
    found = mem.reduce_scatter("sum", split_last_dim=True)
    assert np.asarray(found).tolist() == total[:, group.rank * width :][:, :width].tolist()


def test_reduce_scatter_of_columns(threads: Any) -> None:
    threads(columns, 3)


def counted_rows(group: symmem.Group) -> None:
    rank, counts = group.rank, [2, 0, 1]
    rows = np.arange(6, dtype="int32").reshape(2, 3) + 100 * rank
    wanted = [[0, 1, 2], [3, 4, 5], [200, 201, 202]]
    found = group.all_gather_v(rows[: counts[rank]], counts)
    assert found.tolist() == wanted
    assert group.all_gather_v(rows[: counts[rank]] * 1j, counts).imag.tolist() == wanted
    _, mem = symmetric(group, rows)
    assert np.asarray(mem.all_gather_v(counts)).tolist() == wanted
    assert np.asarray(mem.all_gather_v_start(counts).wait()).tolist() == wanted
    with pytest.raises(symmem.Mismatch, match=r"rank 0: even counts, 3 x int32; rank 1: \[3, 0, 3\] x int32"):
        group.all_gather_v(rows[: int(rank != 1)], [1, int(rank != 1), 1])


def test_counts_are_of_rows(threads: Any) -> None:
    threads(counted_rows, 3)


def ragged(group: symmem.Group) -> None:
    rows = np.arange(8, dtype="int32").reshape(4, 2) + 100 * group.rank
    _, mem = symmetric(group, rows)
    out = np.zeros((8, 2), dtype="int32")
    # Rank 0 sends 1 row to 0 and 3 to 1; rank 1 sends 3 to 0 and 1 to 1.
    mem.all_to_all_v([1, 3] if group.rank == 0 else [3, 1], out)
    wanted = [[0, 1], [100, 101], [102, 103], [104, 105]] if group.rank == 0 else [[2, 3], [4, 5], [6, 7], [106, 107]]
    assert out[:4].tolist() == wanted


def test_all_to_all_v(threads: Any) -> None:
    threads(ragged, 2)


def ragged_private(group: symmem.Group) -> None:
    rows = np.arange(8, dtype="float64").reshape(4, 2) + 100 * group.rank
    out = np.zeros((4, 2))
    sends, receives = ([1, 3], [1, 3]) if group.rank == 0 else ([3, 1], [3, 1])
    assert symmem.all_to_all_v(rows, sends, out, receives) is out
    wanted = [[0, 1], [100, 101], [102, 103], [104, 105]] if group.rank == 0 else [[2, 3], [4, 5], [6, 7], [106, 107]]
    assert out.tolist() == wanted


def test_all_to_all_v_of_private_memory(run: Any) -> None:
    run(ragged_private, 2)


def functions(group: symmem.Group) -> None:
    ones = np.ones(4, dtype="float32")
    total = symmem.all_reduce(ones.copy())
    assert total.tolist() == [group.size] * 4
    assert symmem.all_gather(ones).size == 4 * group.size
    assert symmem.broadcast_object({"rank": group.rank}, root=1) == {"rank": 1}
    assert symmem.all_gather_object(group.rank) == list(range(group.size))
    symmem.barrier()
    half = symmem.subgroup([group.rank])
    assert half is not None and symmem.all_reduce(ones.copy(), group=half).tolist() == [1] * 4


def test_functions_use_the_current_group(run: Any) -> None:
    run(functions, 2)


def in_place_and_out(group: symmem.Group) -> None:
    x = np.full(8, group.rank + 1, dtype="float64")
    memory, _ = symmetric(group, x)
    total = group.size * (group.size + 1) / 2
    # An output of its own leaves the input alone.
    out = np.zeros(8)
    assert group.all_reduce(x, "sum", out) is out and (out == total).all() and (x == group.rank + 1).all()
    # The input may be the output.
    assert group.all_reduce(x, out=x) is x and (x == total).all()
    # A symmetric array needs no copy, and the group finds its handle.
    group.all_reduce(memory, out=memory)
    assert (memory == total).all()


def test_outputs(run: Any) -> None:
    run(in_place_and_out, 3)


def test_strided_inputs_are_copied(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = np.arange(12, dtype="float32").reshape(3, 4)[:, ::2]
        out = np.zeros((3, 2), dtype="float32")
        group.all_reduce(x, "sum", out)
        assert (out == 2 * x).all()

    threads(main, 2)


def test_wrong_arguments_are_refused(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = np.ones(4, dtype="float32")
        with pytest.raises(ValueError, match="median"):
            group.all_reduce(x, "median")
        with pytest.raises(ValueError):
            group.all_reduce(x, "xor")
        with pytest.raises(ValueError):
            group.all_reduce(x, "sum", np.zeros(5, dtype="float32"))
        with pytest.raises(ValueError):
            group.all_reduce(x, "sum", np.zeros(4))
        with pytest.raises(IndexError):
            group.broadcast(x, 7)
        frozen = x.copy()
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="(?i)writ|read-only"):
            group.broadcast(frozen)
        with pytest.raises(TypeError):
            group.all_reduce("text")
        group.barrier()

    threads(main, 2)


def exchange(group: symmem.Group) -> None:
    mine = np.full(1000, group.rank, dtype="int64")
    theirs = np.empty_like(mine)
    if group.rank == 0:
        group.send(mine, 1, tag=5)
        assert group.recv(theirs, 1) is theirs
    else:
        group.recv(theirs, 0, tag=5)
        group.send(mine, 0)
    assert (theirs == group.next).all()


def test_send_and_recv(run: Any) -> None:
    run(exchange, 2)


def crossing(group: symmem.Group) -> None:
    mine = np.full(100_000, group.rank, dtype="float32")
    theirs = np.empty_like(mine)
    pending = [group.isend(mine, group.next), group.irecv(theirs, group.prev)]
    for one in pending:
        one.wait(20_000)
    assert (theirs == group.prev).all()


def test_crossing_messages_do_not_deadlock(run: Any) -> None:
    run(crossing, 3)


def post(group: symmem.Group) -> None:
    mail = symmem.Mailbox(group)
    mine, theirs = np.full(10, group.rank, dtype="int32"), np.zeros(10, dtype="int32")
    if group.rank == 0:
        # From anybody, and by tag: the second message is taken first.
        assert mail.recv(theirs, tag=2) == 1 and (theirs == 1).all()
        assert mail.irecv(theirs, src=1, tag=1).wait(20_000) == 1
    else:
        sent = [mail.isend(mine, 0, tag=1), mail.isend(mine, 0, tag=2)]
        assert [message.wait(20_000) for message in sent] == [None, None]
    group.barrier()
    mail.close()
    with pytest.raises(symmem.Closed):
        mail.send(mine, 0)


def test_mailboxes(run: Any) -> None:
    run(post, 2)


def large(group: symmem.Group) -> None:
    x = np.full(1 << 20, group.rank + 1, dtype="float32")
    assert (group.all_reduce(x, out=x) == 3).all()
    memory, mem = symmetric(group, np.full(1 << 20, group.rank + 1, dtype="float32"))
    mem.all_reduce()
    assert (memory == 3).all()


def test_large_arrays(processes: Any) -> None:
    processes(large, 2)


def test_torch_in_torch_out(threads: Any) -> None:
    torch = pytest.importorskip("torch")

    def main(group: symmem.Group) -> None:
        x = torch.full((4,), float(group.rank + 1))
        gathered = group.all_gather(x)
        assert isinstance(gathered, torch.Tensor) and gathered.reshape(-1).tolist() == [1.0] * 4 + [2.0] * 4
        out = torch.zeros(4)
        assert group.all_reduce(x, "sum", out) is out and out.tolist() == [3.0] * 4
        half = torch.ones(4, dtype=torch.bfloat16)
        assert group.all_reduce(half, out=half).tolist() == [2.0] * 4

    threads(main, 2)
