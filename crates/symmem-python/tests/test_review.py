"""What a review found: overlaps, closed handles, contexts, odd arrays, signals in foreign stores."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import symmem

PY_BUF_C, PY_BUF_F, PY_BUF_ANY = 0x20 | 0x18, 0x40 | 0x18, 0x80 | 0x18


# --- copies onto themselves


def test_put_and_get_refuse_what_overlaps_their_target(threads: Any) -> None:
    def main(group: symmem.Group) -> list[int]:
        x = symmem.empty(8, dtype="int32")
        x[:] = np.arange(8)
        mem = symmem.rendezvous(x, group)
        with pytest.raises(ValueError, match="overlaps.*copy"):
            mem.put(group.rank, x[0:4], 2)
        with pytest.raises(ValueError, match="overlaps.*copy"):
            mem.get(group.rank, 3, x[0:4])
        with pytest.raises(ValueError, match="overlaps"):
            mem.put(group.next, mem.get_buffer(group.next, (4,), "int32"), 1)
        # Side by side is apart.
        mem.put(group.rank, x[0:4], 4)
        mem.get(group.rank, 2, x[0:2])
        return x.tolist()

    assert threads(main, 2) == [[2, 3, 2, 3, 0, 1, 2, 3]] * 2


# --- closed handles


def test_a_closed_workspace_is_replaced(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        old = symmem.get_symm_mem_workspace(group, 1000)
        old.close()
        new = symmem.get_symm_mem_workspace(group, 1000)
        assert old.closed and not new.closed
        new.barrier()

    threads(main, 2)


def test_closed_follows_siblings_and_the_group(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x, y = symmem.empty(4), symmem.empty(4)
        first, second = symmem.rendezvous(x, group), symmem.rendezvous(x[1:], group)
        other = symmem.rendezvous(y, group)
        assert not (first.closed or second.closed or other.closed)
        first.close()
        assert first.closed and second.closed and not other.closed
        second.close()
        again = symmem.rendezvous(x, group)
        assert not again.closed and second.closed
        group.barrier()
        group.close()
        assert again.closed and other.closed
        other.close()

    threads(main, 2)


# --- contexts


def alone(pad: int) -> symmem.Group:
    context = symmem.Context()
    context.set_signal_pad_size(pad)
    return symmem.Group(symmem.HashStore(), 0, 1, context=context)


def test_groups_may_be_left_in_any_order() -> None:
    before = symmem.current_context().signal_pad_size
    first, second = alone(16384), alone(8192)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert symmem.current_context().signal_pad_size == 8192
    second.__exit__(None, None, None)
    assert symmem.current_context().signal_pad_size == before


def test_leaving_a_context_that_was_not_entered_leaves_the_others() -> None:
    with alone(16384):
        symmem.Context().__exit__(None, None, None)
        assert symmem.current_context().signal_pad_size == 16384


# --- arrays that only look dense


def test_unaligned_symmetric_memory_is_not_dense(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = symmem.empty(64, dtype="uint8")
        x[:] = np.arange(64)
        mem = symmem.rendezvous(x[1:], group)
        odd = mem.get_remote_tensor(group.rank, (4,), "int32")
        assert odd.tolist() == np.arange(1, 17, dtype="uint8").view("int32").tolist()
        assert not odd.numpy().flags.aligned and bytes(odd) == bytes(range(1, 17))
        words = symmem.rendezvous(symmem.empty(8, dtype="int32"), group)
        with pytest.raises(ValueError, match="aligned"):
            words.put(group.rank, odd)

    threads(main, 1)


def test_odd_tensors_are_not_dense(threads: Any) -> None:
    torch = pytest.importorskip("torch")

    def main(group: symmem.Group) -> None:
        mem = symmem.rendezvous(symmem.empty(4, dtype="float32"), group)
        negated = torch._neg_view(torch.ones(4))
        with pytest.raises(ValueError, match="contiguous"):
            mem.put(0, negated)
        unaligned = torch.frombuffer(bytearray(17), dtype=torch.float32, offset=1)
        with pytest.raises(ValueError, match="aligned"):
            mem.put(0, unaligned)
        assert np.asarray(symmem.all_gather(negated, group=group)).ravel().tolist() == [-1.0] * 4
        assert np.asarray(symmem.all_gather(unaligned, group=group)).ravel().tolist() == [0.0] * 4

    threads(main, 1)


def test_a_message_keeps_the_storage_of_its_tensor(threads: Any) -> None:
    torch = pytest.importorskip("torch")
    size = 1 << 22

    def main(group: symmem.Group) -> None:
        mail = symmem.Mailbox(group)
        if group.rank == 0:
            x = torch.full((size,), 7, dtype=torch.uint8)
            sent = mail.isend(x, 1)
            x.data = torch.zeros(1, dtype=torch.uint8)
            gc.collect()
            group.barrier()
            sent.wait()
        else:
            group.barrier()
            got = np.zeros(size, dtype="uint8")
            mail.recv(got, 0)
            assert (got == 7).all()

    threads(main, 2)


# --- buffers


def gives_buffer(x: Any, flags: int) -> bool:
    api = ctypes.pythonapi
    view = (ctypes.c_byte * 256)()
    get = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(("PyObject_GetBuffer", api))
    release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyBuffer_Release", api))
    try:
        get(x, ctypes.addressof(view), flags)
    except BufferError:
        return False
    release(ctypes.addressof(view))
    return True


def test_buffers_are_of_the_order_that_was_asked_for() -> None:
    def orders(x: Any) -> tuple[bool, ...]:
        return tuple(gives_buffer(x, flags) for flags in (PY_BUF_C, PY_BUF_F, PY_BUF_ANY))

    assert orders(symmem.empty(2, 3)) == (True, False, True)
    assert orders(symmem.empty(6)) == (True, True, True)
    fortran = symmem.empty_strided_p2p((2, 3), (1, 2), "float32", "cpu")
    mixed = symmem.empty_strided_p2p((2, 2, 3), (1, 6, 2), "float32", "cpu")
    assert orders(fortran) == (False, True, True)
    assert orders(mixed) == (False, False, False)
    # numpy asks for a contiguous buffer, and still has to get this one.
    mixed.numpy()[1, 0, 2] = 5
    assert mixed.numpy().strides == (4, 24, 8) and mixed.numpy()[1, 0].tolist()[2] == 5


# --- signals

STOPPED = """
import signal, time
import symmem

class Store:
    def set(self, key, value): pass
    def get(self, key): return b""
    def add(self, key, value): return 0
    def check(self, keys):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            time.sleep(0.01)

class Stop({base}):
    pass

def stop(*_):
    raise Stop("enough")

signal.signal(signal.SIGALRM, stop)
try:
    {call}
except Stop as error:
    print("stopped:", error)
symmem.Group(symmem.HashStore(), 0, 1).barrier()
print("goes on")
"""


@pytest.mark.parametrize("call", ['symmem.PrefixStore("p", Store()).get("key")', "symmem.Group(Store(), 1, 2)"])
@pytest.mark.parametrize("base", ["SystemExit", "BaseException", "KeyboardInterrupt"])
def test_what_a_signal_handler_raises_in_a_foreign_store_comes_out(script: Any, base: str, call: str) -> None:
    done = script(STOPPED.replace("{base}", base).replace("{call}", call))
    assert done.stdout.split("\n")[:2] == ["stopped: enough", "goes on"], done.stdout + done.stderr
