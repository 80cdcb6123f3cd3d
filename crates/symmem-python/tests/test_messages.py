"""Messages between two ranks: arrays and objects of unknown size, exchanges in rings, probes; and collectives of objects."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem


def of_unknown_size(group: symmem.Group) -> None:
    arrays = [np.arange(5), np.zeros((0, 3), "float32"), np.arange(12, dtype="uint8").reshape(3, 4), np.array(1.5), np.ones(300_000)]
    if group.rank == 0:
        for array in arrays:
            group.send(array, 1)
        return
    for array in arrays:
        got = group.recv(None, 0)
        assert type(got) is np.ndarray and got.dtype == array.dtype and got.shape == (array.size,)
        assert (got == array.reshape(-1)).all()


def test_arrays_of_unknown_size(run: Any) -> None:
    run(of_unknown_size, 2)


def objects(group: symmem.Group) -> Any:
    values = [{"a": [1, 2]}, None, np.arange(6).reshape(2, 3), "x" * 1_000_000]
    if group.rank == 0:
        for tag, value in enumerate(values):
            symmem.send_object(value, 1, tag)
        return "sent"
    # Any order of tags, and from anybody.
    text = symmem.recv_object(tag=3)
    array = group.recv_object(0, 2)
    assert array.shape == (2, 3) and (array == values[2]).all() and text == values[3]
    return group.recv_object(), group.recv_object(0, tag=None)


def test_objects_travel_by_source_and_tag(run: Any) -> None:
    assert run(objects, 2) == ["sent", ({"a": [1, 2]}, None)]


def ring(group: symmem.Group) -> Any:
    n = 200_000
    x = np.full(n, group.rank, dtype="int32")
    out = np.empty_like(x)
    assert group.sendrecv(x, group.next, out, group.prev, 3, 3) is out and (out == group.prev).all()
    fresh = symmem.sendrecv(x[: group.rank + 1], group.next)
    assert fresh.tolist() == [group.prev] * (group.prev + 1)
    with pytest.raises(symmem.Invalid, match="overlaps x"):
        group.sendrecv(x, group.next, x, group.prev)
    return symmem.sendrecv_object(("from", group.rank), group.next, group.prev)


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_exchange_in_a_ring(ranks: int, run: Any) -> None:
    assert run(ring, ranks) == [("from", (rank - 1) % ranks) for rank in range(ranks)]


def probing(group: symmem.Group) -> None:
    if group.rank == 0:
        assert group.iprobe() is None
        group.barrier()
        group.send(np.arange(4, dtype="float32"), 1, tag=7)
        group.send_object("hello", 1, tag=8)
        group.barrier()
        return
    assert symmem.iprobe(0, 7) is None
    with pytest.raises(symmem.Timeout) as caught:
        group.probe(0, timeout_ms=50)
    assert caught.value.op == "probe" and caught.value.missing == [0]
    group.barrier()
    found = symmem.probe()
    assert (found.source, found.tag, found.nbytes, found.is_object) == (0, 7, 16, False) and found.dtype == np.float32
    assert "16 bytes (float32) from rank 0 with tag 7" in repr(found)
    found = group.probe(tag=8)
    assert (found.tag, found.dtype, found.is_object) == (8, None, True) and "object" in repr(found)
    again = group.iprobe(0, 8)
    assert again is not None and again.nbytes == found.nbytes
    assert group.recv_object(found.source, found.tag) == "hello"
    assert group.recv(None, 0, 7).tolist() == [0, 1, 2, 3]
    assert group.iprobe() is None
    group.barrier()


def test_a_probe_says_what_is_there_and_leaves_it(run: Any) -> None:
    run(probing, 2)


def confused(group: symmem.Group) -> None:
    if group.rank == 0:
        for _ in range(3):
            group.send_object("object", 1)
        group.send(np.ones(2), 1)
        group.send(np.ones(2), 1)
        return
    with pytest.raises(symmem.Mismatch, match="recv: rank 0 sent an object with tag 0, .* Hint: recv_object takes it"):
        group.recv(None, 0)
    # Also into an array that happens to be as long.
    as_long = np.zeros(group.probe(0).nbytes, dtype="uint8")
    calls: list[Callable[[], Any]] = [lambda: group.recv(as_long, 0), lambda: group.irecv(as_long, 0).wait()]
    for call in calls:
        with pytest.raises(symmem.Mismatch, match="sent an object"):
            call()
    with pytest.raises(symmem.Mismatch, match="recv_object: rank 0 sent an array .* Hint: recv takes it"):
        group.recv_object(0)
    assert group.recv(np.zeros(2), 0).tolist() == [1, 1]


def test_objects_and_arrays_are_not_taken_for_each_other(run: Any) -> None:
    run(confused, 2)


def leaving(group: symmem.Group) -> None:
    if group.rank == 0:
        return
    start = time.monotonic()
    calls: list[Callable[[], Any]] = [lambda: group.probe(), lambda: group.recv(None, 0), lambda: group.recv_object(0)]
    for call in calls:
        with pytest.raises(symmem.PeerLeft):
            call()
    while True:
        try:
            assert group.iprobe(0) is None
        except symmem.PeerLeft:
            break
    assert time.monotonic() - start < 10


def test_who_left_sends_nothing_more(run: Any) -> None:
    run(leaving, 2)


def mailbox(group: symmem.Group) -> Any:
    mail = symmem.Mailbox(group)
    mail.send_object(group.rank, group.next, 4)
    found = mail.probe(tag=4)
    assert found.source == group.prev and mail.iprobe() is not None and group.iprobe() is None
    got = mail.recv_object(tag=None)
    group.barrier()
    return got


def test_a_mailbox_has_objects_and_probes_of_its_own(run: Any) -> None:
    assert run(mailbox, 2) == [1, 0]


def collectives(group: symmem.Group) -> Any:
    mine = chr(ord("a") + group.rank)
    gathered = symmem.gather_object(mine, 1)
    assert gathered == (["a", "b", "c"] if group.rank == 1 else None)
    part = symmem.scatter_object([n * 1000 * "x" for n in range(3)] if group.rank == 2 else None, 2)
    assert len(part) == group.rank * 1000
    # Neither commutative nor associative: in rank order, from the left.
    joined = symmem.all_reduce_object(mine, lambda one, other: f"({one}{other})")
    assert joined == "((ab)c)" and symmem.all_reduce_object(mine) == "abc"
    assert symmem.reduce_object(group.rank + 2, operator.mul, 1) == (24 if group.rank == 1 else None)
    assert group.reduce_object({group.rank}, set.union, 0) == ({0, 1, 2} if group.rank == 0 else None)
    return group.all_reduce_object(group.rank, max)


def test_collectives_of_objects(run: Any) -> None:
    assert run(collectives, 3) == [2, 2, 2]


def raising(group: symmem.Group) -> None:
    with pytest.raises(ZeroDivisionError):
        group.all_reduce_object(0, operator.truediv)
    group.barrier()


def test_what_a_function_raises_is_raised_and_the_group_goes_on(run: Any) -> None:
    run(raising, 2)


def disagreeing(group: symmem.Group) -> None:
    with pytest.raises(symmem.Mismatch, match="rank 0: gather_object with root 0; rank 1: gather_object with root 1"):
        group.gather_object(1, group.rank)
    with pytest.raises(symmem.Mismatch, match="rank 0: all_gather_object; rank 1: all_reduce_object"):
        group.all_reduce_object(1) if group.rank else group.all_gather_object(1)
    with pytest.raises(symmem.Mismatch):
        group.scatter_object([1, 2], group.rank)
    group.barrier()


def test_ranks_that_disagree_get_no_others_objects(run: Any) -> None:
    run(disagreeing, 2)


def test_what_is_passed_for_an_op_is_named(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        mem: Any = symmem.rendezvous(symmem.empty(2), group)
        wrong: Any = group
        with pytest.raises(TypeError, match=r"^op: expected a name such as 'sum', not a Group\. Hint: pass group="):
            symmem.all_reduce(np.ones(2), wrong)
        with pytest.raises(TypeError, match=r"^op: expected a name such as 'sum', not an Array\. Hint: .*out="):
            mem.all_reduce(mem.local())
        with pytest.raises(TypeError, match=r"^op: expected a name such as 'sum', not an int\."):
            wrong.reduce(np.ones(2), 5)
        group.barrier()

    threads(main, 2)
