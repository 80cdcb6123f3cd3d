"""`torch.ops.symmem`: every operator, eagerly, compiled, under fake tensors and under torch's own checks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.optests import generate_tests  # noqa: E402
from torch_ranks import run  # noqa: E402
from torch_trials import TRIALS, Trial, filled, group  # noqa: E402

import symmem  # noqa: E402
import symmem.torch as symm_mem  # noqa: E402
from symmem.torch.operators import BY_NAME, LEFT_OUT, OPERATORS  # noqa: E402

#: opcheck's test that compiles clones the arguments inside of what it compiles, and a clone is not symmetric. Collectives work on one all the
#: same. These do not, because they write or read where peers have the same address: the test leaves them out, `compiled` tries them as they are.
NEEDS_ITS_OWN_MEMORY = {
    "_rendezvous",
    "get_remote_tensors",
    "memcpy_to_multicast_",
    "nccl_get",
    "nccl_put",
    "nccl_put_with_signal",
    "nvshmem_get",
    "nvshmem_put",
    "nvshmem_put_with_signal",
}


def test_every_operator_has_a_trial() -> None:
    assert set(TRIALS) == set(BY_NAME)
    assert not set(LEFT_OUT) & set(BY_NAME)
    assert len(BY_NAME) == len(OPERATORS)


def test_operators_that_write_return_nothing() -> None:
    for operator in OPERATORS:
        schema = getattr(torch.ops.symmem, operator.name).default._schema
        writes = any(argument.is_write for argument in schema.arguments)
        returned = [str(each.type) for each in schema.returns]
        assert not any(each.alias_info for each in schema.returns), operator.name
        assert not writes or not returned or operator.name == "one_shot_all_reduce_copy", operator.name


def test_kernels_are_for_these_devices_only() -> None:
    for operator in OPERATORS:
        name = f"symmem::{operator.name}"
        for key in ("CPU", "CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
            there = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
            assert there == (key in operator.devices), (name, key)


def _tried(rank: int, names: list[str], call: Any) -> None:
    for name in names:
        trial = TRIALS[name](rank, dist.get_world_size())
        overload = getattr(torch.ops.symmem, name).default
        try:
            with trial.running():
                result = call(overload, trial)
            if result is not NotImplemented:
                trial.check(result)
        except BaseException as error:
            error.add_note(f"operator {name}")
            raise


def eagerly(rank: int, names: list[str]) -> None:
    _tried(rank, names, lambda overload, trial: overload(*trial.args))


def compiled(rank: int, names: list[str], backend: str) -> None:
    def call(overload: Any, trial: Trial) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda *args: overload(*args), fullgraph=True, backend=backend)(*trial.args)

    _tried(rank, names, call)


def checked(rank: int, names: list[str]) -> None:
    copy = generate_tests.clone_input

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        """opcheck works on copies of the arguments: those of symmetric memory must be symmetric."""
        if not symm_mem.is_symm_mem_tensor(tensor):
            return copy(tensor)
        return symm_mem.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def call(overload: Any, trial: Trial) -> Any:
        name = overload._schema.name.partition("::")[2]
        if "_put" in name:
            # What a peer writes meanwhile must be there already: opcheck would take it for the operator's doing.
            for tensor in trial.args:
                if isinstance(tensor, torch.Tensor):
                    tensor.fill_(77)
            dist.barrier()
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        if name not in NEEDS_ITS_OWN_MEMORY:
            tests.append("test_aot_dispatch_dynamic")
        torch.library.opcheck(overload, trial.args, test_utils=tests)
        return NotImplemented

    generate_tests.clone_input = clone
    _tried(rank, names, call)


def fake(rank: int, names: list[str]) -> None:
    """Under fake tensors operators give what they give otherwise, but for the elements."""
    for name in names:
        trial = TRIALS[name](rank, dist.get_world_size())
        overload = getattr(torch.ops.symmem, name).default
        with trial.running():
            real = overload(*trial.args)
        mode = FakeTensorMode()
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, trial.args)
        with mode:
            told = overload(*fakes) if name != "_rendezvous" else 0
        for one, other in zip(
            torch.utils._pytree.tree_leaves(real), torch.utils._pytree.tree_leaves(told), strict=True
        ):
            if isinstance(one, torch.Tensor):
                assert isinstance(other, torch._subclasses.FakeTensor), name
                facts = [(each.shape, each.dtype, each.stride(), each.device) for each in (one, other)]
                assert facts[0] == facts[1], name


NAMES = sorted(BY_NAME)
HALVES = [NAMES[0::2], NAMES[1::2]]


@pytest.mark.parametrize("ranks", [2, 4])
def test_eagerly(ranks: int) -> None:
    run(eagerly, ranks, NAMES)


def test_under_fake_tensors() -> None:
    run(fake, 2, NAMES)


def test_compiled_by_dynamo() -> None:
    run(compiled, 2, [name for name in NAMES if name != "_rendezvous"], "eager")


@pytest.mark.parametrize("names", HALVES, ids=["even", "odd"])
def test_compiled_by_inductor(names: list[str]) -> None:
    if shutil.which("g++") is None:
        print("\nskipped: inductor needs a C++ compiler, and there is no g++")
        return
    run(compiled, 2, [name for name in names if name not in NOT_COMPILED], "inductor")


#: A number that an operator makes cannot be a constant of a compiled graph, nor become the argument of another one.
NOT_COMPILED = {"_rendezvous"}


@pytest.mark.parametrize("names", HALVES, ids=["even", "odd"])
def test_opcheck(names: list[str]) -> None:
    run(checked, 2, names)
