"""`rendezvous` and the handle: peers' memory, signals, lifetimes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import symmem


def describe(group: symmem.Group) -> tuple[Any, ...]:
    x = symmem.empty(2, 3, dtype="int32")
    mem = symmem.rendezvous(x, group)
    assert mem.buffer_ptrs[mem.rank] == x.data_ptr()
    assert len(mem.buffer_ptrs) == len(mem.signal_pad_ptrs) == group.size
    assert mem.buffer_ptrs_dev and mem.signal_pad_ptrs_dev
    assert mem.group_name == group.name and mem.group.rank == group.rank
    assert mem.signal_pad_size == symmem.get_signal_pad_size()
    assert mem.dtype == np.dtype("int32") and tuple(mem.shape) == (2, 3)
    return (mem.rank, mem.world_size, mem.device, mem.offset, mem.multicast_ptr, mem.buffer_size >= 24)


def test_a_handle_describes_itself(run: Any) -> None:
    assert run(describe, 2) == [(0, 2, "cpu", 0, 0, True), (1, 2, "cpu", 0, 0, True)]


def read_next(group: symmem.Group) -> Any:
    x = symmem.empty(2, 2, dtype="int64")
    x[:] = 10 * group.rank + np.arange(4).reshape(2, 2)
    mem = symmem.rendezvous(x, group)
    mem.barrier()
    whole = mem.get_buffer(group.next, (2, 2), "int64")
    part = mem.get_buffer(group.next, [2], "int64", 1)
    remote = mem.get_remote_tensor(group.next, (4,), "int64")
    assert isinstance(whole, symmem.Array) and mem.local().tolist() == x.tolist()
    mem.barrier()
    return whole.tolist(), part.tolist(), remote.tolist()


def test_peers_are_read(run: Any) -> None:
    found = run(read_next, 3)
    for rank, (whole, part, remote) in enumerate(found):
        base = 10 * ((rank + 1) % 3)
        assert (whole, part) == ([[base, base + 1], [base + 2, base + 3]], [base + 1, base + 2])
        assert remote == [base, base + 1, base + 2, base + 3]


def write_next(group: symmem.Group) -> list[int]:
    x = symmem.empty(4, dtype="int32")
    mem = symmem.rendezvous(x, group)
    mem.get_buffer(group.next, (4,), "int32")[0] = group.rank + 1
    mem.put(group.next, np.array([7, 8], dtype="int32"), 2)
    mem.barrier()
    got = np.empty(2, dtype="int32")
    mem.get(group.next, 2, got)
    assert got.tolist() == [7, 8]
    mem.barrier()
    return x.tolist()


def test_peers_are_written(run: Any) -> None:
    assert run(write_next, 2) == [[2, 0, 7, 8], [1, 0, 7, 8]]


def pass_it_on(group: symmem.Group) -> int:
    x = symmem.empty(1, dtype="int64")
    mem = symmem.rendezvous(x, group)
    if group.rank > 0:
        mem.wait_signal(group.prev, 3)
    if group.next > 0:
        mem.get_buffer(group.next, (1,), "int64")[0] = x[0] + 1
        mem.put_signal(group.next, channel=3)
    mem.barrier(channel=1)
    return int(x[0])


def test_signals_order_writes(run: Any) -> None:
    assert run(pass_it_on, 4) == [0, 1, 2, 3]


def signals_once(group: symmem.Group) -> list[bool]:
    mem = symmem.rendezvous(symmem.empty(1), group)
    found = [mem.try_put_signal(group.next), mem.try_put_signal(group.next)]
    group.barrier()
    found += [mem.try_wait_signal(group.prev), mem.try_wait_signal(group.prev)]
    group.barrier()
    return found


def test_try_signals_do_not_wait(threads: Any) -> None:
    assert threads(signals_once, 2) == [[True, False, True, False]] * 2


def views(group: symmem.Group) -> None:
    x = symmem.empty(4, 8, dtype="float32")
    x[:] = group.rank
    for view, offset in ((x, 0), (x[1:], 32), (np.asarray(x)[2:3], 64), (x.reshape(32)[5:9], 20)):
        mem = symmem.rendezvous(view, group)
        assert (mem.offset, tuple(mem.shape)) == (offset, view.shape)
        group.barrier()
        assert (mem.get_remote_tensor(group.next, view.shape, "float32").numpy() == group.next).all()
        group.barrier()
    whole = symmem.rendezvous(x, group).get_buffer(group.next, (4, 8), "float32")
    assert (whole.numpy() == group.next).all()


def test_any_view_rendezvouses(run: Any) -> None:
    run(views, 2)


def offsets_differ(group: symmem.Group) -> list[float]:
    x = symmem.empty(8)
    mine = x[group.rank * 4 : group.rank * 4 + 4]
    mine[:] = group.rank + 1
    mem = symmem.rendezvous(mine, group)
    mem.all_reduce()
    return list(x.tolist())


def test_ranks_may_bring_different_offsets(run: Any) -> None:
    assert run(offsets_differ, 2) == [[3.0] * 4 + [0.0] * 4, [0.0] * 4 + [3.0] * 4]


def offsets_are_seen(group: symmem.Group) -> None:
    x = symmem.empty(12, dtype="int64")
    x[:] = np.arange(12) + 100 * group.rank
    start = 3 * group.rank
    mem = symmem.rendezvous(x[start : start + 4], group)
    group.barrier()
    for rank in range(group.size):
        theirs = [100 * rank + 3 * rank + n for n in range(4)]
        assert mem.peer(rank).tolist() == mem.get_remote_tensor(rank, (4,), "int64").tolist() == theirs
        assert mem.get_buffer(rank, (2,)).tolist() == [100 * rank, 100 * rank + 1]
        assert mem.get(rank, 1, np.zeros(3, dtype="int64")).tolist() == theirs[1:]
    group.barrier()
    mem.put(group.next, np.array([-group.rank]), offset=3)
    group.barrier()
    assert x[start + 3] == -group.prev
    group.barrier()
    # By now it is local, also for one rank alone, and takes the arrays to start at the same place.
    if group.rank == 0:
        assert symmem.rendezvous(x[5:7], group).peer(group.next)[0] == 100 * group.next + 5
    group.barrier()


def test_peers_are_seen_from_their_own_offsets_on(run: Any) -> None:
    run(offsets_are_seen, 2)


def described(group: symmem.Group) -> None:
    x = symmem.empty(10, dtype="int64")
    x[:] = np.arange(10) + 100 * group.rank
    mem = symmem.rendezvous(x[4:].reshape(2, 3), group)
    mem.barrier()
    theirs = [4 + 100 * group.next + n for n in range(6)]
    for found in (mem.peer(group.next), mem[group.next], mem.get_buffer(group.next), mem.get_remote_tensor(group.next)):
        assert found.shape == (2, 3) and found.dtype == np.int64 and found.numpy().reshape(-1).tolist() == theirs
    assert [int(one[0, 0]) for one in mem] == [4 + 100 * rank for rank in range(group.size)]
    # With sizes, as torch counts: from the start of the allocation, unless told otherwise.
    assert mem.get_buffer(group.next, (2,)).tolist() == [100 * group.next, 100 * group.next + 1]
    assert mem.get_buffer(group.next, (2,), storage_offset=3).tolist() == [theirs[0] - 1, theirs[0]]
    assert mem.get_buffer(group.next, storage_offset=0).numpy().reshape(-1)[0] == 100 * group.next
    assert mem.get_remote_tensor(group.next, (2,)).tolist() == theirs[:2]
    assert mem.get_buffer(group.next, dtype="uint64").numpy().reshape(-1).tolist() == theirs
    with pytest.raises(symmem.Invalid, match="get_buffer: elements of int8 are not as long .* Hint: pass sizes="):
        mem.get_buffer(group.next, dtype="int8")
    for wrong in (group.size, -1):
        with pytest.raises(IndexError, match="peer"):
            mem[wrong]
    mem.barrier()


def nothing_there(group: symmem.Group) -> None:
    mem = symmem.rendezvous(None if group.rank == 1 else symmem.ones((2, 2), dtype="int16"), group)
    mem.barrier()
    assert mem[0].tolist() == [[1, 1], [1, 1]] and mem.peer(0).dtype == np.int16
    for call, op in ((lambda: mem[1], "peer"), (lambda: mem.get_buffer(1), "get_buffer")):
        with pytest.raises(symmem.NothingBrought) as caught:
            call()
        assert caught.value.op == op and str(caught.value).startswith(f"{op}: ")
    mem.barrier()


def test_a_peer_that_brought_nothing_has_no_elements(run: Any) -> None:
    run(nothing_there, 2)


def test_peers_are_described_as_the_handle_by_default(run: Any) -> None:
    run(described, 2)


def test_private_memory_cannot_be_rendezvoused(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        for other in (np.zeros(4), symmem.empty(4).numpy().copy()):
            with pytest.raises(symmem.Invalid, match="symmem.empty"):
                symmem.rendezvous(other, group)
        with pytest.raises(ValueError, match="(?i)contiguous"):
            symmem.rendezvous(symmem.empty(4, 4)[:, 1:], group)

    threads(main, 1)


def test_wrong_requests_say_what_is_wrong(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        mem = symmem.rendezvous(symmem.empty(16), group)
        for call in (mem.get_buffer, mem.get_remote_tensor):
            with pytest.raises(symmem.RankOutOfRange, match=r"must be in \[0"):
                call(2, (16,), "float32")
            with pytest.raises(IndexError, match=r"must be in \[0"):
                call(-1, (16,), "float32")
            with pytest.raises(symmem.OutOfBounds, match="exceeds the allocated size"):
                call(0, (1 << 20,), "float32")
        with pytest.raises(symmem.OutOfBounds, match="exceeds the allocated size"):
            mem.get_signal_pad(0, (1 << 20,))
        with pytest.raises(symmem.RankOutOfRange, match=r"must be in \[0"):
            mem.put_signal(2)
        with pytest.raises(symmem.ChannelOutOfRange, match="maximum supported number of channels"):
            mem.barrier(channel=1 << 20)
        with pytest.raises(symmem.OutOfBounds):
            mem.put(0, np.zeros(17, dtype="float32"))
        with pytest.raises(ValueError, match="float64"):
            mem.put(0, np.zeros(4, dtype="float64"))
        group.barrier()

    threads(main, 2)


def test_signal_pads_are_memory_too(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        mem = symmem.rendezvous(symmem.empty(4), group)
        pad = mem.get_signal_pad(group.rank)
        assert pad.dtype == np.dtype("uint32") and pad.nbytes == mem.signal_pad_size
        assert mem.get_signal_pad(group.rank, (2, 3), "uint64", 1).shape == (2, 3)
        pad[-1] = group.rank + 5
        group.barrier()
        assert mem.get_signal_pad(group.next)[-1] == group.next + 5
        group.barrier()

    threads(main, 2)


def test_the_pad_size_is_the_ranks_own(threads: Any) -> None:
    def main(group: symmem.Group) -> int:
        assert symmem.get_signal_pad_size() == 9216
        symmem.set_signal_pad_size(4096)
        mem = symmem.rendezvous(symmem.empty(1), group)
        return mem.signal_pad_size

    assert threads(main, 2) == [4096, 4096]
    assert symmem.get_signal_pad_size() == 9216


def test_persistent_allocations_come_back(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = symmem.empty(8, dtype="int32", alloc_id=42)
        address = x.data_ptr()
        x[:] = 5
        with pytest.raises(symmem.Persistent, match="still active|in use"):
            symmem.empty(8, dtype="int32", alloc_id=42)
        del x
        gc.collect()
        with pytest.raises(symmem.Persistent, match="bytes"):
            symmem.empty(9, dtype="int32", alloc_id=42)
        again = symmem.empty(8, dtype="int32", alloc_id=42)
        assert again.data_ptr() == address
        named = symmem.empty(8, alloc_id="weights")
        assert named.data_ptr() != address
        symmem.rendezvous(again, group).barrier()

    threads(main, 2)


def test_empty_strided_p2p_takes_pytorchs_arguments() -> None:
    x = symmem.empty_strided_p2p((2, 3), (3, 1), "float32", "cpu")
    assert (x.shape, x.strides) == ((2, 3), (12, 4))
    with pytest.raises(ValueError):
        symmem.empty_strided_p2p((2, 3), (1, 2, 3), "float32", "cpu")


def test_backends_have_names() -> None:
    assert symmem.get_backend("cpu") == "SHM"
    with pytest.raises(ValueError):
        symmem.set_backend("CARRIER PIGEON")


def test_the_workspace_is_kept_and_grows(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        small = symmem.get_symm_mem_workspace(group, 1000)
        assert small.buffer_size >= 1000
        assert symmem.get_symm_mem_workspace(group, 500).buffer_ptrs == small.buffer_ptrs
        large = symmem.get_symm_mem_workspace(group, 1 << 20)
        assert large.buffer_size >= 1 << 20 and large.dtype == np.dtype("uint8")

    threads(main, 2)


def test_without_a_gpu_questions_about_it_have_answers() -> None:
    assert symmem.has_multicast_support("cpu") is False
    assert symmem.has_multicast_support("cuda", 99) is False
    try:
        assert isinstance(symmem.detect_dma_connectivity().matrix, list)
    except symmem.NoCuda as error:
        assert "driver" in str(error)
    with pytest.raises(symmem.Error):
        symmem.detect_dma_connectivity("abacus")


# --- lifetimes


def array_outlives_handle(group: symmem.Group) -> None:
    x = symmem.empty(1 << 16, dtype="uint8")
    mem = symmem.rendezvous(x, group)
    peer = mem.get_buffer(group.next, (1 << 16,), "uint8")
    x[:] = group.rank + 1
    mem.barrier()
    del mem
    gc.collect()
    assert x[0] == group.rank + 1 and peer[-1] == group.next + 1
    group.barrier()


def handle_outlives_array(group: symmem.Group) -> None:
    x = symmem.empty(1 << 16, dtype="uint8")
    x[:] = group.rank + 1
    mem = symmem.rendezvous(x, group)
    del x
    gc.collect()
    mem.barrier()
    assert mem.get_buffer(group.next, (1,), "uint8")[0] == group.next + 1
    mem.all_reduce("max")
    assert mem.local()[0] == group.size


def close_while_a_view_exists(group: symmem.Group) -> None:
    x = symmem.empty(1 << 16, dtype="uint8")
    x[:] = group.rank + 1
    mem = symmem.rendezvous(x, group)
    view = mem.get_buffer(group.next, (1 << 16,), "uint8").numpy()
    mem.close()
    for call in (
        mem.barrier,
        mem.all_reduce,
        lambda: mem.put_signal(0),
        lambda: mem.get_buffer(0, (1,), "uint8"),
        lambda: mem.get_signal_pad(0),
    ):
        with pytest.raises(symmem.Closed, match="closed"):
            call()
    assert x[5] == group.rank + 1 and view[5] == group.next + 1
    del x, mem
    gc.collect()
    assert view[-1] == group.next + 1
    group.barrier()


def views_outlive_the_group(group: symmem.Group) -> Any:
    x = symmem.empty(1 << 12, dtype="uint8")
    x[:] = group.rank + 1
    mem = symmem.rendezvous(x, group)
    mem.barrier()
    view = mem.get_buffer(group.next, (1 << 12,), "uint8").numpy()
    mem.barrier()
    group.close()
    with pytest.raises(symmem.Closed):
        group.barrier()
    assert view[-1] == group.next + 1
    return view if group.rank == 0 else None


@pytest.mark.parametrize("life", [array_outlives_handle, handle_outlives_array, close_while_a_view_exists])
def test_lifetimes(life: Any, run: Any) -> None:
    run(life, 2)


def test_views_outlive_everything(threads: Any) -> None:
    view, _ = threads(views_outlive_the_group, 2)
    gc.collect()
    assert (view == 2).all()


def test_a_second_rendezvous_after_close(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = symmem.empty(4)
        symmem.rendezvous(x, group).close()
        again = symmem.rendezvous(x, group)
        again.all_reduce()

    threads(main, 2)
