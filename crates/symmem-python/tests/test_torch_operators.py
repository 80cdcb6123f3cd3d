"""`torch.ops.symmem`: every operator, eagerly, compiled, under fake tensors and under torch's own checks."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch._inductor.config  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.testing._internal.optests import generate_tests  # noqa: E402
from torch_ranks import run  # noqa: E402
from torch_trials import TRIALS, Trial, filled, group  # noqa: E402

import symmem.torch as symm_mem  # noqa: E402
from symmem.torch.operators import BY_NAME, LEFT_OUT, OPERATORS, library  # noqa: E402

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


def test_the_documentation_has_every_name() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "torch.md"
    if not page.exists():
        pytest.skip("this is no checkout")
    text = page.read_text()
    keys = {"CPU": "CPU", "CUDA": "CUDA", "CompositeExplicitAutograd": "any"}
    for operator in OPERATORS:
        kernel = "Python" if operator.in_python else "Rust, short way" if operator.fast else "Rust"
        row = f"| `{operator.signature}` | {', '.join(keys[key] for key in operator.devices)} | {kernel} |"
        assert row in text, row
    for name in symm_mem.__all__:
        assert name in text, name
    statics = [name for name in vars(symm_mem.SymmetricMemory) if not name.startswith("_")]
    assert all(name in text for name in [*statics, *LEFT_OUT])


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


def symmetric_clones() -> None:
    """opcheck works on copies of the arguments: from now on those of symmetric memory are symmetric."""
    copy = generate_tests.clone_input

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        if not symm_mem.is_symm_mem_tensor(tensor):
            return copy(tensor)
        return symm_mem.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    generate_tests.clone_input = clone


def checked(rank: int, names: list[str]) -> None:
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

    symmetric_clones()
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


def together(rank: int, backend: str) -> None:
    """One graph with handles, signals, in-place and functional operators."""
    ranks = dist.get_world_size()
    x, y = filled(rank + 1, 64), filled(2 * rank, 64)
    name, operators = group(), torch.ops.symmem
    private = torch.full((64,), rank + 1.0)

    def step(x: torch.Tensor, y: torch.Tensor, private: torch.Tensor) -> torch.Tensor:
        handle = operators._rendezvous(x, name)
        operators._barrier(handle)
        summed = operators.one_shot_all_reduce(x, "sum", name)
        operators.two_shot_all_reduce_(y, "max", name)
        operators.nccl_put_signal(private[:3] * 0 - 1, handle, (rank + 1) % ranks)
        operators.nccl_wait_signal(handle, (rank - 1) % ranks)
        part = operators._low_contention_all_gather(private * 2, name)
        return summed * 2 + y + part[:64]

    torch._dynamo.reset()
    torch._dynamo.config.capture_scalar_outputs = True
    # Ranks are daemons, which have no children.
    torch._inductor.config.compile_threads = 1
    dist.barrier()
    result = torch.compile(step, fullgraph=True, backend=backend)(x, y, private)
    total = ranks * (ranks + 1) // 2
    assert torch.equal(result, torch.full((64,), 2.0 * total + 2 * (ranks - 1) + 2)), result
    assert (y == 2 * (ranks - 1)).all(), y
    assert x[:4].tolist() == [-1.0] * 3 + [rank + 1.0], x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_with_many(backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        print("\nskipped: inductor needs a C++ compiler, and there is no g++")
        return
    # Inductor compiles C++ with torch's headers, which takes half a minute of a processor.
    run(together, 2, backend, seconds=300)


def refused(rank: int) -> None:
    """Errors are RuntimeErrors with our text, on every rank that takes part, and the group goes on."""
    name, operators = group(), torch.ops.symmem
    x, out = filled(rank, 8), torch.zeros(8)
    rows, weight, norm = filled(rank, 2, 8), torch.ones(8), operators.all_reduce_rms_norm_out
    wrong: list[tuple[Any, str]] = [
        (lambda: operators.one_shot_all_reduce(x.view(2, 4).t(), "sum", name), "must be contiguous"),
        (lambda: operators.one_shot_all_reduce_out(x, "sum", name, out[:4]), "sizes"),
        (lambda: operators.one_shot_all_reduce_out(x, "sum", name, out.to(torch.int32)), "int32"),
        (lambda: operators.one_shot_all_reduce(x, "median", name), "median"),
        (lambda: operators.reduce_scatter_out(filled(0, 9), name, False, out[:4]), "divisible"),
        (lambda: operators.multimem_one_shot_reduce_out(x, "sum", 99, name, out), r"must be in \[0"),
        (lambda: operators.memset32_(torch.zeros(4), 0, 1, 1), "flat, contiguous uint32"),
        (lambda: operators._barrier(10**6), "is not a handle"),
        (lambda: operators.one_shot_all_reduce(x, "sum", "no such group"), "no such group"),
        (lambda: operators.nvshmem_put(torch.zeros(4), 0), "allocated with"),
        (lambda: operators.memcpy_to_multicast_(x, out, 4, name), "exceeds"),
        (lambda: norm(rows, torch.zeros(1, 8), weight, 1e-5, "sum", name, torch.zeros(2, 8)), "the residual has sizes"),
        (lambda: norm(rows, torch.zeros(2, 8), weight, 1e-5, "sum", name, torch.zeros(16)), "the output has sizes"),
        (lambda: norm(rows, torch.zeros(2, 8), weight[:7], 1e-5, "sum", name, torch.zeros(2, 8)), "a weight of shape"),
        (lambda: norm(rows, torch.zeros(2, 8), None, 1e-5, "sum", name, torch.zeros(2, 8)), "has a residual and a weight"),
        (lambda: norm(rows, torch.zeros(2, 8), weight, 1e-5, "avg", name, torch.zeros(2, 8)), "for devices"),
    ]
    if library.is_stable():
        # Kernels in Python take complex numbers as pairs.
        numbers = torch.zeros(4, dtype=torch.complex64)
        wrong.append((lambda: operators.two_shot_all_reduce_(numbers, "sum", name), "elements"))
    for call, text in wrong:
        with pytest.raises(RuntimeError, match=text):
            call()
        dist.barrier()
    # One rank alone is wrong: the others learn why.
    with pytest.raises(RuntimeError, match="contiguous"):
        operators.two_shot_all_reduce_(x.view(2, 4).t() if rank == 1 else x, "sum", name)
    x.fill_(1)
    dist.barrier()
    assert operators.one_shot_all_reduce(x, "sum", name)[0] == dist.get_world_size()


def test_errors_are_runtime_errors_with_our_text() -> None:
    run(refused, 2)


def told(rank: int) -> None:
    """What is wrong on one rank alone is told to the others, also what is seen before the first of several collectives."""
    name, wrong, operators = group(), rank == 0, torch.ops.symmem
    x, out = torch.arange(8.0).view(4, 2), torch.zeros(16, 2)
    two, four = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)

    def numbers(right: list[Any], odd: list[Any]) -> Any:
        return torch.tensor(odd if wrong else right)

    calls: list[tuple[str, Any]] = [
        ("as -1 is", lambda: operators.all_to_all_vdev(x, out, numbers([1, 1], [3, -1]), two, name)),
        ("as -1 is", lambda: operators.all_to_all_vdev_2d(x, out, numbers([1] * 4, [-1, 3, 0, 0]), four, name)),
        (
            "as -3 is",
            lambda: operators.all_to_all_vdev_2d_offset(
                x, out, numbers([[1] * 4, [0, 1, 2, 3]], [[1] * 4, [0, -3, 2, 3]]), four, name
            ),
        ),
        ("must be non-negative", lambda: operators.nccl_reduce_scatter_offset(x, [out[:2]], name, 0, [3, 2] if wrong else [2, 4])),
        ("has no parts", lambda: operators._low_contention_reduce_scatter(torch.tensor(1.0) if wrong else x, "sum", name)),
        ("out of range", lambda: operators._low_contention_all_gather(torch.tensor(1.0) if wrong else x, name)),
    ]
    for words, call in calls:
        started = time.monotonic()
        with pytest.raises((RuntimeError, IndexError), match=words):
            call()
        assert time.monotonic() - started < 10, words
        operators.nvshmem_broadcast(torch.ones(1), 0, name)


def test_what_is_wrong_on_one_rank_is_told_to_the_others() -> None:
    run(told, 2)


def nothing_on_one(rank: int) -> None:
    """A rank whose tensor has no elements is in another call than the others, and all hear of it; where nobody has any they go on."""
    name, operators = group(), torch.ops.symmem
    symmetric = filled(1.0, 8)
    symm_mem.rendezvous(symmetric, name)
    for tensor in (symmetric, torch.ones(8)):
        for ranks in ((0,), (0, 1)):
            x = tensor[:0] if rank in ranks else tensor
            like, part = torch.zeros(x.shape), torch.zeros(len(x) // 2)
            calls: list[Any] = [
                lambda x=x: operators.one_shot_all_reduce(x, "sum", name),
                lambda x=x, like=like: operators.two_shot_all_reduce_out(x, "sum", name, like),
                lambda x=x: operators.two_shot_all_reduce_(x, "sum", name),
                lambda x=x, like=like: operators.one_shot_all_reduce_copy_out(tensor, x.clone(), "sum", name, like),
                lambda x=x, part=part: operators.reduce_scatter_out(x, name, False, part),
                lambda x=x, like=like: operators.nvshmem_all_to_all(x, like, name),
            ]
            for call in calls:
                if ranks == (0, 1):
                    call()
                    continue
                started = time.monotonic()
                with pytest.raises(RuntimeError, match="disagree"):
                    call()
                assert time.monotonic() - started < 10


def test_a_rank_with_nothing_keeps_nobody_waiting() -> None:
    run(nothing_on_one, 2)


def counted(rank: int) -> None:
    """What an operator writes counts as written, so that autograd notices."""
    name, operators = group(), torch.ops.symmem
    x, out = filled(1, 4), torch.zeros(4)
    operators.two_shot_all_reduce_(x, "sum", name)
    operators.one_shot_all_reduce_out(x, "sum", name, out)
    assert (x._version, out._version) == (2, 1)
    weight = torch.ones(4, requires_grad=True)
    saved = torch.full((4,), 2.0)
    product = (weight * saved).sum()
    operators.two_shot_all_reduce_(saved, "sum", name)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with torch.inference_mode():
        operators.two_shot_all_reduce_(torch.ones(4), "sum", name)
    many = [torch.zeros(1, 4), torch.zeros(1, 4)]
    operators.nccl_reduce_scatter_offset(torch.ones(4, 4), many, name, 0, [1, 2, 3, 4])
    assert [each._version for each in many] == [1, 1]


def test_writes_are_counted() -> None:
    run(counted, 2)


def remade(rank: int, path: str) -> None:
    """Memory at an address that was another's, and a group whose name was another's, are not taken for those."""
    operators = torch.ops.symmem
    for size in (1000, 1000, 2000):
        x = filled(rank + 1, size)
        assert (operators.one_shot_all_reduce(x, "sum", group()) == 3).all()
        assert (operators.one_shot_all_reduce(x[100:200], "sum", group()) == 3).all()
        dist.barrier()
        del x
    kept = filled(rank + 1, 16)
    assert (operators.one_shot_all_reduce(kept, "sum", group()) == 3).all()
    name = group()
    dist.destroy_process_group()
    dist.init_process_group("symmem", store=dist.FileStore(path, 2), rank=rank, world_size=2)
    assert group() == name
    assert (operators.one_shot_all_reduce(kept, "sum", name) == 3).all()


def test_memory_and_groups_are_not_taken_for_earlier_ones(tmp_path: Any) -> None:
    run(remade, 2, str(tmp_path / "store"))


def kept_beside(rank: int, path: str) -> None:
    """The same with groups of Gloo, of which symmem's torch hears nothing, and which rank 0 keeps after their end."""
    kept, old = filled(rank + 1, 16), []
    for number in range(3):
        name = group()
        for _ in range(2):
            assert (torch.ops.symmem.one_shot_all_reduce(kept, "sum", name) == 3).all()
            assert (symm_mem.one_shot_all_reduce(kept, "sum", name) == 3).all()
            assert (symm_mem.one_shot_all_reduce(kept, "sum", None) == 3).all()
        part = dist.new_group([1, 0], backend="gloo")
        theirs = symm_mem.rendezvous(kept, part).raw.group
        ours = symm_mem.rendezvous(kept, name).raw.group
        if rank == 0:
            old += [part, dist.group.WORLD]
        dist.destroy_process_group(part)
        assert theirs.closed and not ours.closed
        dist.destroy_process_group()
        assert ours.closed
        dist.init_process_group("gloo", store=dist.FileStore(f"{path}{number}", 2), rank=rank, world_size=2)
        assert group() == name


def test_groups_of_another_backend_are_not_taken_for_earlier_ones(tmp_path: Any) -> None:
    run(kept_beside, 2, str(tmp_path / "store"), backend="gloo")


def released(rank: int) -> None:
    """What an operator remembers does not keep memory."""

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("symmem" in line for line in maps)

    counts = []
    for _ in range(5):
        x = filled(1, 1 << 16)
        torch.ops.symmem.two_shot_all_reduce_(x, "sum", group())
        dist.barrier()
        del x
        dist.barrier()
        counts.append(mapped())
    assert counts[0] > 0 and counts[-1] == counts[0], f"memory of tensors that are gone stays mapped: {counts}"


def test_memory_goes_with_its_tensor() -> None:
    run(released, 2)


def numbered(rank: int) -> None:
    """A number is that of its memory, and goes with it."""
    operators = torch.ops.symmem
    x, y = filled(1, 8), filled(2, 8)
    number = operators._rendezvous(x, group())
    assert operators._rendezvous(x, group()) == number != operators._rendezvous(y, group())
    dist.barrier()
    del x
    z = filled(3, 8)
    assert operators._rendezvous(z, group()) != number
    with pytest.raises(RuntimeError, match="is not a handle"):
        operators._barrier(number)
    dist.barrier()


def test_a_handle_is_of_its_memory() -> None:
    run(numbered, 2)


def interrupted(rank: int) -> None:
    """Ctrl-C ends a wait in an operator, and is a KeyboardInterrupt."""
    import os
    import signal
    import threading

    x = filled(1, 8)
    torch.ops.symmem.two_shot_all_reduce_(x, "sum", group())
    dist.barrier()
    if rank == 0:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            try:
                torch.ops.symmem.two_shot_all_reduce_(x, "sum", group())
            except RuntimeError:
                threading.Event().wait(5)
        timer.join()
    dist.barrier()


def test_a_wait_in_an_operator_ends_on_a_signal() -> None:
    run(interrupted, 2)


IN_PYTHON = """
import sys
sys.path[:0] = [{folder!r}, {folder!r} + "/gpu"]
from symmem import _symmem
_symmem._torch_is_stable = lambda: False
import torch_ranks
from test_torch_operators import NAMES, checked, counted, eagerly


def without(rank, function, *args):
    assert not symmem.torch.operators.library.is_stable()
    function(rank, *args)


import symmem.torch

if __name__ == "__main__":
    import torch_ranks

    torch_ranks.run(without, 2, eagerly, NAMES)
    torch_ranks.run(without, 2, checked, NAMES[0::4])
    torch_ranks.run(without, 2, counted)
    print("done")
"""


def test_an_older_torch_has_the_same_in_python(script: Any) -> None:
    """Where torch has no interface for extensions, kernels are Python's; their schemas and results are the same."""
    done = script(IN_PYTHON.format(folder=str(Path(__file__).parent)))
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]
