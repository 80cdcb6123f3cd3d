"""`symmem.Array`: a numpy array in everything but where its memory is."""

from __future__ import annotations

import ctypes
import gc
import pickle
from typing import Any

import numpy as np
import pytest

import symmem

NATIVE = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
]  # fmt: skip
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def known(dtype: str) -> bool:
    try:
        symmem.empty(1, dtype=dtype)
    except (TypeError, ValueError):
        return False
    return True


DTYPES = [dtype for dtype in NATIVE + EXTENDED if known(dtype)]


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name not in EXTENDED:
        return np.dtype(name)
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))


def test_the_element_types_are_there() -> None:
    assert len(DTYPES) == 15, DTYPES


def test_empty_is_zeroed_and_shaped() -> None:
    x = symmem.empty(2, 3, dtype="int32")
    assert (x.shape, x.strides, x.ndim, x.size, x.nbytes, x.itemsize) == ((2, 3), (12, 4), 2, 6, 24, 4)
    assert (x.device, len(x), x.dtype) == ("cpu", 2, np.dtype("int32"))
    assert x.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_sizes_may_come_as_one_sequence() -> None:
    assert symmem.empty((4, 5)).shape == symmem.empty([4, 5]).shape == symmem.empty(4, 5).shape == (4, 5)
    assert symmem.empty(3).dtype == np.dtype("float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_numpys(dtype: str) -> None:
    x = symmem.empty(5, dtype=dtype)
    expected = numpy_dtype(dtype)
    assert x.dtype == expected
    x[:] = np.array([0, 1, 1, 0, 1]).astype(expected)
    assert np.asarray(x).dtype == expected
    assert np.asarray(x).astype("float32").tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.dtype("float64"), "float64", "f64", float])
def test_dtypes_may_be_named_in_many_ways(dtype: Any) -> None:
    assert symmem.empty(1, dtype=dtype).dtype == np.dtype("float64")


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        symmem.empty(1, dtype="complex64")


@pytest.mark.parametrize(
    "see",
    [
        np.asarray,
        np.from_dlpack,
        lambda x: x.numpy(),
        lambda x: np.frombuffer(x, dtype="int32").reshape(x.shape),
        lambda x: np.asarray(memoryview(x)),
    ],
)
def test_numpy_sees_the_same_memory(see: Any) -> None:
    x = symmem.empty(2, 3, dtype="int32")
    view = see(x)
    view[1, 2] = 7
    assert x[1, 2] == 7
    x[0, 0] = 5
    assert view[0, 0] == 5
    assert view.__array_interface__["data"][0] == x.data_ptr()


def test_dlpack_says_where_and_copies_when_asked() -> None:
    x = symmem.empty(4)
    assert x.__dlpack_device__() == (1, 0)
    copied = np.from_dlpack(x, copy=True)
    x[:] = 1
    assert copied.tolist() == [0] * 4
    # Both kinds of capsule, and each is taken at most once.
    assert "dltensor" in repr(x.__dlpack__())
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(1, 0)))


def test_an_unused_capsule_gives_its_memory_back() -> None:
    for _ in range(100):
        symmem.empty(1024).__dlpack__()
        symmem.empty(1024).__dlpack__(max_version=(1, 1))
    gc.collect()


def test_operators_work_and_keep_the_memory() -> None:
    x = symmem.empty(3)
    address = x.data_ptr()
    x += 2
    x *= np.arange(3)
    assert isinstance(x, symmem.Array) and x.data_ptr() == address
    assert (x + x).tolist() == [0, 4, 8]
    assert (1 - x).tolist() == [1, -1, -3]
    assert (x == [0, 2, 4]).all() and (x @ x) == 20
    assert np.sum(x) == 6 and x.sum() == 6 and np.maximum(x, 3).tolist() == [3, 3, 4]
    assert np.add(x, 1, out=x) is x and x.tolist() == [1, 3, 5]


def test_indexing_is_numpys() -> None:
    x = symmem.empty(2, 4, dtype="int64")
    x[0] = range(4)
    x[1, ::2] = 9
    x[:, -1] = x[:, 0]
    assert x.tolist() == [[0, 1, 2, 0], [9, 0, 9, 9]]
    assert [row.sum() for row in x] == [3, 27]
    assert 9 in x and 10 not in x
    assert x.reshape(8)[4] == 9 and x.T.shape == (4, 2)
    with pytest.raises(IndexError):
        x[2]


def test_scalars_convert() -> None:
    x = symmem.empty(1, dtype="float64")
    x.fill(2.5)
    assert float(x[0]) == 2.5 and bool(x) and int(x.max()) == 2


def test_repr_shows_the_values() -> None:
    x = symmem.empty(2, dtype="int32")
    assert repr(x) == "symmem.Array([0, 0], dtype=int32, device='cpu')"


def test_asarray_obeys_dtype_and_copy() -> None:
    x = symmem.empty(2)
    assert np.asarray(x, dtype="float64").dtype == np.dtype("float64")
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.shares_memory(np.asarray(x), x.numpy())


def test_empty_arrays_and_no_dimensions() -> None:
    assert symmem.empty(0).tolist() == []
    assert symmem.empty(3, 0, 2).shape == (3, 0, 2)
    assert np.asarray(symmem.empty(())).shape == ()


def test_pickling_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match="symmetric memory cannot be pickled"):
        pickle.dumps(symmem.empty(1))


@pytest.mark.parametrize("see", [np.asarray, np.from_dlpack, memoryview, lambda x: x.numpy(), lambda x: x[1:]])
def test_a_view_keeps_the_memory(see: Any) -> None:
    x = symmem.empty(1 << 18, dtype="uint8")
    x.fill(3)
    view = see(x)
    del x
    gc.collect()
    others = [symmem.empty(1 << 18, dtype="uint8") for _ in range(8)]
    for other in others:
        other.fill(4)
    assert bytes(view[:4]) == b"\3\3\3\3"


def test_memory_is_given_back() -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd" in line for line in maps)

    before = mapped()
    arrays = [symmem.empty(1 << 16) for _ in range(32)]
    views = [np.asarray(x) for x in arrays]
    assert mapped() >= before + 32
    del arrays
    gc.collect()
    assert mapped() >= before + 32
    del views
    gc.collect()
    assert mapped() <= before + 1


def test_ctypes_and_the_address_agree() -> None:
    x = symmem.empty(4, dtype="int32")
    (ctypes.c_int32 * 4).from_address(x.data_ptr())[2] = 42
    assert x[2] == 42
    assert x.data_ptr() % 64 == 0


def test_is_symm_mem_tensor_finds_any_view() -> None:
    x = symmem.empty(4, 4)
    for view in (x, x.numpy(), x[1:, 2:], np.from_dlpack(x)):
        assert symmem.is_symm_mem_tensor(view)
    assert not symmem.is_symm_mem_tensor(np.zeros(4))
    assert not symmem.is_symm_mem_tensor(x.numpy().copy())


def test_torch_shares_the_memory() -> None:
    torch = pytest.importorskip("torch")
    x = symmem.empty(2, 3)
    for tensor in (x.torch(), torch.from_dlpack(x), torch.as_tensor(x.numpy())):
        assert tensor.data_ptr() == x.data_ptr() and tuple(tensor.shape) == (2, 3)
        assert symmem.is_symm_mem_tensor(tensor) and symmem.is_symm_mem_tensor(tensor[1:])
        tensor[1, 1] += 1
    assert x[1, 1] == 3


@pytest.mark.parametrize("dtype", EXTENDED)
def test_torch_sees_extended_types(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = symmem.empty(4, dtype=getattr(torch, dtype))
    x.torch().fill_(1)
    assert x.torch().dtype == getattr(torch, dtype)
    assert x.torch().float().tolist() == [1] * 4
