"""`symmem.torch.install()`: programs that know only torch run on symmem, and on torch again after `uninstall()`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._symmetric_memory as theirs  # noqa: E402
from test_torch_operators import NEEDS_ITS_OWN_MEMORY, symmetric_clones  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch_ranks import run  # noqa: E402
from torch_trials import EIGHTHS, TRIALS as OURS  # noqa: E402

import symmem.torch  # noqa: E402

#: Operators of torch 2.11 that return what they write: torch.compile beyond its front end, and opcheck, refuse such operators outside of aten.
ALIASED = {
    "memset32_",
    "multimem_all_gather_out",
    "multimem_all_reduce_",
    "multimem_one_shot_all_reduce_out",
    "multimem_one_shot_reduce_out",
    "nvshmem_all_to_all",
    "nvshmem_broadcast",
    "one_shot_all_reduce_copy_out",
    "one_shot_all_reduce_out",
    "reduce_scatter_out",
    "stream_write_value32_",
    "two_shot_all_reduce_",
    "two_shot_all_reduce_out",
}

#: Those whose schema is not the truth, or whose shape function is torch's and differs from what its own kernels return.
NOT_CHECKED = {
    "one_shot_all_reduce_copy": "the schema does not say that the buffer is written",
    "nccl_put_with_signal": "the schema gives an argument an alias set and writes nothing",
    "nvshmem_put_with_signal": "the same",
    "fused_all_gather_scaled_matmul": "torch's shape function takes 8-bit numbers only, which opcheck cannot compare",
    "fused_scaled_matmul_reduce_scatter": "the same",
}

#: Taken over in no way, and why.
LEFT = {"_barrier", "_rendezvous", "nccl_put_signal", "nccl_wait_signal"}
#: What newer versions of torch have besides.
LEFT_NEWER = {"nccl_get_out", "nvshmem_get_out"}
ALIASED_NEWER = {"_low_contention_all_gather_ce_multicast_out"}


TRIALS = {**OURS, **EIGHTHS}


def carried() -> list[str]:
    return sorted(symmem.torch.install().operators)


def overload(name: str) -> Any:
    return getattr(torch.ops.symm_mem, name).default


def test_the_lists_are_those_of_this_torch() -> None:
    report = symmem.torch.install()
    try:
        names = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("symm_mem::")}
        left = set(report.left) & names
        assert set(report.operators) | left == names
        assert left - LEFT_NEWER == LEFT
        assert set(report.operators) <= set(TRIALS)
        aliased = {name for name in report.operators if any(each.alias_info for each in overload(name)._schema.returns)}
        assert aliased - ALIASED_NEWER == ALIASED
    finally:
        symmem.torch.uninstall()


@contextlib.contextmanager
def stderr() -> Iterator[list[str]]:
    """What is written to the descriptor, also by C++."""
    text: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text.append(file.read())


def test_both_ways_say_what_they_did_and_can_be_repeated() -> None:
    before = {name: getattr(theirs, name) for name in dir(theirs)}
    kernel = torch._C._dispatch_dump("symm_mem::one_shot_all_reduce")
    with stderr() as text:
        report = symmem.torch.install()
        assert symmem.torch.install() is report
    assert text == [""], "torch warns of kernels that are put over others: install() says so instead"
    assert "one_shot_all_reduce" in report.overridden and "one_shot_all_reduce" in str(report)
    assert all(name in str(report) for name in LEFT)
    assert theirs.empty is symmem.torch.empty and theirs._SymmetricMemory is symmem.torch.SymmetricMemory
    assert c10d._SymmetricMemory is symmem.torch.SymmetricMemory
    assert "symmem" in torch._C._dispatch_dump("symm_mem::one_shot_all_reduce")
    assert "back" in symmem.torch.uninstall()
    assert "nothing" in symmem.torch.uninstall()
    assert {name: getattr(theirs, name) for name in dir(theirs)} == before
    assert torch._C._dispatch_dump("symm_mem::one_shot_all_reduce") == kernel
    with pytest.raises(NotImplementedError):
        torch.ops.symm_mem.memset32_(torch.zeros(4, dtype=torch.uint32), 0, 1, 1)


def test_nothing_is_taken_over_by_the_import(script: Any) -> None:
    done = script(
        """
import torch
import torch.distributed._symmetric_memory as theirs
names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("symm_mem::")]
state = [torch._C._dispatch_dump(name) for name in names], vars(theirs).copy()
import symmem.torch
assert state == ([torch._C._dispatch_dump(name) for name in names], vars(theirs))
print("same")
"""
    )
    assert done.stdout == "same\n", done.stderr


def eagerly(rank: int) -> None:
    for name in carried():
        trial = TRIALS[name](rank, dist.get_world_size())
        with trial.running():
            result = overload(name)(*trial.args)
        if name in ALIASED:
            (returned,) = overload(name)._schema.returns
            sets = [each.alias_info and each.alias_info.before_set for each in overload(name)._schema.arguments]
            same = trial.args[sets.index(returned.alias_info.before_set)]
            assert result is same or result.data_ptr() == same.data_ptr(), name
            result = None
        trial.check(result)


def compiled(rank: int) -> None:
    for name in carried():
        trial = TRIALS[name](rank, dist.get_world_size())
        torch._dynamo.reset()
        function = torch.compile(lambda *args, op=overload(name): op(*args), fullgraph=True, backend="eager")
        with trial.running():
            result = function(*trial.args)
        trial.check(None if name in ALIASED else result)


def checked(rank: int) -> None:
    symmetric_clones()
    for name in carried():
        if name in ALIASED | ALIASED_NEWER or name in NOT_CHECKED:
            continue
        trial = TRIALS[name](rank, dist.get_world_size())
        if "_put" in name:
            trial.args[0].fill_(77)
            dist.barrier()
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        if name not in NEEDS_ITS_OWN_MEMORY:
            tests.append("test_aot_dispatch_dynamic")
        try:
            with trial.running():
                torch.library.opcheck(overload(name), trial.args, test_utils=tests)
        except BaseException as error:
            error.add_note(f"operator {name}")
            raise


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_operator(ranks: int) -> None:
    run(eagerly, ranks)


def test_every_operator_compiled_by_dynamo() -> None:
    run(compiled, 2)


def test_opcheck() -> None:
    run(checked, 2)


def program(rank: int) -> dict[str, Any]:
    """A program that knows torch only."""
    import torch.distributed._symmetric_memory as symm_mem

    ranks, name = dist.get_world_size(), dist.group.WORLD.group_name
    t = symm_mem.empty(4 * ranks, dtype=torch.float32, device="cpu")
    hdl = symm_mem.rendezvous(t, name)
    t.fill_(rank + 1)
    hdl.barrier(channel=0)
    seen = [hdl.get_buffer(peer, t.shape, t.dtype)[0].item() for peer in range(ranks)]
    hdl.barrier(channel=1)
    out = torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name)
    part = torch.empty(4)
    torch.ops.symm_mem.reduce_scatter_out(t, name, False, part)
    hdl.put_signal(dst_rank=(rank + 1) % ranks)
    hdl.wait_signal(src_rank=(rank - 1) % ranks)
    torch.ops.symm_mem.two_shot_all_reduce_(t, "sum", name)
    workspace = symm_mem.get_symm_mem_workspace(name, 256)
    gathered = torch.ops.symm_mem._low_contention_all_gather(torch.full((1,), float(rank)), name)
    product = torch.ops.symm_mem.fused_matmul_reduce_scatter(torch.ones(ranks, 3), torch.ones(3, 2), "avg", 0, name)
    return {
        "seen": seen,
        "out": out.tolist(),
        "part": part.tolist(),
        "t": t.tolist(),
        "gathered": torch.ops._c10d_functional.wait_tensor(gathered).tolist(),
        "product": product.tolist(),
        "workspace": workspace.buffer_size >= 256,
        "enabled": symm_mem.is_symm_mem_enabled_for_group(name),
    }


def installed(rank: int) -> dict[str, Any]:
    symmem.torch.install()
    return program(rank)


@pytest.mark.parametrize("backend", ["symmem", "gloo"])
def test_a_program_that_knows_torch_only(backend: str) -> None:
    total = 3.0
    expected = {
        "seen": [1.0, 2.0],
        "out": [total] * 8,
        "part": [total] * 4,
        "t": [total] * 8,
        "gathered": [0.0, 1.0],
        "product": [[3.0, 3.0]],
        "workspace": True,
        "enabled": True,
    }
    assert run(installed, 2, backend=backend) == [expected, expected]
