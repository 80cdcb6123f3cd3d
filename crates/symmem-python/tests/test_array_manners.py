"""What numpy users expect of an array besides its elements: how it prints, copies, completes, and goes through numpy's functions."""

from __future__ import annotations

import copy
import os
import sys
import types
from typing import Any

import numpy as np
import pytest

import symmem

MADE = {
    "zeros": lambda **options: symmem.zeros(2, 3, **options),
    "ones": lambda **options: symmem.ones((2, 3), **options),
    "full": lambda **options: symmem.full((2, 3), 7, **options),
    "array": lambda **options: symmem.array([[1, 2, 3], [4, 5, 6]], **options),
    "empty_like": lambda **options: symmem.empty_like(np.ones((2, 3), "int16"), **options),
    "zeros_like": lambda **options: symmem.zeros_like(np.ones((2, 3), "int16"), **options),
    "ones_like": lambda **options: symmem.ones_like(np.zeros((2, 3), "int16"), **options),
    "full_like": lambda **options: symmem.full_like(np.ones((2, 3), "int16"), 7, **options),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_maker_makes_what_numpys_does(name: str) -> None:
    given = np.ones((2, 3), "int16")
    numpys = {
        "zeros": np.zeros((2, 3), "float32"), "ones": np.ones((2, 3), "float32"), "full": np.full((2, 3), 7),
        "array": np.array([[1, 2, 3], [4, 5, 6]]), "empty_like": np.zeros_like(given), "zeros_like": np.zeros_like(given),
        "ones_like": np.ones_like(given), "full_like": np.full_like(given, 7),
    }  # fmt: skip
    x = MADE[name]()
    assert isinstance(x, symmem.Array) and symmem.is_symm_mem_tensor(x)
    assert x.dtype == numpys[name].dtype and (x == numpys[name]).all()
    assert MADE[name](dtype="float64").dtype == np.float64
    assert MADE[name](device="cpu").tolist() == x.tolist()


def test_full_and_array_take_the_type_of_their_values() -> None:
    assert symmem.full(3, 2**40 + 1).tolist() == [2**40 + 1] * 3
    assert symmem.full((), 1.5).dtype == symmem.array([1.5]).dtype == np.float64
    assert symmem.array(True).shape == () and symmem.array(True).dtype == bool
    assert symmem.array(np.arange(6, dtype="int8")[::2]).tolist() == [0, 2, 4]
    x = symmem.array([1, 2], dtype="float32")
    y = symmem.array(x)
    y[0] = 5
    assert x.tolist() == [1, 2] and y.tolist() == [5, 2] and y.dtype == np.float32
    with pytest.raises(TypeError, match="no elements of"):
        symmem.array(["text"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int64"])
def test_tensors_become_arrays(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([[1, 2], [3, 4]]).to(getattr(torch, dtype))
    for x in (symmem.array(tensor.T), symmem.array(tensor.clone().requires_grad_(dtype == "float32").T)):
        assert x.dtype_name == dtype and x.torch().float().tolist() == [[1, 3], [2, 4]]
    assert symmem.empty_like(tensor).dtype_name == dtype and symmem.empty_like(x).dtype_name == dtype


def test_str_is_numpys_and_repr_says_what_it_is() -> None:
    x = symmem.array([[1.5, 2], [3, 4]])
    assert str(x) == str(x.numpy()) == f"{x}" != repr(x)
    assert repr(x) == "symmem.Array([[1.5, 2. ],\n              [3. , 4. ]], dtype=float64, device='cpu')"


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_print_their_shape(script: Any, dtype: str) -> None:
    done = script(
        "import sys\nsys.modules['ml_dtypes'] = None\nimport symmem\n"
        f"x = symmem.empty(2, 3, dtype={dtype!r})\nprint(repr(x))\nprint(x)\nprint(symmem.empty_like(x).dtype_name)\n"
    )
    text = f"symmem.Array(shape=(2, 3), dtype={dtype}, device='cpu')"
    assert done.stdout.split("\n")[:3] == [text, text, dtype], done.stderr


def test_everything_prints_in_every_state(threads: Any) -> None:
    def main(group: symmem.Group) -> None:
        x = symmem.ones(2)
        mem = symmem.rendezvous(x, group)
        peer = mem.get_buffer(group.next, (2,), "float32")
        pending = mem.all_reduce_start()
        pending.wait()
        shown = [x, peer, mem, group, pending, group.store, group.context, symmem.Mailbox(group)]
        spoil = [lambda: None, mem.close, lambda: group.abort("enough"), group.close]
        for step in spoil:
            step()
            for one in shown:
                assert repr(one) and str(one)
        assert repr(x) == repr(peer) == "symmem.Array([2., 2.], dtype=float32, device='cpu')"

    threads(main, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads
def test_after_a_fork_it_prints_its_shape() -> None:
    x = symmem.ones(2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, repr(x).encode() + str(x).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    # Values or the shape: whether a child may look at them is for others to say.
    with os.fdopen(reading) as said:
        assert said.read().startswith("symmem.Array(")


def test_dir_has_what_numpys_arrays_have() -> None:
    x = symmem.zeros(2, 2)
    numpys = {name for name in dir(np.ndarray) if not name.startswith("_")}
    assert numpys | {"torch", "numpy", "device", "data_ptr"} <= set(dir(x))
    assert len(numpys) > 50 and all(hasattr(x, name) for name in numpys)


@pytest.mark.parametrize("name", [name for name in dir(symmem.SymmetricMemory) if not name.startswith("_")])
def test_a_forgotten_rendezvous_says_so(name: str) -> None:
    x = symmem.zeros(3)
    if name in dir(x):
        return
    with pytest.raises(AttributeError, match=rf"^symmem.Array on cpu has no attribute '{name}'.*rendezvous first.*mem.{name}$"):
        getattr(x, name)


def test_an_unknown_attribute_is_an_arrays() -> None:
    for name in ("no_such_thing", "_private", "__no_such_protocol__"):
        with pytest.raises(AttributeError, match=f"^symmem.Array on cpu has no attribute '{name}'$"):
            getattr(symmem.zeros(1), name)


def test_numpys_functions_write_to_it() -> None:
    x, y, m = symmem.zeros(4), np.arange(4, dtype="float32"), np.eye(4, dtype="float32")
    np.copyto(x, y)
    assert x.tolist() == y.tolist()
    np.copyto(y, symmem.ones(4))
    assert y.tolist() == [1] * 4
    into = {
        "dot": lambda: np.dot(m, y, out=x),
        "matmul": lambda: np.matmul(m, y, out=x),
        "take": lambda: np.take(y, [3, 2, 1, 0], out=x, mode="clip"),
        "concatenate": lambda: np.concatenate([y[:2], symmem.array(y[2:])], out=x),
        "stack": lambda: np.stack(list(y), out=x),
        "einsum": lambda: np.einsum("ij,j->i", m, y, out=x),
        "sum": lambda: np.sum(m, axis=0, out=x),
        "mean": lambda: np.mean(m, axis=0, out=x),
        "cumsum": lambda: np.cumsum(y, out=x),
        "clip": lambda: np.clip(y, 0, 2, out=x),
        "round": lambda: np.round(y, out=x),
        "choose": lambda: np.choose([0, 0, 1, 1], [y, y], out=x),
        "compress": lambda: np.compress([True] * 4, y, out=x),
        "outer": lambda: np.outer(y[:2], y[:2], out=x.reshape(2, 2)),
        "method": lambda: m.sum(axis=0, out=x),
    }
    for name, call in into.items():
        x.fill(-1)
        result = call()
        assert name == "outer" or result is x, name
        assert (x.numpy() != -1).all(), name
    np.put(x, [0], 9)
    np.putmask(x, x > 8, 10)
    assert x[0] == 10


def test_numpys_functions_read_it() -> None:
    x = symmem.array([[3.0, 1.0], [2.0, 4.0]])
    for function in (np.sort, np.transpose, np.linalg.inv, np.cumsum, np.unique, np.mean, np.argmax, np.shape, np.copy):
        assert np.asarray(function(x)).tolist() == np.asarray(function(x.numpy())).tolist(), function
    assert np.allclose(x, x.numpy()) and np.array_equal([x, x], [x.numpy()] * 2)
    assert np.where(x > 2, x, 0).tolist() == [[3, 0], [0, 4]]
    assert np.broadcast_to(x, (2, 2, 2)).shape == (2, 2, 2)
    assert np.add(x, 1, where=symmem.array([True, False]), out=x.numpy()).tolist() == [[4, 1], [3, 4]]


def test_several_outputs_of_a_ufunc() -> None:
    x, y = symmem.array([5.0, 7.0]), symmem.zeros(2, dtype="float64")
    quotient, rest = np.divmod(x, 2, out=(y, None))
    assert quotient is y and y.tolist() == [2, 3] and rest.tolist() == [1, 1]
    np.add.at(x, [0, 0], 1)
    assert x.tolist() == [7, 7]


def test_what_numpys_c_code_refuses_takes_the_view() -> None:
    # The docs say: pass x.numpy() to these.
    x, rng = symmem.zeros(4, dtype="float64"), np.random.default_rng(0)
    refuse = [
        lambda x: rng.random(out=x),
        lambda x: rng.standard_normal(out=x),
        lambda x: np.eye(4).take([0, 1, 2, 3], out=x),
        lambda x: np.eye(4).dot(np.ones(4), out=x),
    ]
    for call in refuse:
        with pytest.raises((TypeError, ValueError)):
            call(x)
        x.fill(-1)
        call(x.numpy())
        assert (x.numpy() != -1).any()
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="ndarray"):
        torch.from_numpy(x)
    assert torch.from_numpy(x.numpy()).data_ptr() == x.torch().data_ptr() == x.data_ptr()


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda x: copy.deepcopy({"x": [x]})["x"][0]])
def test_a_copy_is_an_ordinary_array(make: Any) -> None:
    x = symmem.array([1, 2, 3])
    copied = make(x)
    assert type(copied) is np.ndarray and copied.dtype == x.dtype
    x[0] = 9
    assert copied.tolist() == [1, 2, 3]


def test_without_torch_the_tensor_is_a_sentence(script: Any) -> None:
    done = script("import sys\nsys.modules['torch'] = None\nimport symmem\nsymmem.zeros(2).torch()\n")
    assert "ImportError: torch is not installed (pip install torch); numpy() and __dlpack__ do without it" in done.stderr


def test_jax_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = symmem.array([1.0, 2.0])
    try:
        import jax.numpy as jnp
    except ImportError:
        # What jax does with objects that have the protocol, as far as it matters here.
        jax, jnp = types.ModuleType("jax"), types.ModuleType("jax.numpy")
        jnp.array = lambda given, copy: ("jax", np.array(given, copy=copy))  # type: ignore[attr-defined]
        jax.numpy = jnp  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jax", jax)
        monkeypatch.setitem(sys.modules, "jax.numpy", jnp)
        kind, theirs = x.__jax_array__()
        assert kind == "jax"
    else:
        assert jnp.sin(jnp.asarray(x)).shape == (2,)  # jnp.sin(x) is an error of jax that says so
        theirs = np.asarray(x.__jax_array__())
    x[:] = 0
    assert theirs.tolist() == [1, 2]
