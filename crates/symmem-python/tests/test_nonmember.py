"""What a rank gets that is not in a subgroup: falsy, and refused by everything. A forgotten `if` must not sum over other ranks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symmem

#: What a call on a group takes besides the group.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "all_gather": (np.ones(2),),
    "all_gather_columns_matmul": (np.ones((2, 2)), np.ones((2, 2))),
    "all_gather_matmul": (np.ones((2, 2)), np.ones((2, 2))),
    "all_gather_object": (1,),
    "all_reduce": (np.ones(2),),
    "all_reduce_object": (1,),
    "all_reduce_rms_norm": (np.ones((2, 2)), np.ones((2, 2)), np.ones(2)),
    "all_gather_v": (np.ones(2), [2, 2]),
    "all_to_all": (np.ones(2),),
    "all_to_all_v": (np.ones(2), [1, 1], np.ones(2), [1, 1]),
    "barrier": (),
    "broadcast": (np.ones(2),),
    "broadcast_object": (1,),
    "exclusive_scan": (np.ones(2),),
    "gather": (np.ones(2),),
    "gather_object": (1,),
    "gather_v": (np.ones(2), [2, 2]),
    "get_symm_mem_workspace": (),
    "iprobe": (),
    "irecv": (np.ones(2),),
    "isend": (np.ones(2), 0),
    "matmul_reduce_scatter": (np.ones((2, 2)), np.ones((2, 2))),
    "matmul_reduce_scatter_columns": (np.ones((2, 2)), np.ones((2, 2))),
    "probe": (),
    "recv": (),
    "recv_object": (),
    "reduce": (np.ones(2),),
    "reduce_object": (1,),
    "reduce_scatter": (np.ones(2),),
    "rendezvous": (symmem.empty(2),),
    "scan": (np.ones(2),),
    "scatter": (np.ones(2),),
    "scatter_object": ([1],),
    "scatter_v": (np.ones(2), [2, 2]),
    "send": (np.ones(2), 0),
    "send_object": (1, 0),
    "sendrecv": (np.ones(2), 0),
    "sendrecv_object": (1, 0),
    "split": (0,),
    "subgroup": ([0],),
}


def outside(threads: Any) -> symmem.NonMember:
    """That of rank 1 in the subgroup of the even ranks."""

    def main(group: symmem.Group) -> Any:
        part = group.subgroup(range(0, group.size, 2))
        return None if part else part

    found = threads(main, 3)[1]
    assert isinstance(found, symmem.NonMember)
    return found


def refuses(call: Callable[[], Any], op: str | None = None) -> None:
    with pytest.raises(symmem.Invalid, match=r"this rank is not in that subgroup: rank 1 .* \[0, 2\]. Hint: ") as caught:
        call()
    assert op is None or caught.value.op == op and str(caught.value).startswith(f"{op}: ")


def functions() -> list[str]:
    """Every public function that takes a group."""
    found = [getattr(symmem, name) for name in symmem.__all__]
    return [one.__name__ for one in found if inspect.isfunction(one) and "group" in inspect.signature(one).parameters]


def methods() -> list[str]:
    """Every public method and attribute of a group."""
    return [name for name in dir(symmem.Group) if not name.startswith("_")]


def test_it_is_falsy_and_says_what_it_is(threads: Any) -> None:
    found = outside(threads)
    assert not found and found is not None
    assert repr(found) == '<symmem.NonMember: rank 1 of group "default" is not in the subgroup of its ranks [0, 2]>'
    assert getattr(found, "_repr_html_", None) is None
    with pytest.raises(TypeError):
        symmem.NonMember()


def test_every_function_that_takes_a_group_has_arguments_here() -> None:
    assert set(functions()) == set(ARGUMENTS)


@pytest.mark.parametrize("name", functions())
def test_every_function_refuses_it(name: str, threads: Any) -> None:
    found = outside(threads)
    options = {"min_size": 8} if name == "get_symm_mem_workspace" else {}
    # In the place of no group at all there is one to fall back to, which must not be used.
    with symmem.Group(symmem.HashStore(), 0, 1):
        refuses(lambda: getattr(symmem, name)(*ARGUMENTS[name], group=found, **options), name)


@pytest.mark.parametrize("name", methods())
def test_every_method_refuses_it(name: str, threads: Any) -> None:
    found = outside(threads)
    refuses(lambda: getattr(found, name), name)


def test_blocks_mailboxes_and_torch_groups_refuse_it(threads: Any) -> None:
    found: Any = outside(threads)

    def enter() -> None:
        with found:
            raise AssertionError("entered")

    refuses(enter, "with")
    refuses(lambda: symmem.Mailbox(found), "Mailbox")


def torch_functions() -> dict[str, tuple[Any, ...]]:
    """What the functions of `symmem.torch` take in the place of other arguments than the group."""
    torch = pytest.importorskip("torch")
    symm_mem = pytest.importorskip("symmem.torch")
    found: dict[str, tuple[Any, ...]] = {}
    for name in symm_mem.__all__:
        one = getattr(symm_mem, name)
        parameters = inspect.signature(one).parameters if inspect.isfunction(one) else {}
        # Names only, for torch's own registry; and what is an error here whatever the group is.
        if name.endswith("_for_group") or name in ("empty_strided_p2p", "memcpy_to_multicast_"):
            continue
        if {"group", "group_name"} & set(parameters):
            x = symm_mem.empty(4, dtype=torch.float32)
            values = {"reduce_op": "sum", "min_size": 8, "root": 0, "op": "sum", "byte_offset": 0, "split_last_dim": False}
            found[name] = tuple(
                None if key in ("group", "group_name") else values.get(key, x)
                for key, parameter in parameters.items()
                if key in ("group", "group_name") or parameter.default is inspect.Parameter.empty
            )
    return found


def test_every_function_of_symmem_torch_refuses_it(threads: Any) -> None:
    found, tried = outside(threads), torch_functions()
    import symmem.torch as symm_mem

    assert len(tried) > 10
    with symmem.Group(symmem.HashStore(), 0, 1):
        for name, arguments in tried.items():
            given = [found if one is None else one for one in arguments]
            refuses(lambda: getattr(symm_mem, name)(*given))


def forgotten(group: symmem.Group) -> Any:
    even: Any = group.subgroup(range(0, group.size, 2))
    try:
        part = symmem.all_reduce(np.array([1.0 + group.rank]), "sum", even)[0]
    except symmem.Invalid as error:
        part = error.op
    return part, symmem.all_reduce(np.array([100.0]))[0]


def test_a_forgotten_if_is_an_error_and_no_wrong_sum(run: Any) -> None:
    assert run(forgotten, 4) == [(4.0, 400.0), ("all_reduce", 400.0)] * 2


def test_the_types_find_a_forgotten_if(tmp_path: Any) -> None:
    mypy = pytest.importorskip("mypy.api")
    program = tmp_path / "user.py"
    text = "import symmem\ndef main(group: symmem.Group) -> None:\n    even = group.subgroup([0])\n{}    even.barrier()\n"
    program.write_text(text.format("    if not even:\n        return\n"))
    options = ["--strict", "--config-file=", "--cache-dir=/dev/null", str(program)]
    assert mypy.run(options)[2] == 0, mypy.run(options)
    program.write_text(text.format(""))
    said, _, status = mypy.run(options)
    assert status == 1 and 'Item "NonMember"' in said
